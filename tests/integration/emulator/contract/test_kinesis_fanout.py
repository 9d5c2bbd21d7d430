"""Enhanced fan-out: consumers and what is pushed to them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from mypy_boto3_kinesis import KinesisClient

from tests.integration.emulator.contract.streams import KEYS, TestStream, refused

pytestmark = pytest.mark.server

S0, S1, S2 = (f"shardId-{index:012d}" for index in range(3))


@pytest.fixture
def stream(kinesis: KinesisClient) -> TestStream:
    return TestStream.create(kinesis)


def test_a_consumer_is_registered_described_listed_and_removed(stream: TestStream) -> None:
    kinesis, arn = stream.client, stream.arn
    registered = kinesis.register_stream_consumer(StreamARN=arn, ConsumerName="reader")["Consumer"]
    assert registered["ConsumerARN"].startswith(f"{arn}/consumer/reader:")
    by_name = kinesis.describe_stream_consumer(StreamARN=arn, ConsumerName="reader")["ConsumerDescription"]
    by_arn = kinesis.describe_stream_consumer(ConsumerARN=registered["ConsumerARN"])["ConsumerDescription"]
    assert by_name == by_arn
    assert by_arn["StreamARN"] == arn
    assert [c["ConsumerName"] for c in kinesis.list_stream_consumers(StreamARN=arn)["Consumers"]] == ["reader"]
    assert stream.summary()["ConsumerCount"] == 1
    _wait_active(stream, registered["ConsumerARN"])
    kinesis.deregister_stream_consumer(ConsumerARN=registered["ConsumerARN"])


def test_a_consumer_name_is_taken_once(stream: TestStream) -> None:
    arn = stream.arn
    stream.client.register_stream_consumer(StreamARN=arn, ConsumerName="reader")
    with refused("ResourceInUseException"):
        stream.client.register_stream_consumer(StreamARN=arn, ConsumerName="reader")


def test_a_missing_consumer_is_not_found(stream: TestStream) -> None:
    with refused("ResourceNotFoundException"):
        stream.client.describe_stream_consumer(StreamARN=stream.arn, ConsumerName="nobody")


def test_consumers_are_listed_in_pages(stream: TestStream) -> None:
    arn = stream.arn
    for name in ("a", "b", "c"):
        stream.client.register_stream_consumer(StreamARN=arn, ConsumerName=name)
    first = stream.client.list_stream_consumers(StreamARN=arn, MaxResults=2)
    rest = stream.client.list_stream_consumers(StreamARN=arn, NextToken=first["NextToken"])
    names = [c["ConsumerName"] for page in (first, rest) for c in page["Consumers"]]
    assert names == ["a", "b", "c"]


def test_records_are_pushed_from_the_position_that_was_asked_for(stream: TestStream) -> None:
    _, second = stream.put(b"1", b"2")
    with _subscription(stream, S0, Type="AT_SEQUENCE_NUMBER", SequenceNumber=second) as events:
        assert _data(next(events)) == [b"2"]
        stream.put(b"3")
        assert _data(_first_with_records(events)) == [b"3"]


def test_reading_goes_on_after_the_continuation_of_an_event(stream: TestStream) -> None:
    stream.put(b"1", b"2")
    with _subscription(stream, S0, Type="TRIM_HORIZON") as events:
        event = _first_with_records(events)
    stream.put(b"3")
    after = {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": event["ContinuationSequenceNumber"]}
    with _subscription(stream, S0, consumer="second", **after) as events:
        assert _data(_first_with_records(events)) == [b"3"]


def test_the_end_of_a_shard_names_its_children_and_ends_the_subscription(stream: TestStream) -> None:
    stream.put(b"1")
    with _subscription(stream, S0, Type="TRIM_HORIZON") as events:
        assert _data(next(events)) == [b"1"]
        stream.split(S0, at=KEYS // 2)
        remaining = list(events)
    last = remaining[-1]
    assert [child["ShardId"] for child in last["ChildShards"]] == [S1, S2]
    assert "ContinuationSequenceNumber" not in last


def test_a_closed_shard_is_pushed_to_its_end(stream: TestStream) -> None:
    stream.put(b"1", b"2")
    stream.split(S0, at=KEYS // 2)
    with _subscription(stream, S0, Type="TRIM_HORIZON") as events:
        every = list(events)
    assert [piece for event in every for piece in _data(event)] == [b"1", b"2"]
    assert len(every[-1]["ChildShards"]) == 2


def test_consumers_do_not_take_records_from_each_other(stream: TestStream) -> None:
    stream.put(b"1")
    with (
        _subscription(stream, S0, consumer="a", Type="TRIM_HORIZON") as a,
        _subscription(stream, S0, consumer="b", Type="TRIM_HORIZON") as b,
    ):
        assert _data(_first_with_records(a)) == _data(_first_with_records(b)) == [b"1"]


@contextmanager
def _subscription(
    stream: TestStream, shard_id: str, consumer: str = "reader", **position: Any
) -> Iterator[Iterator[Any]]:
    registered = stream.client.register_stream_consumer(StreamARN=stream.arn, ConsumerName=consumer)
    arn = registered["Consumer"]["ConsumerARN"]
    _wait_active(stream, arn)
    where: Any = position
    events = stream.client.subscribe_to_shard(ConsumerARN=arn, ShardId=shard_id, StartingPosition=where)
    with closing(events["EventStream"]) as pushed:
        yield (event["SubscribeToShardEvent"] for event in pushed)


def _wait_active(stream: TestStream, consumer_arn: str) -> None:

    deadline = time.monotonic() + 10
    while True:
        described = stream.client.describe_stream_consumer(ConsumerARN=consumer_arn)["ConsumerDescription"]
        if described["ConsumerStatus"] == "ACTIVE":
            return
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _first_with_records(events: Iterator[Any]) -> Any:
    return next(event for event in events if event["Records"])


def _data(event: Any) -> list[bytes]:
    return [record["Data"] for record in event["Records"]]
