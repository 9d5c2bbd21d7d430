"""What the leader makes of workers' rows holds for any row, and its queue is one."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kcl_dagster.leader.assignment.javaqueue import HighestFirst, compare
from kcl_dagster.leader.liveness import (
    LivenessRule,
    averages_of,
    ceilings_of,
    is_failing,
    is_valid,
    lag_of,
    moving_average,
)
from kcl_dagster.model.lease import WorkerId
from kcl_dagster.model.worker_row import WorkerRow, WorkerState

NOW = 1_000_000.0
NO_SAMPLE = -1.0
samples = st.floats(0, 100) | st.just(NO_SAMPLE)
metrics = st.none() | st.dictionaries(st.sampled_from("CN"), st.lists(samples, max_size=4).map(tuple))
limits = st.none() | st.dictionaries(st.sampled_from("CN"), st.lists(st.integers(0, 100), max_size=2).map(tuple))
rows = st.builds(
    WorkerRow,
    st.sampled_from([WorkerId("a"), WorkerId("b")]),
    st.none() | st.integers(int(NOW) - 4000, int(NOW) + 4000),
    metrics,
    limits,
    slot=st.none() | st.just("worker-000"),
    run_id=st.none() | st.sampled_from(["run-1", "run-2"]),
    state=st.sampled_from(WorkerState),
    drain_requested=st.booleans(),
    lag_ms=st.none() | st.integers(0, 10**6),
)


@given(st.lists(samples, max_size=8), st.floats(0.01, 1.0))
def test_an_average_lies_between_its_samples(series: list[float], weight: float) -> None:
    there = [sample for sample in series if sample != NO_SAMPLE]
    average = moving_average(series, weight)
    assert min(there, default=0.0) - 1e-9 <= average <= max(there, default=0.0) + 1e-9


@given(rows, st.floats(0, 1000), st.booleans(), st.sets(st.sampled_from(["run-1", "run-2"])))
def test_leases_go_only_to_workers_that_live_stay_and_can_be_judged(
    row: WorkerRow, stood: float, moved: bool, ended: set[str]
) -> None:
    rule = LivenessRule(10.0, NOW, lambda _: stood, lambda _: moved)
    sight = rule.judge(row, ended)
    assert sight.run_is_over == (row.run_id in ended)
    assert sight.accepts == (not sight.why)
    if sight.accepts:
        assert sight.alive
        assert not sight.drains
        assert is_valid(row)
        assert not is_failing(row)
    if sight.run_is_over or row.last_update is None:
        assert not sight.alive
    if sight.alive:
        assert rule.judge(row, set()).alive
        assert LivenessRule(10.0, NOW, lambda _: 0.0, lambda _: moved).judge(row, ended).alive


@given(rows)
def test_every_metric_of_a_valid_row_has_an_average_and_a_ceiling(row: WorkerRow) -> None:
    if is_valid(row):
        averages, ceilings = averages_of(row), ceilings_of(row)
        assert averages.keys() <= ceilings.keys()
        assert all(ceiling > 0 for ceiling in ceilings.values())


@given(st.lists(rows, max_size=4))
def test_the_lag_of_a_fleet_is_that_of_the_living(several: list[WorkerRow]) -> None:
    rule = LivenessRule(10.0, NOW, lambda _: 0.0, lambda row: row.slot is None)
    sights = [rule.judge(row, ()) for row in several]
    lags = [sight.row.lag_ms for sight in sights if sight.alive and sight.row.lag_ms is not None]
    assert lag_of(sights) == (max(lags) if lags else None)


@given(st.lists(st.floats()))
def test_a_queue_gives_the_highest_first_and_everything_once(ranks: list[float]) -> None:
    queue = HighestFirst((rank, place) for place, rank in enumerate(ranks))
    taken = [queue.poll() for _ in ranks]
    assert queue.poll() is None
    assert sorted(place for place in taken if place is not None) == list(range(len(ranks)))
    in_order = [ranks[place] for place in taken if place is not None]
    assert all(compare(one, other) >= 0 for one, other in pairwise(in_order))


@given(st.floats(), st.floats(), st.floats())
def test_doubles_are_in_one_order(a: float, b: float, c: float) -> None:
    assert compare(a, b) == -compare(b, a)
    if compare(a, b) >= 0 and compare(b, c) >= 0:
        assert compare(a, c) >= 0
