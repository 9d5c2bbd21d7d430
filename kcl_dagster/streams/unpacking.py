"""From Kinesis records to the user records of a range. Pure, and on the hot path: columns, not objects."""

from collections.abc import Iterable
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

    def unpack(self, page: Iterable[StreamRecord], into: Columns) -> None:
        """Append the user records of a page that belong to the range."""
        for record in page:
            data, sequence = record["Data"], record["SequenceNumber"]
            aggregate: Aggregate | None = None
            problem: str | None = None
            if self._opens_aggregates and data.startswith(MAGIC):
                try:
                    aggregate = deaggregate(data, self._hash_range)
                except BrokenAggregate as error:
                    problem = str(error)
            last_index = aggregate.last_index if aggregate else 0
            if self._bounds.is_before(sequence, last_index):
                continue  # the record at which the range begins
            arrival = arrival_millis(record)
            self._note(sequence, last_index, arrival)
            if aggregate is not None:
                self._add_parts(aggregate, sequence, arrival, into)
                continue
            if problem is not None:
                self.broken_aggregates += 1
            self._add(into, sequence, 0, record["PartitionKey"], None, data, arrival, problem)

    def _note(self, sequence: str, last_index: int, arrival: int | None) -> None:
        if self.first is None:
            self.first, self.first_arrival_ms = sequence, arrival
        self.last_arrival_ms = arrival
        end = self._bounds.through
        if end is not None and self._bounds.is_beyond(sequence, last_index):
            self.through = end
        else:
            self.through = Checkpoint(sequence, last_index)

    def _add_parts(self, aggregate: Aggregate, sequence: str, arrival: int | None, into: Columns) -> None:
        self.misplaced += aggregate.misplaced
        for index, partition_key, explicit_hash_key, data in aggregate.records:
            if self._bounds.is_before(sequence, index) or self._bounds.is_beyond(sequence, index):
                continue
            self._add(into, sequence, index, partition_key, explicit_hash_key, data, arrival, None)

    def _add(
        self,
        into: Columns,
        sequence: str,
        sub_sequence: int,
        partition_key: str,
        explicit_hash_key: str | None,
        data: bytes,
        arrival: int | None,
        problem: str | None,
    ) -> None:
        into.data.append(data)
        into.partition_key.append(partition_key)
        into.explicit_hash_key.append(explicit_hash_key)
        into.sequence_number.append(sequence)
        into.sub_sequence_number.append(sub_sequence)
        into.arrival_ms.append(arrival)
        into.problem.append(problem)
        self.records += 1
        self.bytes += len(data)
