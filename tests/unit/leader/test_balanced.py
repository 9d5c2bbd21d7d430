"""Our assignment policies: what they promise, whatever the fleet looks like."""

import time
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_dagster.leader.assignment.balanced import balanced, count, throughput
from kcl_dagster.leader.assignment.policy import Assignment, LeaseLoad, Limits, Policy, WorkerLoad
from kcl_dagster.leader.load import PATIENCE
from kcl_dagster.model.lease import LeaseKey, WorkerId

POLICIES = [balanced, throughput, count]
NO_LIMITS = Limits(moves=1_000_000)


def lease(number: int, owner: str | None = None, kbps: float | None = 100.0, **more: Any) -> LeaseLoad:
    held = None if owner is None else WorkerId(owner)
    unserved = None if owner is not None else "nobody owns it"
    return replace(LeaseLoad(LeaseKey(f"shard-{number:04d}"), held, kbps=kbps, unserved=unserved), **more)


def worker(name: str, **more: Any) -> WorkerLoad:
    return replace(WorkerLoad(WorkerId(name), slot=name.split(":")[0]), **more)


def fleet(number: int, **more: Any) -> list[WorkerLoad]:
    return [worker(f"w{index}", **more) for index in range(number)]


def after(leases: Sequence[LeaseLoad], decided: Assignment) -> list[LeaseLoad]:
    """The leases once all moves are done."""
    to = {move.lease: move.to for move in decided.moves}
    return [
        replace(one, owner=to[one.key], next_owner=None, unserved=None) if one.key in to else one for one in leases
    ]


def counts(leases: Sequence[LeaseLoad]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in leases:
        if one.owner is not None:
            found[one.owner] = found.get(one.owner, 0) + 1
    return found


def loads(leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad]) -> dict[str, float]:
    found: dict[str, float] = {one.id: 0.0 for one in workers}
    for one in leases:
        if one.owner in found:
            found[one.owner] += one.kbps or 0.0
    return found


# --- unserved leases ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kbps", [None, 0.0, 100.0])
def test_a_cold_start_serves_everything_at_once_and_evenly(policy: Policy, kbps: float | None) -> None:
    leases = [lease(number, kbps=kbps) for number in range(12)]
    decided = policy(leases, fleet(4), NO_LIMITS)
    assert counts(after(leases, decided)) == {"w0": 3, "w1": 3, "w2": 3, "w3": 3}
    assert {move.kind for move in decided.moves} == {"unserved"}


@pytest.mark.parametrize("policy", POLICIES)
def test_unserved_leases_are_not_held_back_by_the_number_of_moves(policy: Policy) -> None:
    leases = [lease(number) for number in range(200)]
    assert len(policy(leases, fleet(4), Limits(moves=1)).moves) == 200


def test_every_move_says_why() -> None:
    leases = [lease(0, unserved="its run is over"), *(lease(number, "w0") for number in range(1, 9))]
    decided = balanced(leases, fleet(2), NO_LIMITS)
    reasons = [move.because for move in decided.moves]
    assert reasons == [
        "its run is over",
        "w0 has 8 leases, and w1 has 1",
        "w0 has 7 leases, and w1 has 2",
        "w0 has 6 leases, and w1 has 3",
    ]
    leases = [lease(number, "w0", kbps=100.0 + 50.0 * number) for number in range(8)]
    decided = balanced(leases, fleet(2), NO_LIMITS)
    assert all("of an even share of KB/s" in move.because for move in decided.moves)
    assert decided.moves


def test_without_a_worker_nothing_can_be_placed() -> None:
    decided = balanced([lease(0), lease(1)], [worker("w0", accepts=False)], NO_LIMITS)
    assert decided.moves == ()
    assert decided.unplaced == ("shard-0000", "shard-0001")


def test_a_worker_that_reads_comes_before_one_that_is_starting() -> None:
    leases = [lease(number) for number in range(4)]
    decided = balanced(leases, [worker("w0"), worker("w1", ready=False)], NO_LIMITS)
    assert counts(after(leases, decided)) == {"w0": 4}


def test_a_starting_fleet_leaves_the_share_of_workers_that_were_launched_with_it() -> None:
    leases = [lease(number, kbps=None) for number in range(12)]
    starting = [worker("w0", ready=False)]
    decided = balanced(leases, starting, Limits(expected=2))
    assert counts(after(leases, decided)) == {"w0": 4}
    assert len(decided.unplaced) == 8
    assert len(balanced(leases, starting, Limits(expected=0)).moves) == 12, "nobody else will come"
    assert len(balanced(leases, [worker("w0")], Limits(expected=2)).moves) == 12, "it can read now"


def test_a_relaunched_slot_gets_its_leases_back() -> None:
    homes = ["slot-a", "slot-b", "slot-a", "slot-b", "slot-a", "slot-b"]
    leases = [lease(number, home=home) for number, home in enumerate(homes)]
    workers = [worker("new-b", slot="slot-b"), worker("new-a", slot="slot-a")]
    decided = balanced(leases, workers, NO_LIMITS)
    assert {move.lease: move.to for move in decided.moves} == {
        one.key: "new-a" if one.home == "slot-a" else "new-b" for one in leases
    }


def test_a_handoff_whose_old_owner_died_is_completed() -> None:
    orphan = lease(0, "w0", next_owner=WorkerId("w2"), unserved="the run of w0 is over", pinned=True)
    decided = balanced([orphan, lease(1, "w1"), lease(2, "w2")], [worker("w1"), worker("w2")], NO_LIMITS)
    assert [(move.lease, move.to) for move in decided.moves] == [("shard-0000", "w2")]


# --- caps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_gets_more_leases_than_it_may_hold(policy: Policy) -> None:
    leases = [lease(number) for number in range(10)]
    decided = policy(leases, fleet(2), replace(NO_LIMITS, max_leases=3))
    assert counts(after(leases, decided)) == {"w0": 3, "w1": 3}
    assert len(decided.unplaced) == 4


def test_nobody_gets_more_throughput_than_it_may_read() -> None:
    leases = [lease(number, kbps=400.0) for number in range(6)]
    decided = balanced(leases, fleet(2), replace(NO_LIMITS, max_kbps=1000.0))
    assert counts(after(leases, decided)) == {"w0": 2, "w1": 2}
    assert len(decided.unplaced) == 2


def test_a_lease_above_the_cap_is_read_by_a_worker_that_has_nothing_else() -> None:
    leases = [lease(0, kbps=5000.0), lease(1, kbps=10.0)]
    decided = balanced(leases, fleet(2), replace(NO_LIMITS, max_kbps=1000.0))
    assert decided.unplaced == ()
    assert len({move.to for move in decided.moves}) == 2


def test_a_full_worker_is_passed_over_when_load_is_balanced() -> None:
    """The least loaded worker holds as many leases as it may; the next one has to do."""
    full = [lease(number, "w0", kbps=1.0) for number in range(4)]
    heavy = [lease(10 + number, "w1", kbps=200.0) for number in range(4)]
    light = [lease(20, "w2", kbps=200.0)]
    decided = balanced([*full, *heavy, *light], fleet(3), replace(NO_LIMITS, max_leases=4))
    assert {move.to for move in decided.moves} == {"w2"}


# --- draining -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_a_draining_worker_gives_everything_away(policy: Policy) -> None:
    leases = [lease(number, f"w{number % 3}") for number in range(9)]
    workers = [worker("w0", drains=True, accepts=False), worker("w1"), worker("w2")]
    decided = policy(leases, workers, Limits(moves=0))
    assert {move.kind for move in decided.moves} == {"drain"}
    assert set(counts(after(leases, decided))) == {"w1", "w2"}


def test_what_is_on_its_way_already_is_not_moved_again() -> None:
    leases = [lease(0, "w0", next_owner=WorkerId("w1"), pinned=True)]
    workers = [worker("w0", drains=True, accepts=False), worker("w1"), worker("w2")]
    assert balanced(leases, workers, NO_LIMITS).moves == ()


def test_the_last_worker_keeps_its_leases_until_another_one_is_there() -> None:
    leases = [lease(number, "w0") for number in range(3)]
    assert balanced(leases, [worker("w0", drains=True, accepts=False)], NO_LIMITS).moves == ()


# --- balancing ----------------------------------------------------------------------------------------------------


def test_a_new_worker_gets_its_share_with_few_moves() -> None:
    leases = [lease(number, f"w{number % 4}", kbps=50.0) for number in range(80)]
    decided = balanced(leases, fleet(5), NO_LIMITS)
    now = loads(after(leases, decided), fleet(5))
    assert len(decided.moves) <= 16
    assert max(now.values()) <= 1.05 * sum(now.values()) / 5
    assert min(now.values()) >= 0.9 * sum(now.values()) / 5


def test_a_hot_shard_stays_and_the_others_leave() -> None:
    """It fills a worker alone; moving it would only move the problem."""
    leases = [lease(0, "w0", kbps=2000.0)]
    leases += [lease(1 + number, "w0", kbps=100.0) for number in range(6)]
    leases += [lease(10 + number, "w1", kbps=100.0) for number in range(6)]
    leases += [lease(20 + number, "w2", kbps=100.0) for number in range(6)]
    decided = balanced(leases, fleet(3), NO_LIMITS)
    assert all(move.lease != "shard-0000" for move in decided.moves)
    assert counts(after(leases, decided))["w0"] == 1
    assert balanced(after(leases, decided), fleet(3), NO_LIMITS).moves == ()


def test_two_shards_that_are_too_heavy_for_one_worker_are_separated() -> None:
    leases = [lease(0, "w0", kbps=1000.0), lease(1, "w0", kbps=900.0)]
    decided = balanced(leases, fleet(2), NO_LIMITS)
    assert [move.to for move in decided.moves] == ["w1"]


@pytest.mark.parametrize("policy", POLICIES)
def test_more_workers_than_leases_is_no_reason_to_move_anything(policy: Policy) -> None:
    leases = [lease(number, f"w{number}") for number in range(3)]
    assert policy(leases, fleet(8), NO_LIMITS).moves == ()


@pytest.mark.parametrize("kbps", [0.0, 2.0, 700.0], ids=["silent", "nearly silent", "loud"])
@pytest.mark.parametrize(
    ("before", "most_moves"),
    [([2, 2, 0], 1), ([3, 1], 1), ([9, 1], 4), ([11, 9], 1), ([3, 2, 1], 1), ([4, 4, 1], 2), ([5, 3, 3, 0], 2)],
)
def test_leases_that_weigh_alike_are_shared_by_number_with_the_fewest_moves(
    before: list[int], most_moves: int, kbps: float
) -> None:
    owners = [f"w{index}" for index, number in enumerate(before) for _ in range(number)]
    leases = [lease(number, owner, kbps) for number, owner in enumerate(owners)]
    decided = balanced(leases, fleet(len(before)), NO_LIMITS)
    now = counts(after(leases, decided)).values()
    assert max(now) - min(now) <= 1
    assert len(decided.moves) == most_moves
    assert balanced(after(leases, decided), fleet(len(before)), NO_LIMITS).moves == ()


def test_a_stream_that_falls_silent_and_wakes_moves_nothing_on_the_way() -> None:
    """Weights follow the load: no threshold makes a placement right at one moment and wrong at the next."""
    shape = [100.0, 10.0, 10.0, 10.0]
    leases = [lease(0, "w0"), *(lease(number, "w1") for number in range(1, 4))]
    random = Random(11)
    for loudness in [*(1.2 - step / 50 for step in range(20)), *(0.8 + step / 50 for step in range(20))]:
        seen = [
            replace(one, kbps=kbps * loudness * random.uniform(0.9, 1.1))
            for one, kbps in zip(leases, shape, strict=True)
        ]
        assert balanced(seen, fleet(2), NO_LIMITS).moves == ()


def test_a_new_worker_gets_its_part_of_silent_shards_too() -> None:
    leases = [lease(number, "w0", kbps=0.0) for number in range(9)]
    decided = balanced(leases, fleet(2), NO_LIMITS)
    assert counts(after(leases, decided)) == {"w0": 5, "w1": 4}
    assert balanced(after(leases, decided), fleet(2), NO_LIMITS).moves == ()


def test_imbalance_within_the_band_is_no_reason_to_move() -> None:
    leases = [lease(number, "w0", kbps=54.0) for number in range(10)]
    leases += [lease(10 + number, "w1", kbps=46.0) for number in range(10)]
    assert balanced(leases, fleet(2), NO_LIMITS).moves == ()


def test_a_little_imbalance_must_last_before_it_is_believed() -> None:
    leases = [lease(number, "w0", kbps=115.0) for number in range(10)]
    leases += [lease(10 + number, "w1", kbps=85.0) for number in range(10)]
    first = balanced(leases, fleet(2), NO_LIMITS)
    assert first.moves == ()
    assert first.outside == {"w0", "w1"}
    assert balanced(leases, fleet(2), replace(NO_LIMITS, settled=first.outside)).moves != ()


def test_balancing_stops_at_the_number_of_moves_a_tick_may_make() -> None:
    leases = [lease(number, "w0", kbps=10.0) for number in range(100)]
    assert len(balanced(leases, fleet(2), Limits(moves=7)).moves) == 7


def test_a_slower_machine_gets_less() -> None:
    leases = [lease(number) for number in range(90)]
    decided = balanced(leases, [worker("w0", cost=0.02), worker("w1", cost=0.01)], NO_LIMITS)
    assert counts(after(leases, decided)) == {"w0": 30, "w1": 60}


def test_throughput_ignores_how_fast_machines_are() -> None:
    leases = [lease(number) for number in range(90)]
    decided = throughput(leases, [worker("w0", cost=0.02), worker("w1", cost=0.01)], NO_LIMITS)
    assert counts(after(leases, decided)) == {"w0": 45, "w1": 45}


def test_count_ignores_load() -> None:
    leases = [lease(number, kbps=1000.0 if number < 5 else 1.0) for number in range(10)]
    assert counts(after(leases, count(leases, fleet(2), NO_LIMITS))) == {"w0": 5, "w1": 5}


def test_a_lease_stays_in_its_zone_when_that_costs_nothing() -> None:
    zones = {"w0": "a", "w1": "b", "w2": "a", "w3": "b"}
    workers = [worker(name, zone=zone) for name, zone in zones.items()]
    leases = [lease(number, "w0") for number in range(12)]
    leases += [lease(20 + number, "w1") for number in range(12)]
    decided = balanced(leases, workers, NO_LIMITS)
    was = {one.key: one.owner for one in leases}
    assert len(decided.moves) == 12
    assert all(zones[str(was[move.lease])] == zones[move.to] for move in decided.moves)


# --- stability ----------------------------------------------------------------------------------------------------


def zipf(shards: int, mean: float = 50.0) -> list[float]:
    weights = [1 / (rank + 1) ** 0.9 for rank in range(shards)]
    scale = mean * shards / sum(weights)
    Random(7).shuffle(weights)
    return [weight * scale for weight in weights]


@pytest.mark.parametrize("workers", [3, 10, 40])
def test_jitter_of_ten_percent_moves_nothing(workers: int) -> None:
    leases = [lease(number, kbps=kbps) for number, kbps in enumerate(zipf(400))]
    leases = after(leases, balanced(leases, fleet(workers), NO_LIMITS))
    random = Random(3)
    passes: dict[WorkerId, int] = {}
    for _ in range(200):
        seen = [replace(one, kbps=(one.kbps or 0.0) * random.uniform(0.9, 1.1)) for one in leases]
        settled = frozenset(name for name, number in passes.items() if number >= PATIENCE)
        decided = balanced(seen, fleet(workers), replace(NO_LIMITS, settled=settled))
        passes = {name: passes.get(name, 0) + 1 for name in decided.outside}
        assert decided.moves == ()


def test_ten_thousand_leases_are_decided_in_less_than_a_second() -> None:
    leases = [lease(number, kbps=kbps) for number, kbps in enumerate(zipf(10_000))]
    started = time.process_time()
    decided = balanced(leases, fleet(1000), NO_LIMITS)
    assert time.process_time() - started < 1.0
    assert len(decided.moves) == 10_000


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[LeaseLoad], list[WorkerLoad], Limits]:
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
    limits = Limits(
        max_leases=draw(st.sampled_from([None, None, 1, 5])),
        max_kbps=draw(st.sampled_from([None, None, 400.0])),
        moves=draw(st.sampled_from([0, 3, 1000])),
        settled=frozenset(one.id for one in workers if draw(st.booleans())),
    )
    return leases, workers, limits


@settings(max_examples=400)
@given(situations(), st.sampled_from(POLICIES), st.randoms(use_true_random=False))
def test_what_always_holds(
    situation: tuple[list[LeaseLoad], list[WorkerLoad], Limits], policy: Policy, random: Random
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
def small_fleets(draw: st.DrawFn) -> tuple[list[LeaseLoad], list[WorkerLoad], Limits]:
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
    situation: tuple[list[LeaseLoad], list[WorkerLoad], Limits], policy: Policy
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
