"""The same for many leases, several at a time."""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from kcl_dagster.errors import LeaseLost, ServiceError
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.concurrency import (
    AT_ONCE,
    FEWEST_FOR_THREADS,
    ForEach,
    WithoutWaiting,
    errors_of,
    one_by_one,
    several_at_once,
)
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.report import Outcome
from tests.unit.worker.kit import World

MEETING_SECONDS = 20.0


def leases(count: int) -> list[LeaseKey]:
    return [LeaseKey(f"lease-{index}") for index in range(count)]


@pytest.mark.parametrize("for_each", [one_by_one, several_at_once])
@pytest.mark.parametrize("count", [0, 1, FEWEST_FOR_THREADS, 3 * AT_ONCE])
def test_each_lease_has_its_turn_once(for_each: ForEach, count: int) -> None:
    seen: list[LeaseKey] = []
    for_each(seen.append, leases(count))
    assert sorted(seen) == sorted(leases(count))


def test_several_wait_at_the_same_time() -> None:
    met = threading.Barrier(AT_ONCE)  # breaks, and fails the test, unless that many are inside at once
    several_at_once(lambda _: [met.wait(MEETING_SECONDS)].clear(), leases(AT_ONCE))
    assert not met.broken


def test_a_slow_table_keeps_no_other_call_waiting() -> None:
    """Renewals must not stand in line behind the checkpoints of a hundred shards."""
    release, busy = threading.Event(), threading.Semaphore(0)

    def slow(_: LeaseKey) -> None:
        busy.release()
        assert release.wait(MEETING_SECONDS)

    commits = threading.Thread(target=several_at_once, args=(slow, leases(10 * AT_ONCE)))
    commits.start()
    for _ in range(AT_ONCE):
        assert busy.acquire(timeout=MEETING_SECONDS)
    renewed: list[LeaseKey] = []
    several_at_once(renewed.append, leases(FEWEST_FOR_THREADS))
    assert commits.is_alive()
    assert len(renewed) == FEWEST_FOR_THREADS
    release.set()
    commits.join(MEETING_SECONDS)


def test_a_machine_that_gives_no_more_threads_is_slow_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    seen: list[LeaseKey] = []
    several_at_once(seen.append, leases(3 * AT_ONCE))
    assert seen == leases(3 * AT_ONCE)


def test_what_fails_is_told_and_keeps_nobody_from_going_on() -> None:
    keys, done = leases(FEWEST_FOR_THREADS + 2), []

    def write(key: LeaseKey) -> None:
        if key == keys[1]:
            raise LeaseLost(key, "taken")
        done.append(key)

    failed = errors_of(several_at_once, write, keys)
    assert failed.keys() == {keys[1]}
    assert isinstance(failed[keys[1]], LeaseLost)
    assert sorted(done) == [key for key in keys if key != keys[1]]


def test_a_defect_is_not_swallowed() -> None:
    def write(key: LeaseKey) -> None:
        raise ZeroDivisionError(key)

    for for_each in (one_by_one, several_at_once):
        with pytest.raises(ZeroDivisionError):
            errors_of(for_each, write, leases(FEWEST_FOR_THREADS))


def backwards(function: Callable[[LeaseKey], None], keys: Iterable[LeaseKey]) -> None:
    """Another order than that of the batch, as threads may have it."""
    for key in reversed(list(keys)):
        function(key)


def test_the_leases_of_a_batch_are_pinned_and_committed_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """One lease is lost at its pin and one at its commit: the others go on, and nothing is stored twice."""
    world = World(shards=5)
    run = world.worker("w1", for_each=backwards)
    world.assign(run)
    run.worker.step_discovery()
    shards = [f"shardId-{index:012d}" for index in range(5)]
    for shard in shards:
        world.stream.put(shard, "a", "b")
    holdings = run.worker.holdings
    prepare, checkpoint = holdings.prepare, holdings.checkpoint
    order: list[str] = []

    def preparing(key: LeaseKey, *rest: Any) -> None:
        order.append(f"pin {key}")
        if key == shards[1]:
            raise LeaseLost(key, "taken")
        prepare(key, *rest)

    def committing(key: LeaseKey, *rest: Any, **named: Any) -> None:
        order.append(f"commit {key}")
        if key == shards[3]:
            raise ServiceError("no answer")
        checkpoint(key, *rest, **named)

    with monkeypatch.context() as patched:
        patched.setattr(holdings, "prepare", preparing)
        patched.setattr(holdings, "checkpoint", committing)
        report = run.worker.step_batch()
    assert {lease.shard_id: lease.outcome for lease in report.leases} == {
        shards[0]: Outcome.COMMITTED,
        shards[1]: Outcome.DROPPED,
        shards[2]: Outcome.COMMITTED,
        shards[3]: Outcome.UNCOMMITTED,
        shards[4]: Outcome.COMMITTED,
    }
    assert order == [f"pin {shard}" for shard in reversed(shards)] + [
        f"commit {shard}" for shard in reversed(shards) if shard != shards[1]
    ]
    run.worker.step_batch()
    world.check_exactly_once()
    assert len(world.store.everything()) == 10


def test_a_call_that_takes_long_delays_no_other_lease_and_is_not_begun_again() -> None:
    may_return, begun = threading.Event(), list[LeaseKey]()
    slow, *others = leases(3 * AT_ONCE)
    apart = WithoutWaiting(patience=0.2)

    def call(key: LeaseKey) -> None:
        begun.append(key)
        if key == slow:
            assert may_return.wait(MEETING_SECONDS)

    apart(call, [slow, *others])
    assert sorted(begun) == sorted([slow, *others])
    apart(call, [slow, others[0]])
    assert begun.count(slow) == 1
    assert begun.count(others[0]) == 2
    may_return.set()


def test_the_error_of_a_call_is_raised() -> None:
    def fail(_: LeaseKey) -> None:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        WithoutWaiting()(fail, leases(2))


def test_a_renewal_without_an_answer_costs_no_other_lease() -> None:
    world = World(shards=4)
    may_return = threading.Event()
    run = world.worker("w1", for_each=WithoutWaiting(patience=0.2))
    world.assign(run)
    assert len(run.worker.step_discovery()) == 4
    slow, *others = sorted(run.worker.holdings.keys())

    def hang(method: str, request: Mapping[str, Any]) -> None:
        if method == "update_item" and request["Key"]["leaseKey"]["S"] == slow:
            assert may_return.wait(MEETING_SECONDS)

    run.client.before.append(hang)
    try:
        for _ in range(4):
            world.clock.advance(world.application.timings.lease_duration * 0.4)
            run.worker.step_renewal()
        assert sorted(holding.key for holding in run.worker.holdings.holdings()) == others
        assert (EventKind.LEASE_LOST, slow) in [(event.kind, event.lease) for event in run.events]
    finally:
        may_return.set()
