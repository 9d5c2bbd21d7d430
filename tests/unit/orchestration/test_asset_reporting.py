"""When events are written, by the leader and by workers."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    TableColumn,
    TableSchema,
)

import kcl_dagster as kcl
from kcl_dagster.leader.tick_report import StreamSight
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.orchestration import asset_checks
from kcl_dagster.orchestration.application_state import Decision, Observation
from kcl_dagster.orchestration.asset_reporting import Event, Reporter
from kcl_dagster.orchestration.metadata import COLUMN_SCHEMA, KclDecisionsMetadataSet, KclLagMetadataSet
from kcl_dagster.orchestration.run_event_log import CALM_PACE_SECONDS, RunEventLog
from kcl_dagster.orchestration.statement import MAX_ROWS
from kcl_dagster.orchestration.translator import KclTranslator
from kcl_dagster.worker.events import EventKind, WorkerEvent
from kcl_dagster.worker.report import BatchReport, LeaseReport, Outcome

pytestmark = pytest.mark.slow


@kcl.kcl_consumer(application="app", stream="stream", sink=kcl.parquet("unused"), lag_target=30)
def things(records: Any) -> Any:
    return records


def lease(number: int, owner: str | None = "worker-000:aaaaaaaa", **changes: Any) -> Lease:
    key = LeaseKey(f"shardId-{number:012d}")
    known = Lease(key, str(key), owner=None if owner is None else WorkerId(owner), checkpoint=Checkpoint("7" * 56))
    return replace(known, **changes)


def worker(name: str = "worker-000:aaaaaaaa", **changes: Any) -> WorkerRow:
    known = WorkerRow(WorkerId(name), 1, slot=name[:10], run_id="r" * 36, lag_ms=1500)
    return replace(known, **changes)


CALM = Observation(
    leases=[lease(0), lease(1)],
    workers=[worker()],
    leader="us",
    leading=True,
    lag_seconds=1.5,
    streams=[StreamSight("stream", 2, ("shardId-000000000000", "shardId-000000000001"))],
)


@pytest.fixture
def reporter() -> Reporter:
    return Reporter(things, KclTranslator())


def keys(events: Sequence[Event]) -> list[str]:
    return [e.asset_key.path[-1] for e in events if isinstance(e, (AssetMaterialization, AssetObservation))]


def metadata(events: Sequence[Event], last: str) -> dict[str, Any]:
    event = next(e for e in events if isinstance(e, AssetMaterialization) and e.asset_key.path[-1] == last)
    return {name.removeprefix("kcl/"): value.value for name, value in event.metadata.items()}


def test_lag_is_told_every_minute_and_the_rest_every_hour(reporter: Reporter) -> None:
    told = [event for tick in range(17_280) for event in reporter.events(CALM, tick * 5.0)]
    per_day = {last: keys(told).count(last) for last in ("lag", "leases", "workers", "stream")}
    # The lively minutes after the start apart.
    assert 1440 <= per_day["lag"] <= 1455
    assert 24 <= per_day["leases"] == per_day["workers"] <= 36
    assert sum(isinstance(e, AssetCheckEvaluation) for e in told) <= 6 * len(asset_checks.CHECKS)


def test_a_change_is_told_at_once_and_once_more_when_its_numbers_mean_something(reporter: Reporter) -> None:
    for tick in range(200):
        reporter.events(CALM, tick * 5.0)
    moved = replace(CALM, leases=[lease(0), lease(1, "worker-001:bbbbbbbb")])
    told = [tick * 5.0 for tick in range(100) if "leases" in keys(reporter.events(moved, 1000.0 + tick * 5.0))]
    assert told == [0.0, 60.0]


def test_a_fleet_in_motion_is_told_once_a_minute_and_once_more_at_rest(reporter: Reporter) -> None:
    for tick in range(100):
        reporter.events(CALM, tick * 5.0)
    told, events = [], []
    for tick in range(200):
        moved = min(tick, 15)
        seen = replace(CALM, leases=[lease(0, f"worker-{moved:03d}:aaaaaaaa")])
        events = reporter.events(seen, 500.0 + tick * 5.0)
        told += [tick * 5.0] * keys(events).count("leases")
        assert len(events) <= 10
    assert told == [0.0, 60.0, 120.0], "15 moves end after 75 seconds, and their traces soon after that"


def test_decisions_are_told_once_and_the_last_dozen_stays_on_show(reporter: Reporter) -> None:
    def decide(number: int) -> list[str]:
        made = [Decision("balance", f"shardId-{number:012d}", "it is idle", WorkerId("worker-001:b"))]
        events = reporter.events(replace(CALM, decisions=made, now=1_800_000_000.0 + number), number * 5.0)
        table = metadata(events, "decisions")["decisions"]
        return [str(record.data["what"]) for record in table.records]

    assert decide(0) == ["balance: shard 0 → worker-001"]
    assert decide(1) == ["balance: shard 1 → worker-001", "balance: shard 0 → worker-001"]
    for number in range(2, 20):
        shown = decide(number)
    assert shown == [f"balance: shard {number} → worker-001" for number in range(19, 19 - MAX_ROWS, -1)]
    assert keys(reporter.events(CALM, 500.0)).count("decisions") == 0


def test_decisions_survive_a_restart(reporter: Reporter) -> None:
    made = [Decision("start", "worker-000", "4 shards are open")]
    event = next(
        e
        for e in reporter.events(replace(CALM, decisions=made), 0.0)
        if isinstance(e, AssetMaterialization) and e.asset_key.path[-1] == "decisions"
    )
    told = KclDecisionsMetadataSet.extract(event.metadata).decisions
    assert told is not None
    restarted = Reporter(things, KclTranslator())
    restarted.recall([], [record.data for record in told.records])
    more = [Decision("end", "worker-000", "it is not needed any more")]
    table = metadata(restarted.events(replace(CALM, decisions=more), 0.0), "decisions")["decisions"]
    assert [record.data["what"] for record in table.records] == ["end: worker-000", "start: worker-000"]


def test_what_is_decided_again_and_again_is_told_once(reporter: Reporter) -> None:
    told: list[Decision] = []
    launch = Decision("start", "worker-000", "4 shards are open")
    for tick in range(350):  # not quite half an hour
        waiting = Decision("note", f"worker-001 ended early; it is launched again in {350 - tick} s")
        told += reporter.news([waiting, launch], tick * 5.0)
    assert told == [Decision("note", "worker-001 ended early; it is launched again in 350 s"), launch]
    for shard in (1, 2):
        moved = [Decision("balance", f"shardId-{shard:012d}", "it is idle", WorkerId("worker-000:a"))]
        assert reporter.news(moved, 1800.0) == moved


def test_what_is_told_can_be_read_back_by_its_type(reporter: Reporter) -> None:
    event = next(
        e
        for e in reporter.events(CALM, 0.0)
        if isinstance(e, AssetMaterialization) and e.asset_key.path[-1] == "lag"
    )
    lag = KclLagMetadataSet.extract(event.metadata)
    assert (lag.seconds_behind, lag.retention_used_percent) == (1.5, None)


def test_a_loss_stays_until_it_is_acknowledged(reporter: Reporter) -> None:
    reporter.recall(["no_records_lost"])  # failing, in Dagster's storage, when this process started
    told = [e for tick in range(2000) for e in reporter.events(CALM, tick * 5.0)]
    assert not [e for e in told if isinstance(e, AssetCheckEvaluation) and e.check_name == "no_records_lost"]


class Pages:
    """Where an event log writes, and the clock it reads."""

    def __init__(self) -> None:
        self.now = 0.0
        self.written: list[AssetObservation | AssetCheckEvaluation] = []
        self.logged: list[str] = []
        self.event_log = RunEventLog(
            AssetKey("things"),
            "worker-000",
            self.written.append,
            self,
            lambda kind, what: asset_checks.alarm(kind, what, things, KclTranslator()),
            lambda: self.now,
            open_window=lambda: "2026-11-22-17:00",
        )

    def info(self, message: str, *arguments: object) -> None:
        self.logged.append("info " + message % arguments)

    def warning(self, message: str, *arguments: object) -> None:
        self.logged.append("warning " + message % arguments)


def stored(records: int, broken: int = 0) -> BatchReport:
    row = LeaseReport(
        lease(0).key,
        kcl_stream(),
        "shardId-000000000000",
        Outcome.COMMITTED if records else Outcome.IDLE,
        1,
        Checkpoint("1"),
        records=records,
        bytes=records * 10,
        broken_aggregates=broken,
        millis_behind=250,
    )
    return BatchReport((row,), write_seconds=0.5, held=2)


def kcl_stream() -> Any:
    from kcl_dagster.model.stream import StreamIdentifier

    return StreamIdentifier("stream")


def test_a_worker_writes_its_first_records_at_once_and_then_ever_more_seldom() -> None:
    pages = Pages()
    pages.event_log.batch(stored(0))
    assert pages.written == []
    for second in range(86_400):
        pages.now = float(second)
        pages.event_log.batch(stored(10))
    first, *others = pages.written
    assert isinstance(first, AssetObservation)
    assert first.partition == "2026-11-22-17:00"
    assert first.metadata["kcl/records"].value == 10
    assert len(others) <= 6 + 86_400 / CALM_PACE_SECONDS
    told = sum(int(str(e.metadata["kcl/records"].value)) for e in pages.written if isinstance(e, AssetObservation))
    last = pages.event_log.metadata()
    assert told + last["kcl/records"] == last["kcl/records_in_total"] == 864_000


def test_trouble_is_a_warning_and_lost_records_are_a_failed_check() -> None:
    pages = Pages()
    pages.event_log.event(WorkerEvent(EventKind.LEASE_ACQUIRED, "shard 0"))
    pages.event_log.event(WorkerEvent(EventKind.DATA_LOST, "shard 0 lost an hour"))
    assert pages.logged == ["info lease acquired: shard 0", "warning data lost: shard 0 lost an hour"]
    (check,) = pages.written
    assert isinstance(check, AssetCheckEvaluation)
    assert (check.check_name, check.passed) == ("no_records_lost", False)


def test_poison_records_fail_a_check_at_once_and_are_counted_after_that() -> None:
    pages = Pages()
    for second in range(600):
        pages.now = float(second)
        pages.event_log.event(WorkerEvent(EventKind.RECORD_SKIPPED, "cannot parse"))
    told = [e for e in pages.written if isinstance(e, AssetCheckEvaluation)]
    assert [(e.check_name, e.passed) for e in told] == [("no_poison_records", False)] * 2
    assert "cannot parse, after 299 others" in str(told[-1].description)
    assert "Execute this check to acknowledge" in str(told[-1].description)


def broken(count: int) -> WorkerEvent:
    return WorkerEvent(EventKind.BROKEN_AGGREGATE, f"{count} aggregates kept", lease(0).key, {"count": count})


def test_broken_aggregates_warn_at_once_and_are_counted_after_that() -> None:
    pages = Pages()
    for second in range(302):
        pages.now = float(second)
        pages.event_log.event(broken(3))
    told = [e for e in pages.written if isinstance(e, AssetCheckEvaluation)]
    assert [(e.check_name, e.passed, e.severity.value) for e in told] == [
        ("no_broken_aggregates", False, "WARN")
    ] * 2
    assert f"{lease(0).key}: 3 aggregates kept, after {299 * 3} others" in str(told[-1].description)
    assert "Execute this check to acknowledge" in str(told[-1].description)


def test_broken_aggregates_are_counted_beside_the_records() -> None:
    pages = Pages()
    for second in range(60):
        pages.now = float(second)
        pages.event_log.batch(stored(10, broken=2))
    told = [e.metadata for e in pages.written if isinstance(e, AssetObservation)]
    assert [metadata["kcl/broken_aggregates_in_total"].value for metadata in told] == [2, 62]
    assert pages.event_log.metadata()["kcl/broken_aggregates_in_total"] == 120


def test_the_log_of_a_run_says_which_shard_it_speaks_of() -> None:
    pages, key = Pages(), lease(0).key
    pages.event_log.event(WorkerEvent(EventKind.LEASE_ACQUIRED, "at LATEST", key))
    pages.event_log.event(WorkerEvent(EventKind.FETCH_FAILED, f"{key} is gone", key))
    assert pages.logged == [f"info lease acquired: {key}: at LATEST", f"warning fetch failed: {key} is gone"]


class Table:
    """What a transform makes, as far as the event log looks: Spark's schema."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.asked = 0

    @property
    def schema(self) -> Any:
        self.asked += 1
        kind = SimpleNamespace(simpleString=lambda: "bigint")
        return SimpleNamespace(fields=[SimpleNamespace(name=f"c{n}", dataType=kind) for n in range(self.columns)])


@pytest.mark.parametrize(("columns", "told"), [(3, [True, True]), (200, [True, False])])
def test_the_columns_of_what_is_stored_are_told(columns: int, told: list[bool]) -> None:
    pages, table = Pages(), Table(columns)
    for moment in (0.0, 60.0):
        pages.now = moment
        pages.event_log.note_columns(table)
        pages.event_log.batch(stored(10))
    metadata_sets = [e.metadata for e in pages.written if isinstance(e, AssetObservation)]
    assert [COLUMN_SCHEMA in m for m in metadata_sets] == told
    schema = metadata_sets[0][COLUMN_SCHEMA].value
    assert isinstance(schema, TableSchema)
    assert schema.columns[:2] == [TableColumn("c0", "bigint"), TableColumn("c1", "bigint")]
    assert table.asked == 1


RESHARDED = replace(CALM, streams=[StreamSight("stream", 2, ("shardId-000000000001", "shardId-000000000002"))])


def materializes(reporter: Reporter, seen: Observation, now: float) -> bool:
    """Whether a tick materializes the stream where Dagster's storage does not have its shards."""
    events = reporter.events(seen, now, reporter.new_shards(seen, now))
    return any(isinstance(e, AssetMaterialization) and e.asset_key.path[0] == "kinesis" for e in events)


@pytest.mark.audit("F11")
def test_a_stream_is_materialized_at_first_sight_and_when_its_shards_changed(reporter: Reporter) -> None:
    assert materializes(reporter, CALM, 0.0)
    reporter.settle(CALM.streams[0])
    assert not any(materializes(reporter, CALM, tick * 5.0) for tick in range(1, 20_000))
    assert materializes(reporter, RESHARDED, 100_000.0)
    reporter.settle(RESHARDED.streams[0])
    assert not materializes(reporter, RESHARDED, 100_005.0)


@pytest.mark.audit("F11")
def test_a_stream_whose_materialization_is_never_stored_is_materialized_twice_at_most(reporter: Reporter) -> None:
    told = [tick * 5.0 for tick in range(1000) if materializes(reporter, CALM, tick * 5.0)]
    assert told == [0.0, 60.0]


@pytest.mark.audit("F11")
def test_a_stream_that_could_not_be_listed_is_not_materialized(reporter: Reporter) -> None:
    assert not materializes(reporter, replace(CALM, streams=[StreamSight("stream", 0)]), 0.0)
