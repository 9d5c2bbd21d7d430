"""One shard: a range of hash keys, a log of records, parents and children."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Sequence
from typing import Any

import msgspec

from kcl_dagster.emulator.kinesis import sequence
from kcl_dagster.emulator.kinesis.hashkey import KeyRange
from kcl_dagster.emulator.kinesis.limits import Limits
from kcl_dagster.emulator.kinesis.log import FIRST_NUMBER, RecordLog
from kcl_dagster.emulator.kinesis.throttle import Bucket

_encode_text = msgspec.json.Encoder().encode


def shard_id(index: int) -> str:
    return f"shardId-{index:012d}"


class ShardState:
    """A mutable shard, which belongs to one stream. `epoch` is the opening time that its sequence numbers contain,
    in whole seconds."""

    __slots__ = (
        "_stem",
        "children",
        "closed_at",
        "epoch",
        "hash_range",
        "id",
        "index",
        "iterators",
        "log",
        "opened_at",
        "parents",
        "read_bytes",
        "reads",
        "written_bytes",
        "written_records",
    )

    def __init__(
        self,
        index: int,
        hash_range: KeyRange,
        opened_at: float,
        limits: Limits,
        parents: Sequence[ShardState] = (),
    ) -> None:
        self.index = index
        self.id = shard_id(index)
        self.hash_range = hash_range
        self.opened_at = opened_at
        self.closed_at: float | None = None
        self.parents = tuple(parent.id for parent in parents)
        self.children: tuple[ShardState, ...] = ()
        self.epoch: int = max([int(opened_at), *(parent.epoch + 1 for parent in parents)])
        self.log = RecordLog()
        self.reads = Bucket(limits.reads)
        self.read_bytes = Bucket(limits.read_bytes)
        self.written_bytes = Bucket(limits.written_bytes)
        self.written_records = Bucket(limits.written_records)
        self.iterators = Bucket(limits.iterators)
        self._stem = sequence.stem(self.epoch, index)

    @property
    def is_open(self) -> bool:
        return self.closed_at is None

    @property
    def starting_sequence_number(self) -> str:
        return str(sequence.numbered(self._stem, 0, self.epoch))

    @property
    def ending_sequence_number(self) -> str | None:
        if self.closed_at is None:
            return None
        return str(sequence.numbered(self._stem, sequence.END_OF_SHARD, int(self.closed_at)))

    def was_open_at(self, timestamp: float) -> bool:
        return self.opened_at <= timestamp and (self.closed_at is None or self.closed_at > timestamp)

    def close(self, at: float, children: Sequence[ShardState]) -> None:
        self.closed_at = at
        self.children = tuple(children)

    def append(self, data: bytes, partition_key: str, size: int, now: float) -> str:
        """Store one record and return its sequence number. `size`: the bytes of the data and the partition key."""
        # Arrival times are in whole milliseconds, as in replies. They never decrease, even if the clock is set
        # back, because the log finds records by binary search.
        arrival = max(round(now, 3), self.log.last_arrival)
        number = str(sequence.numbered(self._stem, self.log.next, int(arrival)))
        fragment = b'{"SequenceNumber":"%b","ApproximateArrivalTimestamp":%.3f,"Data":"%b","PartitionKey":%b}' % (
            number.encode(),
            arrival,
            b2a_base64(data, newline=False),
            _encode_text(partition_key),
        )
        self.log.append(fragment, arrival, size)
        return number

    def position_of(self, number: sequence.SequenceNumber) -> int:
        """Return the record number at which AT_SEQUENCE_NUMBER begins to read, limited to the stored records."""
        return min(max(number.number, self.log.first), self.log.next)

    def continuation(self, position: int, now: float) -> str:
        """Return a sequence number after which a reader at `position` can continue, even if it has read no
        record."""
        return str(sequence.numbered(self._stem, max(position - 1, FIRST_NUMBER - 1), int(max(now, self.epoch))))

    def issued(self, number: sequence.SequenceNumber) -> bool:
        """Whether this shard can have issued this sequence number."""
        return number.shard == self.index and number.opened == self.epoch

    def describe(self) -> dict[str, Any]:
        described: dict[str, Any] = {"ShardId": self.id}
        described.update(zip(("ParentShardId", "AdjacentParentShardId"), self.parents, strict=False))
        described["HashKeyRange"] = self.hash_range.describe()
        described["SequenceNumberRange"] = {"StartingSequenceNumber": self.starting_sequence_number}
        if (ending := self.ending_sequence_number) is not None:
            described["SequenceNumberRange"]["EndingSequenceNumber"] = ending
        return described

    def describe_children(self) -> list[dict[str, Any]]:
        return [
            {
                "ShardId": child.id,
                "ParentShards": list(child.parents),
                "HashKeyRange": child.hash_range.describe(),
            }
            for child in self.children
        ]
