"""Putting and getting records: order, routing, positions, sizes."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from hashlib import md5

import pytest
from mypy_boto3_kinesis import KinesisClient
from mypy_boto3_kinesis.type_defs import PutRecordsRequestEntryTypeDef

from tests.integration.emulator.contract.deviations import KINESIS_LOCAL
from tests.integration.emulator.contract.server import Server
from tests.integration.emulator.contract.streams import KEYS, TestStream, hash_range, refused

pytestmark = pytest.mark.server

S0 = "shardId-000000000000"
MIB = 1024 * 1024


def test_records_come_back_in_order_with_growing_sequence_numbers(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    numbers = stream.put(*(b"%d" % i for i in range(20)))
    assert [int(number) for number in numbers] == sorted({int(number) for number in numbers})
    page = kinesis.get_records(ShardIterator=stream.iterator(S0))
    assert [record["Data"] for record in page["Records"]] == [b"%d" % i for i in range(20)]
    assert [record["SequenceNumber"] for record in page["Records"]] == numbers
    assert {record["PartitionKey"] for record in page["Records"]} == {"k"}


def test_sequence_numbers_have_the_digits_of_aws(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    [number] = stream.put(b"x")
    assert len(number) == 56


def test_arrival_times_are_now(kinesis: KinesisClient, kinesis_server: Server) -> None:
    stream = TestStream.create(kinesis)
    stream.put(b"x")
    [record] = kinesis.get_records(ShardIterator=stream.iterator(S0))["Records"]
    assert abs(record["ApproximateArrivalTimestamp"].timestamp() - kinesis_server.now()) < 5


def test_eight_writers_lose_nothing_and_share_no_sequence_number(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis, shards=2)
    writers, each = 8, 12

    def write(writer: int) -> list[str]:
        return [
            kinesis.put_record(StreamName=stream.name, Data=b"%d:%d" % (writer, i), PartitionKey=f"{writer}:{i}")[
                "SequenceNumber"
            ]
            for i in range(each)
        ]

    with ThreadPoolExecutor(writers) as threads:
        numbers = [number for some in threads.map(write, range(writers)) for number in some]
    assert len(set(numbers)) == writers * each
    stored = [data for shard_id in stream.shard_ids() for data in stream.read(shard_id)]
    assert Counter(stored) == Counter(b"%d:%d" % (w, i) for w in range(writers) for i in range(each))


def test_records_go_where_their_partition_keys_hash_to(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis, shards=4)
    keys = [f"key-{i}" for i in range(40)]
    reply = kinesis.put_records(
        StreamName=stream.name, Records=[{"Data": key.encode(), "PartitionKey": key} for key in keys]
    )
    assert reply["FailedRecordCount"] == 0
    ranges = {shard["ShardId"]: hash_range(shard) for shard in stream.shards()}
    for key, result in zip(keys, reply["Records"], strict=True):
        start, end = ranges[result["ShardId"]]
        assert start <= int(md5(key.encode()).hexdigest(), 16) <= end


def test_explicit_hash_keys_at_both_ends_of_each_range_reach_that_shard(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis, shards=3)
    for shard in stream.shards():
        for key in hash_range(shard):
            put = kinesis.put_record(StreamName=stream.name, Data=b"x", PartitionKey="k", ExplicitHashKey=str(key))
            assert put["ShardId"] == shard["ShardId"]


@pytest.mark.parametrize("key", [str(KEYS), "-1", "abc", "01"])
def test_an_explicit_hash_key_that_is_none_is_refused(kinesis: KinesisClient, key: str) -> None:
    stream = TestStream.create(kinesis)
    with refused("InvalidArgumentException", "ValidationException"):
        kinesis.put_record(StreamName=stream.name, Data=b"x", PartitionKey="k", ExplicitHashKey=key)


def test_iterators_start_where_they_are_asked_to(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    _, second, third = stream.put(b"1", b"2", b"3")
    assert stream.read(S0) == [b"1", b"2", b"3"]
    assert stream.read(S0, "AT_SEQUENCE_NUMBER", StartingSequenceNumber=second) == [b"2", b"3"]
    assert stream.read(S0, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=second) == [b"3"]
    assert stream.read(S0, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=third) == []
    latest = stream.iterator(S0, "LATEST")
    stream.put(b"4")
    assert [r["Data"] for r in kinesis.get_records(ShardIterator=latest)["Records"]] == [b"4"]


def test_a_shards_first_sequence_number_stands_before_its_first_record(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    start = stream.shards()[0]["SequenceNumberRange"]["StartingSequenceNumber"]
    stream.put(b"1")
    for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        assert stream.read(S0, kind, StartingSequenceNumber=start) == [b"1"]


def test_an_iterator_at_a_time_starts_with_the_first_record_since(
    kinesis: KinesisClient, kinesis_server: Server
) -> None:
    stream = TestStream.create(kinesis)
    stream.put(b"1", b"2")
    kinesis_server.let_pass(2.1)  # timestamps travel as whole seconds
    stream.put(b"3")
    page = kinesis.get_records(ShardIterator=stream.iterator(S0))
    arrivals = [record["ApproximateArrivalTimestamp"] for record in page["Records"]]
    assert arrivals == sorted(arrivals)
    early, late = arrivals[0] - timedelta(hours=1), arrivals[2].replace(microsecond=0)
    assert stream.read(S0, "AT_TIMESTAMP", Timestamp=early) == [b"1", b"2", b"3"]
    assert stream.read(S0, "AT_TIMESTAMP", Timestamp=late) == [b"3"]


def test_an_iterator_in_the_future_is_refused(kinesis: KinesisClient, kinesis_server: Server) -> None:
    stream = TestStream.create(kinesis)
    later = datetime.fromtimestamp(kinesis_server.now(), UTC) + timedelta(hours=1)
    with refused("InvalidArgumentException"):
        stream.iterator(S0, "AT_TIMESTAMP", Timestamp=later)


@pytest.mark.parametrize("kind", ["AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "AT_TIMESTAMP"])
def test_an_iterator_without_what_its_type_needs_is_refused(kinesis: KinesisClient, kind: str) -> None:
    stream = TestStream.create(kinesis)
    with refused("InvalidArgumentException"):
        stream.iterator(S0, kind)


def test_a_sequence_number_that_is_none_is_refused(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    with refused("InvalidArgumentException"):
        stream.iterator(S0, "AT_SEQUENCE_NUMBER", StartingSequenceNumber="12345")


def test_a_sequence_number_of_another_shard_is_refused(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis, shards=2)
    [number] = stream.put(b"x", at=KEYS - 1)
    with refused("InvalidArgumentException"):
        stream.iterator(S0, "AT_SEQUENCE_NUMBER", StartingSequenceNumber=number)


def test_a_missing_shard_is_not_found(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    with refused("ResourceNotFoundException"):
        stream.iterator("shardId-000000000099")


def test_an_iterator_that_nobody_issued_is_refused(kinesis: KinesisClient) -> None:
    with refused("InvalidArgumentException"):
        kinesis.get_records(ShardIterator="AAAAAAAAAAE=")


def test_a_page_holds_no_more_than_was_asked_for(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    stream.put(b"1", b"2", b"3")
    page = kinesis.get_records(ShardIterator=stream.iterator(S0), Limit=2)
    assert [record["Data"] for record in page["Records"]] == [b"1", b"2"]
    rest = kinesis.get_records(ShardIterator=page["NextShardIterator"], Limit=10_000)
    assert [record["Data"] for record in rest["Records"]] == [b"3"]


def test_more_than_ten_thousand_records_cannot_be_asked_for(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    with refused("InvalidArgumentException"):
        kinesis.get_records(ShardIterator=stream.iterator(S0), Limit=10_001)


def test_a_page_holds_ten_mebibytes_at_most(kinesis: KinesisClient, kinesis_server: Server) -> None:
    if kinesis_server.name == KINESIS_LOCAL:
        pytest.skip("it needs half a minute to store that much")
    stream = TestStream.create(kinesis)
    stream.put(*[bytes(1_000_000)] * 11)
    page = kinesis.get_records(ShardIterator=stream.iterator(S0))
    assert len(page["Records"]) == 10
    rest = kinesis.get_records(ShardIterator=page["NextShardIterator"])
    assert len(rest["Records"]) == 1


def test_a_reader_at_the_tip_is_not_behind(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    stream.put(b"1")
    assert kinesis.get_records(ShardIterator=stream.iterator(S0))["MillisBehindLatest"] == 0


def test_a_reader_is_behind_by_the_age_of_what_it_has_not_read(
    kinesis: KinesisClient, kinesis_server: Server
) -> None:
    stream = TestStream.create(kinesis)
    stream.put(b"1", b"2")
    kinesis_server.let_pass(1.5)
    page = kinesis.get_records(ShardIterator=stream.iterator(S0), Limit=1)
    assert page["MillisBehindLatest"] >= 1500


def test_five_hundred_records_fit_into_one_put(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    records: list[PutRecordsRequestEntryTypeDef] = [{"Data": b"x", "PartitionKey": str(i)} for i in range(500)]
    assert kinesis.put_records(StreamName=stream.name, Records=records)["FailedRecordCount"] == 0
    with refused("ValidationException", "InvalidArgumentException"):
        kinesis.put_records(StreamName=stream.name, Records=[*records, {"Data": b"x", "PartitionKey": "k"}])


def test_a_record_counts_its_key_and_fits_up_to_one_mebibyte(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    stream.put(bytes(MIB - 1))
    with refused("ValidationException", "InvalidArgumentException"):
        stream.put(bytes(MIB))


def test_larger_records_fit_once_the_stream_admits_them(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    kinesis.update_max_record_size(StreamARN=stream.arn, MaxRecordSizeInKiB=2048)
    stream.wait()
    stream.put(bytes(2 * MIB - 1))
    assert [len(data) for data in stream.read(S0)] == [2 * MIB - 1]
    with refused("ValidationException", "InvalidArgumentException"):
        stream.put(bytes(2 * MIB))


def test_a_put_that_is_refused_stores_nothing(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    with refused("ValidationException", "InvalidArgumentException"):
        kinesis.put_records(
            StreamName=stream.name,
            Records=[{"Data": b"fine", "PartitionKey": "k"}, {"Data": bytes(MIB + 1), "PartitionKey": "k"}],
        )
    assert stream.read(S0) == []


def test_text_of_any_script_survives_as_partition_key(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    key = 'Ünïcödé "quoted" \\ 鍵 \U0001f511'
    kinesis.put_record(StreamName=stream.name, Data=b"\x00\xff", PartitionKey=key)
    [record] = kinesis.get_records(ShardIterator=stream.iterator(S0))["Records"]
    assert (record["PartitionKey"], record["Data"]) == (key, b"\x00\xff")
