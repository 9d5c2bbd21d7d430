"""What a worker run finds out before it reads a record."""

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetKey
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

import kcl_dagster as kcl
from kcl_dagster.emulator import Emulator
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.orchestration import worker_run
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.run_event_log import RunEventLog
from kcl_dagster.orchestration.worker_run import WorkerRun
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.interruption import Interruption
from kcl_dagster.tables.places import TableLayout
from kcl_dagster.tables.table_layout import create_tables
from kcl_dagster.testing import EmulatorResource
from kcl_dagster.worker.background_opening import Late
from kcl_dagster.worker.events import EventKind, WorkerEvent
from kcl_dagster.worker.stop import StopReason, StopSignal
from tests.unit.spark.test_session import Session


class Answers(Session):
    """A session on a cluster, as any resource may have one, whose jobs end like this, one after the other."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(master="spark://elsewhere:7077")
        self._answers = list(answers)

    def collect(self) -> Any:
        self._answer = self._answers.pop(0)
        return super().collect()


SAME_VERSION = Row(kcl_dagster=kcl.__version__)
NO_PROBLEM = Row(kcl_dagster="")


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ([Row(kcl_dagster="0.0.1")], r"executors have kcl-dagster 0\.0\.1"),
        (
            [PySparkException("ModuleNotFoundError: No module named 'kcl_dagster'")],
            "the executors cannot run our code",
        ),
        ([SAME_VERSION, Row(kcl_dagster="no route")], "executors cannot read stream clicks: no route"),
        (
            [SAME_VERSION, NO_PROBLEM, PySparkException("no such directory")],
            r"executors cannot write below .*/lake: no such directory",
        ),
    ],
)
def test_a_worker_does_not_begin_where_it_would_fail_later(
    answers: list[Any], problem: str, tmp_path: Path
) -> None:
    @kcl.kcl_consumer(application="clicks", stream="clicks", sink=kcl.parquet(str(tmp_path / "lake")))
    def clicks(records: Any) -> Any:
        return records

    session: Any = Answers(*answers)
    event_log = RunEventLog(
        AssetKey("clicks"), "worker-000", lambda _: None, logging.getLogger(__name__), lambda *_: None
    )
    resource = EmulatorResource()
    run = WorkerRun(clicks, resource, lambda: session, "worker-000", "run", event_log)
    with pytest.raises(ConfigurationError, match=problem):
        run._open(run._staging_sink(), Interruption(), lambda: False)


class Lines:
    """A run's log that notes on which thread it is written to."""

    def __init__(self) -> None:
        self.threads: dict[str, str] = {}

    def info(self, message: str, *arguments: object) -> None:
        self.threads[message % arguments] = threading.current_thread().name

    warning = info


@pytest.mark.audit("C1")
def test_a_run_writes_its_events_on_a_thread_of_their_own(
    aws: Emulator, consumer: Consumer, resource: kcl.KclResource
) -> None:
    """Spark cannot be started here, so the worker ends as soon as it has noticed."""
    runtime = Runtime()
    create_tables(aws.client("dynamodb"), consumer.application, TableLayout.single(consumer.application), runtime)

    def fail() -> SparkSession:
        raise ConfigurationError("there is no Spark here")

    lines = Lines()
    event_log = RunEventLog(AssetKey("things"), "worker-000", lambda _: None, lines, lambda *_: None)
    run = WorkerRun(consumer, resource, fail, "worker-000", "0123456789", event_log)
    with pytest.raises(ConfigurationError, match="no Spark here"):
        run.work(StopSignal())
    assert any("stopping" in line for line in lines.threads)
    assert set(lines.threads.values()) == {"kcl-events"}


def test_a_run_ends_although_its_spark_hangs_while_it_starts(
    monkeypatch: pytest.MonkeyPatch, aws: Emulator, consumer: Consumer, resource: kcl.KclResource
) -> None:
    runtime = Runtime()
    create_tables(aws.client("dynamodb"), consumer.application, TableLayout.single(consumer.application), runtime)
    monkeypatch.setattr(worker_run, "STARTING_SECONDS", 0.2)
    goes_on, stop, ended = threading.Event(), StopSignal(), list[str]()

    def hang() -> SparkSession:
        stop.request(StopReason.ASKED)
        goes_on.wait(60)
        raise ConfigurationError("it was only for the test")

    event_log = RunEventLog(AssetKey("things"), "worker-000", lambda _: None, Lines(), lambda *_: None)
    run = WorkerRun(consumer, resource, hang, "worker-000", "0123456789", event_log, end_process=ended.append)
    try:
        assert run.work(stop) is StopReason.ASKED
    finally:
        goes_on.set()
    assert ended == ["its leases are released, and Spark has not started 0 s later"]


@pytest.mark.audit("B10")
def test_a_worker_is_ready_when_spark_is(aws: Emulator, consumer: Consumer, resource: kcl.KclResource) -> None:
    runtime = Runtime()
    create_tables(aws.client("dynamodb"), consumer.application, TableLayout.single(consumer.application), runtime)
    event_log = RunEventLog(AssetKey("things"), "worker-000", lambda _: None, Lines(), lambda *_: None)
    run = WorkerRun(consumer, resource, lambda: None, "worker-000", "0123456789", event_log)  # type: ignore[arg-type,return-value]
    is_up = threading.Event()
    late: Late[Any] = Late(lambda: is_up.wait(60))
    has_lease = threading.Event()
    surroundings = run._surroundings(late, run._sink(), run._staging_sink(), Interruption(), has_lease)
    surroundings.on_event(WorkerEvent(EventKind.LEASE_LOST, "to another worker", LeaseKey("a")))
    assert not has_lease.is_set()
    surroundings.on_event(WorkerEvent(EventKind.LEASE_ACQUIRED, "at LATEST", LeaseKey("a")))
    assert has_lease.is_set(), "the engine is told, and begins with a fetch"
    assert not surroundings.is_ready()
    is_up.set()
    late.get()
    assert surroundings.is_ready()


@pytest.mark.parametrize("has_lease", [False, True])
def test_a_worker_without_leases_is_ready_when_a_first_job_has_run(
    has_lease: bool, monkeypatch: pytest.MonkeyPatch, consumer: Consumer, resource: kcl.KclResource
) -> None:
    """Its leases would wait for the imports of Spark's Python workers otherwise. If it has leases already, its
    first fetch is the first job."""

    class Engine:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.jobs = 0

        def warm_up(self) -> None:
            self.jobs += 1

    monkeypatch.setattr(worker_run, "SparkEngine", Engine)
    session: Any = Session(master="local[2,2]")
    event_log = RunEventLog(
        AssetKey("things"), "worker-000", lambda _: None, logging.getLogger(__name__), lambda *_: None
    )
    opened: Any = WorkerRun(consumer, resource, lambda: session, "worker-000", "run", event_log)._open(
        None, Interruption(), lambda: has_lease
    )
    assert opened.jobs == (0 if has_lease else 1)
