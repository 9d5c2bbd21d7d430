"""The way over with Spark: Java stops, a Spark job goes on after its checkpoints."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession

from kcl_dagster.application import Application
from kcl_dagster.emulator import Emulator
from kcl_dagster.emulator.embedded import CREDENTIAL
from kcl_dagster.emulator.kinesis.service import DEFAULT_REGION
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.engine import SparkEngine
from kcl_dagster.spark.fetch import Connection
from kcl_dagster.spark.sinks.parquet import ParquetSink
from tests.doubles.engine import Row
from tests.doubles.sink import RecordingSink
from tests.interop.conftest import JavaFleet, Stream, Tables, until
from tests.interop.java_kcl import Kcl
from tests.interop.ours import Processing, leading, working
from tests.interop.test_handover import PATIENCE, texts

pytestmark = pytest.mark.spark


@contextmanager
def with_spark(spark: SparkSession, aws: Emulator, lake: Path) -> Iterator[Processing]:
    connection = Connection(
        region=DEFAULT_REGION, endpoint_url=aws.endpoint_url, access_key=CREDENTIAL, secret_key=CREDENTIAL
    )
    engine = SparkEngine(spark, connection)

    def rows() -> list[Row]:
        files = sorted(str(file) for file in lake.rglob("*.parquet"))
        if not files:
            return []
        table = pyarrow.dataset.dataset(files).to_table()
        return [
            Row(
                LeaseKey(found["lease_key"]),
                found["sequence_number"],
                found["sub_sequence_number"],
                found["partition_key"],
                found["data"],
            )
            for found in table.to_pylist()
        ]

    with closing(engine):
        yield Processing(engine, RecordingSink(), rows, list, ParquetSink(str(lake)))


def test_a_spark_job_goes_on_after_the_checkpoints_of_java_and_java_after_its_own(
    kcl: Kcl,
    aws: Emulator,
    application: Application,
    stream: Stream,
    tables: Tables,
    java: JavaFleet,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    stream.create(2)
    stream.put(60)
    for _ in range(4):
        stream.put_aggregate(20)
    with java.worker("java-1", records=70, batch=500) as first:
        first.wait(lambda worker: bool(worker.said("LIMIT")), PATIENCE, "stops in the middle of a batch")
        first.stop()

    lake = tmp_path / "lake"
    with (
        with_spark(spark, aws, lake) as processing,
        leading(aws, application) as leader,
        working(aws, application, processing=processing) as ours,
    ):
        until(lambda: tables.counts()[ours.id] == 2, 120.0, "Java's leases expire and are ours", leader, ours)
        until(lambda: len(ours.rows()) >= 70, 120.0, "Spark reads the rest", leader, ours)
        leader.resign()
        ours.stop()
    assert Counter(texts(first, ours)) == Counter(stream.produced)

    stream.put(20)
    with java.worker("java-2") as second:
        second.wait(lambda worker: len(worker.records) >= 20, PATIENCE, "goes on")
        second.stop()
    assert Counter(texts(first, ours, second)) == Counter(stream.produced)
