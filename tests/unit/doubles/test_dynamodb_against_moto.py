"""FakeDynamoDB and moto give the same answers to the same random operations."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moto import mock_aws

from tests.doubles.dynamodb import FakeDynamoDB

pytestmark = pytest.mark.slow

TABLE = "leases"
CREATE = {
    "TableName": TABLE,
    "AttributeDefinitions": [
        {"AttributeName": "leaseKey", "AttributeType": "S"},
        {"AttributeName": "leaseOwner", "AttributeType": "S"},
    ],
    "KeySchema": [{"AttributeName": "leaseKey", "KeyType": "HASH"}],
    "BillingMode": "PAY_PER_REQUEST",
    "GlobalSecondaryIndexes": [
        {
            "IndexName": "owner",
            "KeySchema": [
                {"AttributeName": "leaseOwner", "KeyType": "HASH"},
                {"AttributeName": "leaseKey", "KeyType": "RANGE"},
            ],
            "Projection": {"ProjectionType": "KEYS_ONLY"},
        }
    ],
}

Operation = tuple[str, dict[str, Any]]

keys = st.sampled_from(["shard-0", "shard-1", "shard-2", "Leader"])
owners = st.sampled_from(["a", "b", "c"])
numbers = st.integers(-3, 12).map(str)
attributes = st.sampled_from(["leaseOwner", "checkpointOwner", "leaseCounter", "childShardIds", "kdBatch"])


@st.composite
def items(draw: st.DrawFn) -> dict[str, Any]:
    item: dict[str, Any] = {"leaseKey": {"S": draw(keys)}}
    for name, strategy in {
        "leaseOwner": owners.map(lambda v: {"S": v}),
        "checkpointOwner": owners.map(lambda v: {"S": v}),
        "leaseCounter": numbers.map(lambda v: {"N": v}),
        "kdBatch": st.sampled_from(["1.50", "7", "007"]).map(lambda v: {"N": v}),  # moto cannot add to 1E2
        "childShardIds": st.sets(owners, min_size=1).map(lambda v: {"SS": sorted(v)}),
        "sts": st.lists(numbers, max_size=2).map(lambda v: {"M": {"C": {"L": [{"N": n} for n in v]}}}),
    }.items():
        if draw(st.booleans()):
            item[name] = draw(strategy)
    return item


@st.composite
def conditions(draw: st.DrawFn, depth: int = 2) -> tuple[str, dict[str, Any]]:
    """A condition and the values it uses; placeholders are numbered by content, so equal ones may be shared."""
    shape = draw(st.sampled_from(["exists", "compare", "in", "between"] + (["and", "or", "not"] if depth else [])))
    if shape in ("and", "or"):
        (left, v1), (right, v2) = draw(conditions(depth - 1)), draw(conditions(depth - 1))
        return f"({left}) {shape.upper()} {right}", {**v1, **v2}
    if shape == "not":
        inner, values = draw(conditions(depth - 1))
        return f"NOT ({inner})", values
    name = draw(attributes)
    if shape == "exists":
        return f"{draw(st.sampled_from(['attribute_exists', 'attribute_not_exists']))}({name})", {}
    if name in ("leaseOwner", "checkpointOwner"):
        pool, kind = ["a", "b", "c"], "S"
    elif name == "childShardIds":
        member = draw(owners)
        return f"contains(childShardIds, :m{member})", {f":m{member}": {"S": member}}
    else:
        pool, kind = ["-1", "0", "7", "100"], "N"
    first, second = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))
    one, two = (f":{kind}{v.replace('-', 'm')}" for v in (first, second))
    values = {one: {kind: first}, two: {kind: second}}
    if shape == "in":
        return f"{name} IN ({one}, {two})", values
    if shape == "between" and kind == "N":
        low, high = sorted((one, two), key=lambda p: int(values[p]["N"]))
        return f"{name} BETWEEN {low} AND {high}", values
    return f"{name} {draw(st.sampled_from(['=', '<>', '<', '<=', '>', '>=']))} {one}", {one: {kind: first}}


UPDATES: list[tuple[str, dict[str, Any]]] = [
    ("SET leaseOwner = :uo", {":uo": {"S": "b"}}),
    ("SET leaseOwner = :uo, leaseCounter = :uc REMOVE checkpointOwner", {":uo": {"S": "a"}, ":uc": {"N": "5"}}),
    ("SET leaseCounter = leaseCounter + :u1", {":u1": {"N": "1"}}),
    ("SET leaseCounter = if_not_exists(leaseCounter, :u0) + :u1", {":u0": {"N": "0"}, ":u1": {"N": "1"}}),
    ("ADD leaseCounter :u1, kdBatch :u1", {":u1": {"N": "1"}}),
    ("REMOVE leaseOwner, checkpointOwner ADD leaseCounter :u1", {":u1": {"N": "1"}}),
    ("SET checkpointOwner = leaseOwner, leaseOwner = :uo", {":uo": {"S": "c"}}),
    ("ADD childShardIds :us", {":us": {"SS": ["b", "z"]}}),
    ("DELETE childShardIds :us", {":us": {"SS": ["a", "b", "c"]}}),
    ("SET sts.C = :ul", {":ul": {"L": [{"N": "1"}]}}),
    ("REMOVE sts.C[0]", {}),
]


@st.composite
def operations(draw: st.DrawFn) -> Operation:
    kind = draw(st.sampled_from(["put_item", "update_item", "update_item", "update_item", "delete_item"]))
    request: dict[str, Any] = {"TableName": TABLE}
    values: dict[str, Any] = {}
    if kind == "put_item":
        request["Item"] = draw(items())
    else:
        request["Key"] = {"leaseKey": {"S": draw(keys)}}
    if kind == "update_item":
        request["UpdateExpression"], given_values = draw(st.sampled_from(UPDATES))
        values.update(given_values)
    if draw(st.booleans()):
        request["ConditionExpression"], given_values = draw(conditions())
        values.update(given_values)
        if draw(st.booleans()):
            request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
    if values:
        request["ExpressionAttributeValues"] = values
    # moto leaves unchanged attributes out of UPDATED_*, so those have a test of their own.
    choices = ["NONE", "ALL_OLD"] + (["ALL_NEW"] if kind == "update_item" else [])
    request["ReturnValues"] = draw(st.sampled_from(choices))
    return kind, request


@pytest.fixture(scope="module")
def moto_client() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "x", "DEFAULT_REGION": "us-east-1"}.items():
            patch.setenv(f"AWS_{name}", value)
        with mock_aws():
            yield boto3.client("dynamodb", region_name="us-east-1")


def outcome(call: Callable[[], Mapping[str, Any]]) -> Any:
    """What a caller can tell apart: the answer, or the error's code and the item it carries."""
    try:
        response = call()
    except ClientError as error:
        code = error.response["Error"]["Code"]
        return ("error", code, comparable(error.response.get("Item")))
    return ("ok", comparable(response.get("Attributes")))


def comparable(item: Any) -> Any:
    """Sets in order, numbers by value: moto keeps the spelling it was given, DynamoDB does not."""
    if not item:
        return None
    shaped: dict[str, Any] = {}
    for name, value in item.items():
        ((kind, content),) = value.items()
        if kind == "N":
            shaped[name] = float(content)
        elif kind == "SS":
            shaped[name] = sorted(content)
        else:
            shaped[name] = value
    return shaped


def everything(client: Any) -> dict[str, Any]:
    return {item["leaseKey"]["S"]: comparable(item) for item in client.scan(TableName=TABLE)["Items"]}


def owned(client: Any, owner: str) -> list[str]:
    found = client.query(
        TableName=TABLE,
        IndexName="owner",
        KeyConditionExpression="leaseOwner = :o",
        ExpressionAttributeValues={":o": {"S": owner}},
    )
    return [item["leaseKey"]["S"] for item in found["Items"]]


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(script=st.lists(operations(), min_size=1, max_size=12))
def test_random_operations_have_the_same_outcome_and_leave_the_same_items(
    moto_client: Any, script: list[Operation]
) -> None:
    fake = FakeDynamoDB()
    fake.create_table(**CREATE)
    moto_client.create_table(**CREATE)
    try:
        for name, request in script:
            ours = outcome(partial(getattr(fake, name), **request))
            theirs = outcome(partial(getattr(moto_client, name), **request))
            assert ours == theirs, (name, request)
        assert everything(fake) == everything(moto_client)
        for owner in ("a", "b", "c"):
            assert owned(fake, owner) == owned(moto_client, owner)
    finally:
        moto_client.delete_table(TableName=TABLE)
