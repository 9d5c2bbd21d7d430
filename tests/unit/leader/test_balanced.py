"""Our assignment policies on fleets that somebody thought of."""

import time
from dataclasses import replace
from random import Random

import pytest

from kcl_dagster.leader.assignment.balanced import balanced, count, throughput
from kcl_dagster.leader.assignment.policy import AssignmentLimits, Policy
from kcl_dagster.leader.load import PATIENCE
from kcl_dagster.model.lease import WorkerId
from tests.unit.leader.fleets import NO_LIMITS, POLICIES, after, counts, fleet, lease, loads, worker

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
    assert len(policy(leases, fleet(4), AssignmentLimits(moves=1)).moves) == 200


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


@pytest.mark.audit("B10")
@pytest.mark.parametrize("policy", POLICIES)
def test_a_worker_that_starts_slowly_gives_its_leases_to_those_that_read(policy: Policy) -> None:
    leases = [lease(number, "w1" if number < 2 else "w0") for number in range(4)]
    slow = replace(worker("w1", ready=False), starts_slowly=True)
    decided = policy(leases, [worker("w0"), slow], NO_LIMITS)
    assert counts(after(leases, decided)) == {"w0": 4}
    assert {move.because for move in decided.moves} == {"w1 has not started yet"}
    assert policy(leases[:2], [slow], NO_LIMITS).moves == ()  # there is nobody to give them to
    quick = worker("w1", ready=False)
    assert counts(after(leases, policy(leases, [worker("w0"), quick], NO_LIMITS))) == {"w0": 2, "w1": 2}


def test_a_starting_fleet_leaves_the_share_of_workers_that_were_launched_with_it() -> None:
    leases = [lease(number, kbps=None) for number in range(12)]
    starting = [worker("w0", ready=False)]
    decided = balanced(leases, starting, AssignmentLimits(expected=2))
    assert counts(after(leases, decided)) == {"w0": 4}
    assert len(decided.unplaced) == 8
    assert len(balanced(leases, starting, AssignmentLimits(expected=0)).moves) == 12, "nobody else will come"
    assert len(balanced(leases, [worker("w0")], AssignmentLimits(expected=2)).moves) == 12, "it can read now"


def test_leases_that_were_measured_for_seconds_are_shared_by_number() -> None:
    """The worker that came up first reads a longer backlog, and so has most of the KB/s."""
    kbps = [900.0, 300.0, 200.0, 100.0]
    fresh = [lease(n, "w0" if n < 2 else "w1", kbps=kbps[n], unsettled=True) for n in range(4)]
    assert balanced(fresh, fleet(2), NO_LIMITS).moves == ()
    settled = [replace(one, unsettled=False) for one in fresh]
    assert balanced(settled, fleet(2), NO_LIMITS).moves, "by then it is a load"
    late = [replace(one, owner=WorkerId("w0")) for one in fresh]
    assert counts(after(late, balanced(late, fleet(2), NO_LIMITS))) == {"w0": 2, "w1": 2}
    known = [replace(one, settled_kbps=100.0) for one in fresh]
    assert balanced(known, fleet(2), NO_LIMITS).moves == ()


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
    decided = policy(leases, workers, AssignmentLimits(moves=0))
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
    assert len(balanced(leases, fleet(2), AssignmentLimits(moves=7)).moves) == 7


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


def test_a_decision_costs_no_more_than_its_leases() -> None:
    """Ten times the leases and workers cost about ten times as much, not a hundred times."""

    def cost(leases: int) -> float:
        given = [lease(number, kbps=kbps) for number, kbps in enumerate(zipf(leases))]
        started = time.process_time()
        decided = balanced(given, fleet(leases // 10), NO_LIMITS)
        assert len(decided.moves) == leases
        return time.process_time() - started

    assert min(cost(10_000) for _ in range(2)) < 40 * min(cost(1000) for _ in range(5))
