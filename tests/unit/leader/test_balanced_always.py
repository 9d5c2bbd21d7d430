"""Our assignment policies: what they promise, whatever the fleet looks like."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_dagster.leader.assignment.balanced import balanced, count, throughput
from kcl_dagster.leader.assignment.policy import AssignmentLimits, LeaseLoad, Policy, WorkerLoad
from tests.unit.leader.fleets import NO_LIMITS, POLICIES, after, counts, fleet, lease, loads, worker

pytestmark = pytest.mark.slow


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[LeaseLoad], list[WorkerLoad], AssignmentLimits]:
    workers = [
        worker(
            f"w{index}:run",
            accepts=accepts and not drains,
            drains=drains,
            ready=ready,
            zone=zone,
            cost=cost,
        )
        for index, (accepts, drains, ready, zone, cost) in enumerate(
            draw(
                st.lists(
                    st.tuples(
                        st.booleans(),
                        st.sampled_from([False, False, True]),
                        st.sampled_from([True, True, False]),
                        st.sampled_from([None, "a", "b"]),
                        st.sampled_from([None, None, 0.01, 0.03]),
                    ),
                    max_size=6,
                )
            )
        )
    ]
    owners: list[str | None] = [None, "gone", *(one.id for one in workers)]
    loads_ = st.sampled_from([None, 0.0, 1.0, 50.0, 75.0, 300.0, 4000.0])
    shapes = draw(
        st.lists(st.tuples(st.sampled_from(owners), loads_, st.sampled_from([0, 0, 0, 1, 2])), max_size=25)
    )
    leases: list[LeaseLoad] = []
    for number, (owner, kbps, oddity) in enumerate(shapes):
        one = lease(number, owner, kbps)
        if oddity == 1 and owner is not None:
            one = replace(one, unserved="its counter stood still")
        elif oddity == 2 and owner is not None and workers:
            one = replace(one, next_owner=workers[number % len(workers)].id, pinned=True)
        leases.append(one)
    limits = AssignmentLimits(
        max_leases=draw(st.sampled_from([None, None, 1, 5])),
        max_kbps=draw(st.sampled_from([None, None, 400.0])),
        moves=draw(st.sampled_from([0, 3, 1000])),
        settled=frozenset(one.id for one in workers if draw(st.booleans())),
    )
    return leases, workers, limits


@settings(max_examples=400)
@given(situations(), st.sampled_from(POLICIES), st.randoms(use_true_random=False))
def test_what_always_holds(
    situation: tuple[list[LeaseLoad], list[WorkerLoad], AssignmentLimits], policy: Policy, random: Random
) -> None:
    leases, workers, limits = situation
    decided = policy(leases, workers, limits)
    by_key = {one.key: one for one in leases}
    by_name = {one.id: one for one in workers}

    assert len({move.lease for move in decided.moves}) == len(decided.moves), "a lease moves once at most"
    for move in decided.moves:
        source, target = by_key[move.lease], by_name[move.to]
        assert target.accepts
        assert not target.drains
        assert move.because
        assert (move.kind == "unserved") == (source.unserved is not None)
        assert source.unserved is not None or not source.pinned
        assert source.unserved is not None or move.to != source.owner
    assert sum(move.kind == "balance" for move in decided.moves) <= max(limits.moves, len(leases))

    # Caps hold for everybody who received something.
    held: dict[str, list[LeaseLoad]] = {}
    for one in leases:
        moved = next((move.to for move in decided.moves if move.lease == one.key), None)
        holder = moved or (one.holder if one.unserved is None else None)
        if holder is not None:
            held.setdefault(holder, []).append(one)
    for name in {move.to for move in decided.moves}:
        mine = held[name]
        assert limits.max_leases is None or len(mine) <= limits.max_leases
        assert limits.max_kbps is None or len(mine) == 1 or sum(one.kbps or 0 for one in mine) <= limits.max_kbps

    # Everything is served if there is somebody to serve it and no cap in the way.
    if any(one.accepts and not one.drains for one in workers) and limits.max_leases is None is limits.max_kbps:
        assert decided.unplaced == ()
    assert set(decided.unplaced) <= {one.key for one in leases if one.unserved}

    # The order of what was read means nothing.
    shuffled_leases, shuffled_workers = list(leases), list(workers)
    random.shuffle(shuffled_leases)
    random.shuffle(shuffled_workers)
    assert policy(shuffled_leases, shuffled_workers, limits) == decided


@settings(max_examples=200)
@given(
    st.lists(st.floats(0.0, 5000.0), min_size=1, max_size=40),
    st.integers(1, 8),
    st.integers(0, 2**32),
    st.sampled_from(POLICIES),
)
def test_what_is_balanced_stays(kbps: list[float], workers: int, seed: int, policy: Policy) -> None:
    """From any placement one pass reaches a state in which nothing moves any more."""
    random = Random(seed)
    leases = [lease(number, f"w{random.randrange(workers)}", kbps=load) for number, load in enumerate(kbps)]
    settled = frozenset(one.id for one in fleet(workers))
    limits = replace(NO_LIMITS, settled=settled)
    for _ in range(3):
        decided = policy(leases, fleet(workers), limits)
        before = max(loads(leases, fleet(workers)).values())
        leases = after(leases, decided)
        if policy is throughput:
            assert max(loads(leases, fleet(workers)).values()) <= before * 1.01 + 1.0
    assert policy(leases, fleet(workers), limits).moves == ()


@st.composite
def small_fleets(draw: st.DrawFn) -> tuple[list[LeaseLoad], list[WorkerLoad], AssignmentLimits]:
    """Any placement of leases that weigh the same, among them ones that nobody serves or that are on their way."""
    size = draw(st.integers(1, 6))
    kbps = draw(st.sampled_from([None, 0.0, 1.0, 40.0, 64.0, 500.0]))
    owners = st.sampled_from([None, *(f"w{index}" for index in range(size))])
    leases = [lease(number, owner, kbps) for number, owner in enumerate(draw(st.lists(owners, max_size=20)))]
    workers = [worker(f"w{index}", zone=draw(st.sampled_from([None, "a", "b"]))) for index in range(size)]
    return leases, workers, replace(NO_LIMITS, max_leases=draw(st.sampled_from([None, None, 2, 5])))


@settings(max_examples=400)
@given(small_fleets(), st.sampled_from(POLICIES))
def test_equal_leases_are_even_after_two_passes_and_then_nothing_moves(
    situation: tuple[list[LeaseLoad], list[WorkerLoad], AssignmentLimits], policy: Policy
) -> None:
    leases, workers, limits = situation
    held = {str(one.id): 0 for one in workers} | counts([one for one in leases if one.unserved is None])
    even = len(leases) // len(workers)
    surplus = sum(max(0, number - even - 1) for number in held.values())
    missing = sum(max(0, even - number) for number in held.values())
    unserved = sum(one.unserved is not None for one in leases)
    first = policy(leases, workers, limits)
    leases = after(leases, first)
    second = policy(leases, workers, limits)
    leases = after(leases, second)
    assert policy(leases, workers, limits).moves == ()
    now = counts(leases)
    numbers = [now.get(one.id, 0) for one in workers]
    if limits.max_leases is None or limits.max_leases > even:
        assert max(numbers) - min(numbers) <= 1
        balancing = sum(move.kind == "balance" for move in (*first.moves, *second.moves))
        assert balancing <= max(surplus, missing - unserved, 0) or unserved


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from([0.0, 0.5, 30.0, 100.0, 900.0]), min_size=2, max_size=15),
    st.integers(2, 5),
    st.integers(0, 2**32),
    st.sampled_from([balanced, throughput, count]),
)
def test_nobody_stays_empty_beside_a_worker_that_has_leases_to_spare(
    kbps: list[float], workers: int, seed: int, policy: Policy
) -> None:
    random = Random(seed)
    leases = [lease(number, f"w{random.randrange(workers)}", kbps=load) for number, load in enumerate(kbps)]
    for _ in range(2):
        leases = after(leases, policy(leases, fleet(workers), NO_LIMITS))
    numbers = [counts(leases).get(one.id, 0) for one in fleet(workers)]
    assert min(numbers) > 0 or max(numbers) <= 1, loads(leases, fleet(workers))
