"""Folders of Parquet, as Spark reads them."""

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster.runtime import system
from kcl_dagster.spark.engine import SparkEngine
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.spark.transform import Transform
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.parts_chain import PartsChain
from tests.doubles.parts import Parts
from tests.integration.spark.conftest import GENEROUS, Stream, batch_of

pytestmark = pytest.mark.spark


def stored(spark: SparkSession, path: Path) -> Counter[int]:
    """Of all files below the path. Without the option Spark passes over files at the root beside folders."""
    files = spark.read.option("recursiveFileLookup", "true").parquet(str(path))
    return Counter(int(bytes(row.data)[:8]) for row in files.select("data").collect())


def keep_all(records: DataFrame) -> DataFrame:
    return records


def filtered(records: DataFrame) -> DataFrame:
    return records.where(F.length("data") > 1).withColumn("day", F.to_date("arrival_timestamp"))


def test_columns_become_folders(stream: Stream, engine: SparkEngine, spark: SparkSession, tmp_path: Path) -> None:
    def odd(records: DataFrame) -> DataFrame:
        number = F.substring(F.col("data").cast("string"), 1, 8).cast("int")
        return records.withColumn("odd", number % 2 == 1)

    stream.produce(100)
    sink = Parts(ParquetSink(str(tmp_path), transform=odd, partition_by=["odd"]))
    fetched = engine.fetch(stream.ranges(), GENEROUS)
    batch = batch_of(list(fetched.progress.values()))
    sink.write(fetched.data([part.lease for part in batch.parts]), batch)
    assert sorted(path.name for path in tmp_path.glob("[!_]*") if path.is_dir()) == ["odd=false", "odd=true"]
    assert stored(spark, tmp_path / "odd=true") == Counter(range(1, 100, 2))
    assert stored(spark, tmp_path) == Counter(range(100))


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
        PartsChain(ParquetSink(str(tmp_path)), name, "parts", system()).write(
            fetched.data([part.lease for part in batch.parts]), batch
        )
    assert stored(spark, tmp_path) == Counter(dict.fromkeys(range(30), len(names)))


@pytest.mark.parametrize("transform", [keep_all, filtered])
def test_a_file_that_says_through_when_all_is_stored_is_no_data_to_spark(
    stream: Stream, engine: SparkEngine, spark: SparkSession, tmp_path: Path, transform: Transform
) -> None:
    partition_by = ["day"] if transform is filtered else []
    sink = ParquetSink(str(tmp_path), transform=transform, partition_by=partition_by)
    sink.keep_complete("app", WrittenThrough(1_769_860_800), 0)
    stream.produce(50)
    fetched = engine.fetch(stream.ranges(), GENEROUS)
    batch = batch_of(list(fetched.progress.values()))
    Parts(sink).write(fetched.data([part.lease for part in batch.parts]), batch)
    found = spark.read.parquet(str(tmp_path))
    assert Counter(int(bytes(row.data)[:8]) for row in found.select("data").collect()) == Counter(range(50))
    assert stored(spark, tmp_path) == Counter(range(50))
    # Readers that look at it on purpose find JSON.
    [row] = spark.read.json(str(tmp_path / "_kcl_dagster_complete" / "app.json")).collect()
    assert row.through == "2026-01-31T12:00:00+00:00"
