"""An error of the consumer's function in an executor whose text Spark's Python worker cannot send."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from kcl_dagster.errors import ProcessingTimeout
from kcl_dagster.spark.interruption import TAG, Interruption, tag_jobs
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.testing.clock import FakeClock
from kcl_dagster.worker.events import EventKind, WorkerEvent
from kcl_dagster.worker.processing_watch import FIRST_NOTICE_SECONDS, ProcessingWatch
from tests.integration.spark.test_sinks import part, write

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_job_that_waits_for_such_a_text_is_reported_and_ends_at_the_limit(
    spark: SparkSession, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"

    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begun.touch()
        yield from ()
        raise ValueError("unknown kind \ud83d")

    def transform(records: DataFrame) -> DataFrame:
        return records.mapInArrow(fail, records.schema)

    clock, events, is_over = FakeClock(), list[WorkerEvent](), threading.Event()
    interruption = Interruption()
    interruption.session = spark
    watch = ProcessingWatch(clock, events.append, 2 * FIRST_NOTICE_SECONDS, interruption)

    def keep_house() -> None:
        while not is_over.wait(0.1):
            if begun.exists():
                clock.advance(1)
                watch.step()

    housekeeping = threading.Thread(target=keep_house)
    tag_jobs(spark)
    housekeeping.start()
    whole = part(1, 1000, 1001, 1)
    try:
        with pytest.raises(ProcessingTimeout, match="max_process_seconds"), watch.running([whole.lease]):
            write(ParquetSink(str(tmp_path / "lake"), transform=transform), spark, whole)
    finally:
        is_over.set()
        housekeeping.join()
        spark.sparkContext.removeJobTag(TAG)
    assert EventKind.PROCESSING_SLOW in {event.kind for event in events}
