"""A worker whose Dagster hangs or raises keeps its leases and loses lines of its log only."""

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from dagster import AssetKey, DagsterInstance

from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.orchestration import watchdog
from kcl_dagster.orchestration.run_event_log import RunEventLog
from kcl_dagster.telemetry.logs import queued_logs
from kcl_dagster.worker.events import EventKind, WorkerEvent
from kcl_dagster.worker.stop import StopSignal
from tests.unit.worker.kit import Run, World
from tests.unit.worker.test_threads import RealTime, eventually, start, threaded

pytestmark = pytest.mark.slow

A = "shardId-000000000000"
LEASE_SECONDS = 6.0  # no lease may expire only because the machine is busy


class Storage:
    """Dagster's, as an event log and a run's log write to it."""

    def __init__(self) -> None:
        self.is_back = threading.Event()
        self.raises = False
        self.waiting = threading.Event()
        self.lines: list[str] = []

    def write(self, event: object) -> None:
        self.waiting.set()
        if self.raises:
            raise OSError("the database is gone")
        self.is_back.wait(60)
        self.lines.append(str(event))

    def info(self, message: str, *arguments: object) -> None:
        self.write(message % arguments)

    warning = info


@pytest.fixture
def storage() -> Iterator[Storage]:
    made = Storage()
    yield made
    made.is_back.set()


def event_log_of(storage: Storage) -> RunEventLog:
    return RunEventLog(AssetKey("things"), "worker-000", storage.write, storage, lambda *_: None)


def settle(world: RealTime, run: Run, stop: StopSignal, storage: Storage) -> list[EventKind]:
    """Let the worker read, and keep its leases for two lease durations; then stop it."""
    thread = start(run, stop)
    world.assign(run)
    world.stream.put(A, *"abcdefgh")
    eventually(lambda: len(world.store.everything()) == 8)
    eventually(storage.waiting.is_set)
    counters = {key: world.lease(key).counter for key in world.lease_keys()}
    eventually(lambda: all(world.lease(key).counter >= count + 4 for key, count in counters.items()))
    stop.request()
    thread.join(30)
    assert not thread.is_alive()
    return run.kinds()


@pytest.mark.audit("C1")
@pytest.mark.parametrize("raises", [False, True])
def test_leases_are_kept_and_released_while_dagster_hangs_or_raises(storage: Storage, raises: bool) -> None:
    storage.raises = raises
    world = RealTime(LEASE_SECONDS, shards=8)
    seen: list[EventKind] = []
    event_log = event_log_of(storage)

    def on_event(event: WorkerEvent) -> None:
        seen.append(event.kind)
        event_log.event(event)

    with event_log.in_background(last_seconds=0.05):
        run = threaded(world, "w1", on_event=on_event, on_batch=event_log.batch)
        settle(world, run, StopSignal(), storage)
    assert EventKind.LEASE_LOST not in seen
    assert [world.lease(key).owner for key in world.lease_keys()] == [None] * 8
    world.check_exactly_once()


@pytest.mark.audit("C1")
def test_a_receiver_that_raises_on_the_workers_threads_ends_nothing() -> None:
    world = World(shards=2)
    world.stream.put(A, *"abc")

    def fail(_: object) -> None:
        raise OSError("the database is gone")

    run = world.worker("w1", on_event=fail, on_batch=fail)
    world.assign(run)
    run.until_idle()
    run.worker.shut_down()
    world.check_exactly_once()
    assert [world.lease(key).owner for key in world.lease_keys()] == [None, None]


@pytest.mark.audit("C1")
def test_the_number_of_events_that_were_not_written_is_written(storage: Storage) -> None:
    event_log = event_log_of(storage)
    with event_log.in_background(last_seconds=60):
        event_log.event(WorkerEvent(EventKind.STOPPING, "first"))
        assert storage.waiting.wait(30)  # from here on the queue fills
        for number in range(2000):
            event_log.info("line %d", number)
        storage.is_back.set()
    [told] = [line for line in storage.lines if "were not written" in line]
    assert "1101 (1101 log line)" in told


@pytest.mark.audit("C1")
def test_what_is_never_written_is_counted_in_the_process_log(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    event_log = event_log_of(storage)
    with event_log.in_background(last_seconds=0.05):
        event_log.warning("first %s", "line")
        event_log.info("second")
    assert "Dagster's storage did not accept 2 (2 log line) events of worker-000" in caplog.text


class Hanging(logging.Handler):
    """A handler whose stream does not take any more."""

    def __init__(self) -> None:
        super().__init__()
        self.is_back = threading.Event()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.is_back.wait(60)
        self.lines.append(record.getMessage())


@pytest.mark.audit("C1")
def test_a_log_that_hangs_keeps_no_thread_waiting() -> None:
    handler = Hanging()
    logger = logging.getLogger("kcl_dagster")
    logger.addHandler(handler)
    before = logger.propagate
    try:
        with queued_logs(["kcl_dagster"]):
            logging.getLogger("kcl_dagster.worker").warning("lost %s", "one")
            logging.getLogger("kcl_dagster.worker").warning("lost two")
            assert handler.lines == []
            handler.is_back.set()
        assert handler.lines == ["lost one", "lost two"]
        assert logger.handlers == [*[h for h in logger.handlers if h is not handler], handler]
        assert logger.propagate is before
    finally:
        logger.removeHandler(handler)


class Instance:
    """A Dagster instance whose run storage hangs."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_back = threading.Event()

    def get_run_by_id(self, _: str) -> Any:
        self.asked += 1
        self.is_back.wait(60)


@pytest.mark.audit("C2")
def test_a_run_lookup_that_hangs_stops_neither_heartbeat_nor_discovery_nor_leaving() -> None:
    instance = Instance()
    world = RealTime(shards=2)
    watch = watchdog.run_is_over(instance, "run")  # type: ignore[arg-type]
    run, stop = threaded(world, "w1", watches=(watch,)), StopSignal()
    thread = start(run, stop)
    eventually(lambda: instance.asked == 1)

    def beat() -> int:
        return sum(row.beat for row in world.worker_table(world.service).list())

    before = beat()
    eventually(lambda: beat() >= before + 3)
    world.assign(run)
    eventually(lambda: len(run.worker.holdings.keys()) == 2)
    stop.request()
    thread.join(30)
    instance.is_back.set()
    assert not thread.is_alive()
    assert world.lease(LeaseKey(A)).owner is None


def test_a_run_that_was_deleted_is_seen_at_the_next_look() -> None:
    with DagsterInstance.ephemeral() as instance:
        watch = watchdog.run_is_over(instance, "1234", start=lambda look_up: look_up())
        assert watch() == "run 1234 was deleted"


def test_a_storage_that_raises_says_nothing_about_the_run() -> None:
    class Broken:
        def get_run_by_id(self, _: str) -> Any:
            raise OSError("the database is gone")

    watch = watchdog.run_is_over(Broken(), "run", start=lambda look_up: look_up())  # type: ignore[arg-type]
    assert watch() is None
