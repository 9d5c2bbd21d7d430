"""Limits, as boto3 reports them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import EventStreamError

from kcl_dagster.emulator import Emulator

pytestmark = pytest.mark.server

STREAM = "clicks"
S0 = "shardId-000000000000"


class Clock:
    """Stands still unless moved."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limited(clock: Clock) -> Iterator[Any]:
    """A Kinesis client under the limits of AWS, on a clock that stands still."""
    with Emulator(clock=clock) as aws:
        kinesis = aws.client("kinesis")
        kinesis.create_stream(StreamName=STREAM, ShardCount=1)
        yield kinesis


def _iterator(kinesis: Any) -> str:
    reply = kinesis.get_shard_iterator(StreamName=STREAM, ShardId=S0, ShardIteratorType="TRIM_HORIZON")
    return str(reply["ShardIterator"])


def test_the_sixth_read_within_a_second_is_throttled(limited: Any, clock: Clock) -> None:
    iterator = _iterator(limited)
    for _ in range(5):
        limited.get_records(ShardIterator=iterator)
    with pytest.raises(limited.exceptions.ProvisionedThroughputExceededException, match=S0):
        limited.get_records(ShardIterator=iterator)
    clock.now += 1
    limited.get_records(ShardIterator=iterator)


def test_records_beyond_a_thousand_a_second_fail_one_by_one(limited: Any) -> None:
    records = [{"Data": b"x", "PartitionKey": str(i)} for i in range(500)]
    failed = [limited.put_records(StreamName=STREAM, Records=records)["FailedRecordCount"] for _ in range(3)]
    assert failed == [0, 0, 500]


def test_an_old_iterator_has_expired(limited: Any, clock: Clock) -> None:
    iterator = _iterator(limited)
    clock.now += 301
    with pytest.raises(limited.exceptions.ExpiredIteratorException):
        limited.get_records(ShardIterator=iterator)


def test_a_subscription_ends_quietly_after_five_minutes_and_loudly_when_taken_over(
    limited: Any, clock: Clock
) -> None:
    arn = limited.describe_stream_summary(StreamName=STREAM)["StreamDescriptionSummary"]["StreamARN"]
    consumer = limited.register_stream_consumer(StreamARN=arn, ConsumerName="reader")["Consumer"]["ConsumerARN"]

    def subscribe() -> Any:
        return limited.subscribe_to_shard(ConsumerARN=consumer, ShardId=S0, StartingPosition={"Type": "LATEST"})[
            "EventStream"
        ]

    first = subscribe()
    pushed = iter(first)
    next(pushed)
    with pytest.raises(limited.exceptions.ResourceInUseException):
        subscribe()
    clock.now += 5
    second = subscribe()
    with pytest.raises(EventStreamError, match="ResourceInUseException"):
        list(pushed)
    clock.now += 300
    assert len(list(second)) <= 1
    first.close()
    second.close()
