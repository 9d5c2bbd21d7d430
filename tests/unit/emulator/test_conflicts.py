"""Transactions that are under way keep other writes from their items."""

import json
from typing import Any

import pytest

from kcl_dagster.emulator.backends.conflicts import Conflicts

TABLE = "leases"


def conflicts() -> Conflicts:
    return Conflicts({TABLE: ["leaseKey"]}.__getitem__)


def put(key: str) -> dict[str, Any]:
    return {"Put": {"TableName": TABLE, "Item": {"leaseKey": {"S": key}, "owner": {"S": "me"}}}}


def update(key: str) -> dict[str, Any]:
    return {"Update": {"TableName": TABLE, "Key": {"leaseKey": {"S": key}}}}


def transaction(*parts: dict[str, Any]) -> bytes:
    return json.dumps({"TransactItems": parts}).encode()


def single(key: str) -> bytes:
    return json.dumps({"TableName": TABLE, "Key": {"leaseKey": {"S": key}}}).encode()


@pytest.mark.audit("C7")
def test_a_transaction_conflicts_with_another_that_writes_one_of_its_items() -> None:
    under_way = conflicts()
    with under_way.during("TransactWriteItems", transaction(put("a"), update("lock"))) as refused:
        assert refused is None
        with under_way.during("TransactWriteItems", transaction(put("b"), update("lock"))) as second:
            assert second is not None
            assert second["__type"].endswith("TransactionCanceledException")
            assert [reason["Code"] for reason in second["CancellationReasons"]] == ["None", "TransactionConflict"]
        with under_way.during("UpdateItem", single("lock")) as alone:
            assert alone is not None
            assert alone["__type"].endswith("TransactionConflictException")
        for operation, body in (
            ("UpdateItem", single("b")),
            ("GetItem", single("lock")),
            ("TransactWriteItems", transaction(put("b"))),
        ):
            with under_way.during(operation, body) as other:
                assert other is None
    with under_way.during("UpdateItem", single("lock")) as afterwards:
        assert afterwards is None


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"TransactItems": [{}]}', b'{"TransactItems": [{"Put": 1}]}']
)
def test_a_request_that_makes_no_sense_is_left_to_its_service(body: bytes) -> None:
    under_way = conflicts()
    with under_way.during("TransactWriteItems", body) as refused:
        assert refused is None
