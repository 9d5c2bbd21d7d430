"""The first or last records of a shard, de-aggregated. Leases and checkpoints do not change."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from kcl_dagster import aws
from kcl_dagster.errors import BrokenAggregate, ConfigurationError
from kcl_dagster.runtime import Runtime
from kcl_dagster.streams.deaggregation import deaggregate
from kcl_dagster.streams.listing import list_shards
from kcl_dagster.streams.records import StreamRecord, arrival_millis

# Seconds between two reads. This uses two of the five reads per second that all consumers of a shard share.
PAUSE_SECONDS: Final = 0.5
# The most pages that one read requests, which takes a minute and a half. Records on later pages are not shown.
MOST_PAGES: Final = 200
# A stream cannot be read backwards. To find the last records, the stream is read from earlier and earlier times,
# until there are enough records.
WINDOWS_SECONDS: Final = (60.0, 600.0, 3600.0, 6 * 3600.0, 24 * 3600.0)
PAGE_RECORDS: Final = 1000


@dataclass(frozen=True, slots=True)
class Peeked:
    sequence: str
    sub_sequence: int
    partition_key: str
    explicit_hash_key: str | None
    arrived_ms: int | None
    data: bytes
    problem: str | None = None
    """The reason why an aggregate could not be opened. `data` is then the whole aggregate."""

    def to_document(self) -> dict[str, Any]:
        """The record as a mapping. Its keys are the names of the columns that the consumer's function receives."""
        text = self.data.decode(errors="backslashreplace")
        return {
            "sequence_number": self.sequence,
            "sub_sequence_number": self.sub_sequence,
            "partition_key": self.partition_key,
            "explicit_hash_key": self.explicit_hash_key,
            "arrival_timestamp": _moment(self.arrived_ms),
            "data": text,
            "problem": self.problem,
        }


def _moment(millis: int | None) -> str | None:
    return None if millis is None else datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds")


def peek(
    kinesis: aws.Client, stream: str, shard: str, runtime: Runtime, *, limit: int = 10, first: bool = False
) -> list[Peeked]:
    """Return the last `limit` records, or the first `limit` records that are still in the stream. The oldest record
    comes first.

    Uses some of the reads that all consumers of the shard share. Raises ConfigurationError if the stream does not
    have the shard.
    """
    if shard not in {one.id for one in list_shards(kinesis, stream, runtime=runtime)}:
        raise ConfigurationError(f"stream {stream} has no shard {shard}")
    look = _Look(kinesis, stream, shard, runtime)
    if first:
        found: list[Peeked] = []
        for record in look.records({"ShardIteratorType": "TRIM_HORIZON"}):
            found.append(record)
            if len(found) == limit:
                break
        return found
    last: deque[Peeked] = deque(maxlen=limit)
    for window in WINDOWS_SECONDS:
        since = {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": runtime.clock.now() - window}
        last = deque(look.records(since), maxlen=limit)
        if len(last) == limit:
            return list(last)
    return list(deque(look.records({"ShardIteratorType": "TRIM_HORIZON"}), maxlen=limit))


@dataclass(frozen=True, slots=True)
class _Look:
    kinesis: aws.Client
    stream: str
    shard: str
    runtime: Runtime

    def records(self, place: dict[str, Any]) -> Iterator[Peeked]:
        """The records from the position `place` to the tip, or to the end of the shard."""
        answer = self._ask("get_shard_iterator", StreamName=self.stream, ShardId=self.shard, **place)
        iterator = answer["ShardIterator"]
        for _ in range(MOST_PAGES):
            answer = self._ask(
                "get_records",
                ShardIterator=iterator,
                Limit=PAGE_RECORDS,
                **aws.stream_arn(self.kinesis, self.stream),
            )
            for record in answer["Records"]:
                yield from opened(record)
            iterator = answer.get("NextShardIterator")
            if iterator is None or not answer.get("MillisBehindLatest"):
                return
            self.runtime.clock.sleep(PAUSE_SECONDS)

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        deadline = self.runtime.clock.monotonic() + aws.READ_SECONDS * 2
        return aws.retried(lambda: aws.call(self.kinesis, method, **parameters), self.runtime, deadline)


def opened(record: StreamRecord) -> list[Peeked]:
    """The user records of a Kinesis record, including those whose hash keys are outside the range of the shard."""
    sequence, arrived, data = record["SequenceNumber"], arrival_millis(record), record["Data"]
    problem: str | None = None
    try:
        aggregate = deaggregate(data)
    except BrokenAggregate as error:
        aggregate, problem = None, str(error)
    if aggregate is None:
        return [Peeked(sequence, 0, record["PartitionKey"], None, arrived, data, problem)]
    return [
        Peeked(sequence, sub, partition_key, explicit_hash_key, arrived, part)
        for sub, partition_key, explicit_hash_key, part in aggregate.records
    ]
