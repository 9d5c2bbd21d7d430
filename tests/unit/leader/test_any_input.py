"""What the leader's rules promise holds for any input."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_dagster.leader.assignment.assignment_state import fair_share
from kcl_dagster.leader.assignment.policy import Assignment, AssignmentLimits, LeaseLoad, Policy, WorkerLoad
from kcl_dagster.leader.assignment.variance import Variance
from kcl_dagster.leader.cleanup import has_started, plan_cleanup
from kcl_dagster.leader.expiry import observed_version, rest, why_unserved
from kcl_dagster.leader.failure_count import FailureCount
from kcl_dagster.leader.handoff import Deadline, HandoffVerdict, may_be_asked_for
from kcl_dagster.leader.launches import LONGEST_PAUSE, LaunchBook
from kcl_dagster.leader.run_view import SlotRun
from kcl_dagster.model.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint
from kcl_dagster.model.hole import find_hole
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.shard import MAX_HASH_KEY, HashRange
from tests.conformance.rules.auditor import HoleWatch, find_hole_as_kcl
from tests.conformance.rules.election import elected, leads
from tests.conformance.rules.lease_count import lease_count, target_leases

pytestmark = pytest.mark.slow

WORKERS = [WorkerId("a"), WorkerId("b"), WorkerId("c")]
owners = st.sampled_from([None, *WORKERS])
seconds = st.floats(0, 1000)


def lease_at(index: int, **more: object) -> Lease:
    name = f"s{index}"
    return replace(Lease(LeaseKey(name), name, checkpoint=Checkpoint("7")), **more)  # type: ignore[arg-type]


leases_of_any_kind = st.builds(
    lease_at,
    st.integers(0, 5),
    owner=owners,
    checkpoint_owner=owners,
    counter=st.integers(0, 9),
    checkpoint=st.sampled_from([TRIM_HORIZON, Checkpoint("7"), SHARD_END]),
)


# Expiry and handoffs


@given(leases_of_any_kind, seconds, st.floats(1, 100), st.sets(st.sampled_from(WORKERS)))
def test_a_lease_is_up_only_without_an_owner_after_its_time_or_after_its_run(
    lease: Lease, stood: float, duration: float, over: set[WorkerId]
) -> None:
    up = why_unserved(lease, stood, duration, lambda worker: worker in over) is not None
    owner = lease.actual_owner
    assert up == (not lease.is_finished and (owner is None or owner in over or stood > duration))


@given(leases_of_any_kind, leases_of_any_kind)
def test_equal_versions_mean_that_nothing_was_written_by_an_owner(one: Lease, other: Lease) -> None:
    same = (one.counter, one.actual_owner) == (other.counter, other.actual_owner)
    assert (observed_version(one) == observed_version(other)) == same


@given(
    st.lists(leases_of_any_kind, unique_by=lambda lease: lease.key), st.lists(seconds, min_size=6), st.floats(1, 90)
)
def test_a_rest_is_short_and_enough(leases: list[Lease], ages: list[float], duration: float) -> None:
    by_key = {lease.key: ages[index] for index, lease in enumerate(leases)}
    pause = rest(leases, by_key, dict.fromkeys(by_key, duration))
    if pause is not None:
        assert 0 < pause <= 1.01
        assert any(age <= duration < age + pause for age in by_key.values())


@given(leases_of_any_kind, seconds, seconds, st.floats(0, 60), st.floats(0, 60))
def test_a_handoff_that_was_forced_stays_forced(
    lease: Lease, one: float, other: float, timeout: float, notice: float
) -> None:
    deadline, (early, late) = Deadline(timeout, notice), sorted((one, other))
    if deadline.judge(lease, early) is HandoffVerdict.FORCE:
        assert deadline.judge(lease, late) is HandoffVerdict.FORCE
    assert deadline.judge(lease, timeout + notice) is HandoffVerdict.FORCE
    if may_be_asked_for(lease, unserved=False):
        assert lease.actual_owner == lease.owner is not None
        assert not lease.is_finished


# Clean-up


@st.composite
def families(draw: st.DrawFn) -> tuple[list[Lease], dict[str, set[str]], set[str] | None]:
    """Leases of shards 0 to 5, each the child of some earlier ones, as they may stand."""
    parents = {n: draw(st.frozensets(st.integers(0, n - 1), max_size=2)) if n else frozenset() for n in range(6)}
    children: dict[str, set[str]] = {}
    for child, above in parents.items():
        for parent in above:
            children.setdefault(f"s{parent}", set()).add(f"s{child}")
    there = draw(st.sets(st.integers(0, 5)))
    leases = [
        lease_at(
            n,
            parents=frozenset(f"s{p}" for p in parents[n]),
            children=frozenset(children.get(f"s{n}", ())) if draw(st.booleans()) else frozenset(),
            checkpoint=draw(st.sampled_from([TRIM_HORIZON, Checkpoint("7"), SHARD_END])),
        )
        for n in sorted(there)
    ]
    listed = draw(st.none() | st.sets(st.sampled_from([f"s{n}" for n in range(6)])))
    return leases, children if draw(st.booleans()) else {}, listed


@given(families())
def test_only_what_was_read_and_is_followed_up_is_deleted(
    family: tuple[list[Lease], dict[str, set[str]], set[str] | None],
) -> None:
    leases, children, listed = family
    plan = plan_cleanup(leases, children, listed)
    by_shard = {lease.shard_id: lease for lease in leases}
    for lease in plan.deletes:
        assert lease.is_finished
        assert not any(parent in by_shard for parent in lease.parents)
        known = lease.children or frozenset(children.get(lease.shard_id, ()))
        if known:
            assert all(child in by_shard and has_started(by_shard[child]) for child in known)
        else:
            assert listed is not None
            assert lease.shard_id not in listed
    for lease, found in plan.children:
        assert lease.is_finished
        assert found != lease.children


# Holes


ranges = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted), max_size=6)


@given(ranges, st.booleans())
def test_a_hole_that_only_the_kcl_sees_is_at_the_end(pairs: list[list[int]], reaches_the_end: bool) -> None:
    found = [HashRange(start, end) for start, end in pairs]
    found += [HashRange(10, MAX_HASH_KEY)] if reaches_the_end else []
    ours, theirs = find_hole(found), find_hole_as_kcl(found) if found else find_hole(found)
    if ours is not None:
        assert theirs == ours
    elif theirs is not None:
        assert theirs.end == MAX_HASH_KEY


@given(st.lists(st.sampled_from([None, 1, 2]), max_size=12))
def test_a_hole_is_confirmed_when_the_same_was_seen_three_times_in_a_row(seen: list[int | None]) -> None:
    watch = HoleWatch()
    for start in seen:
        watch = watch.saw(None if start is None else find_hole([HashRange(start, MAX_HASH_KEY)]))
    assert watch.is_confirmed == (len(seen) >= 3 and seen[-1] is not None and len(set(seen[-3:])) == 1)


# Leaders


@given(st.lists(leases_of_any_kind, max_size=8), st.randoms(use_true_random=False), st.integers(1, 3))
def test_everybody_elects_the_same_leaders(leases: list[Lease], random: Random, leaders: int) -> None:
    chosen = elected(leases, leaders)
    shuffled = list(leases)
    random.shuffle(shuffled)
    assert elected(shuffled, leaders) == chosen
    there = {lease.owner for lease in leases if lease.owner is not None}
    assert set(chosen) <= there
    assert len(chosen) == min(leaders, len(there))
    assert all(leads(worker, leases, leaders) == (not there or worker in chosen) for worker in WORKERS)


@given(st.lists(st.booleans(), max_size=20))
def test_a_leader_gives_up_after_failures_in_a_row(passes: list[bool]) -> None:
    count, in_a_row = FailureCount(), 0
    for went_well in passes:
        if went_well:
            count.succeeded()
            in_a_row = 0
        else:
            in_a_row += 1
            assert count.failed() == (in_a_row >= 3)


@given(st.lists(st.tuples(st.floats(0, 200), st.booleans()), max_size=12))
def test_a_slot_is_never_held_back_for_longer_than_the_longest_pause(steps: list[tuple[float, bool]]) -> None:
    book, now, started = LaunchBook(lifetime=3600.0), 0.0, 0.0
    for number, (passed, is_new) in enumerate(steps):
        now += passed
        if is_new:
            started = now
        runs = {"worker-000": SlotRun(f"run-{number}", WORKERS[0], "running", started)} if is_new else {}
        book.see(runs, now, now)
        assert 0.0 <= book.pause("worker-000", now) <= LONGEST_PAUSE
        assert book.pause("worker-001", now) == 0.0
    assert book.pause("worker-000", now + LONGEST_PAUSE) == pytest.approx(0.0, abs=1e-9)


# The KCL's assignment


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[LeaseLoad], list[WorkerLoad]]:
    workers = [
        WorkerLoad(name, accepts=draw(st.booleans()), averages=averages, ceilings=dict.fromkeys(averages, 90.0))
        for name in draw(st.lists(st.sampled_from(WORKERS), unique=True))
        for averages in [draw(st.sampled_from([{}, {"C": 0.0}, {"C": 40.0}, {"C": 95.0}]))]
    ]
    leases = [
        LeaseLoad(
            LeaseKey(f"s{number}"),
            owner=draw(owners),
            kbps=draw(st.sampled_from([None, 0.0, 10.0, 500.0])),
            unserved=draw(st.sampled_from([None, None, "it expired"])),
            pinned=draw(st.booleans()),
            age=draw(seconds),
        )
        for number in range(draw(st.integers(0, 10)))
    ]
    return leases, workers


def as_kcl(random: Random) -> list[Policy]:
    return [lease_count, Variance(random.shuffle)]


@given(fleets(), st.integers(0, 99), st.booleans())
def test_the_kcls_rules_give_leases_to_workers_that_take_them_and_each_once(
    fleet: tuple[list[LeaseLoad], list[WorkerLoad]], seed: int, balance: bool
) -> None:
    leases, workers = fleet
    accepting = {worker.id for worker in workers if worker.accepts}
    by_key = {lease.key: lease for lease in leases}
    for policy, again in zip(as_kcl(Random(seed)), as_kcl(Random(seed)), strict=True):
        decided: Assignment = policy(leases, workers, AssignmentLimits(balance=balance))
        assert again(leases, workers, AssignmentLimits(balance=balance)) == decided
        moved = [move.lease for move in decided.moves]
        assert {move.to for move in decided.moves} <= accepting
        assert not set(moved) & set(decided.unplaced)
        if balance:
            continue
        assert len(set(moved)) == len(moved)
        assert all(by_key[key].unserved for key in [*moved, *decided.unplaced])


@given(st.integers(0, 500), st.integers(0, 50), st.none() | st.integers(1, 20))
def test_a_fair_share_is_enough_for_all_and_respects_the_limit(leases: int, workers: int, most: int | None) -> None:
    target = target_leases(leases, workers, most)
    if most is not None:
        assert target <= most
    elif workers:
        assert target * workers >= leases


@given(st.lists(st.floats(0, 1e6), max_size=20), st.integers(1, 8))
def test_a_share_of_equal_workers_is_at_most_the_average_and_nothing_where_there_is_nothing(
    weights: list[float], workers: int
) -> None:
    share = fair_share(weights, [1.0] * workers)
    assert 0.0 <= share <= sum(weights) / workers * (1 + 1e-9)
    if weights and len(set(weights)) == 1 and weights[0] > 0 and len(weights) >= workers:
        assert share == pytest.approx(sum(weights) / workers)
