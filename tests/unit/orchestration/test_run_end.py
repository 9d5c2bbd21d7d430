"""A run whose worker cannot end by itself is recorded as over, and its process ends."""

from typing import Any

import pytest
from dagster import DagsterInstance, DagsterRunStatus

from kcl_dagster.orchestration.run_end import EXIT_CODE, ending, is_process_of_run
from tests.unit.orchestration.conftest import _never_executed

WHY = "worker-000:1: hung in your code since 2026-01-01 10:00:00 UTC (drained)"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (DagsterRunStatus.STARTED, DagsterRunStatus.FAILURE),
        (DagsterRunStatus.CANCELING, DagsterRunStatus.CANCELED),
        (DagsterRunStatus.CANCELED, DagsterRunStatus.CANCELED),
    ],
)
def test_a_hung_run_is_recorded_as_over_before_its_process_ends(
    instance: DagsterInstance, before: DagsterRunStatus, after: DagsterRunStatus
) -> None:
    run = instance.create_run_for_job(_never_executed, status=before)
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        found = instance.get_run_by_id(run.run_id)
        assert found is not None
        assert found.status is after

    ending(instance, run.run_id, leave, lambda: True)(WHY)
    assert codes == [EXIT_CODE]
    told = [record.event_log_entry.message for record in instance.get_records_for_run(run.run_id).records]
    assert any(WHY in message for message in told) == (before is not after)


def test_a_process_that_is_not_the_runs_own_lives_on(instance: DagsterInstance) -> None:
    run = instance.create_run_for_job(_never_executed, status=DagsterRunStatus.STARTED)
    codes: list[int] = []
    ending(instance, run.run_id, codes.append)(WHY)
    assert not is_process_of_run()  # this one belongs to the tests
    assert codes == []
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    assert found.status is DagsterRunStatus.FAILURE


def test_a_process_ends_although_dagsters_storage_fails(instance: DagsterInstance) -> None:
    class Away:
        def get_run_by_id(self, _: str) -> Any:
            raise OSError("the storage is away")

    codes: list[int] = []
    away: Any = Away()
    ending(away, "gone", codes.append, lambda: True)(WHY)
    ending(instance, "unknown", codes.append, lambda: True)(WHY)
    assert codes == [EXIT_CODE, EXIT_CODE]


@pytest.mark.parametrize(
    ("program", "is_own"),
    [
        ("/usr/bin/dagster", True),
        ("/app/lib/dagster/__main__.py", True),
        ("/app/bin/dg", True),
        ("/app/bin/pytest", False),
        ("-c", False),
        ("", False),
    ],
)
def test_dagsters_commands_have_a_process_for_each_run(
    monkeypatch: pytest.MonkeyPatch, program: str, is_own: bool
) -> None:
    monkeypatch.setattr("sys.argv", [program])
    assert is_process_of_run() is is_own
