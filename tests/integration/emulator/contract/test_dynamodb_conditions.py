"""Conditional writes: the ground that lease fencing stands on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError
from mypy_boto3_dynamodb import DynamoDBClient

from tests.integration.emulator.contract.streams import refused
from tests.integration.emulator.contract.tables import LeaseTable, number, text

pytestmark = pytest.mark.server

FAILED = "ConditionalCheckFailedException"


@pytest.fixture
def table(dynamodb: DynamoDBClient) -> LeaseTable:
    return LeaseTable.create(dynamodb)


def test_an_item_is_created_once(table: LeaseTable) -> None:
    item: Any = {"leaseKey": text("a"), "leaseCounter": number(0)}
    create: Any = {"TableName": table.name, "ConditionExpression": "attribute_not_exists(leaseKey)"}
    table.client.put_item(Item=item, **create)
    with refused(FAILED):
        table.client.put_item(Item={**item, "leaseCounter": number(9)}, **create)
    assert table.get("a") == item


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("leaseCounter = :c", True),
        ("leaseCounter <> :c", False),
        ("leaseCounter = :c AND attribute_not_exists(checkpointOwner)", True),
        ("leaseCounter = :c AND attribute_exists(checkpointOwner)", False),
        ("attribute_exists(checkpointOwner) OR leaseCounter = :c", True),
        ("NOT leaseCounter = :c", False),
        ("leaseCounter < :c OR leaseCounter > :c", False),
        ("leaseCounter <= :c AND leaseCounter >= :c", True),
        ("leaseCounter IN (:c)", True),
        ("leaseCounter BETWEEN :c AND :c", True),
        ("attribute_type(leaseOwner, :s) AND leaseCounter = :c", True),
        ("begins_with(leaseOwner, :w) AND leaseCounter = :c", True),
        ("(leaseOwner = :w OR attribute_not_exists(leaseOwner)) AND leaseCounter = :c", True),
    ],
)
def test_an_update_happens_exactly_if_its_condition_holds(table: LeaseTable, condition: str, holds: bool) -> None:
    table.put("a", leaseCounter=number(7), leaseOwner=text("w"))
    values: Any = {":c": number(7), ":n": number(8), ":s": text("S"), ":w": text("w")}
    used = {name: value for name, value in values.items() if name == ":n" or name in condition}
    arguments = {"ConditionExpression": condition, "ExpressionAttributeValues": used}
    if holds:
        table.update("a", "SET leaseCounter = :n", **arguments)
    else:
        with refused(FAILED):
            table.update("a", "SET leaseCounter = :n", **arguments)
    assert table.get("a")["leaseCounter"] == number(8 if holds else 7)


def test_a_delete_happens_exactly_if_its_condition_holds(table: LeaseTable) -> None:
    table.put("a", checkpoint=text("SHARD_END"))
    condition = "checkpoint = :c"
    with refused(FAILED):
        table.delete("a", ConditionExpression=condition, ExpressionAttributeValues={":c": text("1")})
    table.delete("a", ConditionExpression=condition, ExpressionAttributeValues={":c": text("SHARD_END")})
    assert table.get("a") is None


@pytest.mark.parametrize(
    ("asked", "returned"),
    [
        ("ALL_OLD", {"leaseKey": text("a"), "n": number(1), "o": text("x")}),
        ("UPDATED_OLD", {"n": number(1)}),
        ("UPDATED_NEW", {"n": number(2)}),
        ("ALL_NEW", {"leaseKey": text("a"), "n": number(2), "o": text("x")}),
        ("NONE", None),
    ],
)
def test_an_update_returns_what_was_asked_for(table: LeaseTable, asked: str, returned: object) -> None:
    table.put("a", n=number(1), o=text("x"))
    reply = table.update("a", "SET n = n + :one", ExpressionAttributeValues={":one": number(1)}, ReturnValues=asked)
    assert reply.get("Attributes") == returned


def test_put_and_delete_return_the_old_item(table: LeaseTable) -> None:
    table.put("a", n=number(1))
    old = {"leaseKey": text("a"), "n": number(1)}
    item: Any = {"leaseKey": text("a"), "n": number(2)}
    reply = table.client.put_item(TableName=table.name, Item=item, ReturnValues="ALL_OLD")
    assert reply["Attributes"] == old
    assert table.delete("a", ReturnValues="ALL_OLD")["Attributes"] == item
    assert "Attributes" not in table.delete("a", ReturnValues="ALL_OLD")


def test_a_failed_condition_shows_the_item_if_asked(table: LeaseTable) -> None:
    table.put("a", leaseCounter=number(5), checkpointOwner=text("old"))
    failing: Any = {
        "ConditionExpression": "leaseCounter = :c",
        "ExpressionAttributeValues": {":c": number(4)},
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    item: Any = {"leaseKey": text("a")}
    writes: list[Callable[[], Any]] = [
        lambda: table.update("a", "REMOVE checkpointOwner", **failing),
        lambda: table.delete("a", **failing),
        lambda: table.client.put_item(TableName=table.name, Item=item, **failing),
    ]
    for write in writes:
        with pytest.raises(ClientError) as failure:
            write()
        shown: Any = failure.value.response
        assert shown["Error"]["Code"] == FAILED
        assert shown["Item"] == {
            "leaseKey": text("a"),
            "leaseCounter": number(5),
            "checkpointOwner": text("old"),
        }


def test_an_update_creates_the_item_unless_its_condition_wants_one(table: LeaseTable) -> None:
    set_owner = {"ExpressionAttributeValues": {":w": text("w")}}
    with refused(FAILED):
        table.update("a", "SET leaseOwner = :w", ConditionExpression="attribute_exists(leaseKey)", **set_owner)
    assert table.get("a") is None
    table.update("a", "SET leaseOwner = :w", **set_owner)
    assert table.get("a") == {"leaseKey": text("a"), "leaseOwner": text("w")}


def test_set_add_remove_and_delete_in_one_update(table: LeaseTable) -> None:
    table.put("a", n=number(1), gone=text("x"), parents={"SS": ["s1", "s2"]})
    table.update(
        "a",
        "SET leaseOwner = :w, fresh = if_not_exists(fresh, :zero) REMOVE gone ADD n :one DELETE parents :s1",
        ExpressionAttributeValues={
            ":w": text("w"),
            ":zero": number(0),
            ":one": number(1),
            ":s1": {"SS": ["s1"]},
        },
    )
    assert table.get("a") == {
        "leaseKey": text("a"),
        "n": number(2),
        "leaseOwner": text("w"),
        "fresh": number(0),
        "parents": {"SS": ["s2"]},
    }


def test_values_that_no_expression_uses_are_refused(table: LeaseTable) -> None:
    table.put("a")
    with refused("ValidationException"):
        table.update("a", "SET n = :n", ExpressionAttributeValues={":n": number(1), ":unused": number(2)})


# The forms that the Java KCL writes with.


@pytest.mark.parametrize(
    ("expected", "holds"),
    [
        ({"leaseCounter": {"Value": number(7)}}, True),
        ({"leaseCounter": {"Value": number(6)}}, False),
        ({"checkpointOwner": {"Exists": False}}, True),
        ({"leaseOwner": {"Exists": False}}, False),
        ({"leaseKey": {"Exists": True, "Value": text("a")}, "leaseCounter": {"Value": number(7)}}, True),
        ({"leaseCounter": {"Value": number(7)}, "leaseOwner": {"Exists": False}}, False),
    ],
)
@pytest.mark.parametrize("write", ["update", "put", "delete"])
def test_the_old_form_of_conditions_is_honoured(table: LeaseTable, write: str, expected: Any, holds: bool) -> None:
    table.put("a", leaseCounter=number(7), leaseOwner=text("w"))
    before = table.get("a")
    item: Any = {"leaseKey": text("a"), "fresh": text("x")}
    updates: Any = {"fresh": {"Action": "PUT", "Value": text("x")}}
    writes: dict[str, Callable[[], Any]] = {
        "update": lambda: table.client.update_item(
            TableName=table.name, Key={"leaseKey": text("a")}, AttributeUpdates=updates, Expected=expected
        ),
        "put": lambda: table.client.put_item(TableName=table.name, Item=item, Expected=expected),
        "delete": lambda: table.delete("a", Expected=expected),
    }
    if holds:
        writes[write]()
        assert table.get("a") != before
    else:
        with refused(FAILED):
            writes[write]()
        assert table.get("a") == before


def test_the_old_form_of_updates_puts_adds_and_deletes(table: LeaseTable) -> None:
    table.put("a", leaseCounter=number(7), checkpointOwner=text("old"), state={"B": b"\x00\xff"})
    reply = table.client.update_item(
        TableName=table.name,
        Key={"leaseKey": text("a")},
        AttributeUpdates={
            "leaseOwner": {"Action": "PUT", "Value": text("w")},
            "leaseCounter": {"Action": "ADD", "Value": number(1)},
            "switches": {"Action": "ADD", "Value": number(1)},
            "checkpointOwner": {"Action": "DELETE"},
            "absent": {"Action": "DELETE"},
            "children": {"Action": "PUT", "Value": {"SS": ["s1", "s2"]}},
            "prepared": {"Action": "PUT", "Value": {"B": b"\x01\xfe"}},
        },
        ReturnValues="ALL_NEW",
    )
    assert table.get("a")["prepared"] == {"B": b"\x01\xfe"}
    assert reply["Attributes"].pop("children")["SS"] in (["s1", "s2"], ["s2", "s1"])
    assert reply["Attributes"] == {
        "leaseKey": text("a"),
        "leaseOwner": text("w"),
        "leaseCounter": number(8),
        "switches": number(1),
        "state": {"B": b"\x00\xff"},
        "prepared": {"B": b"\x01\xfe"},
    }


# Races: what one lock round each request is for.


def test_no_atomic_increment_is_lost(table: LeaseTable) -> None:
    threads, total = 16, 1_500

    def increment(times: int) -> None:
        for _ in range(times):
            table.update("counter", "ADD n :one", ExpressionAttributeValues={":one": number(1)})

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(increment, [total // threads] * threads + [1] * (total % threads)))
    assert table.get("counter")["n"] == number(total)


def test_of_sixteen_writers_with_one_condition_one_succeeds(table: LeaseTable) -> None:
    writers, rounds = 16, 40

    def write(counter: int) -> bool:
        try:
            table.update(
                "a",
                "SET leaseCounter = :n",
                ConditionExpression="leaseCounter = :c",
                ExpressionAttributeValues={":c": number(counter), ":n": number(counter + 1)},
            )
        except table.client.exceptions.ConditionalCheckFailedException:
            return False
        return True

    table.put("a", leaseCounter=number(0))
    with ThreadPoolExecutor(writers) as pool:
        for counter in range(rounds):
            assert sum(pool.map(write, [counter] * writers)) == 1
    assert table.get("a")["leaseCounter"] == number(rounds)


def test_of_sixteen_creators_of_one_item_one_succeeds(table: LeaseTable) -> None:
    creators, items = 16, 20

    def create(key: str) -> bool:
        try:
            table.client.put_item(
                TableName=table.name,
                Item={"leaseKey": text(key)},
                ConditionExpression="attribute_not_exists(leaseKey)",
            )
        except table.client.exceptions.ConditionalCheckFailedException:
            return False
        return True

    with ThreadPoolExecutor(creators) as pool:
        for key in map(str, range(items)):
            assert sum(pool.map(create, [key] * creators)) == 1
