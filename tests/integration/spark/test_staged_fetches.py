"""Fetches that stage records as they were read, in Spark: each record is in one batch, with one job for each
batch."""

import functools
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster.chains.entry import PublishingEntry
from kcl_dagster.chains.publication import publish, staged
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.claim import ChainId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark import engine as engines
from kcl_dagster.spark.engine import EngineSettings, SparkEngine
from kcl_dagster.spark.fetch import Connection
from kcl_dagster.spark.fetched_batch import FetchedBatch
from kcl_dagster.spark.sinks.column_types import ColumnTypes
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.spark.staged_ranges import FetchStaging, StagedRanges
from kcl_dagster.spark.storage import LocalStore
from kcl_dagster.spark.transform import Observed, Transform, returns_its_argument, unchanged
from kcl_dagster.streams.pacing import ShardLimits
from kcl_dagster.worker.batch import Range
from kcl_dagster.worker.staging import StagedBatch
from tests.acceptance.family import wait_for
from tests.integration.spark.conftest import GENEROUS, Stream, batch_of

pytestmark = pytest.mark.spark

CHAIN, OTHER = ChainId("app-1234~w1-1"), ChainId("app-1234~w1-2")


def as_it_came(records: DataFrame) -> DataFrame:
    return records


def is_staged(fetched: FetchedBatch) -> bool:
    return all(isinstance(part, StagedRanges) for part in fetched._parts)


@dataclass
class Storing:
    """A worker's batches: fetched, staged and published, one after the other."""

    sink: ParquetSink
    engine: SparkEngine
    spark: SparkSession
    ranges: list[Range]
    number: int = 0

    def fetch(self) -> FetchedBatch:
        self.sink.begin_reading(CHAIN, "arrival_timestamp")
        fetched = self.engine.fetch(self.ranges, GENEROUS)
        assert fetched.failures == {}
        return fetched

    def stage(
        self, fetched: FetchedBatch, chain: ChainId = CHAIN, leases: list[LeaseKey] | None = None
    ) -> StagedBatch:
        found = [one for lease, one in fetched.progress.items() if leases is None or lease in leases]
        batch = replace(batch_of(found), time_column="arrival_timestamp")
        self.number += 1
        return self.sink.stage(fetched.data([part.lease for part in batch.parts]), batch, chain, self.number)

    def store(self, fetched: FetchedBatch, chain: ChainId = CHAIN) -> StagedBatch:
        staged_batch = self.stage(fetched, chain)
        assert publish(self.sink.stores_into[0], chain, PublishingEntry("1", staged_batch.files, ())) is True
        fetched.release()
        self.ranges = [
            replace(one, after=fetched.progress[one.lease].through or one.after, number=one.number + 1)
            for one in self.ranges
        ]
        return staged_batch

    def stored(self) -> Counter[int]:
        rows = (
            self.spark.read.option("recursiveFileLookup", "true").parquet(self.sink.path).select("data").collect()
        )
        return Counter(int(bytes(row.data)[:8]) for row in rows)


@contextmanager
def storing(stream: Stream, spark: SparkSession, connection: Connection, sink: ParquetSink) -> Iterator[Storing]:
    engine = SparkEngine(spark, connection, EngineSettings(limits=ShardLimits.unlimited()), staging=sink.staging)
    try:
        yield Storing(sink, engine, spark, stream.ranges())
    finally:
        engine.close()


def test_the_fetch_stages_what_is_stored_as_it_was_read(
    stream: Stream, spark: SparkSession, connection: Connection, tmp_path: Path
) -> None:
    with storing(stream, spark, connection, ParquetSink(str(tmp_path), transform=as_it_came)) as batches:
        for _ in range(3):
            stream.produce(60)
            fetched = batches.fetch()
            assert is_staged(fetched), "the first one, too"
            done = batches.store(fetched)
            assert 1 <= len(done.files) <= 2, "a file for each task, whatever the shards"
            assert sum(file.rows for file in done.files) == 60
            size = sum(file.bytes for file in done.files)
            assert size - 3 <= sum(counts.size for counts in done.counts.values()) <= size
            assert sum(counts.number for counts in done.counts.values()) == len(done.files)
        assert batches.stored() == Counter(range(180))
        rows = spark.read.parquet(str(tmp_path)).collect()
        assert {row.shard_id for row in rows} == {row.lease_key for row in rows} == set(stream.shards())
        assert staged(batches.sink.stores_into[0], CHAIN) == []


def test_what_is_read_ahead_is_staged_then(
    stream: Stream, spark: SparkSession, connection: Connection, tmp_path: Path
) -> None:
    with storing(stream, spark, connection, ParquetSink(str(tmp_path), transform=as_it_came)) as batches:
        stream.produce(30)
        batches.store(batches.fetch())
        stream.produce(30)
        batches.engine.prefetch(batches.ranges, GENEROUS)
        store = batches.sink.stores_into[0]
        wait_for(lambda: len(staged(store, CHAIN)) > 0 and not list(store.unfinished()), "it is read")
        fetched = batches.fetch()
        assert is_staged(fetched)
        batches.store(fetched)
        stream.produce(30)
        batches.engine.prefetch(batches.ranges, GENEROUS)
        batches.engine.close()
        assert staged(store, CHAIN) == [], "what was read ahead for nothing"
        assert batches.stored() == Counter(range(60))


@pytest.mark.parametrize("of", ["all leases, in another chain", "fewer leases"])
def test_a_batch_that_is_not_what_was_staged_is_read_again(
    stream: Stream, spark: SparkSession, connection: Connection, tmp_path: Path, of: str
) -> None:
    with storing(stream, spark, connection, ParquetSink(str(tmp_path), transform=as_it_came)) as batches:
        stream.produce(30)
        batches.store(batches.fetch())
        stream.produce(60)
        fetched = batches.fetch()
        assert is_staged(fetched)
        leases = list(fetched.progress)
        chain, some = (OTHER, leases) if of.startswith("all") else (CHAIN, leases[:2])
        done = batches.stage(fetched, chain, some)
        expected = sum(fetched.progress[lease].records for lease in some)
        assert sum(file.rows for file in done.files) == expected
        fetched.release()
        publish(batches.sink.stores_into[0], chain, PublishingEntry("1", done.files, ()))
        assert batches.stored().total() == 30 + expected
        assert staged(batches.sink.stores_into[0], CHAIN) == []


def test_what_was_fetched_before_another_worker_stored_fewer_columns_is_written_again(
    stream: Stream, spark: SparkSession, connection: Connection, tmp_path: Path
) -> None:
    sink = ParquetSink(str(tmp_path), transform=as_it_came, evolve="ignore")
    with storing(stream, spark, connection, sink) as batches:
        stream.produce(30)
        fetched = batches.fetch()
        assert is_staged(fetched)
        ColumnTypes(LocalStore(str(tmp_path))).add({"data": pa.binary()})
        batches.store(fetched)
        assert batches.stored() == Counter(range(30))
        assert staged(batches.sink.stores_into[0], CHAIN) == []
    assert spark.read.parquet(str(tmp_path)).columns == ["data"]


def test_a_transform_that_returns_the_records_at_times_is_not_guessed_at(
    stream: Stream, spark: SparkSession, connection: Connection, tmp_path: Path
) -> None:
    has_size = [False]

    def sometimes(records: DataFrame) -> DataFrame:
        return records.withColumn("size", F.length("data")) if has_size[0] else records

    with storing(stream, spark, connection, ParquetSink(str(tmp_path), transform=sometimes)) as batches:
        for has_size[0] in (False, True, True, False):
            stream.produce(30)
            fetched = batches.fetch()
            assert not is_staged(fetched)
            batches.store(fetched)
        assert batches.stored() == Counter(range(120))
    rows = spark.read.option("mergeSchema", "true").parquet(str(tmp_path))
    assert rows.where("size = 20").count() == 60


def with_resource(records: DataFrame, resource: object) -> DataFrame:
    return records


def filtered(records: DataFrame) -> DataFrame:
    return records.where("true")


@functools.wraps(as_it_came)
def wrapped(records: DataFrame) -> DataFrame:
    return filtered(as_it_came(records))


class Wrapper:
    """Shows the attributes of the function that it wraps, as decorators of wrapt do."""

    def __init__(self, function: Transform) -> None:
        self._function = function

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __call__(self, records: DataFrame) -> DataFrame:
        return filtered(self._function(records))


@pytest.mark.parametrize(
    ("transform", "does"),
    [
        (unchanged, True),
        (Wrapper(as_it_came), False),
        (as_it_came, True),
        (lambda batch: batch, True),
        (Observed(as_it_came, lambda _: None), True),
        (Observed(filtered, lambda _: None), False),
        (filtered, False),
        (wrapped, False),
        (with_resource, False),
        (functools.partial(with_resource, resource=1), False),
        (str, False),
    ],
)
def test_it_is_known_before_the_first_call_that_a_function_returns_its_argument(
    transform: Transform, does: bool
) -> None:
    assert returns_its_argument(transform) is does


def test_folders_are_those_of_the_partition_values(
    stream: Stream, spark: SparkSession, connection: Connection, tmp_path: Path
) -> None:
    sink = ParquetSink(str(tmp_path), transform=as_it_came, partition_by=["hour(arrival_timestamp)", "shard_id"])
    with storing(stream, spark, connection, sink) as batches:
        folders = []
        for _ in range(2):
            stream.produce(90)
            fetched = batches.fetch()
            assert is_staged(fetched)
            folders.append({file.path.rpartition("/")[0] for file in batches.store(fetched).files})
        assert batches.stored() == Counter(range(180))
    assert len(folders[1]) == 3
    assert {folder.partition("/")[2] for folder in folders[0]} == {f"shard_id={shard}" for shard in stream.shards()}
    rows = spark.read.parquet(str(tmp_path))
    hours = rows.where("arrival_timestamp_hour <> date_format(arrival_timestamp, 'yyyy-MM-dd-HH')")
    assert hours.count() == 0


def test_a_fetch_that_staged_can_be_looked_into_and_halved(
    stream: Stream, spark: SparkSession, connection: Connection, tmp_path: Path
) -> None:
    with storing(stream, spark, connection, ParquetSink(str(tmp_path), transform=as_it_came)) as batches:
        stream.produce(6)
        batches.store(batches.fetch())
        stream.produce(40)
        fetched = batches.fetch()
        assert is_staged(fetched)
        rows = fetched.data(list(fetched.progress)).frame.collect()
        for key in fetched.progress:
            places = sorted(Checkpoint(row.sequence_number, 0) for row in rows if row.lease_key == key)
            assert fetched.midpoint(key) == places[len(places) // 2 - 1]
            letters = fetched.records(key)
            assert [Checkpoint(one.sequence_number, 0) for one in letters] == places
            assert letters[0].arrival_ms == fetched.progress[key].first_arrival_ms
        fetched.release()
        assert staged(batches.sink.stores_into[0], CHAIN) == []


@dataclass(frozen=True)
class LosesItsExecutor:
    """Writes files like the sink. The first attempt of the first task stages its files and is lost then."""

    files: Any
    seen: str

    def write(self, rows: Any, task: int, attempt: int, only_lease: LeaseKey | None) -> Any:
        written = self.files.write(rows, task, attempt, only_lease)
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0 and task == 0:
            Path(self.seen).write_text(str(len(written)))
            raise KeyboardInterrupt  # what ends a task without a word of ours
        return written


class LosingSink(ParquetSink):
    seen: str

    def staging(self) -> FetchStaging | None:
        staging = super().staging()
        return None if staging is None else replace(staging, files=LosesItsExecutor(staging.files, self.seen))


def test_files_of_an_attempt_that_was_repeated_belong_to_no_batch(
    stream: Stream, spark: SparkSession, connection: Connection, tmp_path: Path
) -> None:
    sink = LosingSink(str(tmp_path / "lake"), transform=as_it_came)
    sink.seen = str(tmp_path / "seen")
    with storing(stream, spark, connection, sink) as batches:
        stream.produce(30)
        fetched = batches.fetch()
        assert is_staged(fetched)
        batches.store(fetched)
        assert int(Path(sink.seen).read_text()) == len(staged(sink.stores_into[0], CHAIN)) == 1
        assert batches.stored() == Counter(range(30))


@dataclass(frozen=True)
class Hangs:
    def write(self, rows: Any, task: int, attempt: int, only_lease: LeaseKey | None) -> Any:
        threading.Event().wait()


class HangingSink(ParquetSink):
    def staging(self) -> FetchStaging | None:
        staging = super().staging()
        return None if staging is None else replace(staging, files=Hangs())


def test_a_fetch_whose_staging_hangs_is_repeated_without(
    stream: Stream,
    spark: SparkSession,
    connection: Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engines, "STAGING_SECONDS", 2.0)
    with storing(stream, spark, connection, HangingSink(str(tmp_path), transform=as_it_came)) as batches:
        stream.produce(30)
        batches.store(batches.fetch())
        stream.produce(30)
        fetched = batches.fetch()
        assert not is_staged(fetched)
        batches.store(fetched)
        assert batches.stored() == Counter(range(60))
