"""The fast parser returns what botocore's own returns, and leaves to botocore what it cannot parse."""

import base64
import json
from typing import Any

import pytest
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError

from kcl_dagster import aws
from kcl_dagster.tables.scan_answers import install
from tests.doubles.answered_requests import answered, stock_client

ROW = {"leaseKey": {"S": "shardId-0"}, "leaseCounter": {"N": "7"}, "checkpoint": {"S": "schlüssel"}}
KINDS = {
    "leaseKey": {"S": "a"},
    "binary": {"B": base64.b64encode(b"\x00\xff").decode()},
    "empty": {"B": ""},
    "flag": {"BOOL": False},
    "nothing": {"NULL": True},
    "texts": {"SS": ["a", "b"]},
    "numbers": {"NS": ["1", "2.5"]},
    "blobs": {"BS": [base64.b64encode(b"x").decode()]},
    "list": {"L": [{"S": "x"}, {"L": []}, {"M": {"B": {"B": "AAE="}}}]},
    "map": {"M": {"S": {"S": "x"}, "M": {"M": {}}}},
}


SCAN = "dynamodb.Scan"


def client(answer: bytes, status: int = 200, *, fast: bool) -> Any:
    """A client whose every request is answered with these bytes."""
    made = answered(stock_client("dynamodb"), SCAN, answer, status)
    if fast:
        install(made)
    return made


def both(answer: object) -> tuple[Any, Any]:
    body = json.dumps(answer).encode()
    stock, fast = (client(body, fast=fast).scan(TableName="orders") for fast in (False, True))
    return stock, fast


@pytest.mark.parametrize(
    "answer",
    [
        {"Items": [], "Count": 0, "ScannedCount": 0},
        {"Items": [ROW, ROW], "Count": 2, "ScannedCount": 2, "LastEvaluatedKey": {"leaseKey": {"S": "shardId-0"}}},
        {"Items": [KINDS], "Count": 1, "ScannedCount": 1},
        {"Items": [{}], "Count": 1},
        {
            "Items": [ROW],
            "Count": 1,
            "ConsumedCapacity": {"TableName": "orders", "CapacityUnits": 0.5, "Table": {"CapacityUnits": 0.5}},
        },
    ],
)
def test_the_answers_are_equal(answer: object) -> None:
    stock, fast = both(answer)
    assert fast == stock
    assert fast["Items"] or fast["Count"] == 0


@pytest.mark.parametrize(
    "answer",
    [
        {"Items": [{"leaseKey": {"S": "a", "N": None}}], "Count": 1},
        {"Items": [ROW], "Count": 1, "LastEvaluatedKey": None},
        {"Count": 3},
    ],
)
def test_an_answer_it_does_not_know_goes_to_botocore(answer: object) -> None:
    stock, fast = both(answer)
    assert fast == stock


def test_errors_are_botocores() -> None:
    body = json.dumps({"__type": "ThrottlingException", "message": "too fast"}).encode()
    for fast in (False, True):
        with pytest.raises(ClientError, match="ThrottlingException"):
            client(body, 400, fast=fast).scan(TableName="orders")


def test_an_answer_that_was_cut_off_is_refused() -> None:
    body = json.dumps({"Items": [ROW] * 3, "Count": 3}).encode()[:-20]
    ours = aws.client("dynamodb", region="us-east-1", access_key="a", secret_key="b")
    install(ours)
    with pytest.raises(ResponseParserError, match="not whole"):
        answered(ours, SCAN, body).scan(TableName="orders")


def test_botocore_parses_nothing_of_a_large_answer() -> None:
    """What makes a scan of 100,000 rows affordable."""
    parsed: list[int] = []
    body = json.dumps({"Items": [ROW] * 100, "Count": 100}).encode()
    made = client(body, fast=True)
    made.meta.events.register_last(
        "before-parse.dynamodb.Scan", lambda response_dict, **_: parsed.append(len(response_dict["body"]))
    )
    assert len(made.scan(TableName="orders")["Items"]) == 100
    assert parsed == [len(b"{}")]


def test_it_is_installed_once() -> None:
    made = client(json.dumps({"Items": [ROW], "Count": 1}).encode(), fast=True)
    install(made)
    assert made.scan(TableName="orders")["Items"] == [ROW]


def test_a_stand_in_without_events_is_left_alone() -> None:
    install(object())
