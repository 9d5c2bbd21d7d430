"""Each documented limit, hit and switched off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcl_dagster.emulator.kinesis import Limits
from kcl_dagster.emulator.kinesis.limits import MIB
from kcl_dagster.emulator.kinesis.throttle import Bucket
from tests.unit.emulator.kit import KEYS, S0, STREAM, Engine, refused

THROTTLED = "ProvisionedThroughputExceededException"
OFF = Limits.none()


def test_five_reads_a_second_for_each_shard() -> None:
    engine = Engine(replace(OFF, reads=5), shards=2)
    iterator = engine.iterator()
    for _ in range(5):
        engine.page(iterator)
    with refused(THROTTLED):
        engine.page(iterator)
    engine.page(engine.iterator("shardId-000000000001"))
    engine.now += 0.2
    engine.page(iterator)
    with refused(THROTTLED):
        engine.page(iterator)


def test_a_page_of_ten_mebibytes_costs_five_seconds() -> None:
    engine = Engine(replace(OFF, read_bytes=2 * MIB))
    engine.put(*[bytes(MIB - 1)] * 11)
    iterator = engine.page(engine.iterator())["NextShardIterator"]
    engine.now += 4.9
    with refused(THROTTLED):
        engine.page(iterator)
    engine.now += 0.2
    assert len(engine.page(iterator)["Records"]) == 1


def test_a_shard_takes_one_mebibyte_a_second() -> None:
    engine = Engine(replace(OFF, written_bytes=MIB))
    engine.put(bytes(MIB - 1))
    with refused(THROTTLED):
        engine.put(b"x")
    engine.now += 1
    engine.put(bytes(MIB - 1))


def test_a_shard_takes_a_thousand_records_a_second_and_says_which_were_too_many() -> None:
    engine = Engine(replace(OFF, written_records=1000))
    records = [{"Data": b"x", "PartitionKey": str(i)} for i in range(400)]
    replies = [engine.call("PutRecords", StreamName=STREAM, Records=records) for _ in range(3)]
    assert [reply["FailedRecordCount"] for reply in replies] == [0, 0, 200]
    failed = replies[2]["Records"][-1]
    assert failed["ErrorCode"] == THROTTLED
    assert S0 in failed["ErrorMessage"]
    assert "SequenceNumber" not in failed
    assert len(engine.page(engine.iterator())["Records"]) == 1000


def test_five_iterators_a_second_for_each_shard() -> None:
    engine = Engine(replace(OFF, iterators=5))
    for _ in range(5):
        engine.iterator()
    with refused(THROTTLED):
        engine.iterator()
    engine.now += 1
    engine.iterator()


def test_an_iterator_lives_five_minutes() -> None:
    engine = Engine(Limits.aws())
    iterator = engine.iterator()
    engine.now += 300
    iterator = engine.page(iterator)["NextShardIterator"]
    engine.now += 301
    with refused("ExpiredIteratorException"):
        engine.page(iterator)


def test_a_listing_token_lives_five_minutes() -> None:
    engine = Engine(Limits.aws(), shards=3)
    token = engine.call("ListShards", StreamName=STREAM, MaxResults=1)["NextToken"]
    engine.now += 301
    with refused("ExpiredNextTokenException"):
        engine.call("ListShards", NextToken=token)


def test_a_put_of_many_carries_ten_mebibytes() -> None:
    engine = Engine()
    records = [{"Data": bytes(MIB - 1), "PartitionKey": "k"}] * 11
    with refused("InvalidArgumentException"):
        engine.call("PutRecords", StreamName=STREAM, Records=records)
    assert engine.read() == []
    assert engine.call("PutRecords", StreamName=STREAM, Records=records[:10])["FailedRecordCount"] == 0


def test_an_account_has_so_many_open_shards() -> None:
    engine = Engine(replace(OFF, open_shards=4), shards=3)
    with refused("LimitExceededException"):
        engine.call("CreateStream", StreamName="more", ShardCount=2)
    engine.split(S0, at=1000)
    with refused("LimitExceededException"):
        engine.split("shardId-000000000001", at=KEYS // 2)
    with refused("LimitExceededException"):
        engine.call("UpdateShardCount", StreamName=STREAM, TargetShardCount=5, ScalingType="UNIFORM_SCALING")


def test_a_stream_has_so_many_consumers() -> None:
    engine = Engine(replace(OFF, consumers_per_stream=2))
    arn = engine.call("DescribeStreamSummary", StreamName=STREAM)["StreamDescriptionSummary"]["StreamARN"]
    for name in ("a", "b"):
        engine.call("RegisterStreamConsumer", StreamARN=arn, ConsumerName=name)
    with refused("LimitExceededException"):
        engine.call("RegisterStreamConsumer", StreamARN=arn, ConsumerName="c")


def test_without_limits_nothing_is_throttled_and_nothing_expires() -> None:
    engine = Engine(Limits.none())
    iterator = engine.iterator()
    for _ in range(50):
        engine.put(bytes(MIB - 1))
        engine.page(iterator, Limit=1)
    engine.now += 3600
    engine.page(iterator, Limit=1)


@pytest.mark.parametrize("bad", [0, -1])
def test_a_limit_is_positive_or_off(bad: float) -> None:
    with pytest.raises(ValueError, match=r"Limits\.reads must be greater than zero"):
        Limits(reads=bad)


def test_a_bucket_refills_at_its_rate_and_no_further_than_a_second() -> None:
    bucket = Bucket(10)
    assert bucket.take(10, now=0)
    assert not bucket.take(1, now=0)
    assert bucket.take(5, now=0.5)
    assert bucket.take(10, now=100)
    assert not bucket.take(1, now=100)


def test_a_clock_that_steps_back_neither_fills_nor_drains_a_bucket() -> None:
    bucket = Bucket(10)
    assert bucket.take(10, now=100)
    assert not bucket.take(1, now=50)
    assert not bucket.take(1, now=99)
    assert bucket.take(1, now=100.2)
