"""Renewals go on whatever the main thread does."""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.worker_row import WorkerState
from kcl_dagster.runtime import Runtime
from kcl_dagster.worker.stop import StopReason, StopSignal
from kcl_dagster.worker.threads import Threads
from tests.doubles.dynamodb import FakeDynamoDB
from tests.unit.worker.kit import Run, World

pytestmark = pytest.mark.slow

A = "shardId-000000000000"
LEASE_SECONDS = 1.5


class OneAtATime:
    """The table in memory is not thread-safe."""

    def __init__(self, service: FakeDynamoDB) -> None:
        self.tables = service.tables
        self._service = service
        self._lock = threading.Lock()

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(**request: Any) -> Any:
            with self._lock:
                return getattr(self._service, method)(**request)

        return call


class RealTime(World):
    def __init__(self, lease_seconds: float = LEASE_SECONDS, **settings: Any) -> None:
        super().__init__(
            timings={"lease_duration": lease_seconds, "heartbeat": 0.2},
            batch={"idle_seconds": 0.05},
            **settings,
        )
        self.service = OneAtATime(self.service)  # type: ignore[assignment]
        self.runtime = Runtime()


def threaded(world: RealTime, name: str, **extra: Any) -> Run:
    run = world.worker(name, **extra)
    run.worker._background = Threads
    return run


def start(run: Run, stop: StopSignal) -> threading.Thread:
    thread = threading.Thread(target=run.worker.run, args=(stop,))
    thread.start()
    return thread


def eventually(is_true: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_worker_in_real_time() -> None:
    world = RealTime(shards=2)
    run, stop = threaded(world, "w1"), StopSignal()
    thread = start(run, stop)
    world.assign(run)
    world.stream.put(A, *"abcdefgh")
    eventually(lambda: len(world.store.everything()) == 8)
    [row] = world.worker_table(world.service).list()
    eventually(lambda: run.worker.heartbeat.state is WorkerState.RUNNING)
    stop.request(StopReason.ASKED)
    thread.join(10)
    assert not thread.is_alive()
    world.check_exactly_once()
    assert row.slot == "w1"
    assert world.lease(A).owner is None
    assert [t.name for t in threading.enumerate() if t.name.startswith("w1")] == []


def test_user_code_that_computes_for_longer_than_a_lease_keeps_it() -> None:
    world = RealTime()
    run, stop = threaded(world, "w1"), StopSignal()
    world.stream.put(A, *"abc")
    world.assign(run)
    owners: set[object] = set()

    def compute(_: object) -> None:
        run.sink.hooks.clear()
        until = time.monotonic() + 2 * LEASE_SECONDS
        while time.monotonic() < until:  # holds the interpreter as much as Python code can
            sum(range(1000))
        owners.add(world.lease(A).owner)
        stop.request()

    run.sink.hooks.append(compute)
    run.worker.run(stop)
    assert owners == {run.id}
    assert [event.kind for event in run.events if event.is_trouble] == []
    assert world.lease(A).pending_checkpoint is None
    world.check_exactly_once()


class Counting:
    """Steps that fail at first."""

    def __init__(self) -> None:
        self.renewals = 0
        self.rounds = 0
        self.done = threading.Event()

    def step_renewal(self) -> float:
        self.renewals += 1
        if self.renewals == 1:
            raise RuntimeError("a defect")
        if self.renewals > 2:
            self.done.set()
        return 0.0

    def step_housekeeping(self) -> None:
        self.rounds += 1


def test_a_step_that_fails_does_not_end_its_thread(caplog: pytest.LogCaptureFixture) -> None:
    steps = Counting()
    background: AbstractContextManager[object] = Threads(steps, "w2")
    with background:
        assert steps.done.wait(10)
    assert steps.rounds > 0
    assert "a defect" in caplog.text
    after = steps.rounds
    time.sleep(0.25)
    assert steps.rounds == after


def test_renewals_and_checkpoints_from_two_threads_never_lose_the_lease() -> None:
    world = RealTime()
    run = threaded(world, "w1")
    world.assign(run)
    run.worker.step_discovery()
    held = run.worker.holdings
    holding = held.get(LeaseKey(A))
    assert holding is not None
    before = world.lease(A).counter
    failures: list[BaseException] = []

    def renew() -> None:
        try:
            for _ in range(300):
                held.renew(holding.key)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=renew)
    thread.start()
    for number in range(1, 301):
        held.prepare(holding.key, holding.token, Checkpoint(str(number)), b"{}", number)
        held.checkpoint(holding.key, holding.token, Checkpoint(str(number)))
    thread.join()
    assert failures == []
    assert world.lease(A).counter == before + 900
    assert world.lease(A).checkpoint == Checkpoint("300")
