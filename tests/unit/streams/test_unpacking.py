"""From Kinesis records to user records: the edges of a range, aggregates, counts."""

import pytest

from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.shard import HashRange
from kcl_dagster.streams.deaggregation import deaggregate
from kcl_dagster.streams.position import Bounds
from kcl_dagster.streams.records import StreamRecord
from kcl_dagster.streams.unpacking import Columns, Unpacker
from tests.doubles.aggregation import UserRecord, aggregate, sealed


def record(sequence: int, data: bytes) -> StreamRecord:
    return {
        "SequenceNumber": str(sequence),
        "Data": data,
        "PartitionKey": "outer",
        "ApproximateArrivalTimestamp": 1000 + sequence / 8,
    }


def three(sequence: int) -> StreamRecord:
    return record(sequence, aggregate([UserRecord("inner", b"%d.%d" % (sequence, i)) for i in range(3)]))


STREAM = [record(1, b"1"), three(2), record(3, b"3"), three(4), record(5, b"5")]
ALL = ["1/0", "2/0", "2/1", "2/2", "3/0", "4/0", "4/1", "4/2", "5/0"]
# Every range there is, but those that are empty: nothing is pinned that holds no record.
EDGES = [
    (start, end)
    for start in (None, *ALL)
    for end in (None, *ALL)
    if start is None or end is None or ALL.index(start) < ALL.index(end)
]


def at(place: str) -> Checkpoint:
    sequence, sub_sequence = place.split("/")
    return Checkpoint(sequence, int(sub_sequence))


def unpacked(bounds: Bounds, pages: list[list[StreamRecord]]) -> tuple[list[str], Unpacker, Columns]:
    unpacker, columns = Unpacker(bounds, None), Columns()
    for page in pages:
        unpacker.unpack(page, columns)
    places = zip(columns.sequence_number, columns.sub_sequence_number, strict=True)
    return [f"{sequence}/{sub}" for sequence, sub in places], unpacker, columns


def from_start(start: str | None) -> list[StreamRecord]:
    """What a reader gives for a range after `start`: from its record on."""
    return STREAM if start is None else [r for r in STREAM if int(r["SequenceNumber"]) >= int(start.split("/")[0])]


@pytest.mark.parametrize("paged", [False, True], ids=["one page", "a page each"])
@pytest.mark.parametrize(("start", "end"), EDGES)
def test_a_range_holds_exactly_what_lies_between_its_edges(start: str | None, end: str | None, paged: bool) -> None:
    bounds = Bounds(at(start) if start else TRIM_HORIZON, at(end) if end else None)
    read = [r for r in from_start(start) if end is None or int(r["SequenceNumber"]) <= int(end.split("/")[0])]
    places, unpacker, _ = unpacked(bounds, [[r] for r in read] if paged else [read])
    expected = ALL[ALL.index(start) + 1 if start else 0 : ALL.index(end) + 1 if end else None]
    assert places == expected
    assert unpacker.records == len(expected)
    if expected:
        # The end of a range is the last record read, and a pinned one says it the way it was pinned.
        assert unpacker.through == at(end or expected[-1])
        assert unpacker.first == expected[0].split("/")[0]
    else:
        assert unpacker.through is None


def test_columns_and_counts_describe_the_user_records() -> None:
    _, unpacker, columns = unpacked(Bounds(TRIM_HORIZON), [STREAM])
    assert columns.data[:3] == [b"1", b"2.0", b"2.1"]
    assert columns.partition_key[:3] == ["outer", "inner", "inner"]
    assert columns.arrival[:3] == [1000.125, 1000.25, 1000.25]
    assert columns.problem == [None] * 9
    assert unpacker.bytes == sum(map(len, columns.data))
    assert (unpacker.first_arrival_ms, unpacker.last_arrival_ms) == (1000125, 1000625)
    assert (unpacker.broken_aggregates, unpacker.misplaced) == (0, 0)


def test_a_broken_aggregate_is_kept_raw_and_counted() -> None:
    broken = sealed(b"\x0a\x05abc")
    places, unpacker, columns = unpacked(
        Bounds(TRIM_HORIZON), [[record(1, b"a"), record(2, broken), record(3, b"b")]]
    )
    assert places == ["1/0", "2/0", "3/0"]
    assert columns.data[1] == broken
    assert "runs past the end" in (columns.problem[1] or "")
    assert unpacker.broken_aggregates == 1


def test_an_aggregate_that_holds_nothing_of_ours_still_moves_the_end() -> None:
    far = aggregate([UserRecord("k", b"x", str(2**127)), UserRecord("k", b"y", str(2**127))])
    unpacker, columns = Unpacker(Bounds(TRIM_HORIZON), HashRange(0, 9)), Columns()
    unpacker.unpack([record(7, far)], columns)
    assert len(columns) == 0
    assert unpacker.misplaced == 2
    assert unpacker.through == Checkpoint("7", 1)


def test_aggregates_can_be_left_closed() -> None:
    unpacker, columns = Unpacker(Bounds(TRIM_HORIZON), None, opens_aggregates=False), Columns()
    unpacker.unpack(STREAM, columns)
    assert columns.sequence_number == ["1", "2", "3", "4", "5"]
    assert columns.sub_sequence_number == [0, 2, 0, 2, 0]  # the last user record in each
    assert columns.data[1] == STREAM[1]["Data"]


def test_a_broken_aggregate_is_a_plain_record_where_aggregates_are_left_closed() -> None:
    unpacker, columns = Unpacker(Bounds(TRIM_HORIZON), None, opens_aggregates=False), Columns()
    unpacker.unpack([record(1, sealed(b"\x0a\x05abc"))], columns)
    assert (columns.sub_sequence_number, columns.problem, unpacker.broken_aggregates) == ([0], [None], 0)


def user_records(bounds: Bounds, *, opens_aggregates: bool) -> tuple[list[bytes], Unpacker, Columns]:
    """The payloads of a range, also those in the aggregates that were left closed."""
    unpacker, columns = Unpacker(bounds, None, opens_aggregates=opens_aggregates), Columns()
    start, end = bounds.after, bounds.through
    page = [r for r in STREAM if start.is_sentinel or int(r["SequenceNumber"]) >= int(start.sequence)]
    unpacker.unpack([r for r in page if end is None or int(r["SequenceNumber"]) <= int(end.sequence)], columns)
    return [payload for data in columns.data for payload in payloads(data)], unpacker, columns


def payloads(data: bytes) -> list[bytes]:
    opened = deaggregate(data)
    return [data] if opened is None else list(opened.records.data)


EVERYTHING = [b"1", b"2.0", b"2.1", b"2.2", b"3", b"4.0", b"4.1", b"4.2", b"5"]


@pytest.mark.parametrize("opened_after", [True, False], ids=["opened after", "closed after"])
@pytest.mark.parametrize("opened_before", [True, False], ids=["opened before", "closed before"])
@pytest.mark.parametrize("end", ALL)
def test_whether_aggregates_are_opened_may_change_at_every_checkpoint(
    end: str, opened_before: bool, opened_after: bool
) -> None:
    before, unpacker, _ = user_records(Bounds(TRIM_HORIZON, at(end)), opens_aggregates=opened_before)
    assert unpacker.through == at(end)
    after, _, _ = user_records(Bounds(at(end)), opens_aggregates=opened_after)
    assert before + after == EVERYTHING


@pytest.mark.parametrize("row", range(5))
def test_a_batch_may_be_cut_behind_each_aggregate_that_was_left_closed(row: int) -> None:
    _, _, columns = user_records(Bounds(TRIM_HORIZON), opens_aggregates=False)
    cut = Checkpoint(columns.sequence_number[row], columns.sub_sequence_number[row])
    for opens in (True, False):
        before, _, _ = user_records(Bounds(TRIM_HORIZON, cut), opens_aggregates=opens)
        after, _, _ = user_records(Bounds(cut), opens_aggregates=opens)
        assert before + after == EVERYTHING
