"""What users test their consumers with."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import kcl_dagster as kcl
import kcl_dagster.testing
from kcl_dagster.emulator.faults import FaultRule
from kcl_dagster.errors import ConfigurationError, StreamNotFound
from kcl_dagster.spark.schema import COLUMNS
from kcl_dagster.testing import consume, embedded_aws, records

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def consumer_into(lake: Path) -> kcl.Consumer:
    @kcl.kcl_consumer(application="clicks-to-lake", stream="clicks", sink=kcl.parquet(str(lake)))
    def clicks(records: Any) -> Any:
        return records.selectExpr("lease_key", "cast(data as string) as page", "sequence_number")

    return clicks


def test_a_function_is_given_what_a_worker_would_give_it(spark: SparkSession, tmp_path: Path) -> None:
    given = records(spark, [b"/", b"/cart"])
    assert tuple(given.columns) == COLUMNS
    assert [row.page for row in consumer_into(tmp_path)(given).collect()] == ["/", "/cart"]


@pytest.mark.slow
def test_an_application_stores_what_is_in_its_stream_and_ends(spark: SparkSession, tmp_path: Path) -> None:
    with embedded_aws(streams={"clicks": 2}) as aws:
        aws.put("clicks", [f"/{number}".encode() for number in range(700)])
        assert consume(consumer_into(tmp_path / "lake"), aws.resource(), spark) == 700
        stored = spark.read.parquet(str(tmp_path / "lake"))
        assert stored.count() == stored.select("page").distinct().count() == 700
        aws.put("clicks", [b"/more"])
        assert consume(consumer_into(tmp_path / "lake"), aws.resource(), spark) == 1


@pytest.mark.slow
def test_a_shard_for_which_a_batch_has_no_room_is_read_before_it_ends(spark: SparkSession, tmp_path: Path) -> None:
    full = kcl.BatchSettings(max_seconds=2, max_bytes=1024 * 1024)

    @kcl.kcl_consumer(application="clicks", stream="clicks", sink=kcl.parquet(str(tmp_path)), batch=full)
    def clicks(records: Any) -> Any:
        return records.selectExpr("length(data) as size")

    with embedded_aws(streams={"clicks": 2}) as aws:
        kinesis = aws.emulator.client("kinesis")
        arn = kinesis.describe_stream_summary(StreamName="clicks")["StreamDescriptionSummary"]["StreamARN"]
        kinesis.update_max_record_size(StreamARN=arn, MaxRecordSizeInKiB=10240)
        large = [b"%d" % number * (4 * 1024 * 1024) for number in range(3)]
        for number, data in enumerate([*large, b"9" * (6 * 1024 * 1024)]):
            kinesis.put_record(StreamName="clicks", Data=data, PartitionKey=f"k{number}")
            aws.put("clicks", [b"x"] * 400)
        assert consume(clicks, aws.resource(), spark) == 1604


@pytest.mark.slow
def test_records_after_one_that_fails_are_stored_before_it_ends(spark: SparkSession, tmp_path: Path) -> None:
    skips = kcl.BatchSettings(failure=kcl.FailurePolicy(action="skip", attempts=1))
    fails = "if(cast(data as string) = '3', raise_error('no'), cast(data as string)) as page"

    @kcl.kcl_consumer(application="clicks", stream="clicks", sink=kcl.parquet(str(tmp_path)), batch=skips)
    def clicks(records: Any) -> Any:
        return records.selectExpr(fails)

    with embedded_aws(streams={"clicks": 1}) as aws:
        aws.put("clicks", [b"%d" % number for number in range(4)])
        assert consume(clicks, aws.resource(), spark) == 3
    assert sorted(row.page for row in spark.read.parquet(str(tmp_path)).collect()) == ["0", "1", "2"]


@pytest.mark.slow
def test_a_time_limit_that_was_exceeded_names_the_last_problem(spark: SparkSession, tmp_path: Path) -> None:
    with embedded_aws(streams={"clicks": 1}) as aws:
        aws.put("clicks", [b"/"])
        for operation, seconds in ("ListShards", 5), ("GetShardIterator", 20):
            aws.emulator.faults.clear()
            aws.emulator.faults.add(FaultRule(operation=operation, error="AccessDeniedException"))
            said = rf"stored 0 records in {seconds} s .*problem: .*AccessDenied"
            with pytest.raises(TimeoutError, match=said):
                consume(consumer_into(tmp_path / "lake"), aws.resource(), spark, within=seconds)


def test_a_stream_that_does_not_exist_ends_a_test_at_once(spark: SparkSession, tmp_path: Path) -> None:
    with (
        embedded_aws(streams={"click": 1}) as aws,
        pytest.raises(StreamNotFound, match="stream clicks does not exist"),
    ):
        consume(consumer_into(tmp_path / "lake"), aws.resource(), spark)


def test_a_sink_that_cannot_work_ends_a_test_at_once(spark: SparkSession, tmp_path: Path) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}

    @kcl.kcl_consumer(application="clicks", stream="clicks", sink=kcl.iceberg("lake.clicks", catalog))
    def clicks(records: Any) -> Any:
        return records

    with (
        embedded_aws(streams={"clicks": 1}) as aws,
        pytest.raises(ConfigurationError, match=r"no location for new tables: add \"warehouse\""),
    ):
        consume(clicks, aws.resource(), spark)


def test_the_names_are_public_and_no_others() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = kcl_dagster.testing.nothing
    assert all(getattr(kcl_dagster.testing, name) for name in kcl_dagster.testing.__all__)
