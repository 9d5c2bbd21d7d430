"""Parquet: every record once, however often its part is written."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster.spark.engine import SparkEngine
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.tables.completeness_row import WrittenThrough
from tests.integration.spark.conftest import GENEROUS, Stream, batch_of

pytestmark = pytest.mark.spark


def stored(spark: SparkSession, path: Path) -> Counter[int]:
    """Of all files below the path. Without the option Spark passes over files at the root beside folders."""
    files = spark.read.option("recursiveFileLookup", "true").parquet(str(path))
    return Counter(int(bytes(row.data)[:8]) for row in files.select("data").collect())


def keep_all(records: DataFrame) -> DataFrame:
    return records


def drop_the_lease(records: DataFrame) -> DataFrame:
    return records.select("data", F.length("data").alias("size"))


def shuffle(records: DataFrame) -> DataFrame:
    return records.repartition(7, "partition_key")


def filtered(records: DataFrame) -> DataFrame:
    return records.where(F.length("data") > 1).withColumn("day", F.to_date("arrival_timestamp"))


@pytest.mark.parametrize("transform", [keep_all, drop_the_lease, shuffle, filtered])
def test_a_part_that_is_written_again_is_stored_once(
    stream: Stream, engine: SparkEngine, spark: SparkSession, tmp_path: Path, transform: object
) -> None:
    sink = ParquetSink(str(tmp_path), transform=transform)  # type: ignore[arg-type]
    ranges = stream.ranges()
    for _ in range(2):
        stream.produce(150)
        fetched = engine.fetch(ranges, GENEROUS)
        batch = batch_of(list(fetched.progress.values()))
        sink.write(fetched.data([part.lease for part in batch.parts]), batch)
        # A replay reads the part again, alone, and meets the files of the first attempt.
        for progress in fetched.progress.values():
            again = engine.fetch(
                [replace(progress.range, through=progress.through, first=progress.first)], GENEROUS
            )
            alone = batch_of(list(again.progress.values()))
            sink.write(again.data([progress.range.lease]), alone)
        ranges = [replace(r, after=fetched.progress[r.lease].through or r.after) for r in ranges]
    assert stored(spark, tmp_path) == Counter(range(300))
    assert len(list(tmp_path.rglob("*.parquet"))) == 6


def test_columns_become_folders(stream: Stream, engine: SparkEngine, spark: SparkSession, tmp_path: Path) -> None:
    def odd(records: DataFrame) -> DataFrame:
        number = F.substring(F.col("data").cast("string"), 1, 8).cast("int")
        return records.withColumn("odd", number % 2 == 1)

    stream.produce(100)
    sink = ParquetSink(str(tmp_path), transform=odd, partition_by=["odd"])
    fetched = engine.fetch(stream.ranges(), GENEROUS)
    batch = batch_of(list(fetched.progress.values()))
    sink.write(fetched.data([part.lease for part in batch.parts]), batch)
    assert sorted(path.name for path in tmp_path.glob("[!_]*") if path.is_dir()) == ["odd=false", "odd=true"]
    assert stored(spark, tmp_path / "odd=true") == Counter(range(1, 100, 2))
    assert stored(spark, tmp_path) == Counter(range(100))


@pytest.mark.audit("A8")
def test_a_repeated_batch_replaces_what_another_version_of_the_transform_stored(
    stream: Stream, engine: SparkEngine, spark: SparkSession, tmp_path: Path
) -> None:
    """The worker died between storing and committing; the deploy after that changed the partition value."""

    def before(records: DataFrame) -> DataFrame:
        return records.withColumn("kind", F.lit("a"))

    def after(records: DataFrame) -> DataFrame:
        return records.withColumn("kind", F.lit("b"))

    stream.produce(60)
    fetched = engine.fetch(stream.ranges(), GENEROUS)
    batch = batch_of(list(fetched.progress.values()))
    leases = [part.lease for part in batch.parts]
    ParquetSink(str(tmp_path), transform=before, partition_by=["kind"]).write(fetched.data(leases), batch)
    other = replace(batch, application="other", parts=tuple(replace(p, number=10**12) for p in batch.parts))
    ParquetSink(str(tmp_path), transform=before, partition_by=["kind"]).write(fetched.data(leases), other)

    again = replace(batch, parts=tuple(replace(part, is_repeated=True) for part in batch.parts))
    ParquetSink(str(tmp_path), transform=after, partition_by=["kind"]).write(fetched.data(leases), again)
    assert stored(spark, tmp_path / "kind=b") == Counter(range(60))
    assert stored(spark, tmp_path / "kind=a") == Counter(range(60)), "another application's files are gone"

    nothing = ParquetSink(str(tmp_path), transform=lambda r: after(r).where("false"), partition_by=["kind"])
    nothing.write(fetched.data(leases), again)
    assert list((tmp_path / "kind=b").glob("*.parquet")) == []
    assert stored(spark, tmp_path / "kind=a") == Counter(range(60))


@pytest.mark.audit("A8")
@pytest.mark.parametrize(("before", "after"), [(["kind"], []), ([], ["kind"])])
def test_a_repeated_batch_replaces_what_another_partitioning_stored(
    stream: Stream, engine: SparkEngine, spark: SparkSession, tmp_path: Path, before: list[str], after: list[str]
) -> None:
    """The worker died between storing and committing; the deploy after that added or removed `partition_by`."""

    def kind(records: DataFrame) -> DataFrame:
        return records.withColumn("kind", F.col("sequence_number").substr(-1, 1))

    stream.produce(30)
    fetched = engine.fetch(stream.ranges(number=1_798_761_600_000), GENEROUS)
    batch = batch_of(list(fetched.progress.values()))
    leases = [part.lease for part in batch.parts]
    ParquetSink(str(tmp_path), transform=kind, partition_by=before).write(fetched.data(leases), batch)
    again = replace(batch, parts=tuple(replace(part, is_repeated=True) for part in batch.parts))
    ParquetSink(str(tmp_path), transform=kind, partition_by=after).write(fetched.data(leases), again)
    assert stored(spark, tmp_path) == Counter(range(30))


@pytest.mark.parametrize("partition_by", [[], ["kind"]])
def test_a_repeated_batch_replaces_what_version_0_1_stored_under_its_own_name(
    stream: Stream, engine: SparkEngine, spark: SparkSession, tmp_path: Path, partition_by: list[str]
) -> None:
    """Both versions run during an upgrade: a worker of 0.1 pins a batch, stores it and dies."""

    def kind(records: DataFrame) -> DataFrame:
        return records.withColumn("kind", F.lit("a"))

    stream.produce(30)
    fetched = engine.fetch(stream.ranges(number=1_798_761_600_000), GENEROUS)
    batch = batch_of(list(fetched.progress.values()))
    leases = [part.lease for part in batch.parts]
    sink = ParquetSink(str(tmp_path), transform=kind, partition_by=partition_by)
    sink.write(fetched.data(leases), batch)
    for file in list(tmp_path.rglob("*.parquet")):
        file.rename(file.with_name(file.name.removeprefix(f"{batch.application}.")))
    again = replace(batch, parts=tuple(replace(part, is_repeated=True) for part in batch.parts))
    sink.write(fetched.data(leases), again)
    assert stored(spark, tmp_path) == Counter(range(30))
    assert all(file.name.startswith(f"{batch.application}.") for file in tmp_path.rglob("*.parquet"))


@pytest.mark.audit("A5", "F1")
def test_applications_that_share_a_folder_keep_their_records(
    stream: Stream, engine: SparkEngine, spark: SparkSession, tmp_path: Path
) -> None:
    """All begin at the same place of a shard of the same name, perhaps in the same millisecond."""
    stream.produce(30)
    fetched = engine.fetch(stream.ranges(number=1_798_761_600_000), GENEROUS)
    long = "a" * 250
    names = ["orders-app", "payments-app", "payments.app", f"{long}1", f"{long}2"]
    for name in names:
        batch = batch_of(list(fetched.progress.values()), application=name)
        ParquetSink(str(tmp_path)).write(fetched.data([part.lease for part in batch.parts]), batch)
    assert stored(spark, tmp_path) == Counter(dict.fromkeys(range(30), len(names)))


@pytest.mark.parametrize("transform", [keep_all, filtered])
def test_a_file_that_says_through_when_all_is_stored_is_no_data_to_spark(
    stream: Stream, engine: SparkEngine, spark: SparkSession, tmp_path: Path, transform: object
) -> None:
    partition_by = ["day"] if transform is filtered else []
    sink = ParquetSink(str(tmp_path), transform=transform, partition_by=partition_by)  # type: ignore[arg-type]
    sink.keep_complete("app", WrittenThrough(1_769_860_800), 0)
    stream.produce(50)
    fetched = engine.fetch(stream.ranges(), GENEROUS)
    batch = batch_of(list(fetched.progress.values()))
    sink.write(fetched.data([part.lease for part in batch.parts]), batch)
    found = spark.read.parquet(str(tmp_path))
    assert Counter(int(bytes(row.data)[:8]) for row in found.select("data").collect()) == Counter(range(50))
    assert stored(spark, tmp_path) == Counter(range(50))
    # Readers that look at it on purpose find JSON.
    [row] = spark.read.json(str(tmp_path / "_kcl_dagster_complete" / "app.json")).collect()
    assert row.through == "2026-01-31T12:00:00+00:00"
