"""Which DynamoDB updates take the short way, and that it leads where moto's does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kcl_dagster.emulator.backends.dynamodb import DynamoDb
from kcl_dagster.emulator.backends.updates import DirectUpdates, UpdateStep, parse
from kcl_dagster.emulator.http.http_messages import HttpRequest


@pytest.mark.parametrize(
    ("expression", "steps"),
    [
        ("SET leaseCounter = :n", [UpdateStep("SET", "leaseCounter", ":n")]),
        ("set #c=:n , b = :b", [UpdateStep("SET", "#c", ":n"), UpdateStep("SET", "b", ":b")]),
        (
            "SET leaseOwner = :w REMOVE checkpointOwner ADD leaseCounter :one, switches :one",
            [
                UpdateStep("SET", "leaseOwner", ":w"),
                UpdateStep("REMOVE", "checkpointOwner", None),
                UpdateStep("ADD", "leaseCounter", ":one"),
                UpdateStep("ADD", "switches", ":one"),
            ],
        ),
        ("REMOVE a, #b", [UpdateStep("REMOVE", "a", None), UpdateStep("REMOVE", "#b", None)]),
    ],
)
def test_plain_updates_are_taken_apart(expression: str, steps: list[UpdateStep]) -> None:
    assert parse(expression) == tuple(steps)


@pytest.mark.parametrize(
    "expression",
    [
        "SET n = n + :one",
        "SET n = if_not_exists(n, :zero)",
        "SET a.b = :v",
        "SET a[0] = :v",
        "SET a = b",
        "REMOVE a[1]",
        "DELETE parents :p",
        "SET a = :v REMOVE a",
        "SET",
        "a = :v",
        "",
    ],
)
def test_anything_else_is_left_to_moto(expression: str) -> None:
    assert parse(expression) is None


LEASE: dict[str, Any] = {
    "leaseOwner": {"S": "w1"},
    "checkpointOwner": {"S": "w0"},
    "leaseCounter": {"N": "7"},
    "throughputKBps": {"N": "1.5"},
    "parents": {"SS": ["a", "b"]},
    "state": {"B": "AP8="},
}


class Table:
    """One table, called as clients call it."""

    def __init__(self) -> None:
        self._service = DynamoDb("123456789012", "us-east-1")
        self.call(
            "CreateTable",
            TableName="t",
            KeySchema=[{"AttributeName": "k", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("k", "leaseOwner")],
            GlobalSecondaryIndexes=[
                {
                    "IndexName": "owners",
                    "KeySchema": [{"AttributeName": "leaseOwner", "KeyType": "HASH"}],
                    "Projection": {"ProjectionType": "KEYS_ONLY"},
                }
            ],
            BillingMode="PAY_PER_REQUEST",
        )

    def call(self, operation: str, **parameters: Any) -> tuple[int, Any]:
        headers = {"x-amz-target": f"DynamoDB_20120810.{operation}", "content-type": "application/x-amz-json-1.0"}
        body = json.dumps(parameters).encode()
        response = self._service.handle(operation, HttpRequest("POST", "/", headers, list(headers.items()), body))
        assert isinstance(response.body, bytes)
        return response.status, json.loads(response.body)

    def update(self, key: str, **parameters: Any) -> tuple[int, Any]:
        return self.call("UpdateItem", TableName="t", Key={"k": {"S": key}}, **parameters)

    def item(self, key: str) -> Any:
        return self.call("GetItem", TableName="t", Key={"k": {"S": key}})[1]["Item"]


@pytest.mark.parametrize("returned", ["NONE", "ALL_OLD", "ALL_NEW", "UPDATED_NEW", "UPDATED_OLD"])
@pytest.mark.parametrize(
    ("expression", "values"),
    [
        ("SET leaseCounter = :a", {":a": {"N": "8"}}),
        ("SET leaseOwner = :a REMOVE checkpointOwner ADD leaseCounter :b", {":a": {"S": "w2"}, ":b": {"N": "1"}}),
        ("ADD leaseCounter :a, fresh :a, throughputKBps :a", {":a": {"N": "2.25"}}),
        ("REMOVE leaseOwner, absent", {}),
        ("SET #o = :a, fresh = :b", {":a": {"SS": ["x"]}, ":b": {"B": "AQI="}}),
        ("SET leaseOwner = :a", {":a": {"N": "1"}}),
        ("SET leaseOwner = :a", {":a": {"S": ""}}),
        ("ADD leaseOwner :a", {":a": {"N": "1"}}),
        ("ADD parents :a", {":a": {"SS": ["c"]}}),
        ("SET leaseCounter = leaseCounter + :a", {":a": {"N": "1"}}),
    ],
)
def test_both_ways_lead_to_the_same_item_and_answer(expression: str, values: dict[str, Any], returned: str) -> None:
    table = Table()
    request: dict[str, Any] = {"UpdateExpression": expression, "ReturnValues": returned}
    if values:
        request["ExpressionAttributeValues"] = values
    if "#o" in expression:
        request["ExpressionAttributeNames"] = {"#o": "other"}
    outcomes = []
    for key in ("moto's way", "the short way"):
        table.call("PutItem", TableName="t", Item={"k": {"S": key}, **LEASE})
        status, answer = table.update(key, **request)
        outcomes.append(json.loads(json.dumps([status, answer, table.item(key)]).replace(key, "the key")))
    assert outcomes[0] == outcomes[1]


def test_a_known_update_takes_the_short_way_and_keeps_its_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table()
    table.call("PutItem", TableName="t", Item={"k": {"S": "a"}, **LEASE})
    ways: list[bool] = []
    serve = DirectUpdates.serve

    def watched(self: DirectUpdates, request: dict[str, Any]) -> Any:
        reply = serve(self, request)
        ways.append(reply is not None)
        return reply

    monkeypatch.setattr(DirectUpdates, "serve", watched)
    for counter in (7, 8, 9):
        renewal = {
            "UpdateExpression": "SET leaseCounter = :n",
            "ConditionExpression": "leaseCounter = :c",
            "ExpressionAttributeValues": {":c": {"N": str(counter)}, ":n": {"N": str(counter + 1)}},
        }
        assert table.update("a", **renewal)[0] == 200
    assert ways == [False, True, True]
    status, refusal = table.update("a", **renewal, ReturnValuesOnConditionCheckFailure="ALL_OLD")
    assert status == 400
    assert refusal["__type"].endswith("ConditionalCheckFailedException")
    assert refusal["Item"]["leaseCounter"] == {"N": "10"}
