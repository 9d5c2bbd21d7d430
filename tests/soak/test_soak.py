"""The soak's own decisions: what it plans, and what it sees."""

import pytest

from kcl_dagster.model.checkpoint import SHARD_END, Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from tests.soak.storm import OUTAGE_SECONDS, SHORTEST_SOAK_SECONDS, Event, plan
from tests.soak.watch import Watch

A, B = WorkerId("worker-000:a"), WorkerId("worker-001:b")
DATABASE = {event for event in Event if event.name.endswith("DATABASE")}


def lease(owner: WorkerId | None, at: int = 0, **more: object) -> Lease:
    return Lease(LeaseKey("s0"), "s0", owner=owner, checkpoint=Checkpoint(str(at)), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("seconds", [SHORTEST_SOAK_SECONDS, 1800.0])
def test_the_database_is_away_twice_for_three_minutes_and_nothing_else_happens_meanwhile(
    seed: int, seconds: float
) -> None:
    planned = plan(seed, seconds)
    assert planned == sorted(planned, key=lambda one: one.at)
    assert planned[-1].at < seconds
    stops = [one.at for one in planned if one.event is Event.STOP_DATABASE]
    starts = [one.at for one in planned if one.event is Event.START_DATABASE]
    assert [end - start for start, end in zip(stops, starts, strict=True)] == pytest.approx([OUTAGE_SECONDS] * 2)
    for start, end in zip(stops, starts, strict=True):
        inside = {one.event for one in planned if start < one.at < end}
        assert inside <= {Event.KILL_WORKER}


def test_a_long_soak_meets_every_event() -> None:
    assert {one.event for one in plan(1, 1800.0)} == set(Event)


def test_a_soak_is_not_shorter_than_its_outages() -> None:
    with pytest.raises(ValueError, match="at least"):
        plan(1, 60.0)


def test_a_lease_that_leaves_a_living_worker_during_an_outage_is_seen() -> None:
    watch = Watch()
    watch.look(0.0, [lease(A)], is_outage=True, harmed=set())
    watch.look(1.0, [lease(B)], is_outage=True, harmed=set())
    assert watch.lost == [f"s0 left {A} for {B}"]


@pytest.mark.parametrize(
    ("before", "after", "is_outage", "harmed"),
    [
        (lease(A), lease(B), False, set()),
        (lease(A), lease(B), True, {A}),
        (lease(A), lease(A, 7), True, set()),
        (lease(B, checkpoint_owner=A), lease(B), True, set()),
        (lease(None), lease(A), True, set()),
    ],
)
def test_what_is_no_loss(before: Lease, after: Lease, is_outage: bool, harmed: set[WorkerId]) -> None:
    watch = Watch()
    watch.look(0.0, [before], is_outage=is_outage, harmed=harmed)
    watch.look(1.0, [after], is_outage=is_outage, harmed=harmed)
    assert watch.lost == []


def test_the_longest_time_without_progress_counts() -> None:
    watch = Watch()
    for now, at in [(0.0, 0), (5.0, 0), (6.0, 1), (9.0, 1), (10.0, 2)]:
        watch.look(now, [lease(A, at)], is_outage=False, harmed=set())
    assert watch.longest_silence() == 5.0


def test_a_finished_lease_is_not_silent() -> None:
    watch = Watch()
    done = Lease(LeaseKey("s0"), "s0", owner=A, checkpoint=SHARD_END)
    for now in (0.0, 50.0):
        watch.look(now, [done], is_outage=False, harmed=set())
    assert watch.longest_silence() == 0.0
