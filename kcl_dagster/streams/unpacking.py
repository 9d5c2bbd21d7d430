"""Converts Kinesis records to the user records of a range. Pure. For speed, it makes columns instead of objects.

A position in a shard stands for all records through a certain user record, whether aggregates are opened or not. An
aggregate that is not opened therefore has the position of its last user record. An aggregate in which a range
begins or ends is opened even if the settings say that aggregates are not opened. So this setting can be changed at
any checkpoint.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final, Protocol

from kcl_dagster.errors import BrokenAggregate
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.shard import HashRange
from kcl_dagster.streams.deaggregation import MAGIC, Aggregate, Room, deaggregate, last_index
from kcl_dagster.streams.pacing import Allowance
from kcl_dagster.streams.position import Bounds
from kcl_dagster.streams.records import StreamRecord, arrival_seconds, millis, sizes_of

MINUTE: Final = 60


@dataclass(slots=True)
class Columns:
    """User records, one list per column. `arrival`: epoch seconds. `problem`: if a row is an aggregate that could
    not be opened, the reason; otherwise None."""

    data: list[bytes] = field(default_factory=list)
    partition_key: list[str] = field(default_factory=list)
    explicit_hash_key: list[str | None] = field(default_factory=list)
    sequence_number: list[str] = field(default_factory=list)
    sub_sequence_number: list[int] = field(default_factory=list)
    arrival: list[float | None] = field(default_factory=list)
    problem: list[str | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.data)

    def slice(self, start: int, stop: int) -> "Columns":
        return Columns(*(getattr(self, name)[start:stop] for name in self.__slots__))


class PageReader(Protocol):
    """The reader of pages: `ShardReader`, `FanoutReader` or `WindowReader`."""

    def opened(self, rows: int, bytes_: int, records: int) -> None:
        """Called if the last page, with this number of `records`, was used completely. `rows` and `bytes_`: the
        number and the size of the page's user records."""

    def leave_rest(self, last_arrival_ms: int | None) -> None:
        """Note that only part of the last page was used, up to a record that arrived at `last_arrival_ms`. The next
        range begins with the rest."""


class Unpacker:
    """Takes the user records of one range out of its Kinesis records, and counts them. The caller passes the pages
    of the range in order, on one thread."""

    def __init__(self, bounds: Bounds, hash_range: HashRange | None, *, opens_aggregates: bool = True) -> None:
        """`opens_aggregates`: if False, aggregates that lie completely in the range are not opened."""
        self._bounds = bounds
        self._hash_range = hash_range
        self._opens_aggregates = opens_aggregates
        self.through: Checkpoint | None = None
        self.first: str | None = None
        self.first_arrival_ms: int | None = None
        self.last_arrival_ms: int | None = None
        self.records = 0
        self.bytes = 0
        self.broken_aggregates = 0
        self.misplaced = 0
        self.has_minutes = True
        self._minutes: dict[int, list[Any]] = {}

    def unpack_from(
        self, reader: PageReader, page: Sequence[StreamRecord], into: Columns, allowance: Allowance
    ) -> bool:
        """Unpack a page, and report to its reader how much was used. Returns False if the range ends within the
        page."""
        rows, bytes_ = self.records, self.bytes
        is_whole = self.unpack(page, into, allowance)
        if is_whole:
            reader.opened(self.records - rows, self.bytes - bytes_, len(page))
        else:
            reader.leave_rest(self.last_arrival_ms)
        return is_whole

    def unpack(self, page: Sequence[StreamRecord], into: Columns, allowance: Allowance | None = None) -> bool:
        """Append the user records of a page that belong to the range. The page must not extend beyond the last
        record of a pinned range.

        From an aggregate of an open range, user records are taken only as long as there is room: the room that the
        aggregate itself has claimed, and the room that `allowance` still has. Returns False if not all were taken.
        The range then ends at `through`, which may be inside an aggregate. In a pinned range, all user records are
        taken, because there was room for them when the range was first read.
        """
        begin = 0
        while self.first is None and begin < len(page):
            if not self._unpack_one(page[begin], into, allowance):
                return False
            begin += 1
        rest = page[begin:] if begin else page
        if not rest:
            return True
        data = [record["Data"] for record in rest]
        if any(map(bytes.startswith, data, repeat(MAGIC))):
            return all(self._unpack_one(record, into, allowance) for record in rest)
        self._add_plain(rest, data, into)
        return True

    def _unpack_one(self, record: StreamRecord, into: Columns, allowance: Allowance | None) -> bool:
        """Append the user records of one record. Returns whether all of them were taken."""
        data, sequence = record["Data"], record["SequenceNumber"]
        if not data.startswith(MAGIC):
            self._add_one(record, None, into)
            return True
        if not self._opens_aggregates and not self._has_edge_in(sequence, last := last_index(data)):
            self._add_one(record, None, into, last)
            return True
        try:
            aggregate = self._opened(record, allowance)
        except BrokenAggregate as error:
            self._add_one(record, str(error), into)
            return True
        if aggregate is None:
            self._add_one(record, None, into)
            return True
        if self._is_before(sequence, aggregate.last_index):
            return True
        is_whole = aggregate.reached >= aggregate.last_index
        if not self._bounds.is_before(sequence, aggregate.reached):
            arrival = self._begin(record)
            self._reach(sequence, aggregate.reached, arrival)
            self._add_parts(aggregate, sequence, arrival, into)
        return is_whole or self._bounds.through is not None

    def _has_edge_in(self, sequence: str, last: int) -> bool:
        """Whether the range begins or ends inside an aggregate whose last user record is `last`."""
        after, through = self._bounds.after, self._bounds.through
        begins = sequence == after.sequence and after.sub_sequence < last
        return begins or (through is not None and sequence == through.sequence and through.sub_sequence < last)

    def _opened(self, record: StreamRecord, allowance: Allowance | None) -> Aggregate | None:
        """The part of an aggregate that belongs to the range and has room. Raises BrokenAggregate."""
        data, sequence, bounds = record["Data"], record["SequenceNumber"], self._bounds
        is_anchor = sequence == bounds.after.sequence
        first = bounds.after.sub_sequence + 1 if is_anchor else 0
        last = bounds.through.sub_sequence if bounds.through and sequence == bounds.through.sequence else None
        if allowance is None or bounds.through is not None:
            return deaggregate(data, self._hash_range, first=first, last=last)
        claimed = sizes_of([record])[0]
        with allowance.opening(claimed) as opening:
            aggregate = deaggregate(data, self._hash_range, first=first, room=Room(opening.rows, opening.bytes))
            if aggregate is not None:
                opening.rows_taken, opening.bytes_taken = len(aggregate.records), aggregate.bytes
                opening.is_whole = aggregate.reached >= aggregate.last_index
            return aggregate

    def _is_before(self, sequence: str, last_index: int) -> bool:
        """Whether the record was processed before. This is possible only for the record at which the range
        begins."""
        return self.first is None and self._bounds.is_before(sequence, last_index)

    def _begin(self, record: StreamRecord) -> float | None:
        """Return when a record of the range arrived, in epoch seconds. The first call also stores the sequence
        number and the arrival of the record."""
        arrival = arrival_seconds([record])[0]
        if self.first is None:
            self.first, self.first_arrival_ms = record["SequenceNumber"], millis(arrival)
        return arrival

    def _add_one(self, record: StreamRecord, problem: str | None, into: Columns, last: int = 0) -> None:
        """Append a record as it is. `last`: the sub-sequence number of its last user record."""
        data, sequence = record["Data"], record["SequenceNumber"]
        if self._is_before(sequence, last):
            return
        arrival = self._begin(record)
        self._reach(sequence, last, arrival)
        self.broken_aggregates += problem is not None
        into.data.append(data)
        into.partition_key.append(record["PartitionKey"])
        into.explicit_hash_key.append(None)
        into.sub_sequence_number.append(last)
        self._fill(into, 1, [sequence], [arrival], problem, len(data))

    def _add_plain(self, page: Sequence[StreamRecord], data: Sequence[bytes], into: Columns) -> None:
        """Append the records of a page if none of them has to be opened or left out. This is the usual case."""
        rows = len(page)
        sequences = [record["SequenceNumber"] for record in page]
        arrivals = arrival_seconds(page)
        into.data += data
        into.partition_key += [record["PartitionKey"] for record in page]
        into.explicit_hash_key += [None] * rows
        into.sub_sequence_number += [0] * rows
        self._fill(into, rows, sequences, arrivals, None, sum(map(len, data)))
        self._reach(sequences[-1], 0, arrivals[-1])

    def _add_parts(self, aggregate: Aggregate, sequence: str, arrival: float | None, into: Columns) -> None:
        self.misplaced += aggregate.misplaced
        records = aggregate.records
        into.data += records.data
        into.partition_key += records.partition_keys
        into.explicit_hash_key += records.explicit_hash_keys
        into.sub_sequence_number += records.places
        rows = len(records)
        self._fill(into, rows, [sequence] * rows, [arrival] * rows, None, sum(map(len, records.data)))

    def _fill(
        self,
        into: Columns,
        rows: int,
        sequences: list[str],
        arrivals: list[float | None],
        problem: str | None,
        bytes_: int,
    ) -> None:
        into.sequence_number += sequences
        into.arrival += arrivals
        into.problem += [problem] * rows
        self.records += rows
        self.bytes += bytes_
        if rows:
            self._count(into, rows, sequences, arrivals, bytes_)

    def _count(
        self, into: Columns, rows: int, sequences: list[str], arrivals: list[float | None], bytes_: int
    ) -> None:
        """Count records by the minute of arrival. Usually all of them arrived in the same minute, and need not be
        counted one by one."""
        times = [arrival for arrival in arrivals if arrival is not None] if None in arrivals else arrivals
        if len(times) < rows:  # a record without an arrival time belongs to no minute
            self.has_minutes = False
            return
        first, last = _minute(min(times)), _minute(max(times))  # type: ignore[type-var, arg-type]
        if first == last:
            self._counted(first, rows, bytes_, sequences[0], sequences[-1])
            return
        data = into.data[-rows:]
        for sequence, arrival, payload in zip(sequences, arrivals, data, strict=True):
            self._counted(_minute(arrival or 0.0), 1, len(payload), sequence, sequence)

    def _counted(self, minute: int, rows: int, bytes_: int, first: str, last: str) -> None:
        known = self._minutes.get(minute)
        if known is None:
            self._minutes[minute] = [rows, bytes_, first, last]
        else:
            known[0] += rows
            known[1] += bytes_
            known[3] = last

    @property
    def minutes(self) -> list[tuple[int, int, int, str, str]] | None:
        """For each minute of arrival: the start of the minute, the number of records, their bytes, the first and
        the last sequence number. None if a record has no arrival time."""
        if not self.has_minutes:
            return None
        return [(minute, *counted) for minute, counted in sorted(self._minutes.items())]

    def _reach(self, sequence: str, last_index: int, arrival: float | None) -> None:
        end = self._bounds.through
        is_end = end is not None and int(sequence) == int(end.sequence)
        self.through = end if is_end else Checkpoint(sequence, last_index)
        self.last_arrival_ms = millis(arrival)


def _minute(arrival: float) -> int:
    return int(arrival) // MINUTE * MINUTE
