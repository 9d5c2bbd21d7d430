"""Processes of Spark's that die under a batch: nothing is blamed on its records."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from kcl_dagster.errors import BatchError, SinkError
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.worker.error_class import ErrorClass, class_of
from tests.doubles.parts import Parts
from tests.integration.spark.test_sinks import part, write

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1000)]

PROGRAM = Path(__file__).with_name("lost_run.py")


def test_a_python_process_that_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    def kill_python(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os.kill(os.getpid(), signal.SIGKILL)
        yield from batches

    def transform(records: DataFrame) -> DataFrame:
        return records.mapInArrow(kill_python, records.schema)

    with pytest.raises(BatchError, match="Spark lost a process") as caught:
        write(Parts(ParquetSink(str(tmp_path), transform=transform)), spark, part(1, 1000, 1001, 1))
    assert not isinstance(caught.value, SinkError)
    assert class_of(caught.value) is ErrorClass.PLATFORM


def test_what_the_same_code_raises_is_its_own(spark: SparkSession, tmp_path: Path) -> None:
    def raise_it(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from ()
        raise ValueError("ExecutorLostFailure")

    def transform(records: DataFrame) -> DataFrame:
        return records.mapInArrow(raise_it, records.schema)

    with pytest.raises(Exception, match="ExecutorLostFailure") as caught:
        write(Parts(ParquetSink(str(tmp_path), transform=transform)), spark, part(1, 1000, 1001, 1))
    assert class_of(caught.value) is ErrorClass.CODE


@pytest.mark.server
def test_an_executor_that_is_killed(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path)], capture_output=True, text=True, timeout=900
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    assert answer.stdout.splitlines()[-1].startswith("ProcessLost: Spark lost a process"), answer.stdout
