"""Creating, describing, configuring and deleting streams."""

from __future__ import annotations

import time

import pytest
from mypy_boto3_kinesis import KinesisClient

from tests.integration.emulator.contract.server import Server, unique
from tests.integration.emulator.contract.streams import TestStream, covers_all_keys, hash_range, refused

pytestmark = pytest.mark.server


def test_a_new_stream_becomes_active_and_describes_itself(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis, shards=3)
    summary = stream.summary()
    assert summary["StreamName"] == stream.name
    assert summary["StreamARN"].endswith(f":stream/{stream.name}")
    assert (summary["OpenShardCount"], summary["ConsumerCount"], summary["RetentionPeriodHours"]) == (3, 0, 24)
    described = kinesis.describe_stream(StreamName=stream.name)["StreamDescription"]
    assert (len(described["Shards"]), described["HasMoreShards"]) == (3, False)


def test_describing_a_stream_pages_through_its_shards(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis, shards=3)
    first = kinesis.describe_stream(StreamName=stream.name, Limit=2)["StreamDescription"]
    assert (len(first["Shards"]), first["HasMoreShards"]) == (2, True)
    rest = kinesis.describe_stream(StreamName=stream.name, ExclusiveStartShardId=first["Shards"][-1]["ShardId"])[
        "StreamDescription"
    ]
    assert (len(rest["Shards"]), rest["HasMoreShards"]) == (1, False)


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_the_shards_of_a_new_stream_cover_all_hash_keys_evenly(kinesis: KinesisClient, shards: int) -> None:
    stream = TestStream.create(kinesis, shards)
    assert covers_all_keys(stream.shards())
    sizes = [end - start for start, end in map(hash_range, stream.shards())]
    assert max(sizes) - min(sizes) <= shards


def test_a_missing_stream_is_not_found(kinesis: KinesisClient) -> None:
    with refused("ResourceNotFoundException"):
        kinesis.describe_stream_summary(StreamName="nowhere")
    with refused("ResourceNotFoundException"):
        kinesis.put_record(StreamName="nowhere", Data=b"x", PartitionKey="k")
    with refused("ResourceNotFoundException"):
        kinesis.list_shards(StreamName="nowhere")
    with refused("ResourceNotFoundException"):
        kinesis.get_shard_iterator(StreamName="nowhere", ShardId="shardId-000000000000", ShardIteratorType="LATEST")


def test_a_name_is_taken_once(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    with refused("ResourceInUseException"):
        kinesis.create_stream(StreamName=stream.name, ShardCount=1)


def test_streams_are_listed_by_name_in_pages(kinesis: KinesisClient) -> None:
    created = sorted(TestStream.create(kinesis).name for _ in range(3))
    seen: list[str] = []
    after = "stream"
    while True:
        page = kinesis.list_streams(ExclusiveStartStreamName=after, Limit=2)
        seen += page["StreamNames"]
        if not page["HasMoreStreams"]:
            break
        after = seen[-1]
    assert set(created) <= set(seen)
    assert seen == sorted(seen)


def test_streams_are_known_by_arn_too(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    arn = stream.arn
    shard_id = kinesis.list_shards(StreamARN=arn)["Shards"][0]["ShardId"]
    kinesis.put_record(StreamARN=arn, Data=b"x", PartitionKey="k")
    iterator = kinesis.get_shard_iterator(StreamARN=arn, ShardId=shard_id, ShardIteratorType="TRIM_HORIZON")[
        "ShardIterator"
    ]
    assert len(kinesis.get_records(StreamARN=arn, ShardIterator=iterator)["Records"]) == 1
    assert kinesis.describe_stream_summary(StreamARN=arn)["StreamDescriptionSummary"]["StreamARN"] == arn


def test_retention_only_grows_by_increase_and_only_shrinks_by_decrease(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    kinesis.increase_stream_retention_period(StreamName=stream.name, RetentionPeriodHours=48)
    stream.wait()
    assert stream.summary()["RetentionPeriodHours"] == 48
    with refused("InvalidArgumentException"):
        kinesis.increase_stream_retention_period(StreamName=stream.name, RetentionPeriodHours=24)
    with refused("InvalidArgumentException"):
        kinesis.decrease_stream_retention_period(StreamName=stream.name, RetentionPeriodHours=72)
    kinesis.decrease_stream_retention_period(StreamName=stream.name, RetentionPeriodHours=24)
    stream.wait()
    assert stream.summary()["RetentionPeriodHours"] == 24


@pytest.mark.parametrize("hours", [1, 23, 8761])
def test_retention_outside_one_day_to_one_year_is_refused(kinesis: KinesisClient, hours: int) -> None:
    stream = TestStream.create(kinesis)
    change = kinesis.decrease_stream_retention_period if hours < 24 else kinesis.increase_stream_retention_period
    with refused("InvalidArgumentException"):
        change(StreamName=stream.name, RetentionPeriodHours=hours)


def test_an_on_demand_stream_starts_with_four_shards(kinesis: KinesisClient) -> None:
    name = unique("stream")
    kinesis.create_stream(StreamName=name, StreamModeDetails={"StreamMode": "ON_DEMAND"})
    stream = TestStream(kinesis, name)
    stream.wait()
    assert len(stream.shards()) == 4
    assert stream.summary()["StreamModeDetails"] == {"StreamMode": "ON_DEMAND"}


def test_the_mode_of_a_stream_can_change(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    for mode in ("ON_DEMAND", "PROVISIONED"):
        kinesis.update_stream_mode(StreamARN=stream.arn, StreamModeDetails={"StreamMode": mode})
        stream.wait()
        assert stream.summary()["StreamModeDetails"] == {"StreamMode": mode}


def test_tags_are_added_listed_and_removed(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    kinesis.add_tags_to_stream(StreamName=stream.name, Tags={"team": "clicks", "stage": "test"})
    kinesis.remove_tags_from_stream(StreamName=stream.name, TagKeys=["stage"])
    listed = kinesis.list_tags_for_stream(StreamName=stream.name)
    assert listed["Tags"] == [{"Key": "team", "Value": "clicks"}]
    assert listed["HasMoreTags"] is False


def test_a_deleted_stream_is_gone(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    kinesis.delete_stream(StreamName=stream.name)
    _wait_until_gone(stream)
    with refused("ResourceNotFoundException"):
        stream.summary()


def test_a_stream_with_consumers_is_deleted_only_by_force(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    kinesis.register_stream_consumer(StreamARN=stream.arn, ConsumerName="reader")
    with refused("ResourceInUseException"):
        kinesis.delete_stream(StreamName=stream.name)
    kinesis.delete_stream(StreamName=stream.name, EnforceConsumerDeletion=True)
    _wait_until_gone(stream)


def test_a_stream_created_again_has_a_new_birth_and_nothing_of_the_old_one(
    kinesis: KinesisClient, kinesis_server: Server
) -> None:
    stream = TestStream.create(kinesis, shards=2)
    stream.put(b"old")
    stream.split("shardId-000000000000", at=1000)
    before = stream.summary()["StreamCreationTimestamp"]
    old_iterator = stream.iterator("shardId-000000000000")
    kinesis.delete_stream(StreamName=stream.name)
    _wait_until_gone(stream)
    if kinesis_server.advance is None:
        time.sleep(1.1)  # creation times are told apart by whole seconds
    kinesis.create_stream(StreamName=stream.name, ShardCount=1)
    stream.wait()
    assert int(stream.summary()["StreamCreationTimestamp"].timestamp()) > int(before.timestamp())
    assert stream.shard_ids() == ["shardId-000000000000"]
    assert stream.read("shardId-000000000000") == []
    with refused("ResourceNotFoundException", "InvalidArgumentException"):
        kinesis.get_records(ShardIterator=old_iterator)


def _wait_until_gone(stream: TestStream) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            status = stream.summary()["StreamStatus"]
        except stream.client.exceptions.ResourceNotFoundException:
            return
        assert status == "DELETING"
        assert time.monotonic() < deadline
        time.sleep(0.02)
