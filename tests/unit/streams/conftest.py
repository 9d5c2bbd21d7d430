"""One account's Kinesis in memory, with AWS's limits, on a clock that moves when told."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from kcl_dagster.emulator import Limits
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.runtime import Runtime
from kcl_dagster.streams.pacing import Allowance, ReadDeadline, ShardLimits
from kcl_dagster.streams.polling import Bookmark, ShardReader
from kcl_dagster.streams.position import Bounds
from kcl_dagster.streams.records import StreamRecord
from tests.doubles.clock import FakeClock
from tests.doubles.kinesis import FakeKinesis

STREAM = "clicks"
SHARD = "shardId-000000000000"
WHOLE = Bounds(TRIM_HORIZON)


@dataclass
class World:
    """A stream of one shard, and readers of it."""

    clock: FakeClock = field(default_factory=FakeClock)
    limits: Limits = field(default_factory=Limits.aws)
    seed: int = 1

    def __post_init__(self) -> None:
        self.kinesis: Any = FakeKinesis(self.clock, limits=self.limits)
        self.runtime = Runtime(clock=self.clock, random=random.Random(self.seed))
        self.calls: list[str] = []
        self.answers: list[Exception | dict[str, Any] | None] = []
        self.kinesis.create_stream(StreamName=STREAM, ShardCount=1)

    def put(self, *payloads: bytes, pause: float = 0.0) -> list[str]:
        """Put records, `pause` seconds apart; their sequence numbers."""
        sequences = []
        for payload in payloads:
            answer = self.kinesis.put_record(StreamName=STREAM, PartitionKey="k", Data=payload)
            sequences.append(answer["SequenceNumber"])
            self.clock.advance(pause)
        return sequences

    def produce(self, payload: bytes) -> None:
        """`put` as something that can be scheduled."""
        self.put(payload)

    def reader(
        self,
        bounds: Bounds = WHOLE,
        limits: ShardLimits | None = None,
        bookmark: Bookmark | None = None,
        shard: str = SHARD,
    ) -> ShardReader:
        return ShardReader(
            self, STREAM, shard, bounds, runtime=self.runtime, limits=limits or ShardLimits(), bookmark=bookmark
        )

    def read(
        self, reader: ShardReader, seconds: float = 3.0, records: int = 100_000, bytes_: int = 1 << 30
    ) -> list[StreamRecord]:
        pages = reader.pages(
            Allowance(records, bytes_, 1), ReadDeadline(self.clock.monotonic() + seconds, self.clock)
        )
        return [record for page in pages for record in page]

    def __getattr__(self, method: str) -> Any:
        """The client that readers get: counts calls, and answers from `answers` first."""
        if method.startswith("_"):
            raise AttributeError(method)

        def call(**parameters: Any) -> Any:
            self.calls.append(method)
            if method == "get_records" and self.answers:
                answer = self.answers.pop(0)
                if isinstance(answer, Exception):
                    raise answer
                if answer is not None:
                    return answer
            return getattr(self.kinesis, method)(**parameters)

        return call


@pytest.fixture
def world() -> World:
    return World()


def payloads(records: list[StreamRecord]) -> list[bytes]:
    return [record["Data"] for record in records]


def after(sequence: str, sub_sequence: int = 0) -> Bounds:
    return Bounds(Checkpoint(sequence, sub_sequence))
