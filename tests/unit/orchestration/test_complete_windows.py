"""Windows that became complete, as materializations that Dagster's storage lacks."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

import kcl_dagster as kcl
from kcl_dagster.leader.application_completeness import Completeness
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.first_moment import FirstMoment
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.stored import LateBatch, StoredCounts, StoredRows, packed, unpacked
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.orchestration import complete_windows
from kcl_dagster.orchestration.complete_windows import MOST_AT_ONCE, PATIENCE_SECONDS, CompleteWindows, declare
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.time_windows import PartitionWindows
from kcl_dagster.tables.completeness_row import SetBack
from kcl_dagster.worker.batch import MinuteRecords, PartCounts, Progress, Range
from kcl_dagster.worker.stored_counts import WindowRules
from tests.doubles.clock import FakeClock
from tests.unit.orchestration.test_time_windows import schedules_computed

pytestmark = pytest.mark.slow

THINGS = dg.AssetKey("things")
HOURS = dg.HourlyPartitionsDefinition("2026-11-22-00:00")
MINUTES = dg.TimeWindowPartitionsDefinition(
    cron_schedule="* * * * *", start="2026-11-22-00:00", fmt="%Y-%m-%d-%H:%M"
)
CHECKPOINT = Checkpoint("900")


def consumer_of(**more: Any) -> Consumer:
    make = kcl.kcl_consumer(
        application="app",
        stream="stream",
        name="things",
        **{"partitions": HOURS, "sink": kcl.parquet("s3://lake/things"), **more},
    )
    return make(lambda records: records)


def at(text: str) -> int:
    return int(datetime.fromisoformat(f"2026-11-22T{text}").replace(tzinfo=UTC).timestamp())


def complete(text: str, epoch: int = 0, back_to: str | None = None) -> Completeness:
    return Completeness(at(text), epoch=epoch, back_to=None if back_to is None else at(back_to))


def rows(text: str, number: int = 10, late: int = 0) -> StoredRows:
    return StoredRows(at(text), number, number * 100, 2, late, "100", "900")


def lease(number: int, *counted: StoredRows, since: str = "00:00") -> Lease:
    shard = f"shardId-{number:012}"
    late = tuple(LateBatch(one.start, 7) for one in counted if one.late)
    stored = StoredCounts(counted, at(since), late_batches=late).plus([], CHECKPOINT)
    return Lease(LeaseKey(shard), shard_id=shard, checkpoint=CHECKPOINT, stored=stored)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def process(**more: Any) -> CompleteWindows:
    """What the leader's process knows, from a start."""
    return CompleteWindows(consumer_of(**more), kcl.KclTranslator())


def keys(events: list[dg.AssetMaterialization]) -> list[str]:
    return [str(event.partition)[-5:] for event in events]


def stored(instance: dg.DagsterInstance, events: list[dg.AssetMaterialization]) -> list[str]:
    """Dagster stores the events of a tick."""
    for event in events:
        instance.report_runless_asset_event(event)
    return keys(events)


LEASES = [lease(0, rows("10:00"), rows("11:00", 5)), lease(1, rows("10:00", 7))]


def test_a_window_is_materialized_once_with_what_was_stored_of_it(instance: dg.DagsterInstance) -> None:
    ours = process()
    assert ours.events(instance, Completeness(), LEASES) == []
    assert ours.events(instance, complete("11:59"), LEASES) == [], "a part of the first window is missing"
    [event] = ours.events(instance, complete("12:00"), LEASES)
    assert (event.asset_key, event.partition) == (THINGS, "2026-11-22-11:00")
    metadata: dict[str, Any] = {name: value.value for name, value in event.metadata.items()}
    assert (metadata["dagster/row_count"], metadata["kcl/bytes"], metadata["kcl/files"]) == (5, 500, 2)
    assert (metadata["kcl/late_rows"], metadata["kcl/reason"]) == (0, "complete")
    assert metadata["dagster/uri"] == "s3://lake/things"
    assert [record.data for record in metadata["kcl/shards"].records] == [
        {"shard": "shardId-000000000000", "first": "100", "last": "900"}
    ]
    assert stored(instance, [event]) == ["11:00"]
    assert ours.events(instance, complete("12:30"), LEASES) == []


def test_an_application_that_read_all_that_there_was_begins_with_its_streams(instance: dg.DagsterInstance) -> None:
    events = process().events(instance, complete("12:00"), LEASES, lambda: float(at("09:13")))
    assert keys(events) == ["09:00", "10:00", "11:00"]
    assert [event.metadata["dagster/row_count"].value for event in events] == [0, 17, 5]


def test_what_was_not_stored_is_returned_again_and_what_was_is_not(instance: dg.DagsterInstance) -> None:
    ours, created = process(), lambda: float(at("00:00"))
    events = ours.events(instance, complete("03:00"), LEASES, created)
    assert keys(events) == ["00:00", "01:00", "02:00"]
    stored(instance, events[:1])  # then the tick was cut off
    assert keys(ours.events(instance, complete("03:00"), LEASES)) == ["01:00", "02:00"]
    stored(instance, events[1:])
    assert ours.events(instance, complete("03:00"), LEASES) == []


def test_another_process_goes_on_where_dagster_s_storage_is(instance: dg.DagsterInstance) -> None:
    stored(instance, process().events(instance, complete("03:00"), LEASES, lambda: float(at("00:00"))))
    anew = process()
    assert anew.events(instance, complete("03:00"), LEASES) == []
    assert keys(anew.events(instance, complete("05:00"), LEASES)) == ["03:00", "04:00"]


def test_a_look_at_minutes_computes_no_schedule(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For which Dagster takes six milliseconds each, and an application has half a million of them in a year."""
    calls, ours = schedules_computed(monkeypatch), process(partitions=MINUTES)
    while stored(instance, ours.events(instance, complete("01:00"), LEASES, lambda: float(at("00:00")))):
        pass
    anew = process(partitions=MINUTES)
    assert anew.events(instance, complete("01:00"), LEASES) == []
    assert keys(anew.events(instance, complete("01:01"), LEASES)) == ["01:00"]
    assert calls.total() == 0


def test_windows_of_a_long_outage_come_a_few_with_each_tick(instance: dg.DagsterInstance) -> None:
    ours, days = process(), Completeness(at("00:00") + 2 * 86_400)
    told = []
    while events := stored(instance, ours.events(instance, days, LEASES, lambda: float(at("00:00")))):
        assert len(events) <= MOST_AT_ONCE
        told += events
    assert told == [f"{hour:02}:00" for hour in range(24)] * 2


def test_slots_of_former_versions_are_no_windows(instance: dg.DagsterInstance) -> None:
    stored(instance, [dg.AssetMaterialization(THINGS, partition=f"worker-{slot:03}") for slot in range(3)])
    stored(instance, [dg.AssetMaterialization(THINGS)])
    assert keys(process().events(instance, complete("12:00"), LEASES)) == ["11:00"]


def test_counts_that_are_not_known_are_left_out_and_said(instance: dg.DagsterInstance) -> None:
    """A Java worker went on with the lease, and counted nothing."""
    theirs = replace(lease(1, rows("11:00", 7)), checkpoint=Checkpoint("950"))
    [event] = process().events(instance, complete("12:00"), [lease(0, rows("10:00"), rows("11:00")), theirs])
    assert "dagster/row_count" not in event.metadata
    assert "kcl/bytes" not in event.metadata
    assert "kcl/late_rows" not in event.metadata, "others may have stored more of them"
    why = str(event.metadata["kcl/counts"].value)
    assert why.startswith(
        "not known: the output has no lease_key or no timestamp column arrival_timestamp, or a part"
    )


DAYS = dg.DailyPartitionsDefinition("2026-11-22")


def minute(text: str, records: int) -> MinuteRecords:
    return MinuteRecords(at(text), records, 70, "11", "12")


def committed(lease: Lease, to: str, partitions: dg.TimeWindowPartitionsDefinition, *read: MinuteRecords) -> Lease:
    """The lease with what its worker counts for records by the minute in which they arrived."""
    assert lease.checkpoint is not None
    progress = Progress(
        Range(lease.key, StreamIdentifier.single("stream"), lease.shard_id or "", lease.checkpoint, 7),
        Checkpoint(to),
        records=sum(one.records for one in read),
        first_arrival_ms=read[0].minute * 1000,
        last_arrival_ms=read[-1].minute * 1000,
        minutes=read,
    )
    counts = WindowRules(PartitionWindows(partitions)).counts(lease, progress, PartCounts(None, 100, 1))
    assert counts is not None
    after = counts.added_to(lease.stored, lease.checkpoint, Checkpoint(to), 8)
    kept = unpacked(packed(after))
    return replace(lease, checkpoint=Checkpoint(to), stored_through=read[-1].minute, stored=kept)


def counted(event: dg.AssetMaterialization) -> tuple[str, Any, bool]:
    number = event.metadata.get("dagster/row_count")
    return str(event.partition), None if number is None else number.value, "kcl/counts" in event.metadata


def test_numbers_are_unknown_until_windows_begin_that_were_counted_by_changed_partitions(
    instance: dg.DagsterInstance,
) -> None:
    begun = Lease(LeaseKey("shard"), shard_id="shard", checkpoint=TRIM_HORIZON)
    hourly = committed(begun, "910", HOURS, minute("00:10", 100), minute("11:10", 20))
    daily = committed(hourly, "920", DAYS, minute("12:10", 7))
    end = at("00:00") + 86_400
    for one in (hourly, daily):  # deployed with days, before and after its first batch by days
        [event] = process(partitions=DAYS).events(instance, Completeness(end), [one], lambda: float(at("00:00")))
        assert counted(event) == ("2026-11-22", None, True)
    next_day = replace(minute("00:10", 9), minute=end + 600)
    stored(instance, [event])
    on = committed(daily, "930", DAYS, next_day)
    [event] = process(partitions=DAYS).events(instance, Completeness(end + 86_400), [on])
    assert counted(event) == ("2026-11-23", 9, False)


def test_numbers_of_days_are_not_those_of_their_first_hour(instance: dg.DagsterInstance) -> None:
    begun = Lease(LeaseKey("shard"), shard_id="shard", checkpoint=TRIM_HORIZON)
    daily = committed(begun, "910", DAYS, minute("00:10", 1200))
    hourly = committed(daily, "920", HOURS, minute("02:10", 7), minute("03:10", 8))
    events = process().events(instance, complete("04:00"), [hourly], lambda: float(at("00:00")))
    assert [counted(event)[1:] for event in events] == [(None, True)] * 3 + [(8, False)]


def test_late_rows_of_former_windows_are_declared_once_by_those_of_now(instance: dg.DagsterInstance) -> None:
    late = {"event_time": "at", "partitions": DAYS}
    end = at("00:00") + 86_400
    ours, leases = process(**late), [lease(0, rows("13:00", late=4))]
    assert len(stored(instance, ours.events(instance, Completeness(end), leases, lambda: float(at("00:00"))))) == 1
    assert [ours.events(instance, Completeness(end), leases) for _ in range(3)] == [[], [], []]


def test_late_rows_materialize_their_window_again(instance: dg.DagsterInstance) -> None:
    late = {"event_time": "at", "allowed_lateness": timedelta(minutes=10)}
    ours, created = process(**late), lambda: float(at("10:10"))
    assert ours.events(instance, complete("11:09"), LEASES, created) == []
    assert stored(instance, ours.events(instance, complete("12:10"), LEASES, created)) == ["10:00", "11:00"]
    after = [lease(0, rows("10:00", 11, late=1), rows("11:00", 5)), LEASES[1]]
    for ready in (ours, process(**late)):
        [event] = ready.events(instance, complete("12:20"), after)
        assert keys([event]) == ["10:00"]
        assert event.metadata["kcl/reason"].value == "late rows came"
        assert (event.metadata["kcl/late_rows"].value, event.metadata["dagster/row_count"].value) == (1, 18)
    stored(instance, [event])
    assert [ready.events(instance, complete("12:30"), after) for ready in (ours, process(**late))] == [[], []]


def test_by_event_time_no_sequence_numbers_are_told(instance: dg.DagsterInstance) -> None:
    """Those that are kept are of the batches that stored rows of the window, and not of the window."""
    ours = process(event_time="at")
    [event] = ours.events(instance, complete("12:00"), LEASES)
    assert (event.partition, event.metadata["dagster/row_count"].value) == ("2026-11-22-11:00", 5)
    assert "kcl/shards" not in event.metadata


def test_sequence_numbers_that_are_not_known_are_left_out(instance: dg.DagsterInstance) -> None:
    """After a reset into the window, the lease has the first record that was read again."""
    again = [lease(0, rows("11:00", 5), since="11:30"), lease(1, rows("11:00", 3))]
    ours = process()
    [event] = ours.events(instance, complete("12:00"), again, lambda: float(at("11:00")))
    assert "dagster/row_count" not in event.metadata
    table: Any = event.metadata["kcl/shards"].value
    [known] = table.records
    assert known.data == {"shard": "shardId-000000000001", "first": "100", "last": "900"}
    [event] = process().events(instance, complete("12:00"), again[:1], lambda: float(at("11:00")))
    assert "kcl/shards" not in event.metadata


def test_after_a_reset_the_windows_from_there_on_are_materialized_again(instance: dg.DagsterInstance) -> None:
    ours = process()
    stored(instance, ours.events(instance, complete("05:00"), LEASES, lambda: float(at("00:00"))))
    assert ours.events(instance, complete("02:30", 1, "02:30"), LEASES) == []
    for ready in (ours, process()):
        events = ready.events(instance, complete("04:00", 1, "02:30"), LEASES)
        assert keys(events) == ["02:00", "03:00"]
        reasons = {event.metadata["kcl/reason"].value for event in events}
        assert reasons == {"declared again after a reset or an import"}
    stored(instance, events)
    assert [keys(ready.events(instance, complete("06:00", 1, "02:30"), LEASES)) for ready in (ours, process())] == [
        ["04:00", "05:00"]
    ] * 2


def test_a_reset_to_before_the_first_window_makes_none_of_those_before_it_complete(
    instance: dg.DagsterInstance,
) -> None:
    """The application began at LATEST, within the hour before its first window."""
    ours = process()
    stored(instance, ours.events(instance, complete("15:00"), [lease(0, rows("13:00"), rows("14:00"))]))
    again = [lease(0, *(rows(f"{hour}:00") for hour in range(10, 16)), since="10:30")]
    for ready in (ours, process()):
        assert keys(ready.events(instance, complete("15:30", 1, "10:30"), again)) == ["14:00"]


def from_moment(text: str, first: FirstMoment, *reset: Any) -> Completeness:
    return replace(complete(text, *reset), first=first)


def test_windows_that_are_not_counted_any_more_are_declared_from_the_first_moment_on(
    instance: dg.DagsterInstance,
) -> None:
    """A lease keeps the counts of 32 windows."""
    quarters = dg.TimeWindowPartitionsDefinition(
        cron_schedule="*/15 * * * *", start="2026-11-22-00:00", fmt="%Y-%m-%d-%H:%M"
    )
    day, first = at("00:00") + 86_400, FirstMoment(at("00:10"))
    counted = [StoredRows(start, 10) for start in range(at("00:00"), day, 900)]
    one = replace(lease(0), stored=StoredCounts((), 0, whole=True).plus(counted, CHECKPOINT))
    told = all_of(instance, process(partitions=quarters), Completeness(day, first=first), [one])
    assert (len(told), told[0], told[-1]) == (95, "00:15", "23:45")


def test_no_window_before_the_first_moment_is_declared_although_rows_of_it_are_counted(
    instance: dg.DagsterInstance,
) -> None:
    """One shard was put back to before the start at LATEST, and nothing had been declared by then."""
    first, again = FirstMoment(at("13:30")), [lease(0, rows("10:00"), rows("11:00")), lease(1, rows("14:00"))]
    later = from_moment("15:30", first, 1, "10:30")
    for ready in (process(), process()):
        assert keys(ready.events(instance, later, again)) == ["14:00"]
    assert process().asked(instance, at("13:00"), later, again) is None


def test_a_first_moment_that_a_reset_moved_back_counts_at_once(instance: dg.DagsterInstance) -> None:
    ours, leases = process(), [lease(0, rows("14:00"))]
    first, earlier = FirstMoment(at("13:30")), FirstMoment(at("11:00"))
    assert all_of(instance, ours, from_moment("15:00", first), leases) == ["14:00"]
    for ready in (process(), ours):
        events = ready.events(instance, from_moment("15:30", earlier, 1, "11:00"), leases)
        assert keys(events) == ["11:00", "12:00", "13:00", "14:00"]
        assert [event.metadata["kcl/reason"].value for event in events[2:]] == [
            "complete",
            "declared again after a reset or an import",
        ]


def test_a_first_moment_before_the_first_partition_costs_no_look_at_each_window(
    instance: dg.DagsterInstance,
) -> None:
    ours = process(partitions=MINUTES)
    created = FirstMoment(at("00:00") - 365 * 86_400, is_creation=True)
    assert all_of(instance, ours, from_moment("00:02", created), LEASES) == ["00:00", "00:01"]
    assert ours.first == at("00:00")


def test_after_a_restart_a_reset_reaches_windows_that_are_not_remembered(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(complete_windows, "REMEMBERED", 3)

    def created() -> float:
        return float(at("04:00"))

    assert len(all_of(instance, process(), complete("12:00"), LEASES, created)) == 8
    told = all_of(instance, process(), complete("12:00", 1, "02:30"), LEASES, created)
    assert told == [f"{hour:02}:00" for hour in range(4, 12)]


def test_after_an_import_the_windows_that_are_counted_are_materialized_again(instance: dg.DagsterInstance) -> None:
    """From when on records are read again is not known."""
    ours = process()
    stored(instance, ours.events(instance, complete("12:00"), LEASES, lambda: float(at("08:00"))))
    for ready in (ours, process()):
        assert keys(ready.events(instance, complete("12:00", 1), LEASES)) == ["10:00", "11:00"]
    stored(instance, ready.events(instance, complete("12:00", 1), LEASES))
    assert [one.events(instance, complete("12:30", 1), LEASES) for one in (ours, process())] == [[], []]


def started(instance: dg.DagsterInstance, text: str) -> str:
    """A run for a window, whose process was started."""
    tags = {"dagster/partition": f"2026-11-22-{text}"}
    going_on = dg.DagsterRunStatus.STARTED
    run = create_run_for_test(instance, asset_selection=frozenset([THINGS]), tags=tags, status=going_on)
    return str(run.run_id)


def test_a_run_whose_worker_is_dead_holds_no_window_back(instance: dg.DagsterInstance) -> None:
    """Dagster shows it as started for ever if nothing monitors its runs."""
    ours, run_id = process(), started(instance, "11:00")
    for workers, expected in (({run_id: True}, []), ({}, []), ({run_id: False}, ["11:00"])):
        assert keys(ours.events(instance, complete("12:00"), LEASES, workers=workers)) == expected


def test_a_run_without_a_worker_holds_declared_windows_for_a_while(instance: dg.DagsterInstance) -> None:
    clock = FakeClock()
    ours, run_id = process(), started(instance, "11:00")
    ours.clock = clock
    assert ours.events(instance, complete("11:30"), LEASES) == []
    clock.advance(10 * PATIENCE_SECONDS)  # it waits for a fleet that reads
    for seconds, expected in ((PATIENCE_SECONDS - 1, []), (1, []), (0, ["11:00"])):
        assert keys(ours.events(instance, complete("12:00"), LEASES)) == expected
        assert ours.events(instance, complete("12:00"), LEASES, workers={run_id: True}) == []
        clock.advance(seconds)


def test_columns_that_workers_observed_are_those_of_the_window(instance: dg.DagsterInstance) -> None:
    schema = dg.TableSchema([dg.TableColumn("body", "string")])
    metadata = {"dagster/column_schema": schema}
    instance.report_runless_asset_event(dg.AssetObservation(THINGS, metadata=metadata))
    instance.report_runless_asset_event(dg.AssetObservation(THINGS, metadata={"kcl/records": 1}))
    [event] = process().events(instance, complete("12:00"), LEASES)
    assert event.metadata["dagster/column_schema"].value == schema


def test_what_a_run_is_launched_for_is_said_as_it_was_declared_unless_it_changed(
    instance: dg.DagsterInstance,
) -> None:
    def asked(text: str, leases: list[Lease]) -> tuple[Any, Any] | None:
        event = process().asked(instance, at(text), complete("13:00"), leases, lambda: float(at("10:00")))
        return event and (event.metadata["dagster/row_count"].value, event.metadata["kcl/reason"].value)

    assert (asked("09:00", LEASES), asked("11:00", LEASES)) == (None, (5, "complete"))
    stored(instance, process().events(instance, complete("12:00"), LEASES, lambda: float(at("10:00"))))
    assert (asked("09:00", LEASES), asked("11:00", [])) == (None, (5, "asked for by hand"))
    assert asked("11:00", [lease(0, rows("11:00", 6, late=1))]) == (6, "late rows came")


def all_of(instance: dg.DagsterInstance, ours: CompleteWindows, *given: Any) -> list[str]:
    """What a process declares with as many ticks as it takes, all of it stored."""
    told: list[str] = []
    while found := stored(instance, ours.events(instance, *given)):
        told += found
    return told


def test_a_process_that_leads_again_declares_nothing_that_another_declared(instance: dg.DagsterInstance) -> None:
    """More windows than a tick declares."""
    ours, other, created = process(partitions=MINUTES), process(partitions=MINUTES), lambda: float(at("09:00"))
    assert len(all_of(instance, ours, complete("09:05"), LEASES, created)) == 5
    assert len(all_of(instance, other, complete("10:05"), LEASES, created)) == 60
    assert all_of(instance, ours, complete("10:05"), LEASES, created) == []
    assert all_of(instance, ours, complete("10:06"), LEASES, created) == ["10:05"]


def test_after_a_restart_windows_with_late_rows_are_not_declared_again(instance: dg.DagsterInstance) -> None:
    late = {"event_time": "at", "allowed_lateness": timedelta(minutes=1), "partitions": MINUTES}
    counted = [
        lease(number, *(rows(f"09:{minute:02}", late=1) for minute in range(first, first + 24)))
        for number, first in enumerate((0, 24))
    ]
    given = (complete("10:00"), counted, lambda: float(at("09:01")))
    assert len(all_of(instance, process(**late), *given)) == 59
    assert all_of(instance, process(**late), *given) == []


def test_a_materialization_by_hand_declares_nothing(instance: dg.DagsterInstance) -> None:
    ours, created = process(), lambda: float(at("10:00"))
    assert stored(instance, ours.events(instance, complete("12:00"), LEASES, created)) == ["10:00", "11:00"]
    stored(instance, [dg.AssetMaterialization(THINGS, partition="2026-11-22-12:00")])
    for ready in (ours, process()):
        assert keys(ready.events(instance, complete("13:00"), LEASES, created)) == ["12:00"]
    stored(instance, ours.events(instance, complete("13:00"), LEASES, created))
    stored(instance, [dg.AssetMaterialization(THINGS, partition="2026-11-22-12:00")])
    for ready in (ours, process()):
        assert ready.events(instance, complete("13:00"), LEASES, created) == []


def test_a_materialization_by_hand_of_a_window_before_the_streams_is_no_beginning(
    instance: dg.DagsterInstance,
) -> None:
    stored(instance, process().events(instance, complete("12:00"), LEASES, lambda: float(at("10:00"))))
    stored(instance, [dg.AssetMaterialization(THINGS, partition="2026-11-22-02:00")])
    assert process().events(instance, complete("12:00"), LEASES, lambda: float(at("10:00"))) == []


def test_windows_that_were_wiped_are_declared_again_with_the_next_one(instance: dg.DagsterInstance) -> None:
    ours, created = process(), lambda: float(at("10:00"))
    assert len(all_of(instance, ours, complete("15:00"), LEASES, created)) == 5
    instance.wipe_assets([THINGS])
    expected = ["10:00", "11:00", "12:00", "13:00", "14:00", "15:00"]
    assert keys(process().events(instance, complete("16:00"), LEASES, created)) == expected
    assert all_of(instance, ours, complete("16:00"), LEASES, created) == expected
    assert process().events(instance, complete("16:00"), LEASES, created) == []


def test_windows_that_an_earlier_reset_read_again_are_declared_after_a_second_reset(
    instance: dg.DagsterInstance,
) -> None:
    """The first was read again while no process of Dagster led."""
    ours, created = process(), lambda: float(at("06:00"))
    assert len(all_of(instance, ours, complete("13:00"), LEASES, created)) == 7
    resets = (SetBack(2, at("08:00")), SetBack(4, at("11:00")))
    again = (complete("13:00", 4, "11:00"), LEASES, created, resets)
    expected = ["08:00", "09:00", "10:00", "11:00", "12:00"]
    for ready in (ours, process()):
        assert keys(ready.events(instance, *again)) == expected
    assert all_of(instance, ours, *again) == expected
    assert process().events(instance, *again) == []


def test_a_window_that_was_declared_after_the_first_of_two_resets_is_left_alone(
    instance: dg.DagsterInstance,
) -> None:
    ours, created = process(), lambda: float(at("06:00"))
    all_of(instance, ours, complete("13:00", 2, "08:00"), LEASES, created)
    resets = (SetBack(2, at("08:00")), SetBack(4, at("11:00")))
    assert all_of(instance, ours, complete("13:00", 4, "11:00"), LEASES, created, resets) == ["11:00", "12:00"]


def test_a_run_declares_only_while_it_leads(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sensor leads again while the run writes the second of sixty windows."""
    monkeypatch.setattr(complete_windows, "created_within_retention", lambda *_: float(at("09:00")))
    sensor = process(partitions=MINUTES)
    told: list[str] = []
    ticks: list[int] = []
    given = (complete("10:00"), LEASES, lambda: float(at("09:00")))

    def lead() -> TickReport | None:
        ticks.append(len(told))
        return TickReport(leading=True, completeness=given[0], leases=tuple(LEASES)) if len(ticks) == 1 else None

    def write(event: dg.AssetMaterialization) -> None:
        told.extend(stored(instance, [event]))
        if len(told) == 2:
            told.extend(stored(instance, sensor.events(instance, *given)))

    resource = kcl.KclResource(region_name="us-east-1")
    declare(instance, consumer_of(partitions=MINUTES), kcl.KclTranslator(), resource, lead, write)
    assert told == [f"09:{minute:02}" for minute in range(22)], "each of them once, and then the run stops"
    assert len(ticks) == 2
    assert declare(instance, consumer_of(), kcl.KclTranslator(), resource, lambda: None, write) == set()


BY_EVENT = {"event_time": "at", "allowed_lateness": timedelta(minutes=1)}


def test_late_rows_are_seen_although_a_lease_with_more_of_them_is_gone(instance: dg.DagsterInstance) -> None:
    ours, created = process(**BY_EVENT), lambda: float(at("10:01"))
    leases = [lease(0, rows("10:00", late=5)), lease(1)]
    assert all_of(instance, ours, complete("11:01"), leases, created) == ["10:00"]
    assert all_of(instance, ours, complete("11:30"), [leases[1]], created) == [], "the parent is cleaned up"
    child = [lease(1, rows("10:00", 3, late=3))]
    for ready in (ours, process(**BY_EVENT)):
        assert keys(ready.events(instance, complete("11:30"), child)) == ["10:00"]
    assert all_of(instance, ours, complete("11:30"), child) == ["10:00"]
    assert [one.events(instance, complete("11:40"), child) for one in (ours, process(**BY_EVENT))] == [[], []]


def test_late_rows_are_seen_of_windows_whose_counts_were_dropped(instance: dg.DagsterInstance) -> None:
    ours, created = process(partitions=MINUTES, **BY_EVENT), lambda: float(at("09:01"))
    minutes = [StoredRows(at("09:00") + 60 * minute, 10, 100, 1) for minute in range(60)]
    counts = StoredCounts(whole=True).plus(minutes, CHECKPOINT, batch=4)
    assert counts.at(at("09:00")) is None, "an hour of minutes is more than a lease keeps"
    before = [replace(lease(0), stored=counts)]
    assert len(all_of(instance, ours, complete("10:01"), before, created)) == 60
    for batch, minute in ((5, "09:00"), (6, "09:07"), (7, "09:00")):
        counts = counts.plus([rows(minute, 1, late=1)], CHECKPOINT, batch)
        after = [replace(lease(0), stored=counts)]
        assert all_of(instance, process(partitions=MINUTES, **BY_EVENT), complete("10:01"), after) == [minute]
        assert all_of(instance, ours, complete("10:01"), after) == []


def test_rows_of_times_before_the_stream_was_created_have_their_windows(instance: dg.DagsterInstance) -> None:
    """A producer that sends last night's events, too. Windows that it sends nothing for are not declared."""
    ours, created = process(**BY_EVENT), lambda: float(at("10:00"))
    leases = [lease(0, rows("02:00", 4, late=4), rows("10:00"))]
    [old, *_] = found = ours.events(instance, complete("11:01"), leases, created)
    assert keys(found) == ["02:00", "09:00", "10:00"], "the first record may be a minute late"
    assert (old.metadata["dagster/row_count"].value, old.metadata["kcl/reason"].value) == (4, "late rows came")
    stored(instance, found)
    for ready in (ours, process(**BY_EVENT)):
        assert ready.events(instance, complete("11:01"), leases, created) == []
    more = [lease(0, rows("02:00", 4, late=4), rows("04:00", 1, late=1), rows("10:00"))]
    assert all_of(instance, process(**BY_EVENT), complete("11:02"), more, created) == ["04:00"]


def test_an_application_that_began_at_latest_begins_with_windows_that_have_rows_in_time(
    instance: dg.DagsterInstance,
) -> None:
    leases = [lease(0, rows("02:00", 4, late=4), rows("10:00", 5, late=1), rows("11:00"))]
    assert all_of(instance, process(**BY_EVENT), complete("12:01"), leases) == ["02:00", "10:00", "11:00"]


@pytest.mark.parametrize(
    ("through", "late", "again"),
    [
        (complete("11:01"), 0, []),  # it knows the same: one more materialization, with the same numbers
        (complete("11:01"), 1, ["10:00"]),  # it knows of a late row
        (complete("11:01", 2, "10:00"), 0, ["10:00"]),  # and of a reset
    ],
)
def test_what_another_leader_declares_just_before_a_write_is_not_lost(
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    through: Completeness,
    late: int,
    again: list[str],
) -> None:
    """The run has looked whether the window is declared, and the sensor declares it before the run writes."""
    created = float(at("10:01"))
    monkeypatch.setattr(complete_windows, "created_within_retention", lambda *_: created)
    before, now = [lease(0, rows("10:00"))], [lease(0, rows("10:00", 10 + late, late=late))]
    told: list[str] = []

    def lead() -> TickReport | None:
        return None if told else TickReport(leading=True, completeness=complete("11:01"), leases=tuple(before))

    def write(event: dg.AssetMaterialization) -> None:
        told.extend(all_of(instance, process(**BY_EVENT), through, now, lambda: created))
        told.extend(stored(instance, [event]))

    resource = kcl.KclResource(region_name="us-east-1")
    declare(instance, consumer_of(**BY_EVENT), kcl.KclTranslator(), resource, lead, write)
    assert told == ["10:00", "10:00"]
    for ready in (process(**BY_EVENT), process(**BY_EVENT)):
        assert all_of(instance, ready, through, now) == again
        again = []
    [newest] = instance.fetch_materializations(THINGS, limit=1).records
    assert newest.asset_materialization is not None
    assert newest.asset_materialization.metadata["dagster/row_count"].value == 10 + late


def test_longer_windows_are_not_declared_by_shorter_ones_that_begin_at_the_same_time(
    instance: dg.DagsterInstance,
) -> None:
    longer = dg.TimeWindowPartitionsDefinition(
        cron_schedule="0 */6 * * *", start="2026-11-22-00:00", fmt="%Y-%m-%d-%H:%M"
    )
    leases = [lease(0, *(rows(f"{hour:02}:00") for hour in range(8)))]
    assert len(all_of(instance, process(), complete("07:30"), leases, lambda: float(at("00:00")))) == 7
    for ready in (process(partitions=longer), process(partitions=longer)):
        assert ready.events(instance, complete("11:59"), leases) == [], "of the first one an hour may be missing"
        assert keys(ready.events(instance, complete("12:00"), [lease(0)])) == ["06:00"]
    assert all_of(instance, process(partitions=longer), complete("12:00"), [lease(0)]) == ["06:00"]
    assert process(partitions=longer).events(instance, complete("12:00"), [lease(0)]) == []


def test_late_rows_that_come_while_a_run_declares_are_declared_once_more(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(complete_windows, "created_within_retention", lambda *_: float(at("10:01")))
    ticks: list[int] = []

    def lead() -> TickReport:
        ticks.append(len(ticks))
        late = (LateBatch(at("10:00"), min(7 + len(ticks), 10)),)
        first = lease(0, rows("10:00"))
        assert first.stored is not None
        leases = (replace(first, stored=replace(first.stored, late_batches=late)),)
        return TickReport(leading=True, completeness=complete("11:01"), leases=leases)

    resource = kcl.KclResource(region_name="us-east-1")
    write = instance.report_runless_asset_event
    told = declare(instance, consumer_of(**BY_EVENT), kcl.KclTranslator(), resource, lead, write)
    assert [key[-5:] for key in told] == ["10:00"]
    assert len(ticks) == 4, "three with more late rows each, and one without"
