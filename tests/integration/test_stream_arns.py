"""A stream that is given by its ARN: every request names it so and goes to its region; tables stay in their own."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame, SparkSession

import kcl_dagster as kcl
from kcl_dagster import cli
from kcl_dagster.emulator import Emulator, Limits
from kcl_dagster.emulator.gateway import Gateway
from kcl_dagster.emulator.http.http_messages import HttpRequest
from kcl_dagster.operations.open_application import OpenApplication
from kcl_dagster.orchestration.check_definitions import look
from kcl_dagster.orchestration.complete_windows import CompleteWindows
from kcl_dagster.runtime import system
from kcl_dagster.streams import listing
from kcl_dagster.streams.listing import describe
from kcl_dagster.testing import EmulatorResource, consume
from kcl_dagster.testing.resource import REGION
from tests.docs.test_rights import called
from tests.unit.orchestration.conftest import Bench

THERE = "eu-north-1"
ARN = f"arn:aws:kinesis:{THERE}:123456789012:stream/orders"
# What may name the stream of a request. AWS refuses a StreamARN beside a NextToken.
NAMES = ("StreamARN", "ConsumerARN", "NextToken")
BATCHES = {"polling": kcl.BatchSettings(), "fanout": kcl.BatchSettings(retrieval="fanout", max_seconds=1)}

READS = {
    "polling": {"DescribeStreamSummary", "ListShards", "GetShardIterator", "GetRecords"},
    "fanout": {
        "DescribeStreamSummary",
        "ListShards",
        "RegisterStreamConsumer",
        "DescribeStreamConsumer",
        "SubscribeToShard",
    },
}
OPERATED = {
    "DescribeStreamSummary",
    "ListShards",
    "GetShardIterator",
    "GetRecords",
    "ListStreamConsumers",
    "DescribeStreamConsumer",
    "DeregisterStreamConsumer",
}


@dataclass
class Requests:
    """What arrived: operation and body of requests to Kinesis, and the regions that were signed for, by service."""

    kinesis: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    regions: dict[str, set[str]] = field(default_factory=dict)

    def read(self, request: HttpRequest) -> None:
        authorization = request.headers.get("authorization", "")
        if "Credential=" not in authorization:
            return
        _, _, region, service, *_ = authorization.split("Credential=")[1].split(",")[0].split("/")
        self.regions.setdefault(service, set()).add(region)
        if service == "kinesis":
            self.kinesis.append((request.headers["x-amz-target"].partition(".")[2], self._body(request)))

    def _body(self, request: HttpRequest) -> dict[str, Any]:
        if "json" in request.headers.get("content-type", ""):
            read: dict[str, Any] = json.loads(request.body)
            return read
        import cbor2

        decoded: dict[str, Any] = cbor2.loads(request.body)
        return decoded

    def all_are_by_arn(self) -> None:
        for operation, body in self.kinesis:
            assert "StreamName" not in body, operation
            [name] = [name for name in NAMES if name in body]
            assert name == "NextToken" or body[name].startswith(ARN), operation

    @property
    def operations(self) -> set[str]:
        return {operation for operation, _ in self.kinesis}


@pytest.fixture
def there() -> Iterator[Emulator]:
    """Where the stream is."""
    with Emulator(limits=Limits.none(), region=THERE) as emulator:
        kinesis = emulator.client("kinesis")
        kinesis.create_stream(StreamName="orders", ShardCount=2)
        records = [{"Data": str(number).encode(), "PartitionKey": str(number)} for number in range(20)]
        kinesis.put_records(StreamName="orders", Records=records)
        yield emulator


@pytest.fixture
def requests(there: Emulator, monkeypatch: pytest.MonkeyPatch) -> Requests:
    """Those after the stream was made."""
    read, handle = Requests(), Gateway.__call__

    def listening(gateway: Gateway, request: HttpRequest) -> Any:
        read.read(request)
        return handle(gateway, request)

    monkeypatch.setattr(Gateway, "__call__", listening)
    return read


@pytest.mark.spark
@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("retrieval", BATCHES)
def test_a_stream_in_another_region_is_read_by_its_arn(
    retrieval: str, aws: Emulator, there: Emulator, requests: Requests, spark: SparkSession, tmp_path: Path
) -> None:
    @kcl.kcl_consumer(
        application=f"by-arn-{retrieval}", stream=ARN, batch=BATCHES[retrieval], sink=kcl.parquet(str(tmp_path))
    )
    def orders(records: DataFrame) -> DataFrame:
        return records.selectExpr("lease_key", "cast(data as string) as body")

    here = EmulatorResource(endpoint_url=aws.endpoint_url, kinesis_endpoint_url=there.endpoint_url)
    assert consume(orders, here, spark) == 20
    stored = spark.read.parquet(str(tmp_path)).collect()
    assert sorted(int(row.body) for row in stored) == list(range(20))
    assert requests.operations >= READS[retrieval]
    requests.all_are_by_arn()
    assert requests.regions == {"kinesis": {THERE}, "dynamodb": {REGION}}
    rows = aws.client("dynamodb").scan(TableName=orders.application.lease_table)["Items"]
    assert {row["leaseKey"]["S"] for row in rows} >= {"shardId-000000000000", "shardId-000000000001"}


def test_the_command_line_reads_a_stream_by_its_arn(
    there: Emulator,
    requests: Requests,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    for name, value in there.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setattr(listing, "PAGE_SHARDS", 1)  # the second one is on a page of its own
    consumer = there.client("kinesis").register_stream_consumer(StreamARN=ARN, ConsumerName="by-arn-cli")
    named = ["--application", "by-arn-cli", "--stream", ARN]
    orders = kcl.Application(name="by-arn-cli", streams=(ARN,))
    monkeypatch.setitem(sys.modules, "by_arn", SimpleNamespace(orders=orders))
    assert cli.main(["lead", "--once", "by_arn:orders"]) == 0
    requests.kinesis.clear()
    shard = "shardId-000000000000"
    for words in (
        ["lead", "--once"],
        ["status"],
        ["plan"],
        ["doctor", "--watch", "0"],
        ["doctor", "--watch", "0", "--region", REGION],  # which is that of the tables
        ["peek", "--shard", shard, "--limit", "1"],
        ["pause"],
        ["export", "--file", str(tmp_path / "leases")],
        ["reset", "--to", "trim_horizon"],
        ["reset", "--shards", shard, "--to", first_sequence_number(there, shard)],
        ["forget", "--dry-run"],
        ["deregister", "--force"],
    ):
        cli.main([*words, *named])
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    assert consumer["Consumer"]["ConsumerName"] in said.out
    assert requests.operations >= OPERATED
    assert any("NextToken" in body for _, body in requests.kinesis)
    requests.all_are_by_arn()
    assert requests.regions["kinesis"] == {THERE}
    assert requests.regions["dynamodb"] == {REGION}


def first_sequence_number(there: Emulator, shard: str) -> str:
    kinesis = there.client("kinesis")
    place = kinesis.get_shard_iterator(StreamARN=ARN, ShardId=shard, ShardIteratorType="TRIM_HORIZON")
    records = kinesis.get_records(StreamARN=ARN, ShardIterator=place["ShardIterator"], Limit=1)["Records"]
    return str(records[0]["SequenceNumber"])


def test_these_tests_see_everything_that_the_code_can_ask_of_kinesis() -> None:
    possible = {one.partition(":")[2] for one in called() if one.startswith("kinesis:")}
    assert READS["polling"] | READS["fanout"] | OPERATED == possible


def test_the_leader_sensor_asks_by_arn_also_for_its_windows(
    there: Emulator, aws: Emulator, requests: Requests, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    created: list[float | None] = []

    def events(*arguments: Any) -> list[Any]:
        """Call what gives the creation time of the stream, as windows do if a KCL began the application."""
        created.append(arguments[4]())
        return []

    monkeypatch.setattr(CompleteWindows, "events", events)
    start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)
    windows = dg.HourlyPartitionsDefinition(start_date=start, fmt="%Y-%m-%d-%H:%M")
    decorated = kcl.kcl_consumer(
        application="by-arn-sensor", stream=ARN, partitions=windows, sink=kcl.parquet(str(tmp_path))
    )
    here = EmulatorResource(endpoint_url=aws.endpoint_url, kinesis_endpoint_url=there.endpoint_url)
    with dg.DagsterInstance.ephemeral() as instance:
        bench = Bench(decorated(_orders), here, instance)
        for _ in range(2):
            bench.tick()
        look(bench.consumer.application, here, patient=False)
    assert created == [created[0]] * 2
    assert created[0] is not None
    assert requests.operations >= {"DescribeStreamSummary", "ListShards"}
    requests.all_are_by_arn()
    assert requests.regions["kinesis"] == {THERE}


def _orders(records: DataFrame) -> DataFrame:
    return records


def test_several_streams_by_arn_have_leases_under_their_account(there: Emulator, aws: Emulator) -> None:
    application = kcl.Application(name="by-arn-several", streams=(ARN,), multi_stream=True)
    here = EmulatorResource(endpoint_url=aws.endpoint_url, kinesis_endpoint_url=there.endpoint_url)
    kinesis = here.client("kinesis", application)
    opened = OpenApplication.open(application, here.client("dynamodb", application), kinesis, system(), "test")
    identifier, _ = opened.stream("orders")
    created = int(describe(kinesis, "orders").created)
    assert str(identifier) == f"123456789012:orders:{created}"
