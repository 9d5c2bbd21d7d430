"""Counts of stored rows, window by window, and their form in a row."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.stored import (
    MOST_BYTES,
    MOST_LATE,
    MOST_WINDOWS,
    BatchCounts,
    LateBatch,
    StoredCounts,
    StoredRows,
    mark_of,
    packed,
    rules_of,
    unpacked,
)
from kcl_dagster.model.windows import FixedWindows

HOUR = 3600
NOON = 1_800_000_000 // HOUR * HOUR
counts_of_windows = st.builds(
    StoredRows,
    start=st.integers(0, 2**40),
    rows=st.integers(0, 2**40),
    bytes=st.integers(0, 2**50),
    files=st.integers(0, 2**20),
    late=st.integers(0, 2**30),
).flatmap(
    lambda rows: st.one_of(
        st.just(rows),
        st.tuples(st.integers(0, 10**56), st.integers(0, 10**56)).map(
            lambda two: replace(rows, first=str(min(two)), last=str(max(two)))
        ),
    )
)


@given(st.lists(counts_of_windows, max_size=5), st.integers(0, 2**40), st.booleans())
def test_what_was_packed_is_unpacked(windows: list[StoredRows], since: int, whole: bool) -> None:
    ordered = tuple(sorted({rows.start: rows for rows in windows}.values(), key=lambda rows: rows.start))
    counts = StoredCounts(ordered, since, whole, 77, since + 5)
    for one in (counts, replace(counts, outside=since + 1), replace(counts, late_uncounted=3)):
        assert unpacked(packed(one)) == one
        late = tuple(LateBatch(rows.start, rows.rows + 1) for rows in ordered)
        assert unpacked(packed(replace(one, late_batches=late))) == replace(one, late_batches=late)


def test_the_rules_are_kept_where_former_versions_read_the_rest() -> None:
    """They take any number but 0 there for a window with sequence numbers."""
    older = StoredRows(NOON - HOUR, 3, 30, 1)
    counts = StoredCounts((older, StoredRows(NOON, 3, 30, 1, 0, "7", "9")), 5, True, 77, rules=0xFFFFF)
    assert unpacked(packed(counts)) == counts
    plain = packed(replace(counts, rules=0))
    assert packed(counts).replace(b"\xff\xff\x7f", b"\x01") == plain
    assert unpacked(packed(StoredCounts((older,), rules=9))) == StoredCounts((older,)), "then they are not known"


@given(st.sampled_from([1, 60, 3600, 86_400]), st.sampled_from([None, "", "at"]), st.integers(0, 9))
def test_rules_are_equal_where_rows_are_counted_alike(seconds: int, event_time: str | None, lateness: int) -> None:
    rules = rules_of(FixedWindows(seconds), event_time, lateness)
    assert rules == rules_of(FixedWindows(seconds), event_time, lateness)
    assert 0 < rules < 2**20
    others = {
        rules_of(FixedWindows(seconds + 1), event_time, lateness),
        rules_of(FixedWindows(seconds), "then", lateness),
        rules_of(FixedWindows(seconds), event_time, lateness + 1),
    }
    assert rules not in others


@given(st.binary(max_size=60))
def test_any_bytes_are_counts_or_nothing(data: bytes) -> None:
    counts = unpacked(data)
    assert counts is None or isinstance(counts, StoredCounts)


def test_counts_of_another_format_or_cut_off_are_not_known() -> None:
    good = packed(StoredCounts((StoredRows(NOON, 3, 30, 1, 0, "7", "9"),)))
    assert unpacked(b"\x02" + good[1:]) is None
    assert unpacked(good[:-1]) is None
    assert unpacked(good + b"\x00") is None


@given(st.integers(1, 60), st.integers(1, 2**40))
def test_the_counts_fit_into_their_room_and_say_what_they_dropped(windows: int, rows: int) -> None:
    last = "9" * 56
    more = [StoredRows(NOON + HOUR * i, rows, rows * 100, 1, 0, "1" * 56, last) for i in range(windows)]
    counts = StoredCounts(whole=True).plus(more, Checkpoint("5"))
    assert len(packed(counts)) <= MOST_BYTES
    assert len(counts.windows) <= MOST_WINDOWS
    newest = more[-1]
    assert counts.at(newest.start) == newest, "the newest windows keep their sequence numbers"
    dropped = more[: len(more) - len(counts.windows)]
    assert counts.whole is (not dropped)
    assert all(one.start < counts.since for one in dropped)
    assert all(one.start >= counts.since for one in counts.windows)
    assert len(counts.windows) >= min(windows, 6)


def test_a_window_that_is_counted_twice_has_the_sum() -> None:
    first = StoredRows(NOON, 2, 20, 1, 0, "5", "7")
    second = StoredRows(NOON, 3, 30, 1, 1, "8", "9")
    assert first.plus(second) == StoredRows(NOON, 5, 50, 2, 1, "5", "9")
    assert replace(first, first=None, last=None).plus(second).first is None


def test_late_rows_of_windows_whose_counts_were_dropped_are_summed_up() -> None:
    minutes = [StoredRows(NOON + 60 * i, 1, 1, 1) for i in range(60)]
    counts = StoredCounts(whole=True).plus(minutes, Checkpoint("5"))
    assert counts.at(NOON) is None
    assert counts.late_uncounted == 0
    counts = counts.plus([StoredRows(NOON, 2, 2, 1, late=2), StoredRows(NOON + 59 * 60, 9, 9, 1, late=4)], AFTER)
    counts = counts.plus([StoredRows(NOON + 60, 1, 1, 1, late=1)], AFTER)
    assert counts.late_uncounted == 3
    on = BatchCounts((), outside=7).added_to(replace(counts, outside=1), AFTER, BEFORE)
    assert (on.outside, on.late_uncounted) == (8, 3)
    again = BatchCounts((), outside=7).added_to(replace(counts, outside=1), Checkpoint("12"), BEFORE)
    assert (again.outside, again.late_uncounted) == (8, 3), "sums go on where others have committed meanwhile"


BEFORE, AFTER = Checkpoint("10"), Checkpoint("20")
BATCH = BatchCounts((StoredRows(NOON, 2, 20, 1, 0, "11", "20"),), shared_until=NOON, restart=NOON + HOUR)


@pytest.mark.parametrize(
    ("known", "before", "expected"),
    [
        (None, TRIM_HORIZON, StoredCounts(BATCH.rows, NOON, True, mark_of(AFTER))),  # its first batch
        (None, BEFORE, StoredCounts(BATCH.rows, NOON + HOUR, False, mark_of(AFTER))),  # of a former version
        (  # it goes on
            StoredCounts((StoredRows(NOON, 1, 10, 1, 0, "9", "10"),), 5, True, mark_of(BEFORE)),
            BEFORE,
            StoredCounts((StoredRows(NOON, 3, 30, 2, 0, "9", "20"),), 5, True, mark_of(AFTER)),
        ),
        (  # a Java worker committed meanwhile
            StoredCounts((StoredRows(NOON, 1, 10, 1),), 5, True, mark_of(Checkpoint("7"))),
            BEFORE,
            StoredCounts(BATCH.rows, NOON + HOUR, False, mark_of(AFTER)),
        ),
        (  # counted by other rules
            StoredCounts((StoredRows(NOON, 1, 10, 1),), 5, True, mark_of(BEFORE), rules=8, outside=3),
            BEFORE,
            StoredCounts(BATCH.rows, NOON + HOUR, False, mark_of(AFTER), rules=9, outside=3),
        ),
        (  # by a former version: it does not say by which rules
            StoredCounts((StoredRows(NOON, 1, 10, 1, 0, "9", "10"),), 5, True, mark_of(BEFORE)),
            BEFORE,
            StoredCounts((StoredRows(NOON, 3, 30, 2, 0, "9", "20"),), 5, True, mark_of(AFTER), rules=9),
        ),
    ],
)
def test_what_a_commit_makes_of_the_counts(
    known: StoredCounts | None, before: Checkpoint, expected: StoredCounts
) -> None:
    assert replace(BATCH, rules=expected.rules).added_to(known, before, AFTER) == expected


@given(st.integers(-(10**6), 10**12), st.integers(1, 10**6))
def test_fixed_windows_divide_time_without_gaps(moment: int, seconds: int) -> None:
    windows = FixedWindows(seconds)
    start = windows.start_of(moment)
    assert start <= moment < windows.end_of(start)
    assert windows.start_of(windows.end_of(start)) == windows.end_of(start)


def test_a_window_has_a_second_at_least() -> None:
    with pytest.raises(ValueError, match="too short"):
        FixedWindows(0)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 3)), max_size=80), st.integers(1, 50))
def test_of_any_late_rows_the_newest_windows_are_known_by_numbers_that_grow(
    batches: list[tuple[int, int]], first: int
) -> None:
    """Whether or not a batch has a number of its own, and whatever is dropped."""
    counts = StoredCounts(whole=True)
    newest: dict[int, int] = {}
    for place, (hour, step) in enumerate(batches):
        rows = [StoredRows(NOON + HOUR * hour, 1, 9, 1, late=1)]
        counts = counts.plus(rows, Checkpoint(str(place + 1)), first + place * step)
        [number] = [one.number for one in counts.late_batches if one.start == rows[0].start]
        assert number > max(newest.values(), default=0)
        newest[rows[0].start] = number
        expected = sorted(newest, key=newest.__getitem__)[-MOST_LATE:]
        assert [(one.start, one.number) for one in counts.late_batches] == sorted((w, newest[w]) for w in expected)
        assert unpacked(packed(counts)) == counts
        assert len(packed(counts)) <= MOST_BYTES + 8 * MOST_LATE


def test_late_rows_are_remembered_where_others_have_committed_meanwhile() -> None:
    late = (LateBatch(NOON, 4),)
    known = StoredCounts(late_batches=late, mark=mark_of(Checkpoint("7")))
    assert BATCH.added_to(known, BEFORE, AFTER, 9).late_batches == late
    more = replace(BATCH, rows=(replace(BATCH.rows[0], late=1),))
    assert more.added_to(known, BEFORE, AFTER, 9).late_batches == (LateBatch(NOON, 9),)
