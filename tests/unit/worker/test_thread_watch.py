"""A background thread of a worker that something holds is seen by the other one."""

import linecache
import threading

import pytest

from kcl_dagster.worker.events import EventKind, WorkerEvent
from kcl_dagster.worker.thread_watch import HOUSEKEEPING, RENEWALS, ThreadWatch
from tests.doubles.clock import FakeClock
from tests.unit.worker.kit import Run, World

A = "shardId-000000000000"


def started(world: World) -> Run:
    run = world.worker("w1")
    world.assign(run)
    run.worker.start()
    run.round()
    run.worker.step_housekeeping()
    return run


def held_in_row(world: World) -> object:
    [row] = world.worker_table(world.service).list()
    return row.held_since


def test_renewals_that_do_not_go_on_are_an_event_and_in_the_row() -> None:
    world = World()
    run = started(world)
    for episode in (1, 2):
        run.worker.step_renewal()
        since = round(world.clock.now())
        for _ in range(60):
            world.clock.advance(0.5)
            run.worker.step_housekeeping()
        assert run.kinds().count(EventKind.THREAD_HELD) == episode
        assert held_in_row(world) == {RENEWALS: since}
        run.worker.step_renewal()
        run.worker.step_heartbeat()
        assert held_in_row(world) == {}
    event = next(event for event in run.events if event.kind is EventKind.THREAD_HELD)
    assert "renewals" in event.message
    assert event.is_trouble


def test_housekeeping_that_does_not_go_on_is_an_event_of_the_renewal_thread() -> None:
    world = World()
    run = started(world)
    for _ in range(120):
        world.clock.advance(0.5)
        run.worker.step_renewal()
    [event] = [event for event in run.events if event.kind is EventKind.THREAD_HELD]
    assert "housekeeping" in event.message


def test_a_pause_of_the_whole_process_is_no_thread_that_is_held() -> None:
    world = World()
    run = started(world)
    for _ in range(20):
        world.clock.advance(3600)
        run.worker.step_housekeeping()
        run.worker.step_renewal()
    assert EventKind.THREAD_HELD not in run.kinds()


def event_of_a_held_thread() -> WorkerEvent:
    clock, events = FakeClock(), list[WorkerEvent]()
    watch = ThreadWatch(clock, events.append)
    has_begun, goes_on = threading.Event(), threading.Event()

    def held_by_something() -> None:
        watch.begins(RENEWALS)
        has_begun.set()
        goes_on.wait(30)

    thread = threading.Thread(target=held_by_something)
    thread.start()
    assert has_begun.wait(30)
    try:
        for _ in range(20):
            watch.begins(HOUSEKEEPING)
            clock.advance(1)
    finally:
        goes_on.set()
        thread.join()
    [event] = events
    return event


def test_the_event_names_the_line_that_holds_the_thread() -> None:
    assert "threading.py:" in event_of_a_held_thread().message
    assert "in Condition.wait" in event_of_a_held_thread().message


def test_no_source_file_is_read_to_name_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk with the code may be what holds the other thread: the thread that looks must not wait for it."""
    looked_at: list[str | None] = []

    def look(filename: str | None = None, *_: object) -> list[str]:
        looked_at.append(filename)
        return []

    linecache.clearcache()
    monkeypatch.setattr(linecache, "checkcache", look)
    monkeypatch.setattr(linecache, "updatecache", look)
    assert "in Condition.wait" in event_of_a_held_thread().message
    assert looked_at == []
