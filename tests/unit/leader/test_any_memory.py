"""What an earlier leader wrote down may be of any version, or nobody's: it costs time, and never a lease."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kcl_dagster.application import FleetSettings
from kcl_dagster.leader.fleet import FleetPlan, FleetSight, decide_fleet
from kcl_dagster.leader.liveness import WorkerSight
from kcl_dagster.leader.memory import Memory
from kcl_dagster.leader.run_view import RunStatus, SlotRun
from kcl_dagster.model.lease import WorkerId
from kcl_dagster.model.standing import Standing
from kcl_dagster.model.worker_row import WorkerRow, slot_name

pytestmark = pytest.mark.slow

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
documents = st.fixed_dictionaries(
    {},
    optional={
        "version": st.just(1) | values,
        "standing": st.dictionaries(
            st.sampled_from(["lease/a", "lease/b"]), st.tuples(st.just("7"), values).map(list)
        )
        | values,
        "target": values,
        "given_up": st.dictionaries(st.sampled_from(["run-1"]), values) | values,
        "given_up_over": values,
        "generations": st.dictionaries(st.sampled_from(["worker-000"]), values) | values,
    },
)


@given(documents, st.floats(0, 100))
@example({"version": 1, "standing": {"lease/a": ["7", 10**400]}}, 5.0)
def test_any_document_is_remembered_or_left_out(document: dict[str, Any], passed: float) -> None:
    """Nothing is believed to have stood at this moment that this leader has not seen itself."""
    given_up = document.get("given_up")
    runs = set(given_up) if isinstance(given_up, dict) else set()
    memory = Memory()
    memory.absorb(document, at=50.0)
    assert memory.standing.stood_for("lease/a", "7") == 0.0
    assert memory.standing.stood_for("lease/a", "8") == 0.0
    assert memory.generation("worker-000", 1000.0, waited=0.0) >= 0 or document["generations"]["worker-000"][0] < 0
    assert memory.starts_given_up(1000.0).keys() <= runs
    again = Memory()
    again.absorb(json.loads(json.dumps(memory.to_document(0.0))), at=50.0)
    assert again.target == memory.target
    assert again.generations.keys() == memory.generations.keys()


@given(st.dictionaries(st.sampled_from("ab"), values))
def test_a_standing_of_any_shape_is_a_number_of_seconds(document: dict[str, Any]) -> None:
    standing = Standing.from_document(document, at=0.0)
    for key in "ab":
        standing.observe(key, "7", 1.0, 2.0)
        standing.observe(key, "7", 5.0, 6.0)
        assert standing.stood_for(key, "7") >= 3.0


# The size of the fleet

MOST = 4
SETTINGS = FleetSettings(min_workers=1, max_workers=MOST, shards_per_worker=2, cooldown=60.0, lifetime=3600.0)
NOW = 1_000_000.0
statuses: st.SearchStrategy[RunStatus] = st.sampled_from(["queued", "starting", "running", "canceling"])
ages = st.sampled_from([0.0, 100.0, 1e6])


@st.composite
def sights(draw: st.DrawFn) -> FleetSight:
    names = [slot_name(index) for index in range(MOST + 1)]
    slots = {
        slot: SlotRun(f"run-{slot}", WorkerId(f"{slot}:run"), draw(statuses), NOW - draw(ages))
        for slot in draw(st.lists(st.sampled_from(names), unique=True))
    }
    workers = [
        WorkerSight(
            WorkerRow(run.worker_id, int(NOW), slot=slot, run_id=run.run_id, drain_requested=draw(st.booleans())),
            alive=draw(st.booleans()),
            run_is_over=False,
            accepts=draw(st.booleans()),
        )
        for slot, run in slots.items()
        if draw(st.booleans())
    ]
    return FleetSight(
        slots,
        workers,
        open_leases=draw(st.none() | st.integers(0, 20)),
        unserved=draw(st.integers(0, 2)),
        lag_ms=draw(st.none() | st.integers(0, 10**6)),
        target=draw(st.none() | st.integers(-1, 9)),
        target_stood=draw(st.sampled_from([0.0, 61.0])),
        now=NOW,
        paused=frozenset(draw(st.sets(st.sampled_from(names), max_size=2))),
    )


@given(sights())
def test_a_slot_gets_one_run_and_a_fleet_is_no_larger_than_allowed(sight: FleetSight) -> None:
    plan: FleetPlan = decide_fleet(SETTINGS, sight)
    assert not plan.launch.keys() & sight.slots.keys()
    assert not plan.launch.keys() & set(sight.paused)
    known = {seen.row.id for seen in sight.workers}
    assert set(plan.drain) <= known
    assert all(sight.slots[slot].status == "queued" for slot in plan.cancel)
    if sight.open_leases is not None:
        assert plan.target <= min(MOST, max(sight.open_leases, 0))
    assert len(plan.launch) <= max(plan.target, 0) + 1
    assert plan.expected <= len(sight.slots)
