"""Records of a stream, and how sinks store them: staged by Spark, decided in a chain, committed."""

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster.aws import client
from kcl_dagster.chains.chain import Chain
from kcl_dagster.chains.entry import StoredRange
from kcl_dagster.chains.publication import chain_id
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.claim import ChainId, ClaimId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import system
from kcl_dagster.spark.fetch import Connection
from kcl_dagster.spark.session import SparkSettings, start_session
from kcl_dagster.spark.sinks.table_sink import TableSink
from kcl_dagster.worker.batch import Batch
from kcl_dagster.worker.publishing import publisher_of
from tests.integration.spark.conftest import GENEROUS, batch_of, new_engine, new_stream
from tests.lakehouse.processes import process

APPLICATION: Final = "lakehouse"
REGION: Final = "us-east-1"
RECORDS: Final = 64  # of one batch
SHARDS: Final = 2
KEYS: Final = 8  # `user-0` to `user-7`
FIRST_TIME: Final = "2026-02-01 00:00:00"
FIRST: Final = datetime.fromisoformat(FIRST_TIME)
COLUMNS: Final = "n bigint, user string, at timestamp, grade int, amount decimal(12,2)"
MINUTES_APART: Final = 45  # so a batch has the times of two days and more

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

_chains = itertools.count(1)


def rows(first: int) -> Callable[[DataFrame], DataFrame]:
    """The transform of a batch: `n` counts from `first`, and everything else follows from it."""

    def transform(records: DataFrame) -> DataFrame:
        number = (F.substring(F.col("data").cast("string"), 1, 8).cast("long") + first).alias("n")
        return records.select(number).select(
            "n",
            F.concat(F.lit("user-"), (F.col("n") % KEYS).cast("string")).alias("user"),
            F.expr(f"timestamp'{FIRST_TIME}' + make_interval(0, 0, 0, 0, 0, n * {MINUTES_APART})").alias("at"),
            F.when(F.col("n") % 5 == 0, None).otherwise((F.col("n") % 7).cast("int")).alias("grade"),
            (F.col("n") * 1.25).cast("decimal(12,2)").alias("amount"),
        )

    return transform


def with_columns(first: int, **columns: str) -> Callable[[DataFrame], DataFrame]:
    """As `rows`, with these columns (SQL) beside the others or in their place."""

    def transform(records: DataFrame) -> DataFrame:
        found = rows(first)(records)
        for name, sql in columns.items():
            found = found.withColumn(name, F.expr(sql))
        return found

    return transform


@dataclass
class Feed:
    """What has been fetched, which may be stored as often as one likes. `s3`: the embedded S3."""

    spark: SparkSession
    batch: Batch
    read: Any
    s3: str

    def write(self, sink: TableSink, chain: "OpenChain") -> None:
        """One batch: staged, decided and committed."""
        self.decide(sink, chain)
        chain.commit()

    def decide(self, sink: TableSink, chain: "OpenChain") -> None:
        number = chain.chain.last + 1
        data = self.read.data([part.lease for part in self.batch.parts])
        staged = sink.stage(data, self.batch, chain.chain.id, number)
        ranges = [
            StoredRange(LeaseKey("shardId-0"), ClaimId("c"), TRIM_HORIZON, Checkpoint(str(number)), 1, RECORDS)
        ]
        assert chain.chain.decide(staged.files, ranges, staged.rules) is not None


@dataclass
class OpenChain:
    """The chain of one worker, for the table of a sink."""

    sink: TableSink
    name: str = APPLICATION
    chain: Chain = field(init=False)

    def __post_init__(self) -> None:
        mine = str(os.getpid())  # a process after a killed one uses no chain and no id of it
        ids = (f"{mine}-{number}" for number in itertools.count(1)).__next__
        self.chain = Chain(self.sink.entries, chain_id(self.name, f"worker-{next(_chains)}", mine), ids)
        self._ids = ids

    @property
    def wanted(self) -> dict[ChainId, int]:
        return {self.chain.id: self.chain.last}

    def commit(self) -> None:
        """As a worker that stops: returns when the table contains what was decided."""
        runtime = replace(system(), new_id=self._ids)
        publisher_of(self.sink.entries, self.sink.destinations, self.name, runtime).finish(self.wanted)


@dataclass(frozen=True, slots=True)
class EmbeddedAws:
    """The embedded AWS as a process: some clients hold Python's lock while they wait for an answer."""

    endpoint_url: str

    def client(self, service: Any) -> Any:
        return client(service, region=REGION, endpoint_url=self.endpoint_url, access_key="test", secret_key="test")


@contextmanager
def embedded_aws(folder: Path) -> Iterator[EmbeddedAws]:
    ready = folder / "aws.json"
    command = [sys.executable, "-m", "kcl_dagster.emulator", "--no-limits", "--ready-file", str(ready)]
    with process([*command, "--port", "0", "--watch-pid", str(os.getpid())], folder / "aws.log", ready) as said:
        yield EmbeddedAws(json.loads(said)["endpoint"])


@contextmanager
def feed(folder: Path, more: Mapping[str, str] = NOTHING) -> Iterator[Feed]:
    """`more`: of the configuration of Spark."""
    with embedded_aws(folder) as aws, _feed_from(aws, folder, more) as found:
        yield found


@contextmanager
def _feed_from(aws: EmbeddedAws, folder: Path, more: Mapping[str, str]) -> Iterator[Feed]:
    conf = {
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "spark-warehouse"),
        "spark.log.level": "OFF",  # cells provoke errors
        **more,
    }
    spark = start_session(SparkSettings(slots=2, memory="512m", conf=conf), "lakehouse")
    connection = Connection(endpoint_url=aws.endpoint_url, region=REGION, access_key="test", secret_key="test")
    try:
        with new_stream(aws, SHARDS) as stream, new_engine(spark, connection) as engine:
            stream.produce(RECORDS)
            read = engine.fetch(stream.ranges(), GENEROUS)
            while sum(progress.records for progress in read.progress.values()) < RECORDS:  # a busy machine
                read.release()
                read = engine.fetch(stream.ranges(), GENEROUS)
            yield Feed(spark, batch_of(list(read.progress.values()), APPLICATION), read, aws.endpoint_url)
            read.release()
    finally:
        spark.stop()
