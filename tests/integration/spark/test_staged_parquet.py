"""Batches that are staged for a chain, in Spark: files follow tasks, and each row is in one file."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster.chains.entry import PublishingEntry
from kcl_dagster.chains.publication import publish, staged, staged_path
from kcl_dagster.emulator import Emulator
from kcl_dagster.errors import SinkError, TransformError
from kcl_dagster.model.claim import ChainId
from kcl_dagster.spark.fetch import Connection
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.worker.batch import Batch
from kcl_dagster.worker.staging import StagedBatch
from tests.integration.spark.conftest import GENEROUS, batch_of, new_engine, new_stream

pytestmark = pytest.mark.spark

CHAIN = ChainId("app-1234~w1-1")
SHARDS, RECORDS = 16, 320


@pytest.fixture(scope="module")
def fetched(aws: Emulator, spark: SparkSession, connection: Connection) -> Iterator[tuple[Batch, Any]]:
    """A batch of many shards, which may be stored as often as one likes."""
    with new_stream(aws, SHARDS) as stream, new_engine(spark, connection) as engine:
        stream.produce(RECORDS)
        # So many shards need more than a tenth of a second on a busy machine.
        read = engine.fetch(stream.ranges(), replace(GENEROUS, seconds=2.0))
        yield batch_of(list(read.progress.values())), read
        read.release()


def stage(sink: ParquetSink, fetched: tuple[Batch, Any], number: int = 1) -> StagedBatch:
    batch, read = fetched
    return sink.stage(read.data([part.lease for part in batch.parts]), batch, CHAIN, number)


def published(sink: ParquetSink, batch: StagedBatch, spark: SparkSession) -> DataFrame:
    publish(sink.stores_into[0], CHAIN, PublishingEntry("1", batch.files, ()))
    return spark.read.parquet(sink.path)


def test_records_are_stored_as_they_were_read(
    fetched: tuple[Batch, Any], spark: SparkSession, tmp_path: Path
) -> None:
    sink = ParquetSink(str(tmp_path))
    batch = stage(sink, fetched)
    assert 1 <= len(batch.files) <= 2, "a file for each task, whatever the shards"
    assert sum(file.rows for file in batch.files) == RECORDS
    rows = published(sink, batch, spark).collect()
    assert Counter(int(bytes(row.data)[:8]) for row in rows) == Counter(range(RECORDS))
    assert len({row.shard_id for row in rows}) == SHARDS


def anything(records: DataFrame) -> DataFrame:
    """Not deterministic, and its rows do not say which lease they are of."""
    return records.select(
        F.substring(F.col("data").cast("string"), 1, 8).cast("int").alias("n"),
        F.rand().alias("chance"),
        F.current_timestamp().alias("at"),
        F.when(F.rand() < 0.5, "a").otherwise("b").alias("kind"),
    )


def test_the_transform_may_be_any_function(fetched: tuple[Batch, Any], spark: SparkSession, tmp_path: Path) -> None:
    sink = ParquetSink(str(tmp_path), transform=anything, partition_by=["kind"])
    batch = stage(sink, fetched)
    assert 2 <= len(batch.files) <= 4, "a file for each task and partition value"
    assert batch.counts == {}
    found = published(sink, batch, spark).collect()
    assert Counter(row.n for row in found) == Counter(range(RECORDS))
    assert {row.kind for row in found} == {"a", "b"}


def totals(records: DataFrame) -> DataFrame:
    keys = records.groupBy("shard_id").agg(F.count("*").alias("records"))
    return records.join(keys, "shard_id").groupBy("shard_id").agg(F.sum("records").alias("squared"))


def test_a_batch_may_be_joined_and_aggregated_across_its_shards(
    fetched: tuple[Batch, Any], spark: SparkSession, tmp_path: Path
) -> None:
    sink = ParquetSink(str(tmp_path), transform=totals)
    rows = published(sink, stage(sink, fetched), spark).collect()
    per_shard = [part.records for part in fetched[0].parts]
    assert sorted(row.squared for row in rows) == sorted(records**2 for records in per_shard)


def loses_its_first_attempt(folder: Path) -> Any:
    """Fails once, after the sink has stored a file of what it has yielded."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            yield batch
            if number == 0 and context.attemptNumber() == 0 and context.partitionId() == 0:
                found = list(folder.rglob(f"*_{context.taskAttemptId()}_0.parquet"))
                (folder / ".seen").write_text(str(len(found)))
                raise RuntimeError("the executor is lost")

    return lambda records: records.mapInArrow(rows, records.schema)


def test_what_an_attempt_has_staged_that_was_repeated_is_not_in_the_batch(
    fetched: tuple[Batch, Any], spark: SparkSession, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    try:
        sink = ParquetSink(str(tmp_path), transform=loses_its_first_attempt(tmp_path), target_bytes=1)
        batch = stage(sink, fetched)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert sum(file.rows for file in batch.files) == RECORDS
    left = set(staged(sink.stores_into[0], CHAIN)) - {staged_path(CHAIN, file.path) for file in batch.files}
    rows = published(sink, batch, spark).collect()
    assert Counter(int(bytes(row.data)[:8]) for row in rows) == Counter(range(RECORDS))
    assert (tmp_path / ".seen").exists(), "an attempt has failed"
    assert len(left) >= int((tmp_path / ".seen").read_text())


def test_nothing_remains_of_a_batch_that_fails(fetched: tuple[Batch, Any], tmp_path: Path) -> None:
    def fails(records: DataFrame) -> DataFrame:
        def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from batches
            raise ValueError("a record that cannot be processed")

        return records.mapInArrow(rows, records.schema)

    sink = ParquetSink(str(tmp_path), transform=fails, target_bytes=1)
    with pytest.raises(Exception, match="a record that cannot be processed"):
        stage(sink, fetched)
    assert staged(sink.stores_into[0], CHAIN) == []
    with pytest.raises(TransformError):
        stage(ParquetSink(str(tmp_path), transform=lambda records: 1), fetched)  # type: ignore[arg-type,return-value]


def test_a_batch_that_holds_other_records_than_were_counted_is_refused(
    fetched: tuple[Batch, Any], tmp_path: Path
) -> None:
    batch, read = fetched
    some = [part.lease for part in batch.parts[:-1]]
    with pytest.raises(SinkError, match=f"a batch of {RECORDS} records"):
        ParquetSink(str(tmp_path)).stage(read.data(some), batch, CHAIN, 1)
