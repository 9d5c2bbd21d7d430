"""From the first heartbeat to the last."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from kcl_dagster.application import BatchSettings
from kcl_dagster.errors import Throttled
from kcl_dagster.model.worker_row import WorkerState
from kcl_dagster.tables.control import Control
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.stop import StopReason, StopSignal
from tests.unit.worker.kit import Run, World

A, B = "shardId-000000000000", "shardId-000000000001"


def stop_when_idle(run: Run, world: World) -> StopSignal:
    """Lets a whole `run` happen on one thread: housekeeping before each fetch, and a stop at the tips."""
    stop = StopSignal()

    def each_round() -> None:
        run.worker.step_housekeeping()
        run.worker.step_renewal()
        if len(world.store.everything()) == len(world.stream.everything()):
            stop.request()

    run.engine.hooks.append(each_round)
    return stop


def test_a_run_works_until_it_is_stopped_and_leaves_nothing_behind() -> None:
    world = World(shards=2)
    world.stream.put(A, *"abcd")
    world.stream.put(B, *"wxyz")
    run = world.worker("w1")
    world.assign(run)
    run.worker.step_discovery()

    reason = run.worker.run(stop_when_idle(run, world))

    assert reason is StopReason.ASKED
    world.check_exactly_once()
    assert [world.lease(key).owner for key in (A, B)] == [None, None]
    assert world.worker_table(world.service).list() == []


def test_the_heartbeat_row_is_there_before_anything_else() -> None:
    world = World()
    run = world.worker("w1")
    run.worker.start()
    [row] = world.worker_table(world.service).list()
    assert (row.id, row.slot, row.run_id, row.state) == ("w1", "w1", "run-w1", WorkerState.STARTING)
    run.worker.step_heartbeat()
    [row] = world.worker_table(world.service).list()
    assert (row.state, row.beat, row.averages, row.operating_range) == (WorkerState.RUNNING, 2, {}, {})


def test_an_exception_in_the_middle_of_a_batch_still_releases_the_leases() -> None:
    world = World()
    world.stream.put(A, *"abc")
    run = world.worker("w1")
    world.assign(run)
    run.worker.step_discovery()

    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    run.sink.hooks.append(interrupt)
    with pytest.raises(KeyboardInterrupt):
        run.worker.run()
    assert world.lease(A).owner is None
    assert world.lease(A).pending_checkpoint is not None

    second = world.worker("w2")
    world.assign(second)
    second.until_idle()
    world.check_exactly_once()


def test_a_worker_that_is_asked_to_drain_goes_on_until_its_leases_are_elsewhere() -> None:
    world = World()
    world.stream.put(A, *"abc")
    old, new = world.worker("old"), world.worker("new")
    old.worker.start()
    world.assign(old)
    old.round()
    world.worker_table(world.service).request_drain(old.id)

    world.clock.advance(5)
    old.worker.step_housekeeping()
    world.clock.advance(5)
    old.worker.step_housekeeping()
    assert old.worker.heartbeat.state is WorkerState.DRAINING
    assert not old.worker.stop.is_requested()

    world.hand_over(A, new)
    world.clock.advance(10)
    old.worker.step_renewal()
    old.worker.step_renewal()
    assert world.lease(A).actual_owner == old.id, "it is still read"
    world.clock.advance(old.worker.settings.reads_on)
    old.worker.step_renewal()
    old.worker.step_housekeeping()
    assert old.worker.stop.reason is StopReason.DRAINED
    new.until_idle()
    world.check_exactly_once()


@pytest.mark.parametrize("paused", [True, False])
def test_a_worker_of_a_paused_application_does_not_wait_for_other_workers(paused: bool) -> None:
    class Leader:
        def silent_for(self) -> float:
            return 0.0

        def control(self) -> Control:
            return Control(paused=paused)

    world = World()
    world.stream.put(A, *"abc")
    run = world.worker("w1", leader=Leader())
    run.worker.start()
    world.assign(run)
    run.round()
    world.worker_table(world.service).request_drain(run.id)
    for _ in range(2):
        world.clock.advance(5)
        run.worker.step_housekeeping()
    assert run.worker.stop.is_requested() is paused
    run.worker.shut_down()
    assert world.lease(A).owner is None
    world.check_exactly_once()


def test_a_worker_that_does_not_know_whether_the_application_is_paused_waits() -> None:
    class Unknown:
        def silent_for(self) -> float:
            return 0.0

        def control(self) -> Control:
            raise Throttled("slow down")

    world = World()
    run = world.worker("w1", leader=Unknown())
    run.worker.start()
    world.assign(run)
    world.worker_table(world.service).request_drain(run.id)
    for _ in range(2):
        world.clock.advance(5)
        run.worker.step_housekeeping()
    assert not run.worker.stop.is_requested()


@pytest.mark.audit("B9")
def test_workers_that_reach_their_lifetime_wait_for_the_leader_to_replace_them() -> None:
    """All of a fleet reach it at the same time, and none may leave before a successor reads."""
    world = World(shards=4, fleet={"lifetime": 100.0})
    runs = [world.worker(f"w{number}") for number in range(4)]
    for run, key in zip(runs, world.lease_keys(), strict=True):
        run.worker.start()
        world.assign(run, key)
    for _ in range(190 // 5):
        world.clock.advance(5)
        for run in runs:
            run.round()
            run.worker.step_housekeeping()
    assert {run.worker.heartbeat.state for run in runs} == {WorkerState.RUNNING}


@pytest.mark.audit("B9")
def test_workers_that_no_leader_replaces_end_one_after_another() -> None:
    world = World(fleet={"lifetime": 10_000.0})
    runs = [world.worker(f"w{number}") for number in range(8)]
    for run in runs:
        run.worker.start()
    ended: dict[str, float] = {}
    for _ in range(300):
        world.clock.advance(100)
        for run in runs:
            run.worker.step_drain()
            if run.worker.stop.is_requested():
                ended.setdefault(run.id, world.clock.monotonic())
    assert {run.worker.stop.reason for run in runs} == {StopReason.LIFETIME}
    assert len(set(ended.values())) >= 6
    assert max(ended.values()) - min(ended.values()) > 2000


def test_a_worker_that_nobody_relieves_leaves_at_the_end_of_its_patience() -> None:
    world = World(fleet={"lifetime": 100.0})
    run = world.worker("w1")
    run.worker.start()
    world.assign(run)
    for _ in range(80):
        run.round()
        run.worker.step_housekeeping()
        world.clock.advance(5)
    assert run.worker.stop.reason is StopReason.LIFETIME
    assert EventKind.STOPPING in run.kinds()


def test_an_orphan_stops() -> None:
    world = World()
    run = world.worker("w1", watches=(lambda: None, lambda: "the code server is gone"))
    run.worker.start()
    run.worker.step_housekeeping()
    assert run.worker.stop.reason is StopReason.ORPHANED
    assert "code server" in str(run.worker.stop)


def test_a_stop_has_one_reason() -> None:
    stop = StopSignal()
    assert str(stop) == "not asked to stop"
    stop.request(StopReason.DRAINED)
    stop.request(StopReason.ASKED, "too late")
    assert stop.reason is StopReason.DRAINED
    assert str(stop) == "drained"


def test_a_batch_that_does_not_end_loses_its_leases_after_a_stop() -> None:
    world = World()
    world.stream.put(A, *"abc")
    stuck, second = world.worker("stuck"), world.worker("second")
    world.assign(stuck)

    def hang(_: Any) -> None:
        stuck.sink.hooks.clear()
        stuck.worker.stop.request()
        for _ in range(40):
            world.clock.advance(1)
            stuck.worker.step_renewal()
            stuck.worker.step_housekeeping()
        assert world.lease(A).owner is None
        world.assign(second)
        second.until_idle()

    stuck.sink.hooks.append(hang)
    stuck.round()
    assert stuck.worker.holdings.keys() == set()
    assert world.lease(A).owner == second.id
    world.check_exactly_once()


def hang_after_stop(world: World, run: Run, seconds: int) -> None:
    """The main thread does not return from the sink after the worker was told to stop."""
    run.worker.stop.request(StopReason.DRAINED)
    for _ in range(seconds):
        world.clock.advance(1)
        run.worker.step_renewal()
        run.worker.step_housekeeping()


def test_a_worker_whose_batch_does_not_end_is_ended_a_minute_after_its_stop() -> None:
    world = World()
    world.stream.put(A, *"abc")
    ended: list[str] = []
    attempts: list[int] = []
    run, second = (
        world.worker("hung", end_process=ended.append, interrupt=lambda attempt: attempts.append(attempt.number)),
        world.worker("second"),
    )
    run.worker.start()
    world.assign(run)
    seen: list[Any] = []

    def hang(_: Any) -> None:
        run.sink.hooks.clear()
        hang_after_stop(world, run, 29)
        seen.append((list(attempts), list(ended)))
        hang_after_stop(world, run, 29)
        assert attempts[:2] == [1, 2]
        assert not ended
        hang_after_stop(world, run, 5)
        assert [row.id for row in world.worker_table(world.service).list()] == []
        assert world.lease(A).owner is None
        hang_after_stop(world, run, 30)
        raise InterruptedError

    run.sink.hooks.append(hang)
    report = run.round()
    assert seen == [([], [])]
    assert len(ended) == 1
    assert "hung in your code since 20" in ended[0]
    assert "drained" in ended[0]
    assert [event.message for event in run.events if event.kind is EventKind.HUNG]
    assert [outcome.outcome for outcome in report.leases] != []
    assert world.worker_table(world.service).list() == []  # its heartbeat does not write the row again
    world.assign(second)
    second.until_idle()
    world.check_exactly_once()


def test_a_worker_whose_batch_ends_late_after_its_stop_ends_by_itself() -> None:
    world = World()
    world.stream.put(A, *"abc")
    ended: list[str] = []
    run = world.worker("slow", end_process=ended.append)
    run.worker.start()
    world.assign(run)

    def slow(_: Any) -> None:
        run.sink.hooks.clear()
        hang_after_stop(world, run, 55)

    run.sink.hooks.append(slow)
    run.round()
    run.worker.shut_down()
    assert ended == []
    assert EventKind.HUNG not in run.kinds()


def test_a_worker_that_is_to_stop_while_it_reads_for_long_is_not_taken_for_hung() -> None:
    world = World(batch=BatchSettings(max_seconds=100))
    world.stream.put(A, *"abc")
    ended: list[str] = []
    run = world.worker("slow", end_process=ended.append)
    run.worker.start()
    world.assign(run)

    seen: list[list[str]] = []

    def read_on() -> None:
        run.engine.hooks.clear()
        hang_after_stop(world, run, 100)
        seen.append(list(ended))
        hang_after_stop(world, run, 65)

    run.engine.hooks.append(read_on)
    run.round()
    assert seen == [[]], "a worker survives what its engine raises, so nothing is asserted there"
    [why] = ended
    assert "its batch has not ended for 160 s" in why


def test_what_is_assigned_in_the_last_moment_is_given_back() -> None:
    world = World(shards=2)
    run, other = world.worker("w1"), world.worker("w2")
    run.worker.start()
    world.assign(run, A)
    run.worker.step_discovery()
    world.assign(run, B)
    world.assign(other, A)
    world.hand_over(A, run)
    run.worker.shut_down()
    assert world.lease(B).owner is None
    assert world.lease(A).checkpoint_owner == other.id  # on its way: not ours to give


@pytest.mark.audit("C8")
def test_a_heartbeat_that_is_under_way_while_the_row_is_deleted_does_not_write_it_again() -> None:
    """The thread that wrote it did not end in time."""
    world = World()
    run = world.worker("w1")
    run.worker.start()

    def stop_meanwhile(method: str, _: Mapping[str, Any]) -> None:
        if method == "update_item":
            run.client.before.clear()
            run.worker.heartbeat.stop()

    world.clock.advance(5)
    run.client.before.append(stop_meanwhile)
    run.worker.step_heartbeat()
    assert world.worker_table(world.service).list() == []
    run.worker.step_heartbeat()
    assert world.worker_table(world.service).list() == []


@pytest.mark.audit("C8")
def test_a_row_that_a_late_heartbeat_wrote_is_deleted_all_the_same() -> None:
    world = World()
    run = world.worker("w1")
    run.worker.start()
    [row] = world.worker_table(world.service).list()

    def beat_meanwhile(method: str, _: Mapping[str, Any]) -> None:
        if method == "delete_item":
            run.client.before.clear()
            world.worker_table(world.service).put(replace(row, last_update=int(world.clock.now()) + 5))

    run.client.before.append(beat_meanwhile)
    run.worker.shut_down()
    assert world.worker_table(world.service).list() == []


def test_a_worker_whose_row_a_leader_deleted_writes_it_again() -> None:
    world = World()
    run = world.worker("w1")
    run.worker.start()
    table = world.worker_table(world.service)
    [row] = table.list()
    assert table.delete(row)
    assert run.worker.step_heartbeat()
    assert [row.id for row in table.list()] == ["w1"]


class Starting:
    """An engine that takes its time."""

    def __init__(self) -> None:
        self.is_up = False

    def is_ready(self) -> bool:
        return self.is_up


@pytest.mark.audit("B10")
def test_a_worker_says_that_it_runs_when_it_can_read() -> None:
    world, engine = World(), Starting()
    run = world.worker("w1", is_ready=engine.is_ready)
    table = world.worker_table(world.service)
    run.worker.start()
    for _ in range(10):
        world.clock.advance(5)
        run.worker.step_housekeeping()
        assert [row.state for row in table.list()] == [WorkerState.STARTING]
    world.clock.advance(0.1)
    engine.is_up = True
    run.worker.step_housekeeping()
    assert [row.state for row in table.list()] == [WorkerState.RUNNING]  # without waiting for the next beat


@pytest.mark.audit("B10")
def test_a_worker_that_cannot_read_yet_keeps_its_leases_and_hands_them_over_at_once() -> None:
    world, engine = World(shards=2), Starting()
    world.stream.put(A, *"abc")
    world.stream.put(B, *"xyz")
    starting, running = world.worker("w1", is_ready=engine.is_ready), world.worker("w2")
    starting.worker.start()
    world.assign(starting)
    assert starting.round().is_idle
    assert starting.engine.asked == []
    world.clock.advance(10)
    starting.round()
    assert len(starting.worker.holdings.holdings()) == 2

    world.hand_over(A, running)
    world.clock.advance(10)
    starting.worker.step_renewal()
    starting.worker.step_renewal()
    running.until_idle()
    assert {row[0] for row in world.store.everything()} == {A}

    engine.is_up = True
    starting.until_idle()
    world.check_exactly_once()


@pytest.mark.audit("B10")
def test_a_worker_that_cannot_read_yet_takes_nothing_without_a_leader() -> None:
    class NoLeader:
        def silent_for(self) -> float:
            return 1e6

        def control(self) -> Control:
            return Control()

    world, engine = World(), Starting()
    run = world.worker("w1", is_ready=engine.is_ready, leader=NoLeader())
    run.worker.start()
    for _ in range(5):
        assert run.worker.step_leaderless() == []
        world.clock.advance(15)
    engine.is_up = True
    assert run.worker.step_leaderless() == [A]


@pytest.mark.audit("B10")
def test_a_worker_reads_as_soon_as_its_engine_is_up() -> None:
    world, engine = World(batch={"idle_seconds": 60.0}), Starting()
    world.stream.put(A, *"abc")
    run = world.worker("w1", is_ready=engine.is_ready)
    world.assign(run)
    run.worker.step_discovery()
    began = world.clock.monotonic()
    looks = []

    def is_ready() -> bool:
        looks.append(world.clock.monotonic())
        engine.is_up = world.clock.monotonic() - began >= 7
        return engine.is_up

    run.worker._around = replace(run.worker._around, is_ready=is_ready)
    run.worker.run(stop_when_idle(run, world))
    assert world.clock.monotonic() - began < 8
    world.check_exactly_once()
