"""What goes wrong in real sinks and transforms, and the class it gets."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster.errors import (
    BatchError,
    ConfigurationError,
    ProcessingTimeout,
    RecordRefused,
    SinkError,
)
from kcl_dagster.spark.batch_records import Records
from kcl_dagster.spark.failures import CONTENT_CHANGED, SINK_FAILED
from kcl_dagster.spark.interruption import TAG, Interruption, tag_jobs
from kcl_dagster.spark.sinks.delta import DeltaSink
from kcl_dagster.spark.sinks.foreach_batch import ForeachBatchSink
from kcl_dagster.spark.sinks.iceberg import IcebergSink
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.worker.batch import Batch
from kcl_dagster.worker.error_class import ErrorClass, class_of
from kcl_dagster.worker.error_text import brief, full
from kcl_dagster.worker.processing_watch import ProcessingWatch
from tests.doubles.clock import FakeClock
from tests.doubles.parts import Parts
from tests.integration.spark.test_sinks import batch, part, records, write

pytestmark = pytest.mark.spark

Open = Callable[[Path, Callable[[DataFrame], DataFrame]], Any]


def iceberg(folder: Path, transform: Callable[[DataFrame], DataFrame]) -> Parts:
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": str(folder / "lake")}
    return Parts(IcebergSink("lake.clicks", catalog, transform=transform))


SINKS: dict[str, Open] = {
    "parquet": lambda folder, transform: Parts(ParquetSink(str(folder), transform=transform)),
    "delta": lambda folder, transform: Parts(DeltaSink(str(folder), transform=transform)),
    "iceberg": iceberg,
}


def latin(records: DataFrame) -> DataFrame:
    """The README's transform, over a payload with one byte of Latin-1."""
    data = F.when(F.col("sequence_number") == "1001", F.unhex(F.lit("636166E9"))).otherwise(F.col("data"))
    return records.withColumn("data", data).selectExpr("lease_key", "cast(data as string) as json")


@pytest.mark.audit("B1")
@pytest.mark.parametrize("kind", SINKS)
def test_a_text_that_no_file_can_hold_is_the_records_failure(
    kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    sink = SINKS[kind](tmp_path, latin)
    with pytest.raises(RecordRefused, match="column json") as caught:
        write(sink, spark, part(1, 1000, 1001, 1))
    assert class_of(caught.value) is ErrorClass.RECORD
    write(sink, spark, part(1, 1000, 1000, 1))  # the record before it can be stored


def test_a_file_that_an_executor_cannot_store_is_the_sinks_failure(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "_staged").write_text("no directory")
    sink = Parts(ParquetSink(str(tmp_path), transform=lambda records: records.select("lease_key", "data")))
    with pytest.raises(SinkError, match="could not be staged") as caught:
        write(sink, spark, part(1, 1000, 1001, 1))
    assert class_of(caught.value) is ErrorClass.SINK


@pytest.mark.parametrize(
    "text",
    ["[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] Checkpoint block rdd_1_1 not found!", SINK_FAILED, CONTENT_CHANGED],
)
def test_a_record_does_not_choose_the_class_of_an_error_that_quotes_it(
    text: str, spark: SparkSession, tmp_path: Path
) -> None:
    def price(records: DataFrame) -> DataFrame:
        told = F.when(F.col("data").isNotNull(), F.lit(text))
        return records.withColumn("price", told.cast("int"))

    with pytest.raises(Exception, match=r"cannot be cast|For input string") as caught:
        write(Parts(ParquetSink(str(tmp_path), transform=price)), spark, part(1, 1000, 1001, 1))
    assert class_of(caught.value) is ErrorClass.CODE


def to_pandas(records: DataFrame) -> Any:
    return records.toPandas()


def raises(error: Exception) -> Callable[[DataFrame], DataFrame]:
    def transform(records: DataFrame) -> DataFrame:
        raise error

    return transform


@pytest.mark.audit("B1")
@pytest.mark.parametrize(
    "transform",
    [to_pandas, *(raises(kind("mine")) for kind in (SinkError, BatchError, ConfigurationError, ValueError))],
)
def test_whatever_a_transform_raises_or_returns_is_the_codes_failure(
    transform: Callable[[DataFrame], DataFrame], spark: SparkSession, tmp_path: Path
) -> None:
    whole = batch(part(1, 1000, 1001, 1))
    stores: list[Callable[[Records, Batch], None]] = [Parts(ParquetSink(str(tmp_path), transform=transform)).write]
    if transform is not to_pandas:  # a function of the user's stores whatever the transform returns
        stores.append(ForeachBatchSink(print, transform=transform).write)
    for store in stores:
        with pytest.raises(Exception, match=r"mine|must return a DataFrame") as caught:
            store(Records.of(records(spark, whole)), whole)
        assert class_of(caught.value) is ErrorClass.CODE


@pytest.mark.audit("B2")
def test_a_function_that_hangs_in_an_executor_is_cancelled(spark: SparkSession, tmp_path: Path) -> None:
    begun, over = tmp_path / "begun", threading.Event()

    def hang(data: bytes) -> int:
        begun.touch()
        time.sleep(3600)
        return len(data)

    interruption = Interruption()
    interruption.session = spark
    watch = ProcessingWatch(FakeClock(), limit=1.0, interrupt=interruption)

    def housekeeping() -> None:
        while not over.wait(0.1):
            if begun.exists():
                watch.clock.sleep(11)
                watch.step()

    udf = F.udf(hang, "int", useArrow=False)
    sink = Parts(ParquetSink(str(tmp_path / "lake"), transform=lambda df: df.withColumn("x", udf("data"))))
    thread = threading.Thread(target=housekeeping)
    thread.start()
    tag_jobs(spark)
    try:
        with pytest.raises(ProcessingTimeout, match="was cancelled"), watch.running([part(1, 1000, 1001, 1).lease]):
            write(sink, spark, part(1, 1000, 1001, 1))
    finally:
        spark.sparkContext.removeJobTag(TAG)
        over.set()
        thread.join()
    write(Parts(ParquetSink(str(tmp_path / "lake"))), spark, part(1, 1000, 1001, 1))  # the session lives


def test_an_expression_that_fails_when_spark_evaluates_it_is_told_with_its_place(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def amount(records: DataFrame) -> DataFrame:
        word = F.concat(F.lit("anna"), F.col("sequence_number"))
        return records.select("lease_key", word.cast("int").alias("amount"))

    with pytest.raises(Exception, match="CAST_INVALID_INPUT") as caught:
        write(Parts(ParquetSink(str(tmp_path), transform=amount)), spark, part(1, 1000, 1001, 1))
    line = amount.__code__.co_firstlineno + 2
    text = full(caught.value)
    assert f'File "{__file__}", line {line}, in the call of cast' in text
    assert "pyspark" not in text
    assert "anna" not in text
    assert f"test_error_classes.py:{line} in the call of cast)" in brief(caught.value)
    assert "QueryContextLogger" not in capfd.readouterr().err


@pytest.mark.audit("F3")
def test_an_error_in_an_executor_is_told_with_its_place(spark: SparkSession, tmp_path: Path) -> None:
    def price(data: bytes) -> int:
        raise ValueError("my bug 42")

    udf = F.udf(price, "int", useArrow=False)
    sink = Parts(ParquetSink(str(tmp_path), transform=lambda df: df.withColumn("price", udf("data"))))
    with pytest.raises(Exception, match="my bug 42") as caught:
        write(sink, spark, part(1, 1000, 1001, 1))
    text = full(caught.value)
    assert text.startswith("ValueError: my bug 42\n")
    assert f'File "{__file__}", line ' in text
    assert "in price" in text
