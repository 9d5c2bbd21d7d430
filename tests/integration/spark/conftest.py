"""A stream to read and an engine to read it with."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kcl_dagster.emulator import Emulator
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.spark.engine import EngineSettings, SparkEngine
from kcl_dagster.spark.fetch import Connection
from kcl_dagster.streams.pacing import ShardLimits
from kcl_dagster.worker.batch import Batch, Budget, Part, Progress, Range

GENEROUS = Budget(records=1_000_000, bytes=1 << 30, seconds=0.1)

_numbers = itertools.count()


@dataclass
class Stream:
    """A stream of its own for one test, and short words for what tests do with it."""

    name: str
    kinesis: Any
    produced: int = 0

    def shards(self) -> list[str]:
        return [shard["ShardId"] for shard in self.kinesis.list_shards(StreamName=self.name)["Shards"]]

    def produce(self, count: int, size: int = 20) -> None:
        for _ in range(0, count, 500):
            some = [self._record(size) for _ in range(min(500, count))]
            answer = self.kinesis.put_records(StreamName=self.name, Records=some)
            assert answer["FailedRecordCount"] == 0
            count -= len(some)

    def _record(self, size: int) -> dict[str, Any]:
        number = self.produced
        self.produced += 1
        return {"Data": f"{number:08d}".encode().ljust(size, b"."), "PartitionKey": f"key-{number}"}

    def range(self, shard: str, after: Checkpoint = TRIM_HORIZON, number: int = 1, **more: Any) -> Range:
        return Range(LeaseKey(shard), StreamIdentifier(self.name), shard, after, number, **more)

    def ranges(self, **more: Any) -> list[Range]:
        return [self.range(shard, **more) for shard in self.shards()]


@contextmanager
def new_stream(aws: Any, shards: int = 3) -> Iterator[Stream]:
    """`aws`: an `Emulator`, or what makes clients as it does."""
    kinesis = aws.client("kinesis")
    name = f"stream-{next(_numbers)}"
    kinesis.create_stream(StreamName=name, ShardCount=shards)
    yield Stream(name, kinesis)
    kinesis.delete_stream(StreamName=name, EnforceConsumerDeletion=True)


@contextmanager
def new_engine(spark: SparkSession, connection: Connection) -> Iterator[SparkEngine]:
    engine = SparkEngine(spark, connection, EngineSettings(limits=ShardLimits.unlimited()))
    yield engine
    engine.close()


@pytest.fixture
def stream(aws: Emulator) -> Iterator[Stream]:
    with new_stream(aws) as stream:
        yield stream


@pytest.fixture(scope="module")
def shared_stream(aws: Emulator) -> Iterator[Stream]:
    with new_stream(aws) as stream:
        yield stream


@pytest.fixture(scope="session")
def connection(aws: Emulator) -> Connection:
    return Connection(endpoint_url=aws.endpoint_url, region="us-east-1", access_key="test", secret_key="test")


@pytest.fixture
def engine(spark: SparkSession, connection: Connection) -> Iterator[SparkEngine]:
    with new_engine(spark, connection) as engine:
        yield engine


@pytest.fixture(scope="module")
def shared_engine(spark: SparkSession, connection: Connection) -> Iterator[SparkEngine]:
    with new_engine(spark, connection) as engine:
        yield engine


def batch_of(progress: Sequence[Progress], application: str = "app", worker: str = "worker-000:test") -> Batch:
    """The batch that a worker would make of what was fetched."""
    parts = tuple(
        Part(
            application,
            found.range.lease,
            found.range.stream,
            found.range.shard_id,
            found.range.after,
            found.through or found.range.after,
            found.range.number,
            found.records,
            found.bytes,
        )
        for found in progress
        if found.records
    )
    return Batch(application, WorkerId(worker), parts)
