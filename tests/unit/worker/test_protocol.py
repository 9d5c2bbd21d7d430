"""A worker processes its shards; whatever kills it, the next one goes on, and every record is stored once."""

import pytest

from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.pins import Pin
from kcl_dagster.worker.reading import FIRST_SECONDS
from kcl_dagster.worker.report import Outcome
from tests.unit.worker.failing import away_after
from tests.unit.worker.kit import Killed, World

A, B = "shardId-000000000000", "shardId-000000000001"


def test_a_worker_reads_its_shards_to_their_tips() -> None:
    world = World(shards=2)
    world.stream.put(A, *"abcdefgh")
    world.stream.put(B, *"uvwxyz")
    run = world.worker("w1")
    world.assign(run)

    run.until_idle()

    world.check_exactly_once()
    assert world.lease(A).checkpoint == Checkpoint(str(world.stream.shards[A].records[-1][0]))
    assert len(run.sink.batches) == 3  # eight records, three at a time
    assert world.lease(A).pending_checkpoint is None


def test_an_idle_shard_costs_no_writes_but_renewals() -> None:
    world = World()
    run = world.worker("w1")
    world.assign(run)
    run.until_idle()
    run.client.calls.clear()

    for _ in range(10):
        assert run.worker.step_batch().is_idle

    assert run.client.calls == []
    assert run.sink.batches == []


def test_a_kill_at_any_point_loses_and_repeats_nothing() -> None:
    points = _points_of_a_whole_run()
    assert points > 40
    for point in range(1, points + 1):
        world = _small_world()
        first = world.worker("first")
        world.assign(first)
        first.fuse.burns_at = point
        with pytest.raises(Killed):
            first.until_idle()

        second = world.worker("second")
        world.assign(second)
        second.until_idle()

        children = {"shardId-000000000002", "shardId-000000000003"}
        assert world.lease(A).is_finished, point
        assert world.lease(A).children == children
        world.assign(second, *children)
        second.until_idle()
        world.check_exactly_once()


def test_a_shard_whose_end_was_written_without_an_answer_is_finished() -> None:
    """The write of the end is applied, its answer is lost, and DynamoDB is away until the worker gives up."""
    world = World()
    world.stream.put(A, "a", "b")
    world.stream.split(A)
    run = world.worker("w1")
    world.assign(run)
    with away_after(run, "SHARD_END"):
        run.round()

    run.until_idle()

    assert world.lease(A).is_finished
    assert EventKind.SHARD_FINISHED in run.kinds()
    world.check_exactly_once()


def _small_world() -> World:
    world = World(shards=2)
    world.stream.put(A, *"abcd")
    world.stream.put(B, *"wxyz")
    for child in world.stream.split(A):
        world.stream.put(child, "q", "r")
    return world


def _points_of_a_whole_run() -> int:
    world = _small_world()
    run = world.worker("only")
    world.assign(run)
    run.until_idle()
    return run.fuse.passed


def test_a_worker_that_lost_its_lease_cannot_checkpoint() -> None:
    world = World()
    world.stream.put(A, *"abc")
    first, second = world.worker("first"), world.worker("second")
    world.assign(first)
    first.sink.hooks.append(lambda _: world.assign(second))  # while the batch is being written

    report = first.round()

    assert [lease.outcome for lease in report.leases] == [Outcome.UNCOMMITTED]
    assert world.lease(A).checkpoint == TRIM_HORIZON
    assert first.worker.holdings.keys() == set()
    second.until_idle()
    world.check_exactly_once()


def test_a_lease_that_is_lost_before_the_batch_is_pinned_takes_no_part_in_it() -> None:
    world = World(shards=2)
    world.stream.put(A, *"abc")
    world.stream.put(B, *"xyz")
    first, second = world.worker("first"), world.worker("second")
    world.assign(first)
    first.engine.hooks.append(lambda: world.assign(second, A) if world.lease(A).owner == first.id else None)

    report = first.round()

    assert {lease.lease: lease.outcome for lease in report.leases} == {
        A: Outcome.DROPPED,
        B: Outcome.COMMITTED,
    }
    assert [part.lease for batch in first.sink.batches for part in batch.parts] == [B]
    assert EventKind.LEASE_LOST in first.kinds()


def test_a_stalled_worker_writes_nothing_new_when_it_wakes_up() -> None:
    world = World()
    world.stream.put(A, *"abcdef")
    first, second = world.worker("first"), world.worker("second")
    world.assign(first)

    def stall(_: object) -> None:
        first.sink.hooks.clear()
        world.clock.advance(60)
        world.stream.put(A, "g")
        world.assign(second)
        second.until_idle()

    first.sink.hooks.append(stall)
    report = first.round()

    assert [lease.outcome for lease in report.leases] == [Outcome.UNCOMMITTED]
    world.check_exactly_once()
    first.until_idle()
    assert world.lease(A).owner == second.id
    world.check_exactly_once()


def test_a_worker_that_stalled_before_writing_does_not_write() -> None:
    world = World()
    world.stream.put(A, *"abc")
    run = world.worker("w1")
    world.assign(run)
    # The prepare write itself is sent in time, and its answer comes after the lease's end.
    run.client.before.append(lambda _, request: world.clock.advance(31) if ":pending" in str(request) else None)
    report = run.round()
    assert [lease.outcome for lease in report.leases] == [Outcome.DROPPED]
    assert run.sink.batches == []


def test_what_was_fetched_is_always_let_go_of() -> None:
    world = World()
    world.stream.put(A, *"abc")
    run = world.worker("w1")
    world.assign(run)
    run.sink.refuses = _refuse
    run.round()
    run.sink.refuses = None
    world.clock.advance(5)
    run.until_idle()
    assert len(run.engine.fetched) > 2
    assert all(fetched.is_released for fetched in run.engine.fetched)


def test_a_worker_told_to_stop_gives_up_what_it_has_not_pinned() -> None:
    world = World()
    world.stream.put(A, *"abc")
    run = world.worker("w1")
    world.assign(run)
    run.engine.hooks.append(run.worker.stop.request)

    report = run.round()

    assert [lease.outcome for lease in report.leases] == [Outcome.ABANDONED]
    assert world.lease(A).pending_checkpoint is None


def test_the_engine_is_told_what_comes_next() -> None:
    world = World()
    world.stream.put(A, *"abcdefgh")
    run = world.worker("w1")
    world.assign(run)
    run.until_idle()
    asked = [ranges for ranges in run.engine.asked[1:] if ranges]
    assert run.engine.hints[:2] == asked[:2]


def _refuse(_: object) -> None:
    raise RuntimeError("user code fails")


def test_the_first_batch_after_a_lease_has_come_is_closed_early() -> None:
    world = World(shards=2)
    run = world.worker("w1")
    budgets = run.watch_budgets()
    world.assign(run, A)
    for _ in range(2):
        run.round()
    world.assign(run, B)
    for _ in range(2):
        run.round()
    usual = world.application.batch.max_seconds
    assert budgets == [FIRST_SECONDS, usual, FIRST_SECONDS, usual]


def test_a_batch_whose_checkpoint_had_no_answer_is_not_pinned_again() -> None:
    """A pin behind its own checkpoint has no records: a shard with one was never read again."""
    world = World()
    world.stream.put(A, "a", "b")
    run = world.worker("w1")
    world.assign(run)
    with away_after(run, "REMOVE pendingCheckpoint"):
        run.round()
    again = run.round()

    assert [lease.outcome for lease in again.leases] == [Outcome.DROPPED]
    assert world.lease(A).pending_checkpoint is None
    world.stream.put(A, "c")
    run.until_idle()
    world.check_exactly_once()


def test_a_pin_behind_its_own_checkpoint_holds_nothing_back() -> None:
    world = World()
    world.stream.put(A, "a", "b")
    run = world.worker("w1")
    world.assign(run)
    run.until_idle()
    lease, holdings = world.lease(A), run.worker.holdings
    assert lease.checkpoint is not None
    holding = holdings.get(lease.key)
    assert holding is not None
    holdings.prepare(lease.key, holding.token, lease.checkpoint, Pin(lease.batch).to_state(), lease.batch)
    world.stream.put(A, "c")

    run.until_idle()

    assert world.lease(A).pending_checkpoint is None
    world.check_exactly_once()
