"""Passing statuses, resharding over time, subscriptions: everything that has to do with waiting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kcl_dagster.emulator.kinesis import Ending, Limits, Subscription
from tests.unit.emulator.kit import KEYS, S0, S1, S2, S3, START, STREAM, Engine, refused


@pytest.fixture
def slow() -> Engine:
    """An engine whose changes take ten seconds, with its stream just active."""
    engine = Engine(transition_seconds=10)
    engine.now += 10
    return engine


def test_a_new_stream_is_creating_first_and_takes_no_records() -> None:
    engine = Engine(transition_seconds=10)
    assert engine.status() == "CREATING"
    with refused("ResourceNotFoundException"):
        engine.put(b"x")
    with refused("ResourceInUseException"):
        engine.shards()
    engine.now += 10
    assert engine.status() == "ACTIVE"
    engine.put(b"x")


def test_a_split_takes_effect_when_updating_ends(slow: Engine) -> None:
    slow.split()
    assert slow.status() == "UPDATING"
    assert slow.shard_ids() == [S0]
    slow.put(b"still the parent's")
    with refused("ResourceInUseException"):
        slow.split()
    slow.now += 10
    assert slow.status() == "ACTIVE"
    assert slow.shard_ids() == [S0, S1, S2]
    assert slow.read(S0) == [b"still the parent's"]


def test_a_deleted_stream_lingers_in_deleting(slow: Engine) -> None:
    slow.call("DeleteStream", StreamName=STREAM)
    assert slow.status() == "DELETING"
    with refused("ResourceNotFoundException"):
        slow.put(b"x")
    with refused("ResourceInUseException"):
        slow.call("CreateStream", StreamName=STREAM, ShardCount=1)
    slow.now += 10
    with refused("ResourceNotFoundException"):
        slow.status()


def test_a_consumer_is_creating_first(slow: Engine) -> None:
    consumer = _register(slow)
    with refused("ResourceInUseException"):
        _subscribe(slow, consumer)
    slow.now += 10
    _subscribe(slow, consumer)


@pytest.mark.parametrize(
    ("shard_filter", "listed"),
    [
        ({"Type": "AT_TRIM_HORIZON"}, [S0]),
        ({"Type": "FROM_TRIM_HORIZON"}, [S0, S1, S2, S3]),
        ({"Type": "AT_LATEST"}, [S3]),
        ({"Type": "AFTER_SHARD_ID", "ShardId": S0}, [S1, S2, S3]),
        ({"Type": "AT_TIMESTAMP", "Timestamp": START - 5}, [S0]),
        ({"Type": "AT_TIMESTAMP", "Timestamp": START + 5}, [S0]),
        ({"Type": "AT_TIMESTAMP", "Timestamp": START + 10}, [S1, S2]),
        ({"Type": "AT_TIMESTAMP", "Timestamp": START + 15}, [S1, S2]),
        ({"Type": "AT_TIMESTAMP", "Timestamp": START + 20}, [S3]),
        ({"Type": "FROM_TIMESTAMP", "Timestamp": START - 5}, [S0, S1, S2, S3]),
        ({"Type": "FROM_TIMESTAMP", "Timestamp": START + 15}, [S1, S2, S3]),
        ({"Type": "FROM_TIMESTAMP", "Timestamp": START + 25}, [S3]),
    ],
)
def test_filters_tell_who_was_open_when(shard_filter: dict[str, Any], listed: list[str]) -> None:
    engine = Engine()
    engine.now = START + 10
    engine.split()
    engine.now = START + 20
    engine.merge(S1, S2)
    engine.now = START + 30
    assert engine.shard_ids(**shard_filter) == listed


def test_the_trim_horizon_moves_with_the_retention() -> None:
    engine = Engine()
    engine.now = START + 10
    engine.split()
    engine.now = START + 24 * 3600 + 5
    assert engine.shard_ids(Type="AT_TRIM_HORIZON") == [S0]
    engine.now += 10
    assert engine.shard_ids(Type="AT_TRIM_HORIZON") == [S1, S2]


@pytest.mark.parametrize("count", range(1, 9))
@pytest.mark.parametrize("target", range(1, 17))
def test_scaling_is_uniform_and_every_key_has_one_open_shard(count: int, target: int) -> None:
    engine = Engine(shards=count)
    scale = {"StreamName": STREAM, "TargetShardCount": target, "ScalingType": "UNIFORM_SCALING"}
    if not count / 2 <= target <= 2 * count:
        with refused("LimitExceededException"):
            engine.call("UpdateShardCount", **scale)
        return
    engine.call("UpdateShardCount", **scale)
    ranges = sorted(
        (int(shard["HashKeyRange"]["StartingHashKey"]), int(shard["HashKeyRange"]["EndingHashKey"]))
        for shard in engine.shards(Type="AT_LATEST")
    )
    assert ranges == [(KEYS * i // target, KEYS * (i + 1) // target - 1) for i in range(target)]
    by_id = {shard["ShardId"]: shard for shard in engine.shards()}
    for shard in by_id.values():
        for parent in ("ParentShardId", "AdjacentParentShardId"):
            if parent in shard:
                assert "EndingSequenceNumber" in by_id[shard[parent]]["SequenceNumberRange"]


# Subscriptions


@pytest.fixture
def engine() -> Engine:
    return Engine(Limits.aws())


def test_a_subscription_says_at_once_where_it_stands_and_then_keeps_still(engine: Engine) -> None:
    subscription = _subscribe(engine, _register(engine))
    assert _event(engine, subscription)["Records"] == []
    assert engine.service.poll(subscription) is None
    engine.now += 4.9
    assert engine.service.poll(subscription) is None
    engine.now += 0.2
    assert _event(engine, subscription)["MillisBehindLatest"] == 0


def test_a_subscription_pushes_two_mebibytes_a_second(engine: Engine) -> None:
    for _ in range(8):
        engine.put(bytes(900_000))
        engine.now += 1
    subscription = _subscribe(engine, _register(engine), Type="TRIM_HORIZON")
    pushed = [len(event["Records"]) for event in _events(engine, subscription)]
    assert sum(pushed) == 3  # whatever fits, plus the record that overdraws
    engine.now += 1
    assert sum(len(event["Records"]) for event in _events(engine, subscription)) >= 1


def test_a_subscription_lasts_five_minutes(engine: Engine) -> None:
    subscription = _subscribe(engine, _register(engine))
    engine.now += 299
    assert _event(engine, subscription)
    engine.now += 1
    assert engine.service.poll(subscription) is None
    assert subscription.ending is Ending.EXPIRED


def test_a_second_subscription_is_refused_for_five_seconds_and_then_takes_over(engine: Engine) -> None:
    consumer = _register(engine)
    first = _subscribe(engine, consumer)
    engine.now += 4
    with refused("ResourceInUseException"):
        _subscribe(engine, consumer)
    engine.now += 1
    second = _subscribe(engine, consumer)
    assert first.ending is Ending.TAKEN_OVER
    assert second.ending is None
    engine.service.unsubscribe(first)
    with refused("ResourceInUseException"):
        _subscribe(engine, consumer)


def test_after_hanging_up_a_consumer_may_subscribe_at_once(engine: Engine) -> None:
    consumer = _register(engine)
    engine.service.unsubscribe(_subscribe(engine, consumer))
    _subscribe(engine, consumer)


def test_shards_and_consumers_have_subscriptions_of_their_own() -> None:
    engine = Engine(Limits.aws(), shards=2)
    a, b = _register(engine, "a"), _register(engine, "b")
    for consumer in (a, b):
        for shard in (S0, S1):
            _subscribe(engine, consumer, shard)


@pytest.mark.parametrize("end", ["DeregisterStreamConsumer", "DeleteStream"])
def test_a_subscription_ends_with_its_consumer_and_its_stream(engine: Engine, end: str) -> None:
    consumer = _register(engine)
    subscription = _subscribe(engine, consumer)
    if end == "DeleteStream":
        engine.call(end, StreamName=STREAM, EnforceConsumerDeletion=True)
    else:
        engine.call(end, ConsumerARN=consumer)
    assert engine.service.poll(subscription) is None
    assert subscription.ending is Ending.GONE


def test_a_consumer_registered_again_has_another_arn(engine: Engine) -> None:
    old = _register(engine)
    engine.call("DeregisterStreamConsumer", ConsumerARN=old)
    engine.now += 1
    assert _register(engine) != old
    with refused("ResourceNotFoundException"):
        _subscribe(engine, old)


def test_the_end_of_the_shard_comes_with_its_children_and_without_continuation(engine: Engine) -> None:
    engine.put(b"1")
    subscription = _subscribe(engine, _register(engine), Type="TRIM_HORIZON")
    engine.split()
    event = _event(engine, subscription)
    assert [record["Data"] for record in event["Records"]] == [b"1"]
    assert [child["ShardId"] for child in event["ChildShards"]] == [S1, S2]
    assert "ContinuationSequenceNumber" not in event
    assert subscription.ending is Ending.SHARD_END


def test_an_event_without_records_can_be_continued_from(engine: Engine) -> None:
    consumer = _register(engine)
    subscription = _subscribe(engine, consumer)
    continuation = _event(engine, subscription)["ContinuationSequenceNumber"]
    engine.put(b"1")
    engine.now += 5
    resumed = _subscribe(engine, consumer, Type="AFTER_SEQUENCE_NUMBER", SequenceNumber=continuation)
    assert [record["Data"] for record in _event(engine, resumed)["Records"]] == [b"1"]


def _register(engine: Engine, name: str = "reader") -> str:
    arn = engine.call("DescribeStreamSummary", StreamName=STREAM)["StreamDescriptionSummary"]["StreamARN"]
    consumer = engine.call("RegisterStreamConsumer", StreamARN=arn, ConsumerName=name)["Consumer"]
    return str(consumer["ConsumerARN"])


def _subscribe(engine: Engine, consumer: str, shard: str = S0, **position: str) -> Subscription:
    return engine.service.subscribe(
        {"ConsumerARN": consumer, "ShardId": shard, "StartingPosition": position or {"Type": "LATEST"}}
    )


def _event(engine: Engine, subscription: Subscription) -> dict[str, Any]:
    page = engine.service.poll(subscription)
    assert page is not None
    return page.as_dict()


def _events(engine: Engine, subscription: Subscription) -> Iterator[dict[str, Any]]:
    while (page := engine.service.poll(subscription)) is not None:
        yield page.as_dict()
