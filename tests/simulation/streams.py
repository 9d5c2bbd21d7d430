"""The streams: records that come in, and shards that split and merge."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any, Final

from botocore.exceptions import ClientError

from kcl_dagster.emulator.kinesis import Limits
from kcl_dagster.runtime import Clock
from tests.doubles.kinesis import FakeKinesis, Response
from tests.simulation.kernel import Kernel
from tests.simulation.lake import Lake
from tests.simulation.scenario import SHORTEST_RETENTION

RECORDS_OF_THE_PAST: Final = 5
SECONDS_BEFORE_THE_SECOND_SPLIT: Final = 0.5


MOST_DISORDER: Final = 3.0  # seconds; two records may be told in the wrong order if they are twice this apart


def disorder(sequence_number: str) -> float:
    """By how much the arrival of a record is told wrong, in seconds. The same at every reading."""
    share = int(sequence_number) * 2_654_435_761 % 8191 / 8191
    return MOST_DISORDER * (2 * share - 1)


@dataclass(slots=True)
class ReadFaults:
    """How Kinesis behaves at the moment: shares of the calls of GetRecords."""

    expired: float = 0.0
    """The iterator is refused, however young."""

    empty: float = 0.0
    """There are records, and the page is empty."""

    behind: float = 0.0
    """MillisBehindLatest is not 0, whatever there is."""

    childless: float = 0.0
    """The last page names no children."""

    def clear(self) -> None:
        self.expired = self.empty = self.behind = self.childless = 0.0


class FaultyKinesis(FakeKinesis):
    """What it does is always within what the service's documentation allows."""

    def __init__(self, clock: Clock, limits: Limits, read_faults: Callable[[], ReadFaults], random: Random) -> None:
        super().__init__(clock, limits=limits, strict=False)
        self._read_faults = read_faults
        self._random = random

    def get_records(self, **request: Any) -> Response:
        read_faults, draw = self._read_faults(), self._random.random
        if read_faults.expired and draw() < read_faults.expired:
            raise ClientError(
                {
                    "Error": {"Code": "ExpiredIteratorException", "Message": "Iterator expired, injected"},
                    "ResponseMetadata": {
                        "HTTPStatusCode": 400,
                        "RetryAttempts": 0,
                        "RequestId": "",
                        "HostId": "",
                        "HTTPHeaders": {},
                    },
                },
                "GetRecords",
            )
        answer = self.call("GetRecords", request)
        if read_faults.empty and draw() < read_faults.empty and answer.get("NextShardIterator"):
            answer |= {"Records": [], "NextShardIterator": request["ShardIterator"], "MillisBehindLatest": 1000}
        if read_faults.behind and draw() < read_faults.behind:
            answer["MillisBehindLatest"] = max(answer.get("MillisBehindLatest", 0), 1)
        for record in answer["Records"]:
            record["ApproximateArrivalTimestamp"] += timedelta(seconds=disorder(record["SequenceNumber"]))
        if read_faults.childless and draw() < read_faults.childless:
            answer.pop("ChildShards", None)
        return answer


@dataclass(slots=True)
class Streams:
    """Producers and operators of the streams. They never fail and are never seen by the fleet."""

    kernel: Kernel
    kinesis: FakeKinesis
    lake: Lake
    random: Random
    record_seconds: float
    names: tuple[str, ...]
    retention_hours: int
    produced: int = 0
    is_producing: bool = True
    quiet_until: float = 0.0
    """Until then, no records come in."""

    def open(self, shards: tuple[int, ...], history: int) -> None:
        """Create the streams, and let them have been used and resharded."""
        for name, count in zip(self.names, shards, strict=True):
            self._create(name, count)
        for _ in range(history):
            self.kernel.skip(1.0)
            self._put(RECORDS_OF_THE_PAST)
            self.kernel.skip(1.0)
            self.random.choice([self.split, self.split, self.merge])()
        self.kernel.skip(1.0)
        self._produce_later()

    def _create(self, name: str, shards: int) -> None:
        self.kinesis.create_stream(StreamName=name, ShardCount=shards)
        if self.retention_hours != SHORTEST_RETENTION:
            self.kinesis.increase_stream_retention_period(
                StreamName=name, RetentionPeriodHours=self.retention_hours
            )
        self.look(name)

    def shorten_retention(self) -> None:
        """Everything older than a day leaves the streams at once, and later with its day. Streams that are created
        anew are kept as short."""
        self.retention_hours = SHORTEST_RETENTION
        for name in self.names:
            self._try("decrease_stream_retention_period", StreamName=name, RetentionPeriodHours=SHORTEST_RETENTION)

    def recreate(self) -> None:
        """One stream is deleted, with all that is in it, and created anew under its name."""
        name = self.random.choice(self.names)
        self.lake.forget(name, self.created(name))
        self.kernel.note("stream", f"{name} is deleted and created anew")
        self.kinesis.delete_stream(StreamName=name)
        self._create(name, self.random.randint(1, 3))

    def created(self, name: str) -> int:
        """The second in which a stream was created, by which lease keys tell it from its predecessors."""
        summary = self.kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
        return int(summary["StreamCreationTimestamp"].timestamp())

    def expired(self, stream: str, shard: str, numbers: Sequence[int]) -> int:
        """How many of a shard's records, whose sequence numbers are `numbers`, have left the stream."""
        place = {"StreamName": stream, "ShardId": shard, "ShardIteratorType": "TRIM_HORIZON"}
        try:
            iterator = self.kinesis.call("GetShardIterator", place)["ShardIterator"]
        except ClientError:
            return len(numbers)  # the shard itself has
        records = self.kinesis.call("GetRecords", {"ShardIterator": iterator, "Limit": 1})["Records"]
        return bisect_left(numbers, int(records[0]["SequenceNumber"])) if records else len(numbers)

    def look(self, stream: str) -> list[dict[str, Any]]:
        """The shards there are. Tells the lake of new ones."""
        shards: list[dict[str, Any]] = self.kinesis.list_shards(StreamName=stream)["Shards"]
        for shard in shards:
            key = (stream, shard["ShardId"])
            if key not in self.lake.shards:
                parents = [shard[name] for name in ("ParentShardId", "AdjacentParentShardId") if name in shard]
                self.lake.opened(*key, parents)
        return shards

    def begin_now(self, stream: str) -> None:
        """The application begins at LATEST: what is in its shards may be left out, what follows may not."""
        self.look(stream)
        for (name, _), truth in self.lake.shards.items():
            if name == stream:
                truth.start_limit = len(truth.numbers)
                truth.start_moment = self.kinesis.service.now()

    def _produce_later(self) -> None:
        pause = self.random.expovariate(1 / self.record_seconds)
        self.kernel.call_at(self.kernel.now + pause, self._produce)

    def _produce(self) -> None:
        if self.kernel.now < self.quiet_until:
            self.kernel.call_at(self.quiet_until, self._produce)
        elif self.is_producing:
            self._put(self.random.choice([1, 1, 1, 4]))
            self._produce_later()

    def produce(self, count: int) -> None:
        """Now."""
        self._put(count)

    def _put(self, count: int) -> None:
        stream = self.random.choice(self.names)
        for _ in range(count):
            self.produced += 1
            payload = f"record {self.produced}".encode()
            answer = self.kinesis.put_record(
                StreamName=stream,
                Data=payload,
                PartitionKey="k",
                ExplicitHashKey=str(self.random.getrandbits(128)),
            )
            key = (stream, answer["ShardId"])
            if key not in self.lake.shards:
                self.look(stream)
            number = answer["SequenceNumber"]
            self.lake.put(*key, number, payload, self.kinesis.service.now() + disorder(number))

    def split(self) -> None:
        """One open shard of one stream, in the middle."""
        stream, shards = self._open_shards()
        if shards:
            self._split(stream, self.random.choice(shards))

    def split_twice(self) -> None:
        """One open shard, and then its children, before anybody can have read them."""
        stream, shards = self._open_shards()
        if not shards:
            return
        shard = self.random.choice(shards)
        self._split(stream, shard)

        def split_children() -> None:
            for child in self.look(stream):
                if child.get("ParentShardId") == shard["ShardId"] and _is_open(child):
                    self._split(stream, child)

        self.kernel.call_at(self.kernel.now + SECONDS_BEFORE_THE_SECOND_SPLIT, split_children)

    def _split(self, stream: str, shard: dict[str, Any]) -> None:
        low, high = (int(shard["HashKeyRange"][name]) for name in ("StartingHashKey", "EndingHashKey"))
        if high - low < 2:
            return
        self._try(
            "split_shard",
            StreamName=stream,
            ShardToSplit=shard["ShardId"],
            NewStartingHashKey=str((low + high) // 2 + 1),
        )

    def merge(self) -> None:
        """Two neighbours."""
        stream, shards = self._open_shards()
        shards.sort(key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))
        if len(shards) < 2:
            return
        index = self.random.randrange(len(shards) - 1)
        one, other = shards[index]["ShardId"], shards[index + 1]["ShardId"]
        self._try("merge_shards", StreamName=stream, ShardToMerge=one, AdjacentShardToMerge=other)

    def _open_shards(self) -> tuple[str, list[dict[str, Any]]]:
        stream = self.random.choice(self.names)
        return stream, [shard for shard in self.look(stream) if _is_open(shard)]

    def _try(self, operation: str, **request: Any) -> None:
        """A stream that is being changed refuses to be changed further."""
        try:
            getattr(self.kinesis, operation)(**request)
        except ClientError as error:
            self.kernel.note("stream", f"{operation} refused: {error.response['Error']['Code']}")
        else:
            self.kernel.note("stream", f"{operation} {request}")


def _is_open(shard: dict[str, Any]) -> bool:
    return "EndingSequenceNumber" not in shard["SequenceNumberRange"]
