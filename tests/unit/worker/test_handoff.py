"""A handoff may be asked for at any moment of a batch; it always ends, and costs neither records nor order."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.tables.attributes import LEASE_KEY
from kcl_dagster.worker.batch import Budget, Range
from kcl_dagster.worker.concurrency import AT_ONCE, several_at_once
from kcl_dagster.worker.discovery import GATHERING_SECONDS
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.held_leases import LEASES_TO_CHECK
from kcl_dagster.worker.loop import BATCHES_BETWEEN_COMMITS
from kcl_dagster.worker.outage import IN_A_ROW
from kcl_dagster.worker.reading import FIRST_SECONDS
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


def stored_by(run: Run) -> list[int]:
    """The numbers of the records of A in each batch of the worker."""
    return [part.records for batch in run.sink.batches for part in batch.parts if part.lease == A]


def test_a_lease_is_read_for_a_batch_after_its_handoff_was_noticed() -> None:
    """Meanwhile, the next owner ends the batch that it reads, and reads the lease as soon as it gets it."""
    world, old, new = small_world()
    old.until_idle()
    before = stored_by(old)
    world.hand_over(A, new)
    old.worker.holdings.renew(LeaseKey(A))
    world.clock.advance(old.worker.settings.reads_on - 0.1)
    world.stream.put(A, "h")
    old.round()
    assert world.lease(A).actual_owner == old.id
    assert stored_by(old) == [*before, 1]
    world.clock.advance(0.1)
    world.stream.put(A, "i")
    old.round()
    assert world.lease(A).actual_owner == new.id
    assert stored_by(old) == [*before, 1]
    new.until_idle()
    assert stored_by(new) == [1]
    world.check_exactly_once()


def test_a_lease_that_was_never_read_is_handed_over_at_once() -> None:
    world, old, new = small_world()
    old.worker.step_discovery()
    world.hand_over(A, new)
    old.worker.holdings.renew(LeaseKey(A))
    old.worker.step_renewal()
    assert world.lease(A).actual_owner == new.id


@pytest.mark.parametrize(("batch", "reads_on"), [(5.0, 5.0), (10.0, 10.0), (10.1, 0.0), (60.0, 0.0)])
def test_with_long_batches_a_lease_is_handed_over_after_its_batch(batch: float, reads_on: float) -> None:
    world = World(batch={"max_seconds": batch})
    assert world.worker("w").worker.settings.reads_on == reads_on


@pytest.mark.parametrize(
    ("storing", "reads_on"), [(0.0, 10.0), (10.0, 10.0), (12.0, 8.0), (20.0, 0.0), (60.0, 0.0)]
)
def test_a_lease_is_read_on_only_if_its_batch_can_be_stored_before_the_handoff_times_out(
    storing: float, reads_on: float
) -> None:
    """Otherwise, the lease is handed over during the batch, and the next owner has to read its records again."""
    world = World(shards=1, batch={"max_seconds": 10.0})
    world.stream.put(A, *"abcdefghi")
    old, new = world.worker("old"), world.worker("new")
    world.assign(old)

    def spend(seconds: float) -> None:
        for _ in range(round(seconds)):
            world.clock.advance(1)
            old.worker.step_renewal()

    old.engine.hooks.append(lambda: spend(10))
    old.sink.hooks.append(lambda _: spend(storing))
    old.round()
    assert old.worker.holdings.reads_on == pytest.approx(reads_on)
    world.hand_over(A, new)
    old.worker.holdings.renew(LeaseKey(A))
    spend(max(0.0, reads_on - 1))
    outcomes = {lease.outcome for lease in old.worker.step_batch().leases}
    assert outcomes == ({Outcome.COMMITTED} if reads_on else set())


def test_the_time_for_a_commit_to_a_table_counts_as_well() -> None:
    """A handoff waits for the commit. Most rounds make none, so the longest of the last rounds counts."""
    world = World(shards=1, batch={"max_seconds": 10.0})
    old = world.worker("old")
    world.assign(old)
    commits = iter([0.0, 15.0, *[0.0] * BATCHES_BETWEEN_COMMITS])
    old.sink.hooks.append(lambda _: world.clock.advance(next(commits)))
    found = []
    for _ in range(BATCHES_BETWEEN_COMMITS + 2):
        world.stream.put(A, "1")
        old.round()
        found.append(old.worker.holdings.reads_on)
    assert found == [10.0, *[5.0] * BATCHES_BETWEEN_COMMITS, 10.0]


def test_batches_are_short_while_leases_are_expected() -> None:
    world, old, new = small_world()
    old.until_idle()
    budgets = new.watch_budgets()
    world.hand_over(B, new)
    old.hand_over(B)
    new.round()
    new.round()
    usual = world.application.batch.max_seconds
    assert budgets == [FIRST_SECONDS, usual]
    assert not new.worker.discoverer.watches()

    world.hand_over(A, new)
    new.round()
    assert new.worker.discoverer.watches()
    assert budgets[2:] == [FIRST_SECONDS]
    old.hand_over(A)
    new.round()
    assert not new.worker.discoverer.watches()
    new.round()
    assert budgets[3:] == [FIRST_SECONDS, usual]


def test_expected_leases_are_looked_for_without_scans_of_the_table() -> None:
    """Without an index, a scan finds new leases. With many leases, it is too dear for four times per second."""
    world, old, new = small_world()
    old.until_idle()
    new.worker.start()
    world.hand_over(A, new)
    for _ in range(20):
        new.worker.step_housekeeping()
        world.clock.advance(0.1)
    assert new.client.calls.count("scan") == 2
    world.clock.advance(0.1)
    new.worker.step_housekeeping()
    new.client.calls.clear()
    old.worker.holdings.reads_on = 0.0
    old.worker.holdings.renew(LeaseKey(A))
    old.worker.step_renewal()
    for _ in range(3):
        world.clock.advance(0.1)
        new.worker.step_housekeeping()
    assert "scan" not in new.client.calls
    assert new.worker.holdings.keys() == {A}


def test_handoffs_that_began_together_are_noticed_together() -> None:
    world, old, new = small_world()
    old.until_idle()
    world.clock.advance(1)
    for lease in (A, B):
        world.hand_over(lease, new)
    assert old.worker.holdings.due(10.0) == []
    old.worker.holdings.renew(LeaseKey(A))
    assert old.worker.holdings.due(10.0) == [B]
    old.worker.step_renewal()
    assert old.worker.holdings.due(10.0) == []
    assert [event.kind for event in old.events].count(EventKind.HANDOFF_ASKED) == 2


def many_leases() -> tuple[World, Run, Run]:
    world = World(shards=3 * LEASES_TO_CHECK)
    old, new = world.worker("old"), world.worker("new")
    world.assign(old)
    old.until_idle()
    old.client.before.append(lambda *_: world.clock.advance(0.001))
    world.clock.advance(1)
    return world, old, new


def test_a_handoff_of_one_of_many_leases_renews_only_some_others_early() -> None:
    world, old, new = many_leases()
    world.hand_over(A, new)
    old.worker.holdings.renew(LeaseKey(A))
    renewed = [len(old.worker.renewer.step().renewed) for _ in range(3)]
    assert renewed == [LEASES_TO_CHECK, 0, 0]


def test_handoffs_of_many_leases_are_noticed_together() -> None:
    world, old, new = many_leases()
    for lease in sorted(old.worker.holdings.keys()):
        world.hand_over(lease, new)
    old.worker.holdings.renew(LeaseKey(A))
    for _ in range(3):
        old.worker.step_renewal()
    assert [event.kind for event in old.events].count(EventKind.HANDOFF_ASKED) == 3 * LEASES_TO_CHECK


def test_a_lease_that_is_not_handed_over_for_long_is_not_expected_any_more() -> None:
    world, _, new = small_world()
    world.hand_over(A, new)
    new.round()
    assert new.worker.discoverer.expects_leases()
    world.clock.advance(new.worker.settings.arrival_patience)
    new.round()
    assert not new.worker.discoverer.expects_leases()


def test_a_lease_whose_handoff_is_noticed_late_is_still_expected_when_it_arrives() -> None:
    world = World(shards=2, timings={"lease_duration": 120.0})
    world.stream.put(A, *"abc")
    old, new = world.worker("old"), world.worker("new")
    world.assign(old)
    old.until_idle()
    world.hand_over(A, new)
    began, expected = world.clock.monotonic(), False
    while world.lease(A).actual_owner == old.id:
        new.worker.step_discovery()
        expected = new.worker.discoverer.expects_leases()
        old.round()
        world.clock.advance(0.5)
    assert world.clock.monotonic() - began > old.worker.settings.handoff_timeout
    assert expected


def test_a_lease_that_goes_to_another_worker_is_not_expected_any_more() -> None:
    world, old, new = small_world()
    world.hand_over(A, new)
    new.round()
    assert world.leases.assign(world.lease(A), old.id) is not None
    new.round()
    assert not new.worker.discoverer.expects_leases()


def test_leases_that_are_handed_over_together_are_read_together() -> None:
    world, old, new = small_world()
    old.until_idle()
    for lease in (A, B):
        world.hand_over(lease, new)
    new.round()
    old.hand_over(A)
    new.worker.step_discovery()
    assert new.worker.discoverer.is_gathering()
    world.clock.advance(2 * GATHERING_SECONDS)
    assert not new.worker.discoverer.is_gathering(), "it does not wait for long"
    old.hand_over(B)
    new.worker.step_discovery()
    assert not new.worker.discoverer.is_gathering(), "all are there"


def test_a_lease_that_was_acquired_during_a_batch_is_read_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch that is read ahead then does not have it, so it is not read until this batch ends."""
    world, old, new = small_world()
    old.until_idle()
    world.hand_over(B, new)
    old.hand_over(B)
    new.until_idle()
    ahead: list[float] = []
    monkeypatch.setattr(new.engine, "prefetch", lambda _, budget: ahead.append(budget.seconds))
    world.stream.put(B, "1")
    new.round()
    world.hand_over(A, new)
    old.hand_over(A)
    world.stream.put(B, "2")

    fetch = new.engine.fetch

    def acquiring(ranges: Sequence[Range], budget: Budget) -> Any:
        new.worker.step_discovery()
        return fetch(ranges, budget)

    monkeypatch.setattr(new.engine, "fetch", acquiring)
    new.worker.step_batch()
    assert ahead == [world.application.batch.max_seconds, FIRST_SECONDS]


def test_leases_that_arrive_together_are_acquired_several_at_a_time() -> None:
    """One after another, the last of a hundred leases would be read two seconds later than the first."""
    world = World(shards=AT_ONCE)
    run = world.worker("w", for_each=several_at_once)
    world.assign(run)
    met = threading.Barrier(AT_ONCE)

    def meet(method: str, _: object) -> None:
        if method == "get_item":
            met.wait(10.0)

    run.client.before.append(meet)
    assert run.worker.step_discovery() == sorted(run.worker.holdings.keys())
    assert len(run.worker.holdings.keys()) == AT_ONCE


def test_in_an_outage_a_worker_tries_to_acquire_one_lease_alone() -> None:
    world = World(shards=AT_ONCE)
    run = world.worker("w")
    world.assign(run)
    tried: set[str] = set()

    def fail(method: str, request: Any) -> None:
        if method == "get_item":
            tried.add(request["Key"][LEASE_KEY]["S"])
            raise EndpointConnectionError(endpoint_url="https://dynamodb")

    run.client.before.append(fail)
    for most in (IN_A_ROW, 1, 1):
        tried.clear()
        assert run.worker.step_discovery() == []
        assert len(tried) == most
        world.clock.advance(2.0)
    run.client.before.clear()
    assert len(run.worker.step_discovery()) == AT_ONCE
