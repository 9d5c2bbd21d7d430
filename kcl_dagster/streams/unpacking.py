"""From Kinesis records to the user records of a range. Pure, and on the hot path: columns, not objects."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat

from kcl_dagster.errors import BrokenAggregate
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.shard import HashRange
from kcl_dagster.streams.deaggregation import MAGIC, Aggregate, deaggregate
from kcl_dagster.streams.position import Bounds
from kcl_dagster.streams.records import StreamRecord, arrival_seconds, millis


@dataclass(slots=True)
class Columns:
    """User records, one list per column. `arrival` is epoch seconds; `problem` says why a record was left as an
    unopened aggregate."""

    data: list[bytes] = field(default_factory=list)
    partition_key: list[str] = field(default_factory=list)
    explicit_hash_key: list[str | None] = field(default_factory=list)
    sequence_number: list[str] = field(default_factory=list)
    sub_sequence_number: list[int] = field(default_factory=list)
    arrival: list[float | None] = field(default_factory=list)
    problem: list[str | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.data)


class Unpacker:
    """Opens the records of one range and keeps count. One per range; fed in order, on one thread."""

    def __init__(self, bounds: Bounds, hash_range: HashRange | None, *, opens_aggregates: bool = True) -> None:
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

    def unpack(self, page: Sequence[StreamRecord], into: Columns) -> None:
        """Append the user records of a page that belong to the range. No record may lie beyond the pinned end."""
        begin = 0
        while self.first is None and begin < len(page):
            self._unpack_one(page[begin], into)
            begin += 1
        rest = page[begin:] if begin else page
        if not rest:
            return
        data = [record["Data"] for record in rest]
        if self._opens_aggregates and any(map(bytes.startswith, data, repeat(MAGIC))):
            for record in rest:
                self._unpack_one(record, into)
        else:
            self._add_plain(rest, data, into)

    def _unpack_one(self, record: StreamRecord, into: Columns) -> None:
        data, sequence = record["Data"], record["SequenceNumber"]
        aggregate: Aggregate | None = None
        problem: str | None = None
        if self._opens_aggregates and data.startswith(MAGIC):
            try:
                aggregate = deaggregate(data, self._hash_range)
            except BrokenAggregate as error:
                problem = str(error)
        last_index = aggregate.last_index if aggregate else 0
        if self.first is None and self._bounds.is_before(sequence, last_index):
            return  # the record at which the range begins
        arrival = arrival_seconds([record])[0]
        if self.first is None:
            self.first, self.first_arrival_ms = sequence, millis(arrival)
        self._reach(sequence, last_index, arrival)
        if aggregate is not None:
            self._add_parts(aggregate, sequence, arrival, into)
        else:
            self.broken_aggregates += problem is not None
            into.data.append(data)
            into.partition_key.append(record["PartitionKey"])
            into.explicit_hash_key.append(None)
            into.sub_sequence_number.append(0)
            self._fill(into, 1, [sequence], [arrival], problem, len(data))

    def _add_plain(self, page: Sequence[StreamRecord], data: Sequence[bytes], into: Columns) -> None:
        """The rest of a range, where nothing has to be opened or left out: most of what a consumer ever reads."""
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
        if self._is_cut(sequence):
            bounds = self._bounds
            records = records.only(
                [
                    not (bounds.is_before(sequence, place) or bounds.is_beyond(sequence, place))
                    for place in records.places
                ]
            )
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

    def _is_cut(self, sequence: str) -> bool:
        """Whether the range begins or ends at this record, perhaps inside it."""
        bounds = self._bounds
        return sequence == self.first or (
            bounds.through is not None and int(sequence) == int(bounds.through.sequence)
        )

    def _reach(self, sequence: str, last_index: int, arrival: float | None) -> None:
        end = self._bounds.through
        is_end = end is not None and int(sequence) == int(end.sequence)
        self.through = end if is_end else Checkpoint(sequence, last_index)
        self.last_arrival_ms = millis(arrival)
