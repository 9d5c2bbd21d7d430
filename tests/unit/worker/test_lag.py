"""How far behind a worker says it is."""

from dataclasses import replace

import pytest

from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.testing.clock import FakeClock
from kcl_dagster.worker.lag import Lag
from kcl_dagster.worker.report import LeaseReport, Outcome
from tests.unit.worker.kit import World

A, B = LeaseKey("a"), LeaseKey("b")
READ = LeaseReport(A, StreamIdentifier.single("s"), "a", Outcome.COMMITTED, 1, TRIM_HORIZON, millis_behind=100)
SHARD = "shardId-000000000000"


def test_the_shard_furthest_behind_counts_whichever_was_read_last() -> None:
    lag = Lag(FakeClock(), patience=30)
    assert lag.measure({A, B}) == {}
    lag.see([READ, replace(READ, lease=B, millis_behind=5000)], {A, B})
    assert list(lag.measure({A, B}).items()) == [(B, 5000), (A, 100)]
    lag.see([READ], {A, B})
    assert list(lag.measure({A, B}).items()) == [(B, 5000), (A, 100)]
    lag.see([replace(READ, lease=B, outcome=Outcome.FINISHED)], {A, B})
    assert lag.measure({A}) == {A: 100}
    lag.see([READ], {B})
    assert lag.measure({B}) == {}


def test_a_shard_that_is_not_read_falls_behind_by_the_clock() -> None:
    clock = FakeClock()
    lag = Lag(clock, patience=30)
    lag.see([READ], {A})
    clock.advance(20)
    failed = replace(READ, outcome=Outcome.FAILED, millis_behind=None)
    lag.see([failed], {A})
    assert lag.measure({A}) == {A: 100}
    clock.advance(20)
    lag.see([failed], {A})
    assert lag.measure({A}) == {A: 40_100}
    lag.see([READ], {A})
    assert lag.measure({A}) == {A: 100}


@pytest.mark.audit("B2")
def test_a_shard_that_was_never_read_falls_behind_by_the_clock() -> None:
    clock = FakeClock()
    lag = Lag(clock, patience=30)
    assert lag.measure({A}) == {}
    clock.advance(40)
    assert lag.measure({A, B}) == {A: 40_000}


def test_a_shard_that_had_no_room_in_a_batch_is_not_taken_for_one_at_its_tip() -> None:
    clock = FakeClock()
    lag = Lag(clock, patience=30)
    lag.see([READ], {A})
    clock.advance(40)
    lag.see([replace(READ, outcome=Outcome.IDLE, millis_behind=None)], {A})
    assert lag.measure({A}) == {A: 40_100}


def test_the_lag_is_in_the_worker_row() -> None:
    world = World()
    run = world.worker("w1")
    world.assign(run)
    world.stream.put(SHARD, *"abcdefgh")
    run.worker.start()
    run.round()
    run.worker.step_heartbeat()
    [row] = world.worker_table(world.service).list()
    assert row.lag_ms == 5000  # five records, a second each
    assert (row.behind, row.stopped) == ({SHARD: 5000}, ())
    run.worker.holdings.release(LeaseKey(SHARD))
    run.round()
    run.worker.step_heartbeat()
    [row] = world.worker_table(world.service).list()
    assert (row.lag_ms, row.behind) == (0, {})
