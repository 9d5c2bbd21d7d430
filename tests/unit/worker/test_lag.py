"""How far behind a worker says it is."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError

from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.worker.discovery import LONGEST_PAUSE
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.lag import Lag, LagReport, Unstored
from kcl_dagster.worker.processor import ProcessRecordsInput, RecordProcessorBase
from kcl_dagster.worker.report import LeaseReport, Outcome
from tests.doubles.clock import FakeClock
from tests.unit.worker.kit import Killed, World

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


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.IDLE])
def test_a_shard_whose_lag_the_stream_has_never_reported_is_not_taken_for_one_at_its_tip(outcome: Outcome) -> None:
    clock = FakeClock()
    lag = Lag(clock, patience=30)
    assert lag.measure({A}) == {}
    for expected in ({}, {A: 40_000}):
        lag.see([replace(READ, outcome=outcome, millis_behind=None)], {A})
        assert lag.measure({A}) == expected
        clock.advance(40)


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
    run.worker.holdings.handover.release(LeaseKey(SHARD))
    run.round()
    run.worker.step_heartbeat()
    [row] = world.worker_table(world.service).list()
    assert (row.lag_ms, row.behind) == (0, {})


def test_a_healthy_batch_is_not_behind_by_the_age_of_its_first_record() -> None:
    clock = FakeClock()
    lag = Lag(clock, patience=30)
    lag.measure({A})
    lag.see([READ], {A})
    begun = {A: Unstored(2, int(clock.now()) - 100)}
    assert lag.measure({A}, begun) == {A: 100}
    clock.advance(20)
    assert lag.measure({A}, begun) == {A: 100}
    clock.advance(20)
    assert lag.measure({A}, begun) == {A: 140_000}
    assert lag.measure({A}, {A: Unstored(3, begun[A].since)}) == {A: 40_100}, "the next batch has just begun"


def test_a_shard_that_fails_without_a_batch_is_behind_by_what_was_stored() -> None:
    clock = FakeClock()
    lag = Lag(clock, patience=30)
    lag.measure({A})
    lag.see([replace(READ, outcome=Outcome.NOT_READ, millis_behind=None)], {A})
    lag.measure({A}, {A: Unstored(7, int(clock.now()) - 3600)})
    clock.advance(31)
    assert lag.measure({A}, {A: Unstored(7, int(clock.now()) - 3600)}) == {A: 3_600_000}


def test_the_lag_of_a_batch_that_hangs_goes_on_with_the_next_owner() -> None:
    world = World()
    world.stream.put(SHARD, "!")
    world.stream.arrival_ms = round(world.clock.now() * 1000)

    def hangs(name: str) -> list[LagReport]:
        reports: list[LagReport] = []
        run = world.worker(name, on_lag=reports.append)

        def hang(_: Any) -> None:
            run.worker.stop.request()
            for _second in range(100):
                world.clock.advance(1)
                run.worker.step_renewal()
                run.worker.step_housekeeping()
            raise InterruptedError

        run.worker.start()
        world.assign(run)
        run.worker.step_discovery()
        run.worker.step_heartbeat()
        run.sink.refuses = hang
        run.worker.step_batch()
        return reports

    first = hangs("first")
    assert first[0].behind == {}
    assert [report.hung for report in first if report.hung] != []
    world.clock.advance(1000)
    assert hangs("second")[0].behind == {SHARD: 1_100_000}, "known before the batch is read again"


def test_the_lag_of_a_record_processor_that_hangs_goes_on_with_the_next_owner() -> None:
    world = World()
    world.stream.put(SHARD, "!")
    world.stream.arrival_ms = round(world.clock.now() * 1000)

    class Hangs(RecordProcessorBase):
        def __init__(self, hang: Callable[[], None]) -> None:
            self._hang = hang

        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            self._hang()

    def hangs(name: str) -> list[LagReport]:
        reports: list[LagReport] = []

        def hang() -> None:
            for _second in range(100):
                world.clock.advance(1)
                run.worker.step_renewal()
                run.worker.step_housekeeping()
            raise Killed

        run = world.worker(name, on_lag=reports.append, processors=lambda: Hangs(hang))
        run.worker.start()
        world.assign(run)
        run.worker.step_discovery()
        run.worker.step_heartbeat()
        with suppress(Killed):
            run.worker.step_batch()
        return reports

    assert hangs("first")[0].behind == {}
    world.clock.advance(1000)
    assert hangs("second")[0].behind == {SHARD: 1_100_000}, "known before the records are read again"


def test_records_that_a_processor_has_and_does_not_checkpoint_are_no_lag() -> None:
    world = World()
    world.stream.put(SHARD, "a")
    world.stream.arrival_ms = round(world.clock.now() * 1000)

    class Keeps(RecordProcessorBase):
        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            return

    run = world.worker("w1", processors=Keeps)
    run.worker.start()
    world.assign(run)
    for _ in range(300):
        run.round()
        run.worker.step_housekeeping()
        world.clock.advance(1)
    assert world.lease(SHARD).pending_checkpoint is not None
    assert run.worker.heartbeat.lag_ms == 0


def test_a_shard_whose_lease_expires_and_cannot_be_acquired_again_falls_behind_by_the_clock() -> None:
    world = World()
    run = world.worker("w1")
    world.assign(run)
    assert run.worker.step_discovery() == [SHARD]
    run.worker.step_batch()
    run.worker.step_heartbeat()

    def unanswered(method: str, request: Mapping[str, Any]) -> None:
        if method == "update_item" and request["Key"].get("leaseKey") == {"S": SHARD}:
            raise ReadTimeoutError(endpoint_url="dynamodb")

    run.client.before.append(unanswered)
    for _ in range(10):
        world.clock.advance(world.application.timings.lease_duration)
        run.worker.step_renewal()
        run.worker.step_discovery()
        run.worker.step_batch()
        run.worker.step_heartbeat()
    assert run.worker.holdings.keys() == set()
    assert run.worker.heartbeat.lag_ms is not None
    assert run.worker.heartbeat.lag_ms > 9 * 1000 * world.application.timings.lease_duration
    assert SHARD in run.worker.heartbeat.behind
    other = world.worker("w2")
    world.assign(other)
    world.clock.advance(LONGEST_PAUSE)
    run.worker.step_discovery()
    run.worker.step_heartbeat()
    assert run.worker.heartbeat.lag_ms == 0


def test_a_lease_expires_although_the_renewal_thread_waits() -> None:
    world = World()
    run = world.worker("w1")
    world.assign(run)
    assert run.worker.step_discovery() == [SHARD]
    world.clock.advance(world.application.timings.lease_duration)
    run.worker.step_heartbeat()
    assert run.worker.holdings.keys() == set()
    assert EventKind.LEASE_LOST in run.kinds()
