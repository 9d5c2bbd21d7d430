"""How many workers there should be, and which slots run them."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_dagster.application import FleetSettings
from kcl_dagster.leader.fleet import (
    NEVER_UP_COOLDOWNS,
    NEVER_UP_SECONDS,
    QUEUED_SECONDS,
    FleetSight,
    decide_fleet,
    decide_target,
)
from kcl_dagster.leader.launches import FIRST_PAUSE, LONGEST_PAUSE, LaunchBook
from kcl_dagster.leader.liveness import WorkerSight, scalable_lag_of
from kcl_dagster.leader.memory import Memory, starts_given_up
from kcl_dagster.leader.run_view import LoadedCode, RunStatus, SlotRun
from kcl_dagster.leader.start_patience import remembered
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.worker_row import BOUNDED_SLOT, SHARDS_TOLD, WorkerRow, WorkerState, slot_name

NOW = 1_000_000.0
SETTINGS = FleetSettings(min_workers=1, max_workers=8, shards_per_worker=4, cooldown=60.0, lifetime=3600.0)


def run(index: int, status: RunStatus = "running", age: float = 300.0) -> SlotRun:
    return SlotRun(f"run-{index}", WorkerId(f"{slot_name(index)}:run-{index}"), status, NOW - age)


def worker(index: int, **more: Any) -> WorkerSight:
    slot = slot_name(index)
    row = WorkerRow(WorkerId(f"{slot}:run-{index}"), int(NOW), slot=slot, run_id=f"run-{index}")
    return WorkerSight(replace(row, **more), alive=True, run_is_over=False, accepts=True)


def fleet(number: int, **more: Any) -> FleetSight:
    slots = {slot_name(index): run(index) for index in range(number)}
    sight = FleetSight(slots, [worker(index) for index in range(number)], open_leases=8, target=number, now=NOW)
    return replace(sight, **{"target_stood": 600.0, **more})


MENDED = LoadedCode("mended", since=NOW - 10.0)


def stopped(sight: FleetSight, *indexes: int) -> FleetSight:
    """The workers of these slots have a shard that does not go on."""
    shards = {worker_id: (LeaseKey(f"shard-{worker_id}"),) for worker_id in (worker(i).id for i in indexes)}
    workers = [replace(seen, row=replace(seen.row, stopped=shards.get(seen.id))) for seen in sight.workers]
    return replace(sight, workers=workers)


def lagging(**more: Any) -> FleetSight:
    """One worker, of whose two shards the first is 61 s behind."""
    behind = {LeaseKey("bad"): 61_000, LeaseKey("good"): 0}
    sight = fleet(1, open_leases=4)
    return replace(sight, workers=[worker(0, lag_ms=61_000, behind=behind, **more)])


@pytest.mark.parametrize("trouble", ["failing", "stopped"])
def test_the_lag_of_a_shard_that_fails_launches_no_worker(trouble: str) -> None:
    healthy = lagging()
    lag = scalable_lag_of(healthy.workers)
    assert decide_target(SETTINGS, replace(healthy, lag_ms=lag)) == (2, "the application is 61 s behind")
    sight = lagging(**{trouble: (LeaseKey("bad"),)})
    lag = scalable_lag_of(sight.workers)
    assert lag == 0
    assert not decide_fleet(SETTINGS, replace(sight, lag_ms=lag)).launch
    fewer = decide_target(SETTINGS, replace(sight, lag_ms=lag, target=2))
    assert fewer == (1, "without its failing shards, the application keeps up")


def test_nothing_is_known_of_the_lag_where_all_shards_that_are_named_fail() -> None:
    keys = [LeaseKey(f"shard-{index}") for index in range(SHARDS_TOLD)]
    sight = worker(0, lag_ms=61_000, behind=dict.fromkeys(keys, 61_000), failing=tuple(keys))
    assert scalable_lag_of([sight]) is None


def test_one_worker_is_enough_is_said_in_the_singular() -> None:
    sight = fleet(2, open_leases=4, target=1)
    assert set(decide_fleet(SETTINGS, sight).drain.values()) == {"1 worker is enough: 4 shards are open"}


@pytest.mark.parametrize(
    ("sight", "settings", "target"),
    [
        pytest.param(FleetSight({}, open_leases=8), {}, 2, id="as many as the shards need"),
        pytest.param(FleetSight({}, open_leases=9), {}, 3, id="rounded up"),
        pytest.param(FleetSight({}, open_leases=800), {}, 8, id="at most the maximum"),
        pytest.param(FleetSight({}, open_leases=8), {"min_workers": 5}, 5, id="at least the minimum"),
        pytest.param(FleetSight({}, open_leases=3), {"min_workers": 5}, 3, id="not more than shards"),
        pytest.param(FleetSight({}, open_leases=None), {"min_workers": 2}, 2, id="tables cannot be read"),
        pytest.param(fleet(4, open_leases=None), {}, 4, id="tables cannot be read, a fleet runs"),
        pytest.param(fleet(2, lag_ms=90_000), {}, 3, id="behind"),
        pytest.param(fleet(2, lag_ms=90_000, target_stood=59.0), {}, 2, id="behind, but scaled a moment ago"),
        pytest.param(
            fleet(8, lag_ms=90_000, open_leases=100), {"shards_per_worker": 20}, 8, id="behind, at the maximum"
        ),
        pytest.param(fleet(4, lag_ms=90_000, open_leases=4), {}, 4, id="behind, no shard left for another"),
        pytest.param(fleet(4, lag_ms=0), {}, 3, id="keeps up"),
        pytest.param(fleet(4, lag_ms=0, unserved=1), {}, 4, id="keeps up, but something is not served"),
        pytest.param(fleet(4, lag_ms=30_000), {}, 4, id="neither"),
        pytest.param(fleet(4), {}, 4, id="nobody says how far behind"),
        pytest.param(fleet(2, lag_ms=0), {}, 2, id="keeps up with as few as the shards need"),
        pytest.param(fleet(2, open_leases=20), {}, 5, id="the stream grew"),
    ],
)
def test_the_number_of_workers(sight: FleetSight, settings: dict[str, float], target: int) -> None:
    configured = FleetSettings.model_validate({**SETTINGS.model_dump(), **settings})
    assert decide_target(configured, sight)[0] == target


def test_throughput_asks_for_workers_too() -> None:
    sight = FleetSight({}, open_leases=8, kbps=5000.0)
    assert decide_target(SETTINGS, sight, max_kbps_per_worker=1000.0) == (6, "5000 KB/s are read")


def test_a_large_fleet_takes_larger_steps() -> None:
    settings = FleetSettings(max_workers=100, cooldown=60.0)
    assert decide_target(settings, fleet(40, lag_ms=90_000, open_leases=90))[0] == 50


def test_free_slots_are_launched_and_running_ones_left_alone() -> None:
    sight = replace(fleet(2), target=None, open_leases=16)
    plan = decide_fleet(SETTINGS, sight)
    assert list(plan.launch) == ["worker-002", "worker-003"]
    assert plan.drain == {}


@pytest.mark.parametrize("status", ["queued", "starting", "running", "canceling"])
def test_a_slot_with_a_run_is_not_launched(status: RunStatus) -> None:
    sight = FleetSight({"worker-000": run(0, status)}, open_leases=4, now=NOW)
    assert "worker-000" not in decide_fleet(SETTINGS, sight).launch


def test_what_is_too_much_drains_the_highest_slots() -> None:
    plan = decide_fleet(SETTINGS, fleet(4, target=2))
    assert set(plan.drain) == {"worker-002:run-2", "worker-003:run-3"}


def test_nobody_is_sent_away_while_those_who_stay_are_not_up() -> None:
    sight = fleet(4, target=2)
    sight = replace(sight, workers=[worker(0, state=WorkerState.STARTING), *sight.workers[1:]])
    assert decide_fleet(SETTINGS, sight).drain == {}


def test_a_worker_that_was_asked_to_drain_is_not_counted_and_not_asked_again() -> None:
    sight = fleet(3, target=2)
    sight = replace(sight, workers=[*sight.workers[:2], worker(2, drain_requested=True)])
    plan = decide_fleet(SETTINGS, sight)
    assert (plan.drain, plan.launch) == ({}, {})


def old(sight: FleetSight, *indexes: int) -> FleetSight:
    return replace(sight, slots=dict(sight.slots) | {slot_name(index): run(index, age=7200.0) for index in indexes})


def test_an_old_worker_is_replaced_first_and_asked_to_leave_then() -> None:
    sight = old(fleet(2), 0)
    plan = decide_fleet(SETTINGS, sight)
    assert plan.drain == {}
    assert list(plan.launch) == ["worker-002"]
    assert "replaces worker-000" in plan.launch["worker-002"]

    starting = replace(sight, slots=dict(sight.slots) | {"worker-002": run(2, "starting", age=3.0)})
    assert decide_fleet(SETTINGS, starting).drain == {}
    assert decide_fleet(SETTINGS, starting).launch == {}

    up = replace(starting, slots=dict(sight.slots) | {"worker-002": run(2)}, workers=[*sight.workers, worker(2)])
    assert list(decide_fleet(SETTINGS, up).drain) == ["worker-000:run-0"]


def test_old_workers_are_replaced_one_at_a_time() -> None:
    sight = old(fleet(3, target=3), 0, 1, 2)
    assert len(decide_fleet(SETTINGS, sight).launch) == 1
    leaving = replace(sight, workers=[worker(0, drain_requested=True), *sight.workers[1:]])
    assert decide_fleet(SETTINGS, leaving).drain == {}


def test_without_a_free_slot_an_old_worker_leaves_first() -> None:
    full = old(fleet(2), 1)
    assert list(decide_fleet(replace_max(2), full).drain) == ["worker-001:run-1"]


def replace_max(most: int) -> FleetSettings:
    return FleetSettings.model_validate({**SETTINGS.model_dump(), "max_workers": most})


def test_a_run_without_a_worker_is_waited_for_and_then_not_counted_on() -> None:
    sight = fleet(2)
    young = replace(sight, slots={"worker-000": run(0), "worker-001": run(1, age=30.0)}, workers=[worker(0)])
    assert decide_fleet(SETTINGS, young).launch == {}
    assert decide_fleet(SETTINGS, young).expected == 1
    silent = replace(sight, workers=[worker(0)])
    plan = decide_fleet(SETTINGS, silent)
    assert list(plan.launch) == ["worker-002"]
    assert "run-1 of worker-001 is said to run" in plan.notes[0]
    assert plan.expected == 0


@given(
    st.dictionaries(
        st.integers(0, 9),
        st.tuples(
            st.sampled_from(["queued", "starting", "running", "canceling"]),
            st.floats(0, 10_000),
            st.sampled_from([None, "up", "starting", "draining"]),
        ),
    ),
    st.sampled_from([None, 0, 1, 3, 8, 50]),
    st.sampled_from([None, 0, 90_000]),
    st.sampled_from([None, 0, 1, 4, 9]),
    st.sets(st.integers(0, 9)),
    st.sampled_from([None, MENDED]),
)
def test_what_always_holds(
    slots: dict[int, tuple[RunStatus, float, str | None]],
    open_leases: int | None,
    lag_ms: int | None,
    target: int | None,
    have_stopped: set[int],
    code: LoadedCode | None,
) -> None:
    states: dict[str, dict[str, Any]] = {
        "up": {},
        "starting": {"state": WorkerState.STARTING},
        "draining": {"drain_requested": True},
    }
    sight = FleetSight(
        {slot_name(index): run(index, status, age) for index, (status, age, _) in slots.items()},
        [worker(index, **states[state]) for index, (_, _, state) in slots.items() if state is not None],
        open_leases=open_leases,
        lag_ms=lag_ms,
        target=target,
        target_stood=600.0,
        now=NOW,
        code=code,
    )
    plan = decide_fleet(SETTINGS, stopped(sight, *have_stopped))
    assert not set(plan.launch) & set(sight.slots), "one run per slot"
    assert set(plan.launch) <= {slot_name(index) for index in range(SETTINGS.max_workers)}
    assert open_leases is None or plan.target <= max(open_leases, 0)
    assert len(plan.launch) <= max(plan.target, 0) + 1
    assert all(plan.launch.values())
    assert all(plan.drain.values())
    assert set(plan.drain) <= {seen.id for seen in sight.workers if not seen.drains}
    assert not (plan.launch and plan.drain), "a fleet grows or shrinks"


# --- workers with older code ---


@pytest.mark.audit("F4")
def test_workers_with_older_code_are_replaced_one_after_the_other() -> None:
    sight = fleet(3, target=3, code=MENDED)
    plan = decide_fleet(SETTINGS, sight)
    assert (list(plan.launch), plan.drain) == (["worker-003"], {})
    assert "older code" in plan.launch["worker-003"]
    successor = replace(run(3, age=1.0), code="mended")
    up = replace(sight, slots={**sight.slots, "worker-003": successor}, workers=[*sight.workers, worker(3)])
    assert list(decide_fleet(SETTINGS, up).drain) == ["worker-002:run-2"]


@pytest.mark.audit("F4")
def test_workers_with_older_code_and_stopped_shards_drain_at_once() -> None:
    sight = stopped(fleet(4, target=4, code=MENDED), 0, 1)
    first = decide_fleet(SETTINGS, sight)
    assert (list(first.launch), first.drain) == (["worker-004", "worker-005"], {})
    successors = {slot: replace(run(i, "starting", age=1.0), code="mended") for i, slot in enumerate(first.launch)}
    second = decide_fleet(SETTINGS, replace(sight, slots={**sight.slots, **successors}))
    assert (second.launch, set(second.drain)) == ({}, {"worker-000:run-0", "worker-001:run-1"})


def test_workers_with_older_code_that_hangs_drain_at_once() -> None:
    sight = fleet(4, target=4, code=MENDED)

    def seen(seconds: float) -> FleetSight:
        slow = {LeaseKey("shard"): int(sight.now - seconds)}
        first, *others = sight.workers
        hung = [replace(one, row=replace(one.row, slow_since=slow)) for one in others[-2:]]
        return replace(sight, workers=[first, *others[:-2], *hung])

    assert list(decide_fleet(SETTINGS, seen(60)).launch) == ["worker-004"], "slow code is replaced in its turn"
    first = decide_fleet(SETTINGS, seen(600))
    successors = {slot: replace(run(i, "starting", age=1.0), code="mended") for i, slot in enumerate(first.launch)}
    second = decide_fleet(SETTINGS, replace(seen(600), slots={**sight.slots, **successors}))
    assert set(second.drain) == {"worker-002:run-2", "worker-003:run-3"}


@pytest.mark.audit("F4")
def test_the_only_worker_with_older_code_reads_until_its_successor_is_up() -> None:
    sight = stopped(fleet(1, open_leases=4, code=MENDED), 0)
    assert list(decide_fleet(SETTINGS, sight).launch) == ["worker-001"]
    starting = replace(sight, slots={**sight.slots, "worker-001": replace(run(1, "starting", 1.0), code="mended")})
    assert (decide_fleet(SETTINGS, starting).launch, decide_fleet(SETTINGS, starting).drain) == ({}, {})
    up = replace(starting, workers=[*starting.workers, worker(1)])
    assert list(decide_fleet(SETTINGS, up).drain) == ["worker-000:run-0"]


def with_successor(age: float, settings: FleetSettings = SETTINGS) -> FleetSight:
    """A fleet of one with older code, and its successor, whose Spark has not started."""
    sight = fleet(1, open_leases=4, code=MENDED)
    (slot,) = decide_fleet(settings, sight).launch
    successor = {slot: replace(run(1, age=age), code="mended")}
    starting = worker(1, state=WorkerState.STARTING)
    return replace(sight, slots={**sight.slots, **successor}, workers=[*sight.workers, starting])


def test_a_successor_that_does_not_come_to_read_is_given_up_and_the_worker_that_reads_stays() -> None:
    patience = max(NEVER_UP_SECONDS, NEVER_UP_COOLDOWNS * SETTINGS.cooldown)
    waits = decide_fleet(SETTINGS, with_successor(patience))
    assert (waits.launch, waits.drain, waits.notes) == ({}, {}, ())
    over = decide_fleet(SETTINGS, with_successor(patience + 60.0))
    why = "it has not come to read in 11 minutes"
    assert (over.launch, over.drain) == ({}, {WorkerId("worker-001:run-1"): why})
    assert over.notes == (f"worker-001:run-1 is not waited for: {why}",)


def test_each_start_that_was_given_up_doubles_the_patience_up_to_an_hour() -> None:
    first = max(NEVER_UP_SECONDS, NEVER_UP_COOLDOWNS * SETTINGS.cooldown)
    given_up: dict[str, float] = {}
    for count, waits in enumerate([1, 2, 4, 6, 6], start=1):
        sight = replace(with_successor(waits * first), given_up=dict(given_up))
        assert decide_fleet(SETTINGS, sight).drain == {}
        over = decide_fleet(SETTINGS, replace(with_successor(waits * first + 1.0), given_up=dict(given_up)))
        assert over.given_up == {WorkerId("worker-001:run-1"): "run-1"}
        given_up[f"run-before-{count}"] = NOW - 80_000 + count * 4000


def test_starts_that_were_given_up_together_count_once_and_the_note_says_how_long_starts_are_waited_for() -> None:
    sight = replace(with_successor(NEVER_UP_SECONDS + 1), given_up={f"run-{i}": NOW - 9000 + i for i in range(8)})
    plan = decide_fleet(SETTINGS, sight)
    assert plan.drain == {}
    why = "8 workers did not come to read in time within the last day"
    assert plan.notes == (f"a worker that starts is waited for 20 minutes: {why}",)
    late = replace(sight, slots={**sight.slots, "worker-001": run(1, age=1300.0)})
    assert list(decide_fleet(SETTINGS, late).drain) == ["worker-001:run-1"]


def test_workers_that_need_a_quarter_of_an_hour_come_to_read_beside_one_that_reads() -> None:
    """As the leader does it: what it gives up is remembered, and its slot is launched again."""
    settings = SETTINGS.model_copy(update={"min_workers": 4, "lifetime": 100_000.0})
    started, memory, launches = {"worker-000": NOW - 5000.0}, Memory(), 0
    for moment in range(int(NOW), int(NOW) + 3 * 3600, 10):
        runs, seen = {}, []
        for slot, at in started.items():
            state = WorkerState.RUNNING if moment - at > 900 else WorkerState.STARTING
            made = SlotRun(f"{slot}-{at:.0f}", WorkerId(f"{slot}:{at:.0f}"), "running", at)
            row = WorkerRow(made.worker_id, moment, slot=slot, run_id=made.run_id, state=state, beat=20)
            runs[slot] = made
            seen.append(WorkerSight(row, alive=True, run_is_over=False, accepts=True))
        sight = FleetSight(runs, seen, open_leases=8, target=4, target_stood=600.0, now=moment)
        plan = decide_fleet(settings, replace(sight, given_up=remembered(memory.given_up, moment)))
        for worker_, run_id in plan.given_up.items():
            memory.give_up(run_id, moment)
            del started[worker_.split(":")[0]]
        launches += len(plan.launch)
        started |= dict.fromkeys(plan.launch, float(moment))
    assert len(started) == 4
    assert all(moment - at > 900 for at in started.values())
    assert launches == 3 + 3


def test_what_was_given_up_is_remembered_alike_by_two_leaders_and_for_a_day() -> None:
    one, other = Memory(), Memory()
    one.give_up("run-1", NOW)
    other.give_up("run-1", NOW + 30)
    other.give_up("run-2", NOW + 4000)
    early = one.to_document(at_least=1.0)
    one.absorb(other.to_document(at_least=1.0), at=0.0)
    for _ in range(3):
        other.absorb(early, at=0.0)
    assert one.given_up == other.given_up == {"run-1": int(NOW), "run-2": int(NOW) + 4000}
    assert list(remembered(one.given_up, NOW + 5000)) == ["run-1", "run-2"]
    assert list(remembered(one.given_up, NOW + 24 * 3600)) == ["run-2"]
    assert remembered({"from the future": int(NOW) + 10_000}, NOW) == {}


def test_starts_that_were_given_up_are_over_when_a_worker_that_was_launched_later_reads() -> None:
    sight = replace(with_successor(200.0), given_up={"run-7": NOW - 250.0})
    up = replace(sight, workers=[sight.workers[0], worker(1)])
    assert not decide_fleet(SETTINGS, sight).given_up_over, "it has not come to read yet"
    assert decide_fleet(SETTINGS, up).given_up_over
    before = replace(up, given_up={"run-7": NOW - 150.0})
    assert not decide_fleet(SETTINGS, before).given_up_over, "it was launched before"


def test_starts_that_were_given_up_are_over_when_no_worker_is_to_be_launched() -> None:
    given_up = {"run-7": NOW - 60.0}
    settled = replace(fleet(2, target=2), given_up=given_up)
    assert decide_fleet(SETTINGS, settled).given_up_over
    assert not decide_fleet(SETTINGS, replace(fleet(2, target=3), given_up=given_up)).given_up_over
    assert not decide_fleet(SETTINGS, replace(fleet(2, target=2, code=MENDED), given_up=given_up)).given_up_over


def test_starts_that_are_over_are_not_shown_again_whatever_another_leader_wrote() -> None:
    one, other = Memory(), Memory()
    one.give_up("run-1", NOW)
    other.absorb(one.to_document(at_least=1.0), at=0.0)
    assert one.starts_given_up(NOW + 5) == other.starts_given_up(NOW + 5) == {"run-1": int(NOW)}
    one.end_given_up()
    one.absorb(other.to_document(at_least=1.0), at=0.0)
    assert one.starts_given_up(NOW + 5) == {}
    assert list(remembered(one.given_up, NOW + 5)) == ["run-1"], "it counts for the patience"
    one.give_up("run-2", NOW + 60)
    assert starts_given_up(one.to_document(at_least=1.0), NOW + 65) == {"run-2": int(NOW) + 60}
    assert starts_given_up(one.to_document(at_least=1.0), NOW + 25 * 3600) == {}


def test_slow_changes_wait_longer_for_a_successor() -> None:
    slow = SETTINGS.model_copy(update={"cooldown": 600.0})
    assert decide_fleet(slow, with_successor(NEVER_UP_COOLDOWNS * 600.0, slow)).drain == {}


def test_another_successor_is_launched_for_one_that_was_given_up() -> None:
    sight = with_successor(3000.0)
    leaving = replace(sight.workers[1], row=replace(sight.workers[1].row, drain_requested=True))
    assert decide_fleet(SETTINGS, replace(sight, workers=[sight.workers[0], leaving])).launch == {}
    gone = replace(sight, slots={"worker-000": run(0)}, workers=sight.workers[:1])
    assert list(decide_fleet(SETTINGS, gone).launch) == ["worker-001"]


def test_a_worker_that_starts_for_long_is_waited_for_where_no_other_one_reads() -> None:
    sight = with_successor(3000.0)
    starting = [replace(seen, row=replace(seen.row, state=WorkerState.STARTING)) for seen in sight.workers]
    plan = decide_fleet(SETTINGS, replace(sight, workers=starting, code=None))
    assert (plan.launch, plan.drain) == ({}, {})


def test_a_smaller_fleet_does_not_wait_for_a_worker_that_does_not_come_to_read() -> None:
    sight = fleet(3, target=2)
    sight = replace(sight, workers=[worker(0, state=WorkerState.STARTING), *sight.workers[1:]])
    assert decide_fleet(SETTINGS, sight).drain == {}
    old = {**sight.slots, "worker-000": run(0, age=1000.0)}
    assert list(decide_fleet(SETTINGS, replace(sight, slots=old)).drain) == ["worker-000:run-0"]


@pytest.mark.audit("F4")
def test_without_a_free_slot_stuck_workers_leave_one_after_the_other() -> None:
    sight = stopped(fleet(2, code=MENDED), 0, 1)
    plan = decide_fleet(replace_max(2), sight)
    assert (plan.launch, list(plan.drain)) == ({}, ["worker-000:run-0"])
    leaving = replace(
        sight, workers=[replace(worker(0), row=replace(worker(0).row, drain_requested=True)), sight.workers[1]]
    )
    assert decide_fleet(replace_max(2), leaving).drain == {}


@pytest.mark.audit("F4")
@pytest.mark.parametrize(
    ("code", "age"),
    [
        pytest.param("mended", 300.0, id="the same code, launched before the process restarted"),
        pytest.param("other", 5.0, id="other code, launched after this process had loaded its own"),
        pytest.param(None, 5.0, id="unknown code, launched after this process had loaded its own"),
    ],
)
def test_a_worker_is_not_replaced_for_its_code(code: str | None, age: float) -> None:
    sight = stopped(fleet(2, code=MENDED), 0)
    sight = replace(sight, slots={slot: replace(run(i, age=age), code=code) for i, slot in enumerate(sight.slots)})
    assert (decide_fleet(SETTINGS, sight).launch, decide_fleet(SETTINGS, sight).drain) == ({}, {})


@pytest.mark.audit("F4")
def test_the_workers_of_another_deployment_are_not_judged_by_their_code() -> None:
    workers = [foreign(0, stopped=(LeaseKey("shard"),)), foreign(1)]
    known = {"worker-000": run(0)}
    plan = decide_fleet(SETTINGS, FleetSight(known, workers, open_leases=8, target=2, now=NOW, code=MENDED))
    assert (plan.launch, plan.drain) == ({}, {})


# --- workers that another deployment launched ---


def foreign(index: int, **more: Any) -> WorkerSight:
    """The worker of a run that this Dagster instance does not know."""
    return worker(index, run_id=f"foreign-{index}", **more)


def test_a_slot_is_not_launched_beside_a_worker_whose_clock_may_be_wrong() -> None:
    """A leader that has lost its memory knows only the time in the row, which a wrong clock wrote."""
    unsure = replace(foreign(0), alive=False, accepts=False, unsure=True)
    plan = decide_fleet(SETTINGS, FleetSight({}, [unsure], open_leases=1, target=1, now=NOW))
    assert not plan.launch
    known = replace(unsure, unsure=False)
    assert decide_fleet(SETTINGS, FleetSight({}, [known], open_leases=1, target=1, now=NOW)).launch


def test_a_queued_run_is_kept_where_another_worker_may_be_gone() -> None:
    """The run is the successor of that worker. If it is cancelled, the slot waits for the queue again."""
    unsure = replace(foreign(0), alive=False, accepts=False, unsure=True)
    queued = {"worker-000": run(0, "queued", age=5.0)}
    plan = decide_fleet(SETTINGS, FleetSight(queued, [unsure], open_leases=1, target=1, now=NOW))
    assert (plan.launch, plan.drain, plan.cancel) == ({}, {}, ())


@pytest.mark.audit("B7")
def test_a_living_worker_serves_its_slot_whoever_launched_it() -> None:
    plan = decide_fleet(SETTINGS, FleetSight({}, [foreign(0), foreign(1)], open_leases=8, target=2, now=NOW))
    assert (plan.launch, plan.drain, plan.cancel, plan.expected) == ({}, {}, (), 0)


@pytest.mark.audit("B7")
def test_a_queued_run_is_cancelled_where_a_worker_of_another_deployment_serves_its_slot() -> None:
    slots = {slot_name(index): run(index, "queued", age=5.0) for index in range(2)}
    plan = decide_fleet(SETTINGS, FleetSight(slots, [foreign(0), foreign(1)], open_leases=8, target=2, now=NOW))
    assert (plan.launch, plan.drain, plan.cancel) == ({}, {}, ("worker-000", "worker-001"))


@pytest.mark.audit("B7")
def test_too_many_workers_of_another_deployment_drain_like_any() -> None:
    workers = [foreign(index) for index in range(4)]
    plan = decide_fleet(SETTINGS, FleetSight({}, workers, open_leases=8, target=2, target_stood=600.0, now=NOW))
    assert set(plan.drain) == {"worker-002:run-2", "worker-003:run-3"}


@pytest.mark.audit("B7")
def test_a_run_that_waits_in_the_queue_is_counted_on_for_a_bounded_time() -> None:
    def waiting(age: float) -> FleetSight:
        return FleetSight({"worker-000": run(0, "queued", age=age)}, open_leases=4, target=1, now=NOW)

    assert decide_fleet(SETTINGS, waiting(QUEUED_SECONDS)).launch == {}
    late = decide_fleet(SETTINGS, waiting(QUEUED_SECONDS + 1))
    assert (list(late.launch), late.cancel) == (["worker-001"], ())
    up = replace(waiting(QUEUED_SECONDS + 1), workers=[foreign(1)])
    assert decide_fleet(SETTINGS, up).cancel == ("worker-000",)


# --- launches -----------------------------------------------------------------------------------------------------


def test_a_slot_whose_runs_end_early_waits_longer_and_longer() -> None:
    book, now, pauses = LaunchBook(lifetime=3600.0), NOW, []
    for number in range(8):
        book.see({"worker-000": SlotRun(f"r{number}", WorkerId("w"), "running", now)}, now, now)
        now += 5.0
        book.see({}, now, now)
        pauses.append(book.pause("worker-000", now))
        now += pauses[-1]
        assert book.pause("worker-000", now) == 0.0
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert pauses[-1] == LONGEST_PAUSE


def test_a_run_that_worked_for_a_while_is_followed_at_once() -> None:
    book = LaunchBook(lifetime=3600.0)
    book.see({"worker-000": SlotRun("r0", WorkerId("w"), "running", NOW)}, NOW, NOW)
    book.see({}, NOW + 5.0, NOW + 5.0)
    book.see({"worker-000": SlotRun("r1", WorkerId("w"), "running", NOW + 20.0)}, NOW + 20.0, NOW + 20.0)
    book.see({}, NOW + 1000.0, NOW + 1000.0)
    assert book.pause("worker-000", NOW + 1000.0) == 0.0


@pytest.mark.parametrize(
    ("status", "comes_up", "pause"), [("running", False, 10.0), ("running", True, 0.0), ("queued", False, 0.0)]
)
def test_a_run_that_never_could_read_did_no_work_however_long_it_took(
    status: RunStatus, comes_up: bool, pause: float
) -> None:
    book = LaunchBook(lifetime=3600.0)
    run = SlotRun("r0", WorkerId("w"), status, NOW)
    book.see({"worker-000": run}, NOW, NOW, ())
    book.see({"worker-000": run}, NOW + 90.0, NOW + 90.0, {"r0"} if comes_up else ())
    book.see({}, NOW + 100.0, NOW + 100.0, ())
    assert book.pause("worker-000", NOW + 100.0) == pause


def test_what_a_run_did_before_this_leader_saw_it_does_not_count_against_it() -> None:
    book = LaunchBook(lifetime=3600.0)
    book.see({"worker-000": SlotRun("r0", WorkerId("w"), "running", NOW - 600.0)}, NOW, NOW, ())
    book.see({}, NOW + 5.0, NOW + 5.0, ())
    assert book.pause("worker-000", NOW + 5.0) == 0.0


def test_short_lifetimes_are_no_failures() -> None:
    book = LaunchBook(lifetime=20.0)
    book.see({"worker-000": SlotRun("r0", WorkerId("w"), "running", NOW)}, NOW, NOW)
    book.see({}, NOW + 20.0, NOW + 20.0)
    assert book.pause("worker-000", NOW + 20.0) == 0.0


def test_a_wall_clock_that_is_set_back_holds_nobody_back_for_longer() -> None:
    book = LaunchBook(lifetime=3600.0)
    book.see({"worker-000": SlotRun("r0", WorkerId("w"), "running", NOW)}, NOW, 0.0)
    book.see({}, NOW + 5.0, 5.0)
    assert book.pause("worker-000", 5.0) == FIRST_PAUSE
    book.see({"worker-000": SlotRun("r1", WorkerId("w"), "running", NOW + 20.0)}, NOW - 3580.0, 20.0)
    book.see({}, NOW - 2600.0, 1000.0)
    assert book.pause("worker-000", 1000.0) == 0.0, "it was seen for long, whatever the time of the day"


# --- what is remembered -------------------------------------------------------------------------------------------


def test_a_generation_stands_until_its_run_was_seen_or_long_awaited() -> None:
    memory = Memory()
    first = memory.generation("worker-000", NOW, waited=0.0)
    assert memory.generation("worker-000", NOW + 50.0, waited=50.0) == first
    assert memory.generation("worker-000", NOW + 100.0, waited=100.0) > first
    memory.saw_run("worker-000")
    second = memory.generation("worker-000", NOW + 100.0, waited=0.0)
    assert second > first


def test_memory_survives_a_process_and_only_grows() -> None:
    old_one, new_one = Memory(), Memory()
    number = old_one.generation("worker-000", NOW, waited=0.0)
    old_one.target = 3
    document = old_one.to_document(at_least=1.0)
    old_one.saw_run("worker-000")
    later = old_one.generation("worker-000", NOW, waited=0.0)
    new_one.absorb(old_one.to_document(at_least=1.0), at=0.0)
    new_one.absorb(document, at=0.0)  # replayed
    assert later > number
    assert new_one.generation("worker-000", NOW, waited=0.0) == later
    assert new_one.target == 3


def test_a_launch_whose_run_another_leader_saw_is_not_asked_for_again() -> None:
    leader, follower = Memory(), Memory()
    number = leader.generation("worker-000", NOW, waited=0.0)
    early = leader.to_document(at_least=1.0)
    follower.absorb(early, at=0.0)
    leader.saw_run("worker-000")
    follower.absorb(leader.to_document(at_least=1.0), at=5.0)
    follower.absorb(early, at=10.0)  # replayed
    assert follower.generation("worker-000", NOW, waited=0.0) > number, "Dagster ignores the key of a former run"


# --- slots that an operator paused ---


def test_the_worker_of_a_paused_slot_is_sent_away_and_another_slot_takes_over() -> None:
    plan = decide_fleet(SETTINGS, fleet(2, paused=["worker-000"]))
    assert list(plan.drain) == ["worker-000:run-0"]
    assert plan.drain[WorkerId("worker-000:run-0")] == "an operator paused worker-000"
    assert list(plan.launch) == ["worker-002"]


def test_a_paused_slot_is_not_launched() -> None:
    plan = decide_fleet(SETTINGS, FleetSight({}, open_leases=8, paused=["worker-000", "worker-002"]))
    assert list(plan.launch) == ["worker-001", "worker-003"]


def test_a_run_of_a_paused_slot_that_still_waits_is_not_wanted_any_more() -> None:
    sight = FleetSight({"worker-000": run(0, "queued", age=1.0)}, open_leases=4, now=NOW, paused=["worker-000"])
    plan = decide_fleet(SETTINGS, sight)
    assert plan.cancel == ("worker-000",)
    assert list(plan.launch) == ["worker-001"]


def test_where_all_slots_are_paused_nothing_is_launched() -> None:
    settings = FleetSettings(min_workers=1, max_workers=2)
    plan = decide_fleet(settings, FleetSight({}, open_leases=8, paused=["worker-000", "worker-001"]))
    assert plan.launch == {}


def test_a_bounded_run_is_no_worker_of_the_fleet() -> None:
    """It ends by itself: the fleet is as large as without it, and it is not asked to leave."""
    row = WorkerRow(WorkerId("catch-up:12345678"), int(NOW), slot=BOUNDED_SLOT, run_id="12345678")
    bounded = WorkerSight(row, alive=True, run_is_over=False, accepts=True)
    for number in (0, 2, 3):
        sight = fleet(number, target=2)
        assert decide_fleet(SETTINGS, replace(sight, workers=[*sight.workers, bounded])) == decide_fleet(
            SETTINGS, sight
        )


ON_DEMAND = SETTINGS.model_copy(update={"min_workers": 0})


@pytest.mark.parametrize(
    ("waited", "wanted", "why"),
    [
        (0.0, 0, "nothing is unread"),
        (59.0, 0, "a record has waited for no longer than it may"),
        (61.0, 2, "a record has waited for 61 s"),
        (float("inf"), 2, "whether records are unread is not known, and a worker finds out"),
        (None, 2, "whether records are unread is not known, and a worker finds out"),
    ],
)
@pytest.mark.parametrize("target", [None, 0])
def test_a_fleet_at_rest_starts_when_a_record_has_waited(
    waited: float | None, wanted: int, why: str, target: int | None
) -> None:
    assert decide_target(ON_DEMAND, fleet(0, target=target, waited=waited)) == (wanted, why)


def test_a_leader_that_remembers_nothing_keeps_the_workers_that_it_finds() -> None:
    assert decide_target(ON_DEMAND, fleet(2, target=None, waited=0.0))[0] == 2
    leaving = fleet(1, target=None, waited=0.0, workers=[worker(0, drain_requested=True)])
    assert decide_target(ON_DEMAND, leaving) == (0, "nothing is unread")


def test_a_worker_that_may_be_gone_starts_no_fleet_where_nothing_is_unread() -> None:
    unsure = replace(foreign(0), alive=False, accepts=False, unsure=True)
    sight = FleetSight({}, [unsure], open_leases=8, now=NOW, waited=0.0)
    assert decide_target(ON_DEMAND, sight) == (0, "nothing is unread")


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"lag_ms": 0}, 0),
        ({"lag_ms": 5_000}, 0),
        ({"lag_ms": 5_001}, 2),
        ({"lag_ms": None}, 2),  # no worker has read anything yet
        ({"lag_ms": 0, "unserved": 1}, 2),
        ({"lag_ms": 0, "target_stood": 59.0}, 2),
        ({"lag_ms": 0, "workers": [worker(0, stopped=(LeaseKey("a"),)), worker(1)]}, 2),
        ({"lag_ms": 0, "workers": [worker(0, failing=(LeaseKey("a"),)), worker(1)]}, 2),
    ],
)
def test_a_fleet_goes_to_rest_when_everything_is_read(more: dict[str, Any], wanted: int) -> None:
    sight = fleet(2, **more)
    assert decide_target(ON_DEMAND, sight)[0] == wanted
    assert decide_target(SETTINGS, sight)[0] == 2


def test_all_workers_drain_when_a_fleet_goes_to_rest() -> None:
    plan = decide_fleet(ON_DEMAND, fleet(2, lag_ms=0))
    assert plan.target == 0
    assert not plan.launch
    assert plan.drain == {worker(index).id: "0 workers are enough: everything is read" for index in range(2)}


def test_a_fleet_that_grew_becomes_smaller_before_it_rests() -> None:
    assert decide_target(ON_DEMAND, fleet(3, lag_ms=0))[0] == 2


def test_where_the_tables_cannot_be_read_a_fleet_at_rest_rests() -> None:
    assert decide_target(ON_DEMAND, fleet(0, target=0, open_leases=None))[0] == 0


def test_a_fleet_without_shards_rests() -> None:
    assert decide_target(ON_DEMAND, fleet(0, target=0, open_leases=0, waited=None))[0] == 0
