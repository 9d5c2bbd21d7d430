"""A check that somebody executes looks at the tables itself, and waits to see whether the leader lives."""

from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.orchestration import asset_checks as checks
from kcl_dagster.orchestration.check_definitions import look
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.tables.table_layout import detect_layout
from kcl_dagster.tables.workers import WorkerTable
from tests.doubles.clock import FakeClock
from tests.unit.orchestration.conftest import Bench

pytestmark = pytest.mark.slow


class Waiting(FakeClock):
    """Something happens while somebody waits."""

    def __init__(self, meanwhile: Callable[[], Any]) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._meanwhile()


def read_by_a_worker(bench: Bench, behind_ms: int) -> None:
    """A worker reads both shards. The lag of a shard that no worker reads is not known, and the checks warn."""
    bench.tick()
    application, dynamodb = bench.consumer.application, bench.resource.client("dynamodb")
    behind = {LeaseKey(f"shardId-{number:012d}"): behind_ms for number in (0, 1)}
    now = int(system().clock.now())
    row = WorkerRow(WorkerId("worker-000:a"), now, averages={}, slot="worker-000", run_id="a", behind=behind)
    WorkerTable(dynamodb, application, detect_layout(dynamodb, application), system()).put(row)
    bench.tick()  # it gets the leases


def problems(bench: Bench, clock: FakeClock) -> dict[str, str]:
    seen = look(bench.consumer.application, bench.resource, Runtime(clock=clock))
    return {check.name: found.what for check, found in checks.evaluate(seen, bench.consumer) if found is not None}


def test_a_leader_that_renews_its_lock_is_seen_to_live(bench: Bench) -> None:
    bench.tick()
    clock = Waiting(bench.tick)
    started = clock.monotonic()
    assert "application_has_leader" not in problems(bench, clock)
    assert clock.monotonic() - started < 5.0, "one look more is enough"


def test_a_leader_that_is_gone_is_found_out(bench: Bench) -> None:
    bench.tick()
    assert "holds the leader lock and does not renew it" in problems(bench, FakeClock())["application_has_leader"]


def test_leases_without_a_worker_are_found(bench: Bench) -> None:
    bench.tick()
    assert LeaseKey("shardId-000000000001") in problems(bench, FakeClock())["leases_are_served"]


def test_a_shard_that_is_near_the_end_of_its_retention_is_found(bench: Bench) -> None:
    """Executing the check must not silence what the leader has told."""
    read_by_a_worker(bench, behind_ms=round(0.95 * 86_400_000))
    assert "95% of the retention is used up" in problems(bench, FakeClock())["retention_is_safe"]


def test_executing_a_check_acknowledges_a_loss(bench: Bench) -> None:
    """What is over stays failed until somebody has seen it; see `KclCheck.acknowledged`."""
    read_by_a_worker(bench, behind_ms=0)
    definitions = bench.definitions
    checked = dg.define_asset_job(
        "acknowledge",
        selection=dg.AssetSelection.checks_for_assets(dg.AssetKey([bench.consumer.application.name, "lag"])),
    )
    job = dg.Definitions.merge(definitions, dg.Definitions(jobs=[checked])).resolve_job_def("acknowledge")
    result = job.execute_in_process(instance=bench.instance)
    evaluated = {evaluation.check_name: evaluation.passed for evaluation in result.get_asset_check_evaluations()}
    assert evaluated == dict.fromkeys(
        (
            "lag_is_on_target",
            "retention_is_safe",
            "no_records_lost",
            "no_shard_is_stopped",
            "no_poison_records",
            "no_broken_aggregates",
        ),
        True,
    )
    # What a run says is forgotten with the next event of the asset, which comes in a minute.
    keys = [key for key in definitions.resolve_asset_graph().asset_check_keys if key.name in evaluated]
    latest = bench.instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    assert {record.run_id for record in latest.values()} == {""}
    assert len(latest) == len(evaluated)


@pytest.mark.audit("F3")
def test_the_check_of_the_records_can_be_executed(bench: Bench) -> None:
    """Its asset has partitions, and the check has none."""
    bench.tick()
    checked = dg.define_asset_job(
        "check_records", selection=dg.AssetSelection.checks_for_assets(dg.AssetKey("things"))
    )
    job = dg.Definitions.merge(bench.definitions, dg.Definitions(jobs=[checked])).resolve_job_def("check_records")
    result = job.execute_in_process(instance=bench.instance)
    evaluated = {evaluation.check_name: evaluation.passed for evaluation in result.get_asset_check_evaluations()}
    assert evaluated == {"code_fails_on_no_shard": True, "windows_complete_in_time": True}
