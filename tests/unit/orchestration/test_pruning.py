"""Old events and runs go, everything else stays. On sqlite, as `dagster dev` has it."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from dagster import AssetCheckEvaluation, AssetCheckKey, AssetKey, AssetMaterialization, DagsterInstance, job

import kcl_dagster as kcl
from kcl_dagster.leader.report import StreamSight
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.observation import Decision, Observation
from kcl_dagster.orchestration.pruning import Pruned, build_kcl_prune_job, prune, told_about
from kcl_dagster.orchestration.reporting import Reporter
from kcl_dagster.orchestration.runs import APPLICATION_TAG
from kcl_dagster.orchestration.translator import KclTranslator

LEASES, OTHER = AssetKey(["app", "leases"]), AssetKey("somebody_elses")


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[DagsterInstance]:
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with DagsterInstance.from_config(str(tmp_path)) as sqlite:
        yield sqlite


@pytest.fixture
def consumer() -> Consumer:
    return kcl.kcl_consumer(application="app", stream="stream", sink=kcl.parquet("unused"))(lambda records: records)


def materializations(instance: DagsterInstance, key: AssetKey) -> int:
    return len(instance.fetch_materializations(key, limit=100).records)


@job
def _never_executed() -> None:
    """Stands for the worker job in the run storage."""


def test_only_old_events_of_the_application_and_its_finished_runs_go(instance: DagsterInstance) -> None:
    for key in (LEASES, LEASES, OTHER):
        instance.report_runless_asset_event(AssetMaterialization(key))
    ours = instance.create_run_for_job(_never_executed, tags={APPLICATION_TAG: "app"})
    over = instance.create_run_for_job(_never_executed, tags={APPLICATION_TAG: "app"})
    others = instance.create_run_for_job(_never_executed, tags={APPLICATION_TAG: "another"})
    for run in (over, others):
        instance.report_run_failed(run)
    later = datetime.now(UTC) + timedelta(minutes=1)
    earlier = later - timedelta(hours=1)

    assert prune(instance, "app", [LEASES], earlier) == Pruned(events=0, runs=0)
    assert prune(instance, "app", [LEASES], later, dry_run=True) == Pruned(events=2, runs=1)
    assert materializations(instance, LEASES) == 2
    assert prune(instance, "app", [LEASES], later) == Pruned(events=2, runs=1)

    assert (materializations(instance, LEASES), materializations(instance, OTHER)) == (0, 1)
    assert {run.run_id for run in instance.get_runs()} == {ours.run_id, others.run_id}
    assert prune(instance, "app", [LEASES], later) == Pruned(events=0, runs=0)
    assert instance.get_latest_materialization_event(LEASES) is not None, "what the overview shows survives"


def test_the_job_keeps_two_weeks_and_can_be_tried_out(instance: DagsterInstance, consumer: Consumer) -> None:
    instance.report_runless_asset_event(AssetMaterialization(LEASES))
    pruning = build_kcl_prune_job(consumer)
    configured = {"ops": {"app_forget": {"config": {"days": 14, "dry_run": True}}}}
    assert pruning.execute_in_process(run_config=configured, instance=instance).success
    assert pruning.execute_in_process(instance=instance).success
    assert materializations(instance, LEASES) == 1


def test_whatever_the_leader_tells_can_be_forgotten(instance: DagsterInstance, consumer: Consumer) -> None:
    seen = Observation(streams=[StreamSight("stream", 1)], decisions=[Decision("note", "a beginning")])
    told = Reporter(consumer, KclTranslator()).events(seen, 0.0)
    for event in told:
        instance.report_runless_asset_event(event)
    later = datetime.now(UTC) + timedelta(minutes=1)
    keys = told_about(consumer, KclTranslator())
    assert prune(instance, "app", [OTHER], later) == Pruned(events=0, runs=0)
    assert prune(instance, "app", keys, later) == Pruned(events=len(told), runs=0)
    checks = [(e.asset_key, e.check_name) for e in told if isinstance(e, AssetCheckEvaluation)]
    latest = instance.event_log_storage.get_latest_asset_check_execution_by_key(
        [AssetCheckKey(*names) for names in checks]
    )
    assert len(latest) == len(checks), "what the page of a check shows survives"
