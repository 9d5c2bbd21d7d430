"""Faults, clock and health as clients meet them."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
from botocore.exceptions import ClientError, HTTPClientError

from kcl_dagster.emulator import Emulator, FaultRule

pytestmark = pytest.mark.server

STREAM = "clicks"
KEY = {"leaseKey": {"S": "a"}}


@pytest.fixture
def leases(aws: Emulator) -> Any:
    dynamodb = aws.client("dynamodb")
    dynamodb.create_table(
        TableName="leases",
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    dynamodb.put_item(TableName="leases", Item={**KEY, "leaseCounter": {"N": "0"}})
    return dynamodb


def _renew(dynamodb: Any, counter: int) -> None:
    dynamodb.update_item(
        TableName="leases",
        Key=KEY,
        UpdateExpression="SET leaseCounter = :n",
        ConditionExpression="leaseCounter = :c",
        ExpressionAttributeValues={":c": {"N": str(counter)}, ":n": {"N": str(counter + 1)}},
    )


def _counter(dynamodb: Any) -> int:
    return int(dynamodb.get_item(TableName="leases", Key=KEY)["Item"]["leaseCounter"]["N"])


@pytest.mark.parametrize("applied", [False, True])
def test_an_answer_that_is_lost_hides_whether_the_write_was_applied(
    aws: Emulator, leases: Any, applied: bool
) -> None:
    aws.faults.add(FaultRule(operation="UpdateItem", drop=True, applied=applied, times=1))
    with pytest.raises(HTTPClientError):
        _renew(leases, 0)
    assert _counter(leases) == (1 if applied else 0)


@pytest.mark.parametrize("applied", [False, True])
def test_an_error_can_come_before_or_after_the_write(aws: Emulator, leases: Any, applied: bool) -> None:
    aws.faults.add(
        FaultRule(
            service="dynamodb",
            operation="UpdateItem",
            error="InternalServerError",
            status=500,
            applied=applied,
            times=1,
        )
    )
    with pytest.raises(ClientError, match="InternalServerError"):
        _renew(leases, 0)
    assert _counter(leases) == (1 if applied else 0)


def test_a_client_that_retries_meets_its_own_write(aws: Emulator, leases: Any) -> None:
    aws.faults.add(FaultRule(operation="UpdateItem", drop=True, applied=True, times=1))
    retrying = aws.client("dynamodb", retries={"total_max_attempts": 3})
    with pytest.raises(leases.exceptions.ConditionalCheckFailedException):
        _renew(retrying, 0)
    assert _counter(leases) == 1


@pytest.mark.parametrize(
    ("service", "operation", "call"),
    [
        ("kinesis", "ListStreams", lambda client: client.list_streams()),
        ("dynamodb", "ListTables", lambda client: client.list_tables()),
        ("s3", "GET", lambda client: client.list_buckets()),
        ("sts", "GetCallerIdentity", lambda client: client.get_caller_identity()),
    ],
)
def test_every_service_fails_by_name(aws: Emulator, service: str, operation: str, call: Any) -> None:
    client = aws.client(service)
    aws.faults.add(FaultRule(service=service, operation=operation, error="ThrottlingException", message="too fast"))
    with pytest.raises(ClientError) as failure:
        call(client)
    error: Any = failure.value.response
    assert (error["Error"]["Code"], error["Error"]["Message"]) == ("ThrottlingException", "too fast")
    assert error["ResponseMetadata"]["HTTPStatusCode"] == 400
    aws.faults.clear()
    call(client)


def test_a_fault_can_be_a_delay_alone(aws: Emulator) -> None:
    kinesis = aws.client("kinesis")
    kinesis.list_streams()
    aws.faults.add(FaultRule(operation="ListStreams", latency_seconds=0.3, times=1))
    started = time.monotonic()
    assert kinesis.list_streams()["StreamNames"] == []
    assert time.monotonic() - started >= 0.3


def test_one_worker_can_be_cut_off_alone(aws: Emulator, leases: Any) -> None:
    aws.faults.add(FaultRule(service="dynamodb", containing="worker-1", drop=True))

    def take(owner: str) -> None:
        leases.update_item(
            TableName="leases",
            Key=KEY,
            UpdateExpression="SET leaseOwner = :w",
            ExpressionAttributeValues={":w": {"S": owner}},
        )

    with pytest.raises(HTTPClientError):
        take("worker-1")
    take("worker-2")


# The same over HTTP, for emulators in other processes


def test_rules_are_added_listed_and_removed_over_http(aws: Emulator) -> None:
    rules = [
        {"operation": "ListStreams", "error": "LimitExceededException", "times": 1},
        {"service": "dynamodb", "drop": True, "applied": True, "probability": 0.5},
    ]
    assert _control(aws, "POST", "faults", rules)["rules"] == rules
    with pytest.raises(ClientError, match="LimitExceededException"):
        aws.client("kinesis").list_streams()
    assert _control(aws, "GET", "faults") == {"rules": rules[1:], "struck": 1}
    assert _control(aws, "DELETE", "faults")["rules"] == []
    assert _control(aws, "POST", "faults", {"drop": True})["rules"] == [{"drop": True}]


@pytest.mark.parametrize(
    ("path", "body", "complaint"),
    [
        ("faults", {}, "needs one of"),
        ("faults", {"drop": True, "probability": 2}, "probability"),
        ("faults", [{"drop": True}, {"typo": 1}], "typo"),
        ("clock", {"advance_seconds": -1}, "only be advanced"),
        ("clock", {}, "advance_seconds"),
        ("clock", [], "advance_seconds"),
    ],
)
def test_nonsense_is_refused_in_words(aws: Emulator, path: str, body: object, complaint: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refusal:
        _control(aws, "POST", path, body)
    with refusal.value as answer:
        assert answer.code == 400
        assert complaint in json.loads(answer.read())["error"]


def test_the_clock_is_advanced_over_http(aws: Emulator) -> None:
    kinesis = aws.client("kinesis")
    kinesis.create_stream(StreamName=STREAM, ShardCount=1)
    kinesis.put_record(StreamName=STREAM, Data=b"x", PartitionKey="k")
    before = _control(aws, "GET", "clock")["now"]
    assert _control(aws, "POST", "clock", {"advance_seconds": 25 * 3600})["now"] >= before + 25 * 3600
    iterator = kinesis.get_shard_iterator(
        StreamName=STREAM, ShardId="shardId-000000000000", ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    assert kinesis.get_records(ShardIterator=iterator)["Records"] == []


def test_health_is_answered_whatever_fails(aws: Emulator) -> None:
    aws.faults.add(FaultRule(drop=True))
    assert _control(aws, "GET", "health")["status"] == "ok"


def test_other_paths_are_not_part_of_it(aws: Emulator) -> None:
    with pytest.raises(urllib.error.HTTPError) as refusal:
        _control(aws, "GET", "coffee")
    with refusal.value as answer:
        assert answer.code == 404


def _control(aws: Emulator, method: str, path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{aws.endpoint_url}/_kcl/{path}", data, method=method)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read())
