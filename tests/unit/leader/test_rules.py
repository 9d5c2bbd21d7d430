"""The leader's small rules: expiry, handoffs, liveness, clean-up, holes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_dagster.leader import expiry, handoff
from kcl_dagster.leader.cleanup import DECLARED_SECONDS, has_started, plan_cleanup
from kcl_dagster.leader.handoff import Deadline, HandoffVerdict
from kcl_dagster.leader.hash_ranges import active_ranges, lack_range
from kcl_dagster.leader.liveness import (
    CLOCK_TOLERANCE,
    KCL_ROW_SECONDS,
    LivenessRule,
    WorkerSight,
    lag_of,
    moving_average,
)
from kcl_dagster.model.checkpoint import SHARD_END, Checkpoint
from kcl_dagster.model.hole import Hole, find_hole
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.shard import MAX_HASH_KEY, HashRange
from kcl_dagster.model.stored import StoredCounts, StoredRows
from kcl_dagster.model.worker_row import WorkerRow, WorkerState
from tests.conformance.rules.auditor import HoleWatch, find_hole_as_kcl

A, B = WorkerId("worker-000:aaaaaaaa"), WorkerId("worker-001:bbbbbbbb")
NOW = 1_000_000.0


def lease(name: str = "s1", **more: object) -> Lease:
    return replace(Lease(LeaseKey(name), name, counter=5, owner=A, checkpoint=Checkpoint("17")), **more)  # type: ignore[arg-type]


HANDOFF = lease(owner=B, checkpoint_owner=A)


# --- expiry -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "stood", "over", "expected"),
    [
        pytest.param(lease(), 29.0, False, None, id="renewed"),
        pytest.param(lease(), 30.0, False, None, id="exactly the lease duration"),
        pytest.param(lease(), 30.1, False, f"{A} has not renewed it for 30 s", id="expired"),
        pytest.param(lease(), 0.0, True, f"the run of {A} is over", id="run over"),
        pytest.param(lease(owner=None), 0.0, False, "no worker owns it", id="unowned"),
        pytest.param(lease(owner=None, checkpoint=SHARD_END), 99.0, False, None, id="finished"),
        pytest.param(lease(checkpoint=SHARD_END), 99.0, True, None, id="finished and owned"),
        pytest.param(
            lease(owner=B, checkpoint_owner=A), 31.0, False, f"{A} has not renewed it for 31 s", id="handoff"
        ),
    ],
)
def test_when_a_lease_needs_an_owner(what: Lease, stood: float, over: bool, expected: str | None) -> None:
    assert expiry.why_unserved(what, stood, 30.0, lambda worker: over and worker == A) == expected


def test_signs_of_life_of_a_lease() -> None:
    seen = expiry.observed_version(lease())
    assert expiry.observed_version(lease(counter=6)) != seen
    assert expiry.observed_version(lease(owner=B)) != seen, "a lease that was deleted and made again"
    assert expiry.observed_version(lease(owner=B, checkpoint_owner=A)) == seen, "the leader asked for a handoff"


# --- handoffs -----------------------------------------------------------------------------------------------------


def test_a_handoff_has_the_time_to_be_noticed_and_the_time_to_be_done() -> None:
    deadline = Deadline(timeout=30.0, notice=10.0)
    running = lease(owner=B, checkpoint_owner=A)
    assert deadline.judge(running, 39.9) is HandoffVerdict.WAIT
    assert deadline.judge(running, 40.0) is HandoffVerdict.FORCE
    assert deadline.judge(replace(running, checkpoint=SHARD_END), 0.0) is HandoffVerdict.FORCE


def test_a_handoff_is_the_same_while_the_old_owner_renews() -> None:
    running = lease(owner=B, checkpoint_owner=A)
    assert handoff.observed_version(replace(running, counter=9)) == handoff.observed_version(running)
    assert handoff.observed_version(replace(running, owner=WorkerId("c"))) != handoff.observed_version(running)


def test_a_handoff_that_is_asked_for_again_is_another_one() -> None:
    first = lease(owner=B, checkpoint_owner=A, handoff=7)
    assert handoff.observed_version(replace(first, handoff=9)) != handoff.observed_version(first)


# --- liveness -----------------------------------------------------------------------------------------------------


def row(**more: object) -> WorkerRow:
    mine = WorkerRow(A, int(NOW), averages={}, operating_range={}, slot="worker-000", run_id="aaaaaaaa-1", beat=3)
    return replace(mine, **more)  # type: ignore[arg-type]


def judged(seen: WorkerRow, *, stood: float = 0.0, moved: bool = False, ended: tuple[str, ...] = ()) -> WorkerSight:
    rule = LivenessRule(heartbeat=5.0, now=NOW, stood=lambda _: stood, moved=lambda _: moved)
    return rule.judge(seen, ended)


@pytest.mark.parametrize(
    ("seen", "expected", "why"),
    [
        pytest.param(judged(row()), True, "", id="fresh"),
        pytest.param(judged(row(), stood=20.0), True, "", id="missed some beats"),
        pytest.param(judged(row(), stood=21.0, moved=True), False, "its row does not change", id="missed too many"),
        pytest.param(judged(row(last_update=1), moved=True), True, "", id="another clock, but it moves"),
        pytest.param(judged(row(last_update=1)), False, "its row does not change", id="old and never seen moving"),
        pytest.param(judged(row(), ended=("aaaaaaaa-1",)), False, "its run is over", id="run over"),
        pytest.param(judged(row(slot=None), stood=59.0), True, "", id="java, reported"),
        pytest.param(judged(row(slot=None), stood=61.0, moved=True), False, "its row does", id="java, silent"),
        pytest.param(judged(row(last_update=None)), False, "its row does not change", id="never wrote"),
    ],
)
def test_who_is_alive(seen: WorkerSight, expected: bool, why: str) -> None:
    assert seen.alive is expected
    assert seen.why.startswith(why)


@pytest.mark.parametrize(
    ("heartbeat", "beat", "expected"),
    [(2.0, 7, False), (2.0, 15, False), (2.0, 16, True), (5.0, 6, False), (5.0, 7, True), (60.0, 6, False)],
)
def test_a_worker_starts_slowly_after_half_a_minute_whatever_the_heartbeat(
    heartbeat: float, beat: int, expected: bool
) -> None:
    rule = LivenessRule(heartbeat, NOW, lambda _: 0.0, lambda _: True)
    assert rule.judge(row(beat=beat, state=WorkerState.STARTING), ()).starts_slowly is expected
    assert not rule.judge(row(beat=beat), ()).starts_slowly


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (judged(row(drain_requested=True)), "it is draining"),
        (judged(row(state=WorkerState.DRAINING)), "it is draining"),
        (judged(row(averages={"C": (5.0,)})), "its metrics cannot be read"),
        (judged(row(averages={"C": (5.0, -1.0)}, operating_range={"C": (80,)})), "it cannot measure itself"),
    ],
)
def test_who_lives_and_is_given_nothing(seen: WorkerSight, why: str) -> None:
    assert seen.alive
    assert not seen.accepts
    assert seen.why == why


def test_a_new_leader_does_not_hand_over_to_a_worker_it_has_not_seen_alive() -> None:
    late = row(last_update=int(NOW) - 15)
    assert not judged(late).ready
    assert judged(late).accepts, "somebody must be given what nobody serves"
    assert judged(late, moved=True).ready
    assert judged(row()).ready
    assert not judged(row(state=WorkerState.STARTING)).ready


def test_the_slot_of_a_worker_with_a_wrong_clock_waits_until_its_row_was_watched() -> None:
    late = row(last_update=int(NOW) - 600)
    assert (judged(late).alive, judged(late).unsure) == (False, True)
    assert judged(late, moved=True).alive
    assert not judged(late, stood=20.5).unsure, "watched for four heartbeats"
    assert not judged(late, ended=("aaaaaaaa-1",)).unsure, "its run is known to be over"
    assert not judged(row(last_update=int(NOW) - 3601)).unsure


def test_clocks_may_disagree_a_little() -> None:
    oldest = int(NOW - KCL_ROW_SECONDS - CLOCK_TOLERANCE)
    assert judged(row(slot=None, last_update=oldest)).alive
    assert not judged(row(slot=None, last_update=oldest - 1)).alive


@pytest.mark.parametrize(
    ("series", "expected"),
    [((), 0.0), ((-1.0,), 0.0), ((40.0,), 40.0), ((40.0, 80.0), 60.0), ((40.0, -1.0, 80.0), 60.0)],
)
def test_the_moving_average_skips_what_is_missing(series: tuple[float, ...], expected: float) -> None:
    assert moving_average(series) == expected


def test_the_application_is_as_late_as_its_latest_living_worker() -> None:
    sights = [
        judged(row(lag_ms=5)),
        judged(row(lag_ms=70)),
        judged(row(lag_ms=900), ended=("aaaaaaaa-1",)),
        judged(row()),
    ]
    assert lag_of(sights) == 70
    assert lag_of([]) is None


# --- clean-up -----------------------------------------------------------------------------------------------------


def finished(name: str, *children: str, parents: tuple[str, ...] = ()) -> Lease:
    return lease(name, checkpoint=SHARD_END, children=frozenset(children), parents=frozenset(parents))


START = Checkpoint("TRIM_HORIZON")


@pytest.mark.parametrize(
    ("leases", "deleted"),
    [
        pytest.param([finished("p", "c", "d"), lease("c"), lease("d")], ["p"], id="children have started"),
        pytest.param([finished("p", "c", "d"), lease("c"), lease("d", checkpoint=START)], [], id="one has not"),
        pytest.param([finished("p", "c", "d"), lease("c")], [], id="one has no lease"),
        pytest.param([finished("p", "c"), lease("c", checkpoint=Checkpoint("LATEST"))], ["p"], id="LATEST counts"),
        pytest.param(
            [finished("p", "c"), finished("c", "d", parents=("p",)), lease("d")], ["p"], id="parents first"
        ),
        pytest.param([finished("p")], [], id="no child known: the only trace of them is kept"),
        pytest.param([finished("old")], ["old"], id="no child known and gone from the stream"),
        pytest.param([lease("p", children=frozenset({"c"})), lease("c")], [], id="not finished"),
    ],
)
def test_which_finished_leases_go(leases: list[Lease], deleted: list[str]) -> None:
    assert [one.key for one in plan_cleanup(leases, {}, {"p", "c", "d"}).deletes] == deleted


def test_children_that_were_not_noted_are_taken_from_the_stream() -> None:
    plan = plan_cleanup([finished("p"), lease("c")], {"p": {"c"}}, {"p", "c"})
    assert {str(one.key): children for one, children in plan.children} == {"p": frozenset({"c"})}
    assert [one.key for one in plan.deletes] == ["p"]


@pytest.mark.parametrize(
    ("complete", "deleted"),
    [(None, []), (7000, []), (7200 + DECLARED_SECONDS - 1, []), (7200 + DECLARED_SECONDS, ["p"])],
)
def test_a_lease_stays_until_its_counts_are_declared(complete: int | None, deleted: list[str]) -> None:
    parent = replace(finished("p"), stored=StoredCounts((StoredRows(3600, 5),), until=7200))
    plan = plan_cleanup([parent, lease("c")], {"p": {"c"}}, {"p", "c"}, complete=complete)
    assert [one.key for one in plan.deletes] == deleted


def test_without_a_listing_nothing_is_known_of_the_stream() -> None:
    assert plan_cleanup([finished("p")], {}, None).deletes == ()


def test_a_lease_without_a_checkpoint_has_not_started() -> None:
    assert not has_started(lease(checkpoint=None))


# --- holes --------------------------------------------------------------------------------------------------------

WHOLE = HashRange(0, MAX_HASH_KEY)


@pytest.mark.parametrize(
    ("ranges", "hole"),
    [
        ([WHOLE], None),
        ([], Hole(0, MAX_HASH_KEY)),
        ([HashRange(0, 9), HashRange(11, MAX_HASH_KEY)], Hole(10, 10)),
        ([HashRange(5, MAX_HASH_KEY)], Hole(0, 4)),
        ([HashRange(0, 9)], Hole(10, MAX_HASH_KEY)),
        ([HashRange(10, MAX_HASH_KEY), HashRange(0, 20)], None),
        ([WHOLE, HashRange(5, 10)], None),
    ],
)
def test_holes(ranges: list[HashRange], hole: Hole | None) -> None:
    assert find_hole(ranges) == hole


def test_the_kcl_sees_a_hole_where_a_range_is_nested_in_the_last_one() -> None:
    assert find_hole_as_kcl([WHOLE, HashRange(5, 10)]) == Hole(11, MAX_HASH_KEY)
    assert find_hole_as_kcl([WHOLE]) is None


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12))
def test_a_hole_is_the_first_key_nobody_covers(pairs: list[tuple[int, int]]) -> None:
    ranges = [HashRange(min(pair), max(pair)) for pair in pairs] + [HashRange(31, MAX_HASH_KEY)]
    missing = [key for key in range(31) if not any(key in one for one in ranges)]
    hole = find_hole(ranges)
    assert (hole.start if hole is not None else None) == (missing[0] if missing else None)
    assert hole is None or hole.end + 1 not in missing


def test_only_unfinished_leases_cover_anything() -> None:
    leases = [lease("a", hash_range=WHOLE), finished("b"), lease("c")]
    assert active_ranges(leases) == [WHOLE]
    assert [one.key for one in lack_range(leases)] == ["c"]


def test_the_kcl_believes_a_hole_that_it_saw_three_times() -> None:
    watch = HoleWatch()
    for expected in (False, False, True):
        watch = watch.saw(Hole(1, 2))
        assert watch.is_confirmed is expected
    assert not watch.saw(Hole(3, 4)).is_confirmed
    assert watch.saw(None) == HoleWatch()
