"""The streams: records that come in, and shards that split and merge."""

from dataclasses import dataclass
from random import Random
from typing import Any, Final

from botocore.exceptions import ClientError

from kcl_dagster.testing.kinesis import FakeKinesis
from kcl_dagster.testing.simulation.kernel import Kernel
from kcl_dagster.testing.simulation.lake import Lake

# Hours. Stretched runs last for days, and nothing is to be lost by waiting.
LONGEST_RETENTION: Final = 8760
RECORDS_OF_THE_PAST: Final = 5


@dataclass(slots=True)
class Streams:
    """Producers and operators of the streams. They never fail and are never seen by the fleet."""

    kernel: Kernel
    kinesis: FakeKinesis
    lake: Lake
    random: Random
    record_seconds: float
    names: tuple[str, ...]
    produced: int = 0
    is_producing: bool = True

    def open(self, shards: tuple[int, ...], history: int) -> None:
        """Create the streams, and let them have been used and resharded."""
        for name, count in zip(self.names, shards, strict=True):
            self.kinesis.create_stream(StreamName=name, ShardCount=count)
            self.kinesis.increase_stream_retention_period(StreamName=name, RetentionPeriodHours=LONGEST_RETENTION)
            self.look(name)
        for _ in range(history):
            self.kernel.skip(1.0)
            self._put(RECORDS_OF_THE_PAST)
            self.kernel.skip(1.0)
            self.random.choice([self.split, self.split, self.merge])()
        self.kernel.skip(1.0)
        self._produce_later()

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

    def _produce_later(self) -> None:
        pause = self.random.expovariate(1 / self.record_seconds)
        self.kernel.call_at(self.kernel.now + pause, self._produce)

    def _produce(self) -> None:
        if self.is_producing:
            self._put(self.random.choice([1, 1, 1, 4]))
            self._produce_later()

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
            self.lake.put(*key, answer["SequenceNumber"], payload)

    def split(self) -> None:
        """One open shard of one stream, in the middle."""
        stream, shards = self._open_shards()
        if not shards:
            return
        shard = self.random.choice(shards)
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
        return stream, [s for s in self.look(stream) if "EndingSequenceNumber" not in s["SequenceNumberRange"]]

    def _try(self, operation: str, **request: Any) -> None:
        """A stream that is being changed refuses to be changed further."""
        try:
            getattr(self.kinesis, operation)(**request)
        except ClientError as error:
            self.kernel.note("stream", f"{operation} refused: {error.response['Error']['Code']}")
        else:
            self.kernel.note("stream", f"{operation} {request}")
