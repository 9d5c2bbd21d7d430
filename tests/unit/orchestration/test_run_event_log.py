"""The event log of a Dagster run: where its events are written."""

from types import SimpleNamespace
from typing import Any

import dagster as dg

import kcl_dagster as kcl
from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.orchestration.run_event_log import event_log_of
from kcl_dagster.worker.events import EventKind, WorkerEvent
from kcl_dagster.worker.report import BatchReport, LeaseReport, Outcome
from tests.unit.orchestration.test_complete_windows import THINGS, consumer_of


class Log:
    def info(self, *_: object) -> None: ...

    warning = info


def test_observations_are_of_the_run_and_checks_of_no_run() -> None:
    """The same for a worker and for a bounded run. Dagster replaces the checks of a run within a minute."""
    own: list[Any] = []
    runless: list[Any] = []
    instance = SimpleNamespace(report_runless_asset_event=runless.append)
    context: Any = SimpleNamespace(instance=instance, log_event=own.append, log=Log())
    event_log = event_log_of(context, consumer_of(), kcl.KclTranslator(), "worker-000")
    event_log.write(event_log.observation())
    event_log.event(WorkerEvent(EventKind.DATA_LOST, "gone"))
    [observation] = own
    assert (observation.asset_key, observation.metadata["kcl/worker"].value) == (THINGS, "worker-000")
    assert observation.metadata["dagster/uri"].value == "s3://lake/things"
    assert str(observation.partition).startswith("20")
    [evaluation] = runless
    assert isinstance(evaluation, dg.AssetCheckEvaluation)
    assert evaluation.check_name == "no_records_lost"


def test_errors_are_kept_until_the_shard_stores_something() -> None:
    context: Any = SimpleNamespace(instance=None, log_event=lambda _: None, log=Log())
    event_log = event_log_of(context, consumer_of(), kcl.KclTranslator(), "worker-000")

    def happens(key: str, outcome: Outcome, error: str | None = None) -> None:
        stream = StreamIdentifier.single("things")
        report = LeaseReport(LeaseKey(key), stream, key, outcome, 1, TRIM_HORIZON, error=error)
        event_log.batch(BatchReport((report,)))

    happens("a", Outcome.FAILED, "refused")
    happens("b", Outcome.NOT_READ, "throttled")
    happens("a", Outcome.IDLE)
    assert event_log.errors == {"a": "refused", "b": "throttled"}
    happens("b", Outcome.COMMITTED)
    assert event_log.errors == {"a": "refused"}
