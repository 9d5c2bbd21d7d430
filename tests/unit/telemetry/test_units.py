"""Units of DynamoDB, by what DynamoDB answers."""

from typing import Any

import boto3
import pytest

from kcl_dagster.application import Application
from kcl_dagster.aws import client as make_client
from kcl_dagster.emulator import Emulator
from kcl_dagster.leader.construction import open_leader
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.runtime import system
from kcl_dagster.telemetry.openmetrics import MetricsRegistry
from kcl_dagster.telemetry.units import counted_units
from tests.doubles.dynamodb import FakeDynamoDB
from tests.unit.telemetry.openmetrics import parse

TABLE = "orders-app"


@pytest.fixture
def dynamodb(mocked_aws: None) -> Any:
    client = boto3.client("dynamodb", region_name="us-east-1")
    client.create_table(
        TableName=TABLE,
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    return client


def test_reads_and_writes_are_counted_while_the_block_lasts(dynamodb: Any) -> None:
    registry = MetricsRegistry({})
    key = {"leaseKey": {"S": "shard"}}
    with counted_units(dynamodb, registry):
        dynamodb.put_item(TableName=TABLE, Item=key)
        dynamodb.put_item(TableName=TABLE, Item=key)
        assert "ConsumedCapacity" in dynamodb.get_item(TableName=TABLE, Key=key, ConsistentRead=True)
        dynamodb.describe_table(TableName=TABLE)  # costs nothing, and cannot be asked
    assert "ConsumedCapacity" not in dynamodb.get_item(TableName=TABLE, Key=key)
    page = parse(registry.render())
    assert page.value("kcl_dynamodb_units_total", operation="PutItem", kind="write") > 0
    assert page.value("kcl_dynamodb_units_total", operation="GetItem", kind="read") > 0
    assert len(page.samples) == 2


def test_a_caller_who_asks_for_more_gets_it(dynamodb: Any) -> None:
    with counted_units(dynamodb, MetricsRegistry({})):
        answer = dynamodb.put_item(
            TableName=TABLE, Item={"leaseKey": {"S": "shard"}}, ReturnConsumedCapacity="INDEXES"
        )
    assert answer["ConsumedCapacity"]["TableName"] == TABLE


def test_clients_that_are_not_boto3s_are_left_alone() -> None:
    registry = MetricsRegistry({})
    with counted_units(FakeDynamoDB(), registry):
        pass
    assert parse(registry.render()).samples == {}


@pytest.mark.server
def test_a_leader_whose_units_are_counted_leads_as_before(aws: Emulator) -> None:
    kinesis, registry = aws.client("kinesis"), MetricsRegistry({})
    kinesis.create_stream(StreamName="units", ShardCount=2)
    application = Application(name="units-app", streams="units")
    client = make_client(
        "dynamodb", region="us-east-1", endpoint_url=aws.endpoint_url, access_key="test", secret_key="test"
    )
    with counted_units(client, registry):
        leader = open_leader(application, dynamodb=client, kinesis=kinesis, identity="dagster", runtime=system())
        reports = [leader.tick(RunView(launches=False)) for _ in range(2)]
    assert all(report.ok and report.leading for report in reports), reports
    assert len(reports[1].leases) == 2
    page = parse(registry.render())
    assert sum(page.values("kcl_dynamodb_units_total", kind="write")) >= 3  # the lock, and two leases
    assert sum(page.values("kcl_dynamodb_units_total", operation="Scan")) > 0
