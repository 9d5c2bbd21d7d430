"""Runs are deleted only where a deployment asks for it, and only those of the application. On sqlite."""

import ast
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetKey,
    AssetMaterialization,
    DagsterInstance,
    DagsterInvalidConfigError,
    Definitions,
    ScheduleDefinition,
    build_schedule_context,
    job,
    validate_run_config,
)
from dagster._core.events import DagsterEvent, DagsterEventType
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

import kcl_dagster as kcl
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.orchestration import asset_checks, pruning
from kcl_dagster.orchestration import leader_sensor as sensor
from kcl_dagster.orchestration.admin_job import config_of
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.pruning import prune
from kcl_dagster.orchestration.run_storage import APPLICATION_TAG
from kcl_dagster.orchestration.translator import KclTranslator
from kcl_dagster.worker.events import EventKind

pytestmark = pytest.mark.slow

TRANSLATOR = KclTranslator()
LEASES = AssetKey(["app", "leases"])


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[DagsterInstance]:
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with DagsterInstance.from_config(str(tmp_path)) as sqlite:
        yield sqlite


@pytest.fixture
def consumer() -> Consumer:
    make = kcl.kcl_consumer(application="app", stream="stream", sink=kcl.parquet("unused"), name="things")

    def things(records: Any) -> Any:
        return records

    return make(things)


def definitions(consumer: Consumer, days: int | None = None) -> Definitions:
    resources = {"kcl": kcl.KclResource(region_name="us-east-1")}
    return kcl.build_kcl_definitions(consumer, resources=resources, compaction=None, prune_after_days=days)


@job
def _never_executed() -> None:
    """Stands for the worker job in the run storage."""


def runs(instance: DagsterInstance) -> dict[str, str]:
    """A running and a finished run of the application, and a finished one of another."""
    found = {
        name: instance.create_run_for_job(_never_executed, tags={APPLICATION_TAG: application})
        for name, application in (("going on", "app"), ("over", "app"), ("another's", "another"))
    }
    for name in ("over", "another's"):
        instance.report_run_failed(found[name])
    return {name: run.run_id for name, run in found.items()}


def test_only_finished_runs_of_the_application_go(instance: DagsterInstance) -> None:
    instance.report_runless_asset_event(AssetMaterialization(LEASES))
    made = runs(instance)
    later = datetime.now(UTC) + timedelta(minutes=1)

    assert prune(instance, "app", later - timedelta(hours=1)) == []
    assert prune(instance, "app", later, dry_run=True) == [made["over"]]
    assert len(instance.get_run_records()) == 3
    assert prune(instance, "app", later) == [made["over"]]
    assert {record.dagster_run.run_id for record in instance.get_run_records()} == {
        made["going on"],
        made["another's"],
    }
    assert prune(instance, "app", later) == []
    assert instance.get_latest_materialization_event(LEASES) is not None


def test_a_loss_that_nobody_has_acknowledged_outlives_the_run_that_told_of_it(
    instance: DagsterInstance, consumer: Consumer
) -> None:
    """Dagster keeps evaluations of checks apart from the events of runs."""
    run = instance.create_run_for_job(_never_executed, tags={APPLICATION_TAG: "app"})
    told = asset_checks.alarm(
        EventKind.DATA_LOST, "shardId-7: records 10 to 20 have left the stream", consumer, TRANSLATOR
    )
    assert told is not None
    event = DagsterEvent(
        DagsterEventType.ASSET_CHECK_EVALUATION.value, _never_executed.name, event_specific_data=told
    )
    instance.report_dagster_event(event, run.run_id)
    instance.report_run_failed(run)
    assert prune(instance, "app", datetime.now(UTC) + timedelta(minutes=1)) == [run.run_id]
    assert instance.get_run_by_id(run.run_id) is None

    [(key, kept)] = instance.event_log_storage.get_latest_asset_check_execution_by_key(
        [told.asset_check_key]
    ).items()
    assert key.name == asset_checks.LOSS.name
    assert kept.status is AssetCheckExecutionRecordStatus.FAILED
    assert kept.event is not None
    evaluation = kept.event.asset_check_evaluation
    assert evaluation is not None
    assert not evaluation.passed
    assert "records 10 to 20" in str(evaluation.description)
    assert sensor._evaluated(consumer, TRANSLATOR, instance) == [asset_checks.LOSS.name], "a new leader knows of it"


@pytest.mark.audit("D13")
def test_nothing_is_pruned_unless_a_deployment_asks_for_it(consumer: Consumer) -> None:
    without = definitions(consumer)
    assert not without.schedules
    with pytest.raises(DagsterInvalidConfigError, match='unexpected config entry "prune"'):
        validate_run_config(without.resolve_job_def("app_admin"), config_of(consumer, "prune"))
    asked = definitions(consumer, days=30)
    [schedule] = asked.schedules or ()
    assert isinstance(schedule, ScheduleDefinition)
    assert (schedule.name, schedule.job_name) == ("app_prune_nightly", "app_admin")
    nightly = schedule.evaluate_tick(build_schedule_context()).run_requests
    assert nightly is not None
    assert [one.run_config for one in nightly] == [config_of(consumer, "prune", days=30, dry_run=False)]
    assert validate_run_config(asked.resolve_job_def("app_admin"), nightly[0].run_config)
    with pytest.raises(ConfigurationError, match="one day at least"):
        definitions(consumer, days=0)


@pytest.mark.audit("D13")
def test_a_click_in_the_launchpad_only_counts(instance: DagsterInstance, consumer: Consumer) -> None:
    made = runs(instance)
    admin = definitions(consumer, days=1).resolve_job_def("app_admin")
    assert admin.execute_in_process(config_of(consumer, "prune"), instance=instance).success
    assert instance.get_run_by_id(made["over"]) is not None


@pytest.mark.audit("D13")
def test_pruning_uses_what_dagster_makes_public() -> None:
    tree = ast.parse(Path(pruning.__file__).read_text())
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [name for name in modules if "._" in name or name.startswith("sqlalchemy")]
    for method in ("get_run_records", "delete_run"):
        assert getattr(getattr(DagsterInstance, method), "_is_public", False)
