"""A handoff may be asked for at any moment of a batch; it always ends, and costs neither records nor order."""

from collections.abc import Callable

import pytest

from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.report import Outcome
from tests.unit.worker.kit import Run, World

A, B = "shardId-000000000000", "shardId-000000000001"


def small_world() -> tuple[World, Run, Run]:
    world = World(shards=2)
    world.stream.put(A, *"abcdefg")
    world.stream.put(B, *"xyz")
    old, new = world.worker("old"), world.worker("new")
    world.assign(old)
    return world, old, new


def settle(world: World, *runs: Run) -> None:
    for _ in range(30):
        for run in runs:
            run.round()
        world.clock.advance(2)


def table_calls_of_a_run() -> int:
    _, old, _ = small_world()
    old.until_idle()
    return len(old.client.calls)


def test_a_handoff_at_any_point_of_a_batch() -> None:
    """From the moment the old owner has been told of the lease; before, only the leader's deadline can end it."""
    calls = table_calls_of_a_run()
    assert calls > 10
    for point in range(3, calls + 1):
        world, old, new = small_world()
        old.client.before.append(_asking_at(point, world, old, new))
        settle(world, old, new)
        assert world.lease(A).owner == new.id, point
        assert not world.lease(A).in_handoff, point
        assert EventKind.LEASE_LOST not in old.kinds(), point
        assert EventKind.HANDOFF_DONE in old.kinds(), point
        world.check_exactly_once()
        # The old owner went on with the lease it kept.
        assert world.lease(B).owner == old.id


def _asking_at(point: int, world: World, old: Run, new: Run) -> Callable[[str, object], None]:
    def ask(_: str, __: object) -> None:
        if len(old.client.calls) == point and world.lease(A).owner == old.id:
            world.hand_over(A, new)

    return ask


def test_the_next_owner_repeats_a_batch_that_was_pinned_and_not_committed() -> None:
    world, old, new = small_world()

    def fail(_: object) -> None:
        raise RuntimeError("no luck")

    old.sink.refuses = fail
    old.round()
    pinned = world.lease(A)
    world.hand_over(A, new)
    settle(world, old, new)
    old.sink.refuses = None
    world.clock.advance(60)
    settle(world, old, new)
    assert world.store.identities[A, "TRIM_HORIZON"][0] == f"{pinned.batch}:{pinned.pending_checkpoint}"
    world.check_exactly_once()


def test_a_batch_that_takes_too_long_loses_its_lease_and_not_its_records() -> None:
    world, old, new = small_world()

    def hang(_: object) -> None:
        old.sink.hooks.clear()
        world.hand_over(A, new)
        for _ in range(50):
            world.clock.advance(1)
            old.worker.step_renewal()
        assert world.lease(A).owner == new.id
        new.until_idle()

    old.sink.hooks.append(hang)
    report = old.round()
    outcomes = {lease.lease: lease.outcome for lease in report.leases}
    assert outcomes == {A: Outcome.UNCOMMITTED, B: Outcome.COMMITTED}
    settle(world, old, new)
    world.check_exactly_once()


@pytest.mark.parametrize("dies", ["old", "new"])
def test_a_handoff_whose_party_dies_is_ended_by_whoever_notices(dies: str) -> None:
    world, old, new = small_world()
    third = world.worker("third")
    old.round()
    world.hand_over(A, new)
    if dies == "new":
        settle(world, old)
        assert world.lease(A).owner == new.id  # transferred to a worker that is gone
    world.clock.advance(60)
    world.assign(third, A)
    settle(world, old, third) if dies == "new" else settle(world, third)
    assert world.lease(A).owner == third.id
    assert not world.lease(A).in_handoff
    world.assign(third, B)
    third.until_idle()
    world.check_exactly_once()


@pytest.mark.parametrize("successor", ["ended", "drains"])
@pytest.mark.parametrize("end", ["handoff timeout", "stop"])
def test_a_lease_is_not_handed_over_to_a_worker_that_has_ended_or_drains(successor: str, end: str) -> None:
    """It would be the owner for ever if no leader assigns leases: while the application is paused, none does."""
    world, old, new = small_world()
    old.worker.start()
    old.round()
    old.worker.holdings.begin(old.worker.holdings.keys())  # its batch hangs
    world.hand_over(A, new)
    if successor == "ended":
        new.worker.shut_down()
    else:
        assert world.worker_table(world.service).request_drain(new.id)
    if end == "stop":
        old.worker.step_renewal()
        old.worker.shut_down()
    else:
        for _ in range(50):
            world.clock.advance(1)
            old.worker.step_renewal()
    lease = world.lease(A)
    assert (lease.owner, lease.checkpoint_owner) == (None, None)
    assert EventKind.HANDOFF_DONE not in old.kinds()
    third = world.worker("third")
    world.assign(third)
    third.until_idle()
    world.check_exactly_once()
