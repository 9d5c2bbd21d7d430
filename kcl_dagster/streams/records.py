"""Responses of GetRecords and SubscribeToShard: records, and the children of a shard that has ended."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from operator import add, itemgetter
from typing import Any, TypedDict

from kcl_dagster.model.shard import ChildShard, HashRange


class StreamRecord(TypedDict):
    """A record. Its arrival time is in epoch seconds, or a datetime if botocore's own parser made it."""

    SequenceNumber: str
    Data: bytes
    PartitionKey: str
    ApproximateArrivalTimestamp: Any


def arrival_millis(record: StreamRecord) -> int | None:
    """When the record arrived, in epoch milliseconds; None if the response has no time."""
    return millis(arrival_seconds([record])[0])


def arrival_seconds(records: Sequence[StreamRecord]) -> list[float | None]:
    """When the records arrived, in epoch seconds; None for each record without an arrival time."""
    try:
        found: list[Any] = [record["ApproximateArrivalTimestamp"] for record in records]
    except KeyError:
        found = [record.get("ApproximateArrivalTimestamp") for record in records]
    if found and isinstance(found[0], datetime):
        return [moment and moment.timestamp() for moment in found]
    return found


def millis(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def size_of(records: Iterable[StreamRecord]) -> int:
    return sum(map(len, map(_data, records)))


def sizes_of(records: Sequence[StreamRecord]) -> list[int]:
    """The size of each record in bytes: its payload and its partition key. A record that is kept takes this much of
    the budget."""
    keys = utf8_sizes([record["PartitionKey"] for record in records])
    return list(map(add, map(len, map(_data, records)), keys))


def utf8_sizes(texts: Sequence[str]) -> list[int]:
    """The size of each text in UTF-8, in bytes. Equal texts are measured only once, because a long text may occur
    many times."""
    if all(map(str.isascii, texts)):
        return list(map(len, texts))
    sizes = {text: len(text.encode()) for text in set(texts)}
    return [sizes[text] for text in texts]


_data = itemgetter("Data")


def child_shards(answer: Mapping[str, Any]) -> tuple[ChildShard, ...]:
    return tuple(_child(child) for child in answer.get("ChildShards") or ())


def _child(description: Mapping[str, Any]) -> ChildShard:
    hash_range = description["HashKeyRange"]
    return ChildShard(
        id=description["ShardId"],
        hash_range=HashRange(int(hash_range["StartingHashKey"]), int(hash_range["EndingHashKey"])),
        parents=tuple(description["ParentShards"]),
    )
