"""From Kinesis records to the user records of a range. Pure, and on the hot path: columns, not objects."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kcl_dagster.errors import BrokenAggregate
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.shard import HashRange
from kcl_dagster.streams.deaggregation import MAGIC, Aggregate, deaggregate
from kcl_dagster.streams.position import Bounds
from kcl_dagster.streams.records import StreamRecord, arrival_millis


@dataclass(slots=True)
class Columns:
    """User records, one list per column. `problem` says why a record was left as an unopened aggregate."""

    data: list[bytes] = field(default_factory=list)
    partition_key: list[str] = field(default_factory=list)
    explicit_hash_key: list[str | None] = field(default_factory=list)
    sequence_number: list[str] = field(default_factory=list)
    sub_sequence_number: list[int] = field(default_factory=list)
    arrival_ms: list[int | None] = field(default_factory=list)
    problem: list[str | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.data)

    def add(
        self,
        data: bytes,
        partition_key: str,
        explicit_hash_key: str | None,
        sequence_number: str,
        sub_sequence_number: int,
        arrival_ms: int | None,
        problem: str | None,
    ) -> None:
        self.data.append(data)
        self.partition_key.append(partition_key)
        self.explicit_hash_key.append(explicit_hash_key)
        self.sequence_number.append(sequence_number)
        self.sub_sequence_number.append(sub_sequence_number)
        self.arrival_ms.append(arrival_ms)
        self.problem.append(problem)


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
        if self.first is not None and not (self._opens_aggregates and any(map(_looks_aggregated, page))):
            self._add_plain(page, into)
            return
        for record in page:
            self._unpack_one(record, into)

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
        arrival = arrival_millis(record)
        if self.first is None:
            self.first, self.first_arrival_ms = sequence, arrival
        self._reach(sequence, last_index, arrival)
        if aggregate is not None:
            self._add_parts(aggregate, sequence, arrival, into)
        else:
            self.broken_aggregates += problem is not None
            into.add(data, record["PartitionKey"], None, sequence, 0, arrival, problem)
            self._count(1, len(data))

    def _add_plain(self, page: Sequence[StreamRecord], into: Columns) -> None:
        """The rest of a range, where nothing has to be opened or left out: most of what a consumer ever reads."""
        rows = len(page)
        data = [record["Data"] for record in page]
        arrivals = [arrival_millis(record) for record in page]
        into.data += data
        into.partition_key += [record["PartitionKey"] for record in page]
        into.explicit_hash_key += [None] * rows
        into.sequence_number += [record["SequenceNumber"] for record in page]
        into.sub_sequence_number += [0] * rows
        into.arrival_ms += arrivals
        into.problem += [None] * rows
        self._reach(page[-1]["SequenceNumber"], 0, arrivals[-1])
        self._count(rows, sum(map(len, data)))

    def _add_parts(self, aggregate: Aggregate, sequence: str, arrival: int | None, into: Columns) -> None:
        self.misplaced += aggregate.misplaced
        bounds, all_mine = self._bounds, not self._is_cut(sequence)
        for index, partition_key, explicit_hash_key, data in aggregate.records:
            if all_mine or not (bounds.is_before(sequence, index) or bounds.is_beyond(sequence, index)):
                into.add(data, partition_key, explicit_hash_key, sequence, index, arrival, None)
                self._count(1, len(data))

    def _is_cut(self, sequence: str) -> bool:
        """Whether the range begins or ends at this record, perhaps inside it."""
        bounds = self._bounds
        return sequence == self.first or (
            bounds.through is not None and int(sequence) == int(bounds.through.sequence)
        )

    def _reach(self, sequence: str, last_index: int, arrival: int | None) -> None:
        end = self._bounds.through
        is_end = end is not None and int(sequence) == int(end.sequence)
        self.through = end if is_end else Checkpoint(sequence, last_index)
        self.last_arrival_ms = arrival

    def _count(self, records: int, bytes_: int) -> None:
        self.records += records
        self.bytes += bytes_


def _looks_aggregated(record: StreamRecord) -> bool:
    return record["Data"].startswith(MAGIC)
