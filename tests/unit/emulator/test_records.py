"""Reading and writing the engine: positions, retention, time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_dagster.emulator.kinesis import KinesisError, KinesisService
from kcl_dagster.emulator.kinesis.iterator import ShardIterator
from tests.unit.emulator.kit import S0, S1, S2, START, STREAM, Engine, refused

HOUR = 3600.0


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_replies_hold_bytes_and_seconds(engine: Engine) -> None:
    [number] = engine.put(b"\x00\xff")
    assert engine.page(engine.iterator())["Records"] == [
        {
            "SequenceNumber": number,
            "ApproximateArrivalTimestamp": START,
            "Data": b"\x00\xff",
            "PartitionKey": "k",
        }
    ]


def test_a_page_is_not_changed_by_what_happens_later(engine: Engine) -> None:
    engine.put(b"1")
    reply = engine.service.execute("GetRecords", {"ShardIterator": engine.iterator()})
    engine.now += 25 * HOUR
    assert engine.read() == []
    assert not isinstance(reply, dict)
    assert [record["Data"] for record in reply.as_dict()["Records"]] == [b"1"]


def test_records_are_trimmed_when_they_reach_the_retention(engine: Engine) -> None:
    engine.put(b"old")
    engine.now += 23 * HOUR
    [number] = engine.put(b"young")
    engine.now += HOUR + 1
    assert engine.read() == [b"young"]
    assert engine.read(S0, "AT_SEQUENCE_NUMBER", StartingSequenceNumber=number) == [b"young"]


def test_an_iterator_at_a_trimmed_record_reads_the_oldest_that_is_left(engine: Engine) -> None:
    old, *_ = engine.put(b"old")
    engine.now += 23 * HOUR
    engine.put(b"young")
    engine.now += HOUR + 1
    for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        assert engine.read(S0, kind, StartingSequenceNumber=old) == [b"young"]


def test_a_longer_retention_keeps_records_longer(engine: Engine) -> None:
    engine.call("IncreaseStreamRetentionPeriod", StreamName=STREAM, RetentionPeriodHours=48)
    engine.put(b"old")
    engine.now += 47 * HOUR
    assert engine.read() == [b"old"]


def test_a_shorter_retention_trims_at_once(engine: Engine) -> None:
    engine.call("IncreaseStreamRetentionPeriod", StreamName=STREAM, RetentionPeriodHours=48)
    engine.put(b"old")
    engine.now += 30 * HOUR
    engine.call("DecreaseStreamRetentionPeriod", StreamName=STREAM, RetentionPeriodHours=24)
    assert engine.read() == []


def test_a_closed_shard_is_forgotten_after_the_retention(engine: Engine) -> None:
    engine.put(b"x")
    iterator = engine.iterator()
    engine.split()
    engine.now += 24 * HOUR - 1
    assert engine.shard_ids() == [S0, S1, S2]
    engine.now += 3
    assert engine.shard_ids() == [S1, S2]
    with refused("ResourceNotFoundException"):
        engine.iterator(S0)
    with refused("ResourceNotFoundException"):
        engine.page(iterator)


def test_arrival_times_do_not_go_back_with_the_clock(engine: Engine) -> None:
    engine.put(b"1")
    engine.now -= 100
    engine.put(b"2")
    records = engine.page(engine.iterator())["Records"]
    assert [record["ApproximateArrivalTimestamp"] for record in records] == [START, START]


def test_a_record_is_found_at_the_time_it_reports() -> None:
    engine = Engine()
    engine.now += 0.123456
    engine.put(b"1")
    [record] = engine.page(engine.iterator())["Records"]
    engine.now += 10
    at = record["ApproximateArrivalTimestamp"]
    assert engine.read(S0, "AT_TIMESTAMP", Timestamp=at) == [b"1"]
    assert engine.read(S0, "AT_TIMESTAMP", Timestamp=at + 0.001) == []


@pytest.mark.parametrize(("age", "read", "behind"), [(0.0, 1, 1), (7.25, 1, 7250), (7.25, 2, 0)])
def test_how_far_behind_a_reader_is(engine: Engine, age: float, read: int, behind: int) -> None:
    engine.put(b"1", b"2")
    engine.now += age
    assert engine.page(engine.iterator(), Limit=read)["MillisBehindLatest"] == behind


def test_an_iterator_survives_a_round_trip_and_nothing_else_does() -> None:
    iterator = ShardIterator("clicks", 1.5, S0, 7, START)
    token = iterator.encode()
    assert ShardIterator.decode(token) == iterator
    changed = "x" if token[9] != "x" else "y"
    for mangled in (token[:-4], token[1:], "AAAA", "", "not base64!", token[:9] + changed + token[10:]):
        with pytest.raises(ValueError, match=r"checksum|padding|base64|kind|unpack"):
            ShardIterator.decode(mangled)


def test_iterators_of_a_deleted_stream_are_void_even_after_it_is_created_again(engine: Engine) -> None:
    engine.put(b"old")
    iterator = engine.iterator()
    engine.call("DeleteStream", StreamName=STREAM)
    with refused("ResourceNotFoundException"):
        engine.page(iterator)
    engine.call("CreateStream", StreamName=STREAM, ShardCount=1)
    with refused("ResourceNotFoundException"):
        engine.page(iterator)
    assert engine.read() == []


def test_a_stream_created_again_at_the_same_moment_is_a_second_younger(engine: Engine) -> None:
    engine.call("DeleteStream", StreamName=STREAM)
    engine.call("CreateStream", StreamName=STREAM, ShardCount=1)
    summary = engine.call("DescribeStreamSummary", StreamName=STREAM)["StreamDescriptionSummary"]
    assert summary["StreamCreationTimestamp"] == START + 1


def test_listing_can_ask_for_the_stream_of_one_birth(engine: Engine) -> None:
    assert engine.call("ListShards", StreamName=STREAM, StreamCreationTimestamp=START + 0.25)["Shards"]
    with refused("ResourceNotFoundException"):
        engine.call("ListShards", StreamName=STREAM, StreamCreationTimestamp=START - 60)


@pytest.mark.parametrize(
    ("operation", "parameters", "code"),
    [
        ("CreateStream", {}, "ValidationException"),
        ("CreateStream", {"StreamName": "a b", "ShardCount": 1}, "ValidationException"),
        ("CreateStream", {"StreamName": "x" * 129, "ShardCount": 1}, "ValidationException"),
        ("CreateStream", {"StreamName": "x", "ShardCount": 0}, "ValidationException"),
        ("CreateStream", {"StreamName": "x"}, "ValidationException"),
        ("CreateStream", {"StreamName": "x", "ShardCount": "1"}, "SerializationException"),
        ("DescribeStreamSummary", {}, "InvalidArgumentException"),
        ("DescribeStreamSummary", {"StreamARN": "arn:aws:sqs:x"}, "ValidationException"),
        (
            "DescribeStreamSummary",
            {"StreamARN": "arn:aws:kinesis:us-east-1:999999999999:stream/clicks"},
            "ResourceNotFoundException",
        ),
        ("PutRecord", {"StreamName": STREAM, "PartitionKey": "k"}, "ValidationException"),
        ("PutRecord", {"StreamName": STREAM, "Data": b"x"}, "ValidationException"),
        ("PutRecord", {"StreamName": STREAM, "Data": b"x", "PartitionKey": ""}, "ValidationException"),
        ("PutRecord", {"StreamName": STREAM, "Data": b"x", "PartitionKey": "k" * 257}, "ValidationException"),
        ("PutRecords", {"StreamName": STREAM, "Records": []}, "ValidationException"),
        ("GetRecords", {}, "ValidationException"),
        ("GetRecords", {"ShardIterator": "x", "Limit": 0}, "ValidationException"),
        ("GetRecords", {"ShardIterator": "x", "Limit": 10_001}, "InvalidArgumentException"),
        ("GetShardIterator", {"StreamName": STREAM, "ShardId": S0}, "ValidationException"),
        (
            "GetShardIterator",
            {"StreamName": STREAM, "ShardId": S0, "ShardIteratorType": "MIDDLE"},
            "ValidationException",
        ),
        ("ListShards", {"StreamName": STREAM, "MaxResults": 10_001}, "ValidationException"),
        ("ListShards", {"StreamName": STREAM, "ShardFilter": {"Type": "SOME"}}, "ValidationException"),
        ("ListStreams", {"Limit": 0}, "ValidationException"),
        ("RegisterStreamConsumer", {"ConsumerName": "c"}, "ValidationException"),
        ("DeregisterStreamConsumer", {}, "InvalidArgumentException"),
        ("MakeCoffee", {}, "UnknownOperationException"),
    ],
)
def test_bad_requests_are_refused_by_name(
    engine: Engine, operation: str, parameters: dict[str, Any], code: str
) -> None:
    with refused(code):
        engine.call(operation, **parameters)


def test_two_services_share_nothing() -> None:
    one, other = (KinesisService(lambda: START) for _ in range(2))
    one.call("CreateStream", {"StreamName": STREAM, "ShardCount": 1})
    assert other.call("ListStreams")["StreamNames"] == []


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=60),
    limit=st.integers(1, 7),
    trim=st.integers(0, 60),
)
def test_pages_cover_the_log_without_gaps_or_repeats(sizes: list[int], limit: int, trim: int) -> None:
    engine = Engine()
    for index, size in enumerate(sizes):
        engine.now = START + index
        engine.put(bytes(size))
    if trim:
        engine.now = START + 24 * HOUR + trim
    expected = [size for index, size in enumerate(sizes) if not trim or index >= trim]
    seen: list[int] = []
    iterator = engine.iterator()
    while True:
        reply = engine.page(iterator, Limit=limit)
        assert len(reply["Records"]) <= limit
        seen += [len(record["Data"]) for record in reply["Records"]]
        if reply["MillisBehindLatest"] == 0:
            break
        iterator = reply["NextShardIterator"]
    assert seen == expected


def test_errors_carry_name_message_and_status(engine: Engine) -> None:
    with pytest.raises(KinesisError) as refusal:
        engine.call("DescribeStreamSummary", StreamName="nowhere")
    error = refusal.value
    assert (error.code, error.status) == ("ResourceNotFoundException", 400)
    assert "nowhere" in error.message
