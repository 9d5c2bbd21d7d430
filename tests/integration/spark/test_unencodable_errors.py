"""An error of the consumer's function in an executor whose text Spark's own Python worker cannot send."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.worker.error_class import ErrorClass, class_of
from kcl_dagster.worker.error_text import full
from tests.doubles.parts import Parts
from tests.integration.spark.test_sinks import part, write

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


def by_batches(records: DataFrame) -> DataFrame:
    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from ()
        raise ValueError("unknown kind \ud83d")

    return records.mapInArrow(fail, records.schema)


def by_rows(records: DataFrame) -> DataFrame:
    def fail(data: bytes) -> int:
        raise ValueError("unknown kind \ud83d")

    return records.withColumn("x", F.udf(fail, "int", useArrow=False)("data"))


@pytest.mark.parametrize("transform", [by_batches, by_rows])
def test_such_an_error_ends_the_job_and_is_of_the_code(
    spark: SparkSession, tmp_path: Path, transform: Callable[[DataFrame], DataFrame]
) -> None:
    with pytest.raises(Exception, match=r"unknown kind \\ud83d") as caught:
        write(Parts(ParquetSink(str(tmp_path), transform=transform)), spark, part(1, 1000, 1001, 1))
    assert class_of(caught.value) is ErrorClass.CODE
    text = full(caught.value)
    assert text.startswith("ValueError: unknown kind \\ud83d\n")
    assert f'File "{__file__}", line ' in text
