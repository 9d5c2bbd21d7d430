"""The consumer's code hangs: it is seen, and interrupted where it has a limit."""

import contextlib
import os
import sys
import threading
import time
from typing import Any

import pytest

from kcl_dagster.errors import ProcessingTimeout, SinkError
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.interruption import Interruption
from kcl_dagster.spark.sinks.table_errors import table_errors
from kcl_dagster.worker.batch import Batch
from kcl_dagster.worker.events import EventKind, WorkerEvent
from kcl_dagster.worker.processing_watch import Attempt, ProcessingWatch, uninterrupted
from kcl_dagster.worker.report import Outcome
from tests.doubles.clock import FakeClock
from tests.unit.worker.kit import Run, World

A = "shardId-000000000000"
KEY = LeaseKey(A)


def hang(world: World, run: Run, seconds: int) -> None:
    """The main thread waits in the sink while the housekeeping thread goes on."""
    for _ in range(seconds):
        world.clock.advance(1)
        run.worker.step_renewal()
        run.worker.step_housekeeping()


@pytest.mark.audit("B2")
def test_a_hung_function_is_seen_within_a_minute() -> None:
    world = World()
    run = world.worker("w1")
    world.assign(run)
    run.worker.start()
    run.round()
    world.stream.put(A, *"abc")
    seen: list[Any] = []

    def look(_: Batch) -> None:
        hang(world, run, 59)
        [row] = world.worker_table(world.service).list()
        seen.extend([row.slow_since, row.lag_ms, row.behind, run.kinds().count(EventKind.PROCESSING_SLOW)])

    run.sink.hooks.append(look)
    run.round()
    slow_since, lag, behind, events = seen
    assert slow_since == {A: round(world.clock.now() - 59)}
    assert lag >= 50_000
    assert behind == {A: lag}
    assert events == 1
    [event] = [event for event in run.events if event.kind is EventKind.PROCESSING_SLOW]
    assert A in event.message
    assert " for 45 s" in event.message
    run.worker.step_heartbeat()
    [row] = world.worker_table(world.service).list()
    assert row.slow_since == {}
    assert row.lag_ms == 0  # it ended, and its batch reached the tip


@pytest.mark.audit("B2")
def test_a_batch_that_takes_too_long_is_a_failure_of_the_code() -> None:
    world = World(batch={"max_process_seconds": 20, "failure": {"action": "skip", "attempts": 1}})
    attempts: list[Attempt] = []
    run = world.worker("w1", interrupt=attempts.append)
    world.assign(run)
    run.worker.start()
    run.engine.limit = 100
    world.stream.put(A, *"ab!cd")

    def refuse(data: list[tuple[str, int, str]]) -> None:
        if any(text == "!" for _, _, text in data):
            before = len(attempts)
            hang(world, run, 25)
            assert len(attempts) > before
            raise RuntimeError("Job 3 cancelled")

    run.sink.refuses = refuse
    for _ in range(60):
        run.round()
        world.clock.advance(1)
    assert "".join(text for _, _, text in sorted(world.store.everything())) == "abcd"
    assert run.kinds().count(EventKind.RECORD_SKIPPED) == 1
    failed = [lease for report in run.reports for lease in report.leases if lease.outcome is Outcome.SET_ASIDE]
    assert "cancelled after 2" in str(failed[0].error)


def test_a_sink_that_is_slow_and_then_fails_has_no_record_set_aside() -> None:
    world = World(batch={"max_process_seconds": 20, "failure": {"action": "skip", "attempts": 1}})
    attempts: list[Attempt] = []
    run = world.worker("w1", interrupt=attempts.append)
    world.assign(run)
    run.worker.start()
    world.stream.put(A, *"abcd")
    is_away = [True] * 8

    def refuse(_: list[tuple[str, int, str]]) -> None:
        if is_away:
            is_away.pop()
            hang(world, run, 25)
            raise SinkError("S3 did not answer for 25 s")

    run.sink.refuses = refuse
    for _ in range(300):
        run.round()
        world.clock.advance(1)
    assert attempts, "it was interrupted, too"
    assert not is_away
    assert EventKind.RECORD_SKIPPED not in run.kinds()
    assert "".join(text for _, _, text in sorted(world.store.everything())) == "abcd"


def test_the_code_is_interrupted_again_until_it_ends() -> None:
    clock, attempts = FakeClock(), list[int]()
    events: list[WorkerEvent] = []
    watch = ProcessingWatch(clock, events.append, 30.0, lambda attempt: attempts.append(attempt.number))
    with watch.running([KEY]):
        for _ in range(600):
            clock.advance(1)
            watch.step()
    assert attempts == list(range(1, 59))  # every ten seconds
    assert [round(float(event.facts["seconds"])) for event in events] == [45, 90, 180, 360]
    watch.step()
    assert len(attempts) == 58


def test_what_fails_by_itself_keeps_its_error() -> None:
    watch = ProcessingWatch(FakeClock(), limit=30.0)
    with pytest.raises(ValueError, match="mine"), watch.running([KEY]):
        raise ValueError("mine")


def test_code_that_calls_exit_fails_its_batch_and_not_the_worker() -> None:
    world = World(batch={"failure": {"action": "skip", "attempts": 2}})
    run = world.worker("w1")
    world.assign(run)
    run.worker.start()
    run.engine.limit = 100
    world.stream.put(A, *"ab!cd")

    def refuse(data: list[tuple[str, int, str]]) -> None:
        if any(text == "!" for _, _, text in data):
            sys.exit("a record is not for me")

    run.sink.refuses = refuse
    for _ in range(60):
        run.round()
        world.clock.advance(1)
    assert "".join(text for _, _, text in sorted(world.store.everything())) == "abcd"
    assert run.kinds().count(EventKind.RECORD_SKIPPED) == 1
    failed = next(event for event in run.events if event.kind is EventKind.BATCH_FAILED)
    assert "CodeExited" in failed.message
    assert "test_processing_watch.py" in failed.message, "where in the code it was called"


@pytest.mark.audit("B2")
@pytest.mark.parametrize("where", ["waits", "computes"])
def test_code_that_blocks_the_main_thread_is_interrupted(where: str) -> None:
    interruption = Interruption()
    watch = ProcessingWatch(FakeClock(), limit=1.0, interrupt=interruption)
    read, write = os.pipe()
    over = threading.Event()

    def housekeeping() -> None:
        while not over.wait(0.05):
            watch.clock.sleep(11)
            watch.step()

    def hang_for_ever() -> None:
        thread.start()
        if where == "waits":
            os.read(read, 1)
        while True:
            time.monotonic()

    thread = threading.Thread(target=housekeeping)
    try:
        with interruption.installed():
            with pytest.raises(ProcessingTimeout, match="max_process_seconds=1"), watch.running([KEY]):
                hang_for_ever()
            over.set()
            thread.join()
    finally:
        over.set()
        os.close(read)
        os.close(write)


def test_what_comes_after_the_batch_is_never_interrupted() -> None:
    interruption = Interruption()
    watch = ProcessingWatch(FakeClock(), limit=1.0, interrupt=interruption)
    kept: list[Attempt] = []
    watch.interrupt = kept.append
    with contextlib.suppress(ProcessingTimeout), interruption.installed():
        with watch.running([KEY]):
            for _ in range(2):
                watch.clock.sleep(11)
                watch.step()
        interruption(kept[1])
        assert not kept[1].is_running()
        return
    raise AssertionError("it was interrupted")


@pytest.mark.parametrize("ends", ["is committed", "fails"])
def test_a_commit_that_is_slow_is_neither_interrupted_nor_blamed_on_the_code(ends: str) -> None:
    interruption = Interruption()
    watch = ProcessingWatch(FakeClock(), limit=1.0, interrupt=interruption)
    committed: list[str] = []

    def commit() -> None:
        for _ in range(3):  # the second attempt sends the signal to this thread, and so does the third
            watch.clock.sleep(11)
            watch.step()
        committed.append("batch 1")
        if ends == "fails":
            raise OSError("the catalog did not answer")

    expected: Any = pytest.raises(SinkError, match="the catalog") if ends == "fails" else contextlib.nullcontext()
    with interruption.installed(), expected, watch.running([KEY]), table_errors("clicks"):
        commit()
    assert committed == ["batch 1"]


def test_code_that_runs_on_after_a_commit_is_interrupted() -> None:
    interruption = Interruption()
    watch = ProcessingWatch(FakeClock(), limit=1.0, interrupt=interruption)
    reached: list[str] = []

    def wait() -> None:
        for _ in range(2):
            watch.clock.sleep(11)
            watch.step()

    def commit_and_go_on() -> None:
        with uninterrupted():
            with uninterrupted():
                wait()
            wait()
        reached.append("the code after the commit")
        wait()
        reached.append("the end")

    with interruption.installed(), pytest.raises(ProcessingTimeout), watch.running([KEY]):
        commit_and_go_on()
    assert reached == ["the code after the commit"]


def test_a_batch_that_is_given_up_at_a_stop_is_no_failure_of_the_code() -> None:
    """Else its records could be set aside as poison."""
    clock = FakeClock()
    attempts: list[int] = []
    watch = ProcessingWatch(clock, interrupt=lambda attempt: attempts.append(attempt.number))

    def code() -> None:
        with watch.running([KEY]):
            watch.give_up()
            watch.step()
            raise RuntimeError("cancelled")

    with pytest.raises(SinkError, match="given up"):
        code()
    assert attempts == [1]
