"""Aggregates that expand far beyond their bytes are read in slices, within the budget of each batch."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.shard import MAX_HASH_KEY, HashRange
from kcl_dagster.streams import deaggregation
from kcl_dagster.streams.cutting import RangeCut
from kcl_dagster.streams.deaggregation import Room, deaggregate
from kcl_dagster.streams.pacing import Allowance
from kcl_dagster.streams.position import Bounds
from kcl_dagster.streams.records import StreamRecord
from kcl_dagster.streams.unpacking import Columns, Unpacker
from kcl_dagster.streams.window import Window
from tests.doubles.aggregation import UserRecord, aggregate, sealed

LOW = HashRange(0, 2**127 - 1)


def record(sequence: int, data: bytes) -> StreamRecord:
    return {"SequenceNumber": str(sequence), "Data": data, "PartitionKey": "k", "ApproximateArrivalTimestamp": 1.0}


def shared_key(records: int, key: bytes) -> bytes:
    """One key and this many records of one byte that name it."""
    size = len(key)
    table = b"\x0a" + bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14]) + key
    return sealed(
        table + b"".join(b"\x1a\x05\x08\x00\x1a\x01" + bytes([number % 256]) for number in range(records))
    )


def size(columns: Columns) -> int:
    return sum(
        len(data) + len(key.encode()) + len((explicit or "").encode())
        for data, key, explicit in zip(columns.data, columns.partition_key, columns.explicit_hash_key, strict=True)
    )


class Batches:
    """Reads records as one batch after another does, each from where the one before ended."""

    def __init__(self, records: list[StreamRecord], hash_range: HashRange | None = None) -> None:
        self.records = records
        self.hash_range = hash_range
        self.after: Checkpoint = TRIM_HORIZON
        self.ranges: list[tuple[Checkpoint, Checkpoint, str]] = []

    def read(self, allowance: Allowance) -> tuple[Columns, bool]:
        """A batch, and whether the stream is at its end."""
        start = 0 if self.after.is_initial_position else int(self.after.sequence)
        page = [found for found in self.records if int(found["SequenceNumber"]) >= start]
        unpacker, columns = Unpacker(Bounds(self.after), self.hash_range), Columns()
        claimed = RangeCut(Bounds(self.after), "a shard", goes_on=False).claim(page, allowance)
        is_whole = unpacker.unpack(claimed, columns, allowance)
        if unpacker.through is not None:
            self.ranges.append((self.after, unpacker.through, unpacker.first or ""))
            self.after = unpacker.through
        return columns, is_whole and len(claimed) == len(page)

    def again(self, number: int) -> Columns:
        """A batch that was pinned, read by its next owner."""
        after, through, first = self.ranges[number]
        page = [r for r in self.records if int(first) <= int(r["SequenceNumber"]) <= int(through.sequence)]
        unpacker, columns = Unpacker(Bounds(after, through, first), self.hash_range), Columns()
        assert unpacker.unpack(page, columns, Allowance(1, 1, 1))
        assert unpacker.through == through
        return columns


def places(columns: Columns) -> list[tuple[str, int, bytes]]:
    return list(zip(columns.sequence_number, columns.sub_sequence_number, columns.data, strict=True))


@pytest.mark.audit("B4")
def test_an_aggregate_that_expands_beyond_the_budget_is_read_in_slices() -> None:
    """50 KB of key and 2,000 records that share it are 62 KB in the stream and 100 MB as rows."""
    records = [record(1, b"before"), record(2, shared_key(2000, b"k" * 50_000)), record(3, b"behind")]
    batches = Batches(records)
    read: list[Columns] = []
    is_end = False
    while not is_end:
        columns, is_end = batches.read(Allowance(100_000, 5_000_000, 1))
        read.append(columns)
    assert max(map(size, read)) <= 5_000_000
    assert len(read) == 21
    expected = [("2", number, bytes([number % 256])) for number in range(2000)]
    found = [place for columns in read for place in places(columns)]
    assert found == [("1", 0, b"before"), *expected, ("3", 0, b"behind")]


@pytest.mark.audit("B4")
def test_an_aggregate_of_many_tiny_records_is_read_in_slices_of_the_budgets_records() -> None:
    batches = Batches([record(1, shared_key(3000, b"k"))])
    counts, is_end = [], False
    while not is_end:
        columns, is_end = batches.read(Allowance(1000, 1 << 30, 1))
        counts.append(len(columns))
    assert counts == [1000, 1000, 1000]


@pytest.mark.audit("B4")
def test_a_slice_that_was_pinned_is_read_again_as_it_was() -> None:
    batches = Batches([record(1, shared_key(50, b"k" * 1000)), record(2, b"x")])
    read, is_end = [], False
    while not is_end:
        columns, is_end = batches.read(Allowance(1000, 9000, 1))
        read.append(places(columns))
    assert [places(batches.again(number)) for number in range(len(batches.ranges))] == [
        part for part in read if part
    ]


users = st.lists(
    st.builds(
        UserRecord,
        st.sampled_from(["a", "b", "é" * 30, "k" * 100]),
        st.binary(max_size=30),
        st.none() | st.sampled_from(["0", str(2**127), str(MAX_HASH_KEY)]),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.audit("B4")
@given(
    st.lists(users | st.binary(min_size=1, max_size=40), min_size=1, max_size=6),
    st.integers(1, 8),
    st.integers(1, 400),
    st.sampled_from([None, LOW]),
)
def test_whatever_the_budget_every_record_comes_once_and_in_order(
    given: list[Any], rows: int, bytes_: int, hash_range: HashRange | None
) -> None:
    records = [
        record(number, payload if isinstance(payload, bytes) else aggregate(payload))
        for number, payload in enumerate(given)
    ]
    whole, _ = Batches(records, hash_range).read(Allowance(10**6, 10**9, 1))
    largest = max(len(found["Data"]) + 1 for found in records)
    batches = Batches(records, hash_range)
    found, is_end = [], False
    while not is_end:
        before = batches.after
        columns, is_end = batches.read(Allowance(rows, bytes_, 1))
        assert is_end or batches.after > before
        assert len(columns) <= rows
        assert size(columns) <= max(bytes_, largest)
        found += places(columns)
    assert found == places(whole)
    again = [place for number in range(len(batches.ranges)) for place in places(batches.again(number))]
    assert again == found


@pytest.mark.audit("B4")
def test_a_piece_of_a_replay_ends_inside_of_an_aggregate_at_the_same_record_each_time() -> None:
    records = [record(number, shared_key(100, b"k" * 1000)) for number in (1, 2)]
    ends = []
    for pages in ([records], [[one] for one in records]):
        unpacker, columns = Unpacker(Bounds(TRIM_HORIZON), None), Columns()
        opening = Window(until_ms=10**9, most_bytes=120_000).opening()
        assert not all(unpacker.unpack(page, columns, opening) for page in pages)
        ends.append(unpacker.through)
    assert ends[0] == ends[1]
    assert ends[0] is not None
    assert ends[0].sequence == "2"


def test_a_room_of_one_row_and_the_records_own_bytes_admits_one_record() -> None:
    body = aggregate([UserRecord("é" * 50, b"x", "1"), UserRecord("é" * 50, b"y", "1")])
    opened = deaggregate(body, room=Room(1, len(body)))
    assert opened is not None
    assert [found.data for found in opened.records] == [b"x"]
    assert (opened.reached, opened.last_index) == (0, 1)


def test_an_aggregate_is_broken_wherever_the_fault_is() -> None:
    """A slice before the fault is not handed out: the record is kept as it came, all of it."""
    message = shared_key(100, b"k")[4:-16] + b"\x1a\x05\x08\x01\x1a\x01x"
    unpacker, columns = Unpacker(Bounds(TRIM_HORIZON), None), Columns()
    assert unpacker.unpack([record(1, sealed(message))], columns, Allowance(3, 1000, 1))
    assert columns.data == [sealed(message)]
    assert "record 100 names partition key 1 of 1" in (columns.problem[0] or "")


@pytest.mark.audit("B5")
@pytest.mark.parametrize("last", [b"x", b"9"], ids=["no hash key", "a hash key"])
def test_a_hash_key_is_looked_at_once_however_many_records_name_it(
    monkeypatch: pytest.MonkeyPatch, last: bytes
) -> None:
    characters = 0
    original = {name: getattr(deaggregation, name) for name in ("_is_hash_key", "explicit_hash")}

    def counting(name: str) -> Any:
        def looked_at(text: str) -> Any:
            nonlocal characters
            characters += len(text)
            return original[name](text)

        return looked_at

    for name in original:
        monkeypatch.setattr(deaggregation, name, counting(name))
    digits = b"1" * 20_000
    table = (
        b"\x0a\x01k\x0a\x01j\x12" + bytes([20_000 & 0x7F | 0x80, 20_000 >> 7 & 0x7F | 0x80, 20_000 >> 14]) + digits
    )
    keys = b"".join(b"\x0a\x02" + bytes([97 + number % 26, 97 + number // 26]) for number in range(100))
    named = b"".join(b"\x1a\x07\x08" + bytes([number % 100]) + b"\x10\x00\x1a\x01x" for number in range(500))
    other = b"\x12\x01" + last + b"\x1a\x07\x08\x00\x10\x01\x1a\x01x"
    message = table + keys + named + other
    unpacker = Unpacker(Bounds(TRIM_HORIZON), LOW)
    unpacker.unpack([record(1, sealed(message))], Columns())
    assert unpacker.first == "1"
    assert characters <= 3 * len(message)
