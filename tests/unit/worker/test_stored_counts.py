"""What workers count, by window, with the commit that stores it."""

import itertools
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from dagster import HourlyPartitionsDefinition

from kcl_dagster.leader.application_completeness import ShardPart, window_counts
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.stored import BatchCounts, LateBatch, StoredRows
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.model.windows import FixedWindows
from kcl_dagster.orchestration.time_windows import DEFAULT_PARTITIONS, PartitionWindows
from kcl_dagster.worker.batch import FileCounts, MinuteRecords, MinuteRows, PartCounts, Progress, Range
from kcl_dagster.worker.bound import Bound
from kcl_dagster.worker.stored_counts import WindowRules
from tests.doubles.dynamodb import FakeDynamoDB
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


@pytest.mark.parametrize(("lateness", "late"), [(0, 2), (30, 2), (59, 2), (60, 0), (90, 0)])
def test_a_row_is_late_from_the_minute_in_which_the_lateness_ends(lateness: int, late: int) -> None:
    """Its record may have arrived in the last second of the minute that is known."""
    minutes = (MinuteRows(NOON, NOON + HOUR, 2),)
    rules = replace(BY_EVENT, allowed_lateness=lateness)
    counts = rules.counts(LEASE, PROGRESS, PartCounts((FileCounts(90, minutes),)))
    assert counts is not None
    assert [rows.late for rows in counts.rows] == [late]


def test_a_lease_with_late_rows_is_kept_until_they_can_have_been_declared() -> None:
    then = NOON + 10 * HOUR
    minutes = (MinuteRows(NOON, then, 2),)
    progress = replace(PROGRESS, last_arrival_ms=then * 1000)
    counts = BY_EVENT.counts(LEASE, progress, PartCounts((FileCounts(90, minutes),)))
    assert counts is not None
    assert counts.until == then


def test_a_time_without_a_partition_counts_for_no_window() -> None:
    """Dagster has no partition before the definition's start."""
    partitions = HourlyPartitionsDefinition(datetime.fromtimestamp(NOON - HOUR, UTC).strftime("%Y-%m-%d-%H:%M"))
    rules = WindowRules(PartitionWindows(partitions), "at", allowed_lateness=120)
    minutes = (MinuteRows(NOON - HOUR, NOON, 4), MinuteRows(NOON - 2 * HOUR, NOON, 3))
    counts = rules.counts(LEASE, PROGRESS, PartCounts((FileCounts(70, minutes),)))
    assert counts is not None
    assert ([(rows.start, rows.rows) for rows in counts.rows], counts.outside) == ([(NOON - HOUR, 4)], 3)


def test_late_rows_name_the_batch_that_stored_them() -> None:
    tables = Tables(FakeDynamoDB(), application())
    owned = tables.holding(new_lease())
    counts = BatchCounts((StoredRows(NOON, 3, 30, 1, late=1),))
    prepared = tables.leases.prepare(owned, at(), batch=41)
    written = tables.leases.checkpoint(prepared, at(), counts=counts)
    assert written.stored is not None
    assert written.stored.late_batches == (LateBatch(NOON, 41),)


def test_rows_that_do_not_say_when_they_arrived_are_late_if_all_of_their_batch_is() -> None:
    """A batch of a worker that catches up spans hours: its windows are declared after it only."""
    files = (FileCounts(90, (MinuteRows(NOON - HOUR, None, 4),)),)
    spans = replace(PROGRESS, first_arrival_ms=(NOON + 119) * 1000, last_arrival_ms=(NOON + 5 * HOUR) * 1000)
    in_time = BY_EVENT.counts(LEASE, spans, PartCounts(files))
    late = BY_EVENT.counts(LEASE, replace(spans, first_arrival_ms=(NOON + 120) * 1000), PartCounts(files))
    assert in_time is not None
    assert late is not None
    assert (in_time.rows[0].late, late.rows[0].late) == (0, 4)


FAR = [
    (-86_400, "1969"),
    (-62_135_596_800, "the year 1"),
    (NOON - 366 * 86_400, "more than the longest retention ago"),
    (NOON + 9 * HOUR, "more windows ahead than are kept for that"),
    (NOON + 50 * 365 * 86_400, "in 50 years"),
    (253_402_300_740, "the last minute of 9999"),
    (300_000_000_000, "the year 11476"),
]


@pytest.mark.parametrize("arrived", [NOON, None])
@pytest.mark.parametrize(("time", "what"), FAR)
def test_a_time_far_from_the_arrival_counts_for_no_window(time: int, what: str, arrived: int | None) -> None:
    rules = WindowRules(PartitionWindows(DEFAULT_PARTITIONS), "at", allowed_lateness=120)
    minutes = (MinuteRows(NOON, arrived, 4), MinuteRows(time, arrived, 3))
    counts = rules.counts(LEASE, PROGRESS, PartCounts((FileCounts(70, minutes),)))
    assert counts is not None, what
    assert [(rows.start, rows.rows) for rows in counts.rows] == [(NOON, 4)]
    assert (counts.outside, counts.until) == (3, NOON + HOUR + 120)


def test_rows_without_a_time_count_for_no_window() -> None:
    file = FileCounts(70, (MinuteRows(NOON, NOON, 4),), timeless=3)
    counts = BY_EVENT.counts(LEASE, PROGRESS, PartCounts((file,)))
    assert counts is not None
    assert ([rows.rows for rows in counts.rows], counts.outside) == ([4], 3)


def test_a_time_a_bit_ahead_of_the_arrival_counts_for_its_window() -> None:
    minutes = (MinuteRows(NOON + 8 * HOUR, NOON, 4), MinuteRows(NOON - 364 * 86_400, NOON, 3))
    counts = BY_EVENT.counts(LEASE, PROGRESS, PartCounts((FileCounts(70, minutes),)))
    assert counts is not None
    assert (counts.outside, {rows.start for rows in counts.rows}) == (0, {one.minute for one in minutes})


def test_times_far_ahead_do_not_take_the_room_of_the_windows_that_are_stored() -> None:
    ahead = [MinuteRows(NOON + 60 * minute, NOON, 1) for minute in range(2000)]
    counts = replace(BY_EVENT, windows=FixedWindows(60)).counts(
        LEASE, PROGRESS, PartCounts((FileCounts(70, tuple(ahead)),))
    )
    assert counts is not None
    assert (len(counts.rows), counts.outside) == (9, 1991)
    assert counts.added_to(None, TRIM_HORIZON, Checkpoint("40")).at(NOON) is not None


class _Broken(FixedWindows):
    def start_of(self, moment: int) -> int:
        raise OverflowError(moment)


def test_what_cannot_be_counted_is_not_known_and_fails_no_commit() -> None:
    stored = PartCounts((FileCounts(70, (MinuteRows(NOON, NOON, 4),)),))
    assert replace(BY_EVENT, windows=_Broken(HOUR)).counts(LEASE, PROGRESS, stored) is None


IN_ONE_WINDOW = replace(PROGRESS, minutes=(MinuteRecords(NOON, 7, 700, "11", "40"),))


@pytest.mark.parametrize(
    ("progress", "rows", "expected"),
    [
        (IN_ONE_WINDOW, 2, [2]),  # a filter
        (IN_ONE_WINDOW, 0, [0]),
        (IN_ONE_WINDOW, 30, [30]),  # more than one row a record
        (PROGRESS, 7, [2, 5]),  # a row a record
        (PROGRESS, None, [2, 5]),  # as they were read
        (PROGRESS, 6, None),  # of which of the two windows the row is missing is not known
    ],
)
def test_rows_without_a_column_of_times_count_where_their_window_is_known(
    progress: Progress, rows: int | None, expected: list[int] | None
) -> None:
    counts = BY_ARRIVAL.counts(LEASE, progress, PartCounts(None, 70, 1, rows))
    assert (None if counts is None else [one.rows for one in counts.rows]) == expected


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


def test_a_child_whose_lease_has_no_moment_of_its_parents_shares_the_window_in_which_it_began() -> None:
    child = replace(LEASE, parents=frozenset({"p"}))
    assert BY_ARRIVAL.nothing(child, PROGRESS).shared_until == NOON
    began = replace(PROGRESS, first_arrival_ms=(NOON + 60) * 1000)
    counts = BY_ARRIVAL.nothing(child, began).added_to(None, TRIM_HORIZON, Checkpoint("40"))
    child = replace(child, checkpoint=Checkpoint("40"), stored=counts)
    assert not window_counts([child], NOON).is_known, "a Java worker has stored the parent, whose lease is gone"
    assert window_counts([child], NOON + HOUR).is_known


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


def test_a_window_of_two_bounded_runs_has_its_first_and_last_sequence_number() -> None:
    """It is declared at the end of the second run, when the lease has newer windows than it keeps numbers of
    otherwise."""
    world, minute = World(), 60
    world.stream.sequences = itertools.count(49587497311274533994574834252742144236107130636007899138, 10**35)
    world.clock.advance(NOON + HOUR - world.clock.now())
    for run, starts in enumerate([range(12), range(11, 20)]):
        bound = Bound(world.clock.now(), 10.0)
        bounded = world.worker(f"w{run}", windows=FixedWindows(minute), bound=bound)
        world.assign(bounded)
        for number in starts:
            put(world, "ab", NOON + minute * number + 20 * run)
            bounded.until_idle()
        bounded.worker.shut_down()
    leases = world.leases.scan().leases
    found = [window_counts(leases, NOON + minute * number) for number in range(20)]
    assert [counts.rows for counts in found] == [2] * 11 + [4] + [2] * 8
    numbers = [str(number) for number, _ in world.stream.shards[A].records]
    assert found[11].shards == {A: ShardPart(numbers[22], numbers[25])}
    assert all(counts.shards[A].first is not None for counts in found)


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
