"""What workers count, by window, with the commit that stores it."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from kcl_dagster.leader.completeness import window_counts
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.stored import BatchCounts, StoredRows
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.model.windows import FixedWindows
from kcl_dagster.testing.dynamodb import FakeDynamoDB
from kcl_dagster.worker.batch import FileCounts, MinuteRecords, MinuteRows, PartCounts, Progress, Range
from kcl_dagster.worker.stored_counts import WindowRules
from tests.unit.tables.kit import FaultyClient, Tables, answer_lost, application, at, new_lease
from tests.unit.worker.kit import Killed, Run, World

A = "shardId-000000000000"
HOUR = 3600
NOON = 1_800_000_000 // HOUR * HOUR
LEASE = Lease(LeaseKey(A), A, checkpoint=TRIM_HORIZON)
RANGE = Range(LEASE.key, StreamIdentifier.single("orders"), A, TRIM_HORIZON, 1)
PROGRESS = Progress(
    RANGE,
    through=Checkpoint("40"),
    first="11",
    records=7,
    bytes=700,
    first_arrival_ms=(NOON - 30) * 1000,
    last_arrival_ms=(NOON + 70) * 1000,
    minutes=(
        MinuteRecords(NOON - 60, 2, 200, "11", "12"),
        MinuteRecords(NOON, 4, 400, "13", "30"),
        MinuteRecords(NOON + 60, 1, 100, "40", "40"),
    ),
)
BY_ARRIVAL = WindowRules(FixedWindows(HOUR))
BY_EVENT = WindowRules(FixedWindows(HOUR), "at", allowed_lateness=120)


def test_records_that_were_stored_as_they_were_read_count_by_their_arrival() -> None:
    counts = BY_ARRIVAL.counts(LEASE, PROGRESS, PartCounts(None, size=1400, number=1))
    assert counts is not None
    assert counts.rows == (
        StoredRows(NOON - HOUR, 2, 400, 1, 0, "11", "12"),
        StoredRows(NOON, 5, 1000, 1, 0, "13", "40"),
    )
    assert counts.until == NOON + HOUR


def test_rows_of_files_count_by_their_own_column() -> None:
    files = (
        FileCounts(100, (MinuteRows(NOON - 60, None, 1), MinuteRows(NOON, None, 3))),
        FileCounts(50, (MinuteRows(NOON + 60, None, 2),)),
    )
    counts = BY_ARRIVAL.counts(LEASE, PROGRESS, PartCounts(files))
    assert counts is not None
    assert counts.rows == (
        StoredRows(NOON - HOUR, 1, 25, 1, 0, "11", "12"),
        StoredRows(NOON, 5, 125, 2, 0, "13", "40"),
    )


def test_a_row_is_late_when_its_record_arrived_after_its_window_and_the_lateness() -> None:
    before, then = NOON + HOUR + 60, NOON + HOUR + 120
    minutes = (MinuteRows(NOON, before, 4), MinuteRows(NOON, then, 2), MinuteRows(NOON + HOUR, then, 3))
    counts = BY_EVENT.counts(LEASE, PROGRESS, PartCounts((FileCounts(90, minutes),)))
    assert counts is not None
    assert [(rows.start, rows.rows, rows.late) for rows in counts.rows] == [(NOON, 6, 2), (NOON + HOUR, 3, 0)]
    assert {(rows.first, rows.last) for rows in counts.rows} == {("11", "40")}
    assert counts.until == NOON + 2 * HOUR + 120


def test_rows_that_do_not_say_when_they_arrived_are_as_late_as_their_batch() -> None:
    files = (FileCounts(90, (MinuteRows(NOON - HOUR, None, 4),)),)
    in_time = BY_EVENT.counts(LEASE, PROGRESS, PartCounts(files))
    late = BY_EVENT.counts(LEASE, replace(PROGRESS, last_arrival_ms=(NOON + 120) * 1000), PartCounts(files))
    assert in_time is not None
    assert late is not None
    assert (in_time.rows[0].late, late.rows[0].late) == (0, 4)


@pytest.mark.parametrize(
    ("rules", "progress", "stored"),
    [
        (BY_ARRIVAL, PROGRESS, None),  # the sink does not know
        (BY_ARRIVAL, replace(PROGRESS, minutes=None), PartCounts(None)),  # the stream did not say when they arrived
        (BY_EVENT, PROGRESS, PartCounts(None)),  # the output has no such column
    ],
)
def test_what_is_not_known_is_not_counted(
    rules: WindowRules, progress: Progress, stored: PartCounts | None
) -> None:
    assert rules.counts(LEASE, progress, stored) is None


def test_a_child_shares_the_window_in_which_its_parents_ended() -> None:
    child = replace(LEASE, stored_through=NOON + 5)
    assert BY_ARRIVAL.nothing(child, PROGRESS).shared_until == NOON + HOUR
    assert BY_ARRIVAL.nothing(LEASE, PROGRESS).shared_until == 0


def test_after_uncounted_commits_counting_begins_with_the_next_window() -> None:
    lease = replace(LEASE, checkpoint=Checkpoint("9"), stored_through=NOON - 5)
    assert BY_ARRIVAL.nothing(lease, PROGRESS).restart == NOON + HOUR, "records may be out of order by 10 s"


@pytest.mark.parametrize("losses", [1, 2, 3])
def test_counts_are_added_once_whatever_answers_are_lost(losses: int) -> None:
    client = FaultyClient(FakeDynamoDB())
    tables = Tables(client, application())
    owned = tables.holding(new_lease())
    client.fail("update_item", *[answer_lost] * losses)
    counts = BatchCounts((StoredRows(NOON, 3, 30, 1),))
    written = tables.leases.checkpoint(owned, at(), counts=counts)
    again = tables.leases.checkpoint(written, at(sub=1), counts=counts)
    assert written.stored is not None
    assert again.stored is not None
    assert written.stored.windows == (StoredRows(NOON, 3, 30, 1),)
    assert again.stored.windows == (StoredRows(NOON, 6, 60, 2),)
    assert again.stored.is_of(again.checkpoint)


# --- workers -----------------------------------------------------------------------------------------------------


def counting(world: World, name: str = "w1", **extra: Any) -> Run:
    run = world.worker(name, windows=FixedWindows(HOUR), **extra)
    world.assign(run)
    return run


def stored(world: World) -> list[tuple[int, int, bool]]:
    leases = world.leases.scan().leases
    starts = {rows.start for lease in leases if lease.stored for rows in lease.stored.windows}
    found = [window_counts(leases, start) for start in sorted(starts)]
    return [(counts.start, counts.rows, counts.is_known) for counts in found]


def put(world: World, data: str, at: int, shard: str = A) -> None:
    world.stream.arrival_ms = at * 1000
    world.stream.put(shard, *data)


def test_every_commit_counts_what_it_stores() -> None:
    world = World()
    put(world, "abcdefg", NOON)
    counting(world).until_idle()
    assert stored(world) == [(NOON, 7, True)]
    put(world, "hi", NOON + HOUR)
    counting(world, "w2").until_idle()
    assert stored(world) == [(NOON, 7, True), (NOON + HOUR, 2, True)]


@pytest.mark.parametrize("burns_at", range(1, 40, 2))
def test_what_is_counted_is_what_is_stored_wherever_the_worker_dies(burns_at: int) -> None:
    world = World()
    put(world, "abcdefg", NOON)
    run = counting(world)
    run.fuse.burns_at = burns_at
    with suppress(Killed):
        run.until_idle()
    counting(world, "w2").until_idle()
    world.check_exactly_once()
    assert stored(world) == [(NOON, 7, True)]


def test_a_split_in_a_window_leaves_its_rows_in_the_leases_of_parent_and_children() -> None:
    world = World()
    put(world, "abc", NOON)
    run = counting(world)
    run.until_idle()
    left, right = world.stream.split(A)
    put(world, "de", NOON + 60, left)
    put(world, "f", NOON + 60, right)
    run.until_idle()
    counting(world, "w2").until_idle()
    world.check_exactly_once()
    assert stored(world) == [(NOON, 6, True)]


def test_commits_of_a_worker_that_does_not_count_make_the_counts_unknown() -> None:
    world = World()
    put(world, "abc", NOON)
    counting(world).until_idle()
    put(world, "d", NOON)
    other = world.worker("w2")
    world.assign(other)
    other.until_idle()
    assert stored(world) == [(NOON, 3, False)]

    put(world, "e", NOON + HOUR)
    counting(world, "w3").until_idle()
    put(world, "f", NOON + 2 * HOUR)
    counting(world, "w4").until_idle()
    assert stored(world) == [(NOON + HOUR, 1, False), (NOON + 2 * HOUR, 1, True)]
