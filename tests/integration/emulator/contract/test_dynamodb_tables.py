"""Tables, indexes, scans, batches and transactions, as lease clients use them."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError
from mypy_boto3_dynamodb import DynamoDBClient

from tests.integration.emulator.contract.server import unique
from tests.integration.emulator.contract.streams import refused
from tests.integration.emulator.contract.tables import INDEX, LeaseTable, number, text

pytestmark = pytest.mark.server


@pytest.fixture
def table(dynamodb: DynamoDBClient) -> LeaseTable:
    return LeaseTable.create(dynamodb)


def test_a_missing_table_is_not_found(dynamodb: DynamoDBClient) -> None:
    with refused("ResourceNotFoundException"):
        dynamodb.describe_table(TableName="nowhere")
    with refused("ResourceNotFoundException"):
        dynamodb.get_item(TableName="nowhere", Key={"leaseKey": text("a")})


def test_a_table_is_created_once(table: LeaseTable) -> None:
    with refused("ResourceInUseException"):
        table.client.create_table(
            TableName=table.name,
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )


def test_a_deleted_table_is_gone(table: LeaseTable) -> None:
    table.client.delete_table(TableName=table.name)
    with refused("ResourceNotFoundException"):
        table.describe()


def test_a_protected_table_is_not_deleted(dynamodb: DynamoDBClient) -> None:
    table = LeaseTable.create(dynamodb, DeletionProtectionEnabled=True)
    with refused("ValidationException"):
        dynamodb.delete_table(TableName=table.name)
    dynamodb.update_table(TableName=table.name, DeletionProtectionEnabled=False)
    dynamodb.delete_table(TableName=table.name)


def test_a_key_of_another_shape_is_refused(table: LeaseTable) -> None:
    with refused("ValidationException"):
        table.client.get_item(TableName=table.name, Key={"other": text("a")})
    with refused("ValidationException"):
        table.client.put_item(TableName=table.name, Item={"other": text("a")})


def test_values_of_every_type_come_back_as_they_were(table: LeaseTable) -> None:
    attributes: Any = {
        "text": text("ünïcödé"),
        "empty": text(""),
        "number": {"N": "12345678901234567890.123456789"},
        "bytes": {"B": b"\x00\xff"},
        "yes": {"BOOL": True},
        "null": {"NULL": True},
        "list": {"L": [text("a"), number(1), {"M": {"deep": text("x")}}]},
        "map": {"M": {}},
        "texts": {"SS": ["a", "b"]},
    }
    table.put("a", **attributes)
    stored = table.get("a")
    stored["texts"]["SS"].sort()
    assert stored == {"leaseKey": text("a"), **attributes}


# The index by owner


def test_an_index_is_added_to_a_table_that_holds_items(table: LeaseTable) -> None:
    table.put("a", leaseOwner=text("w1"), leaseCounter=number(1))
    table.put("b", leaseCounter=number(1))
    table.add_owner_index()
    [index] = table.describe()["GlobalSecondaryIndexes"]
    assert (index["IndexName"], index["Projection"]) == (INDEX, {"ProjectionType": "KEYS_ONLY"})
    assert table.owned_by("w1")["Items"] == [{"leaseKey": text("a"), "leaseOwner": text("w1")}]


def test_the_index_follows_every_write_and_leaves_out_the_unowned(table: LeaseTable) -> None:
    table.add_owner_index()
    table.put("a", leaseOwner=text("w1"))
    table.put("b")
    values = {"ExpressionAttributeValues": {":w": text("w2")}}
    table.update("a", "SET leaseOwner = :w", **values)
    assert table.owned_by("w1")["Count"] == 0
    assert table.owned_by("w2")["Count"] == 1
    table.update("a", "REMOVE leaseOwner")
    assert table.owned_by("w2")["Count"] == 0
    table.update("b", "SET leaseOwner = :w", **values)
    table.delete("b")
    assert table.owned_by("w2")["Count"] == 0


def test_an_index_projects_what_it_includes(table: LeaseTable) -> None:
    table.add_owner_index(ProjectionType="INCLUDE", NonKeyAttributes=["leaseCounter"])
    table.put("a", leaseOwner=text("w1"), leaseCounter=number(1), checkpoint=text("x"))
    assert table.owned_by("w1")["Items"] == [
        {"leaseKey": text("a"), "leaseOwner": text("w1"), "leaseCounter": number(1)}
    ]


def test_a_query_of_the_index_comes_in_pages(table: LeaseTable) -> None:
    table.add_owner_index()
    for key in "abcde":
        table.put(key, leaseOwner=text("w1"))
    keys: list[str] = []
    arguments: dict[str, Any] = {}
    while True:
        page = table.owned_by("w1", Limit=2, **arguments)
        keys += [item["leaseKey"]["S"] for item in page["Items"]]
        if "LastEvaluatedKey" not in page:
            break
        arguments = {"ExclusiveStartKey": page["LastEvaluatedKey"]}
    assert keys == list("abcde")


def test_a_missing_index_is_refused(table: LeaseTable) -> None:
    with refused("ValidationException"):
        table.owned_by("w1")


def test_an_index_is_added_once(table: LeaseTable) -> None:
    table.add_owner_index()
    with refused("ValidationException"):
        table.add_owner_index()


# Scans


def test_a_scan_comes_in_pages_of_one_megabyte(table: LeaseTable) -> None:
    for key in range(6):
        table.put(str(key), padding=text("x" * 300_000))
    keys: list[str] = []
    pages = 0
    arguments: dict[str, Any] = {}
    while True:
        page = table.client.scan(TableName=table.name, **arguments)
        pages += 1
        keys += [str(item["leaseKey"]["S"]) for item in page["Items"]]
        if not page.get("LastEvaluatedKey"):
            break
        arguments = {"ExclusiveStartKey": page["LastEvaluatedKey"]}
    assert sorted(keys) == [str(key) for key in range(6)]
    assert pages >= 2


@pytest.mark.parametrize("segments", [1, 4])
def test_the_segments_of_a_scan_are_disjoint_and_complete(table: LeaseTable, segments: int) -> None:
    for key in range(40):
        table.put(str(key))
    keys = [
        str(item["leaseKey"]["S"])
        for segment in range(segments)
        for item in table.client.scan(TableName=table.name, Segment=segment, TotalSegments=segments)["Items"]
    ]
    assert sorted(keys, key=int) == [str(key) for key in range(40)]


def test_a_scan_filters_and_counts(table: LeaseTable) -> None:
    for key in range(6):
        table.put(str(key), streamName=text("s1" if key % 2 else "s2"))
    page = table.client.scan(
        TableName=table.name,
        FilterExpression="streamName = :s",
        ExpressionAttributeValues={":s": text("s1")},
        Select="COUNT",
    )
    assert (page["Count"], page["ScannedCount"]) == (3, 6)


# Batches and transactions


def test_a_batch_writes_up_to_twenty_five_items(table: LeaseTable) -> None:
    def write(count: int) -> None:
        requests: Any = [{"PutRequest": {"Item": {"leaseKey": text(str(key))}}} for key in range(count)]
        table.client.batch_write_item(RequestItems={table.name: requests})

    write(25)
    with refused("ValidationException"):
        write(26)
    assert table.client.scan(TableName=table.name)["Count"] == 25


def test_a_batch_names_each_item_once(table: LeaseTable) -> None:
    put: Any = {"PutRequest": {"Item": {"leaseKey": text("a")}}}
    delete: Any = {"DeleteRequest": {"Key": {"leaseKey": text("a")}}}
    for requests in ([put, put], [put, delete], [delete, delete]):
        with refused("ValidationException"):
            table.client.batch_write_item(RequestItems={table.name: requests})


def test_a_batch_reads_many_items(table: LeaseTable) -> None:
    for key in "abc":
        table.put(key)
    reply = table.client.batch_get_item(
        RequestItems={table.name: {"Keys": [{"leaseKey": text(key)} for key in "abz"]}}
    )
    assert sorted(str(item["leaseKey"]["S"]) for item in reply["Responses"][table.name]) == ["a", "b"]


def test_a_transaction_happens_as_a_whole_or_not_at_all(table: LeaseTable) -> None:
    table.put("a", n=number(1))
    create = {"TableName": table.name, "Item": {"leaseKey": text("b")}}
    check = {
        "TableName": table.name,
        "Key": {"leaseKey": text("a")},
        "ConditionExpression": "n = :n",
        "ExpressionAttributeValues": {":n": number(2)},
    }
    items: Any = [{"Put": create}, {"ConditionCheck": check}]
    with pytest.raises(ClientError) as failure:
        table.client.transact_write_items(TransactItems=items)
    response: Any = failure.value.response
    assert response["Error"]["Code"] == "TransactionCanceledException"
    assert [reason["Code"] for reason in response["CancellationReasons"]] == ["None", "ConditionalCheckFailed"]
    assert table.get("b") is None
    check["ExpressionAttributeValues"] = {":n": number(1)}
    table.client.transact_write_items(TransactItems=items)
    assert table.get("b") is not None


def test_a_transaction_with_a_known_token_happens_once(table: LeaseTable) -> None:
    increment = {
        "TableName": table.name,
        "Key": {"leaseKey": text("a")},
        "UpdateExpression": "ADD n :one",
        "ExpressionAttributeValues": {":one": number(1)},
    }
    items: Any = [{"Update": increment}]
    token = unique("token")
    for _ in range(2):
        table.client.transact_write_items(TransactItems=items, ClientRequestToken=token)
    assert table.get("a")["n"] == number(1)
    other: Any = [{"Update": {**increment, "Key": {"leaseKey": text("b")}}}]
    with refused("IdempotentParameterMismatchException"):
        table.client.transact_write_items(TransactItems=other, ClientRequestToken=token)


# Settings that lease clients make


def test_point_in_time_recovery_is_switched_on(table: LeaseTable) -> None:
    reply = table.client.update_continuous_backups(
        TableName=table.name, PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True}
    )
    recovery = reply["ContinuousBackupsDescription"]["PointInTimeRecoveryDescription"]
    assert recovery["PointInTimeRecoveryStatus"] == "ENABLED"


def test_a_table_is_tagged_when_it_is_created(dynamodb: DynamoDBClient) -> None:
    table = LeaseTable.create(dynamodb, Tags=[{"Key": "team", "Value": "clicks"}])
    arn = table.describe()["TableArn"]
    assert dynamodb.list_tags_of_resource(ResourceArn=arn)["Tags"] == [{"Key": "team", "Value": "clicks"}]


def test_time_to_live_is_switched_on(table: LeaseTable) -> None:
    table.client.update_time_to_live(
        TableName=table.name, TimeToLiveSpecification={"Enabled": True, "AttributeName": "expires"}
    )
    described = table.client.describe_time_to_live(TableName=table.name)["TimeToLiveDescription"]
    assert described["AttributeName"] == "expires"
    assert described["TimeToLiveStatus"] in ("ENABLING", "ENABLED")
