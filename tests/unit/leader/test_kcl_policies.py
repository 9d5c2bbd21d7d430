"""The KCL's own assignment rules, with their mistakes; and ours beside them where the mistake matters."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from kcl_dagster.leader.assignment.balanced import balanced
from kcl_dagster.leader.assignment.javaqueue import HighestFirst, compare
from kcl_dagster.leader.assignment.policy import Assignment, AssignmentLimits, LeaseLoad, Policy, WorkerLoad
from kcl_dagster.leader.assignment.taker import TakerPolicy
from kcl_dagster.leader.assignment.variance import Variance
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.lease_taking import TakingRules
from tests.conformance.rules.lease_count import lease_count, target_leases

NAN = float("nan")
ALL = AssignmentLimits(moves=10_000)


def leases(number: int, owner: str | None = None, kbps: float | None = None) -> list[LeaseLoad]:
    held = None if owner is None else WorkerId(owner)
    why = None if owner is not None else "no worker owns it"
    return [LeaseLoad(LeaseKey(f"{owner or 'l'}-{n:04d}"), held, kbps=kbps, unserved=why) for n in range(number)]


def workers(number: int) -> list[WorkerLoad]:
    return [WorkerLoad(WorkerId(f"w{n}")) for n in range(number)]


def applied(what: list[LeaseLoad], decided: Assignment) -> list[LeaseLoad]:
    to = {move.lease: move.to for move in decided.moves}
    return [replace(one, owner=to[one.key], unserved=None) if one.key in to else one for one in what]


def counts(what: list[LeaseLoad]) -> Counter[str | None]:
    return Counter(one.owner for one in what)


def taker(seed: int = 0) -> TakerPolicy:
    return TakerPolicy(TakingRules(lease_duration=10.0), Random(seed))


def test_a_cold_fleet_without_measurements_starves_in_the_kcl_and_not_with_us() -> None:
    kcl = Variance(Random(0).shuffle)
    assert counts(applied(leases(12), kcl(leases(12), workers(4), ALL))) == {"w0": 6, "w3": 6}
    assert set(counts(applied(leases(12), balanced(leases(12), workers(4), ALL))).values()) == {3}


def test_the_kcl_moves_silent_shards_about_and_we_do_not() -> None:
    """Fleet of three at low CPU: a relative band is narrower than the noise of an idle machine."""
    cpu = {"w0": 2.0, "w1": 1.0, "w2": 1.0}
    fleet = [replace(one, averages={"C": cpu[one.id]}, ceilings={"C": 100.0}) for one in workers(3)]
    held = [*leases(4, "w0", 0.0), *leases(4, "w1", 0.0), *leases(4, "w2", 0.0)]
    assert Variance(Random(0).shuffle)(held, fleet, ALL).moves != ()
    assert balanced(held, fleet, ALL).moves == ()


def test_an_expired_handoff_ends_with_the_present_owner_if_that_has_the_most_room() -> None:
    """The owner does not know that it has the lease, and finds it when it is assigned anew."""
    [lease] = [replace(one, next_owner=WorkerId("w1"), unserved="expired") for one in leases(1, "w0")]
    busy = replace(workers(2)[1], averages={"C": 50.0}, ceilings={"C": 100.0})
    idle = replace(workers(2)[0], averages={"C": 1.0}, ceilings={"C": 100.0})
    decided = Variance(Random(0).shuffle)([lease], [idle, busy], AssignmentLimits(balance=False))
    assert [(move.lease, move.to, move.kind) for move in decided.moves] == [(lease.key, "w0", "unserved")]


def test_a_full_worker_gets_one_more_by_the_kcls_count_and_none_by_ours() -> None:
    held = [*leases(5, "w0"), *leases(5, "w1"), *leases(2)]
    limits = replace(ALL, max_leases=5)
    assert len(lease_count(held, workers(2), limits).moves) == 2
    assert balanced(held, workers(2), limits).moves == ()


@pytest.mark.parametrize(
    ("number", "fleet", "most", "target"), [(10, 3, None, 4), (3, 10, None, 1), (10, 3, 2, 2), (10, 0, None, 0)]
)
def test_the_target_of_a_worker(number: int, fleet: int, most: int | None, target: int) -> None:
    assert target_leases(number, fleet, most) == target


@pytest.mark.parametrize("policy", [Variance(Random(0).shuffle), lease_count, taker(), balanced])
def test_a_handoff_between_two_dead_workers_is_nobodys_and_is_served(policy: Policy) -> None:
    gone, next_gone = WorkerId("gone"), WorkerId("gone too")
    orphan = LeaseLoad(
        LeaseKey("orphan"), gone, next_owner=next_gone, unserved=f"the run of {gone} is over", pinned=True, age=99.0
    )
    assert [move.lease for move in policy([orphan, *leases(1, "w0")], workers(2), ALL).moves] == ["orphan"]


# --- 2.x ----------------------------------------------------------------------------------------------------------


def until_quiet(policy: Policy, what: list[LeaseLoad], fleet: list[WorkerLoad]) -> tuple[list[LeaseLoad], int, int]:
    """The leases when nothing moves any more, in how many passes, and after how many moves."""
    moves = passes = 0
    while (decided := policy(what, fleet, ALL)).moves:
        what, moves, passes = applied(what, decided), moves + len(decided.moves), passes + 1
        assert passes < 500
    return what, passes, moves


def test_the_first_worker_of_a_2x_fleet_takes_everything_and_the_others_steal_one_by_one() -> None:
    what = applied(leases(500), taker()(leases(500), workers(1), ALL))
    assert counts(what) == {"w0": 500}
    even, passes, moves = until_quiet(taker(), what, workers(200))
    assert passes > 2
    assert moves > 490
    ours, our_passes, our_moves = until_quiet(balanced, what, workers(200))
    assert our_passes == 1
    assert max(counts(ours).values()) <= 5, "without load it is enough that nobody has far more than the others"
    assert min(counts(ours).values()) == 2
    assert our_moves <= moves
    assert len(counts(even)) == 200


@pytest.mark.parametrize(("shards", "before", "after"), [(160, 10, 20), (100, 5, 8)])
def test_a_2x_fleet_that_grew_stays_uneven_and_ours_does_not(shards: int, before: int, after: int) -> None:
    """Stealing stops as soon as the fullest worker is at the rounded-up share."""
    what, _, _ = until_quiet(balanced, leases(shards, kbps=100.0), workers(before))
    what = [replace(one, owner=WorkerId("w0") if n < shards // 2 else one.owner) for n, one in enumerate(what)]
    stuck, passes, _ = until_quiet(taker(), what, workers(after))
    even, our_passes, _ = until_quiet(balanced, what, workers(after))
    assert max(counts(even).values()) - min(counts(even).values()) <= 1
    assert max(counts(stuck).values()) >= max(counts(even).values())
    assert our_passes < passes


def test_a_2x_worker_takes_what_was_neglected_for_long_whatever_its_share() -> None:
    def taken(neglected: list[LeaseLoad], served: int, most: int | None = None) -> int:
        what = [*neglected, *leases(served, "w1")]
        decided = taker()(what, workers(1), replace(ALL, max_leases=most))
        return sum(move.kind == "unserved" for move in decided.moves)

    old = [replace(one, age=31.0, unserved="expired") for one in leases(6, "gone")]
    young = [replace(one, age=30.0) for one in old]
    assert taken(old, 6) == 6
    assert taken(young, 6) == 6
    assert taken(young, 2) == 4
    assert taken(old, 6, most=2) == 2


def test_a_2x_worker_steals_nothing_while_something_is_free() -> None:
    fair = TakerPolicy(TakingRules(10.0, takes_very_old_first=False), Random(0))

    def stolen(*what: LeaseLoad) -> int:
        return sum(move.kind == "balance" for move in fair(what, workers(1), ALL).moves)

    assert stolen(*leases(1), *leases(9, "w1")) == 0
    assert stolen(*leases(9, "w1")) == 1
    assert stolen(*leases(1, "w1")) == 0
    assert stolen() == 0


def test_a_run_that_is_over_counts_as_a_counter_that_stood() -> None:
    over = [replace(one, age=0.5, unserved="the run of gone is over") for one in leases(4, "gone")]
    assert {move.kind for move in taker()(over, workers(2), ALL).moves} == {"unserved"}


def test_leases_that_are_blocked_are_not_stolen() -> None:
    held = [replace(one, pinned=True) for one in leases(9, "w1")]
    assert taker()(held, workers(2), ALL).moves == ()


# --- Java's queue -------------------------------------------------------------------------------------------------


def test_doubles_compare_as_in_java() -> None:
    assert compare(NAN, NAN) == 0
    assert compare(NAN, 1e308) == 1
    assert compare(-1.0, NAN) == -1
    assert (compare(1.0, 2.0), compare(2.0, 1.0), compare(1.0, 1.0)) == (-1, 1, 0)


def test_the_queue_serves_the_highest_first_and_equals_from_both_ends() -> None:
    queue = HighestFirst([(1.0, "a"), (3.0, "b"), (2.0, "c")])
    assert [queue.poll() for _ in range(4)] == ["b", "c", "a", None]
    equals = HighestFirst((1.0, name) for name in "abcd")
    served = []
    for _ in range(6):
        name = equals.poll()
        assert name is not None
        served.append(name)
        equals.add(1.0, name)
    assert served == ["a", "d", "a", "d", "a", "d"]
    assert len(equals) == 4
