"""ListShards: paging, filters, and who was open when."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from mypy_boto3_kinesis import KinesisClient

from tests.integration.emulator.contract.server import Server
from tests.integration.emulator.contract.streams import KEYS, TestStream, ids, refused

pytestmark = pytest.mark.server

S0, S1, S2, S3 = (f"shardId-{index:012d}" for index in range(4))


def test_pages_follow_the_token_alone(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis, shards=5)
    page = kinesis.list_shards(StreamName=stream.name, MaxResults=2)
    seen = ids(page["Shards"])
    assert len(seen) == 2
    while "NextToken" in page:
        page = kinesis.list_shards(NextToken=page["NextToken"], MaxResults=2)
        assert len(page["Shards"]) <= 2
        seen += ids(page["Shards"])
    assert seen == stream.shard_ids()


def test_a_token_goes_with_no_other_choice_of_shards(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis, shards=3)
    token = kinesis.list_shards(StreamName=stream.name, MaxResults=1)["NextToken"]
    with refused("InvalidArgumentException"):
        kinesis.list_shards(StreamName=stream.name, NextToken=token)
    arn = kinesis.describe_stream_summary(StreamName=stream.name)["StreamDescriptionSummary"]["StreamARN"]
    with refused("InvalidArgumentException"):
        kinesis.list_shards(StreamARN=arn, NextToken=token)


def test_a_token_that_nobody_issued_is_refused(kinesis: KinesisClient) -> None:
    with refused("InvalidArgumentException"):
        kinesis.list_shards(NextToken="made-up")


def test_pages_keep_the_filter_of_the_first_request(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis, shards=2)
    stream.split(S0, at=1000)
    page = kinesis.list_shards(StreamName=stream.name, MaxResults=1, ShardFilter={"Type": "AT_LATEST"})
    seen = ids(page["Shards"])
    while "NextToken" in page:
        page = kinesis.list_shards(NextToken=page["NextToken"])
        seen += ids(page["Shards"])
    assert seen == [S1, S2, S3]


def test_listing_starts_after_the_shard_that_is_named(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis, shards=4)
    assert ids(stream.shards(ExclusiveStartShardId=S1)) == [S2, S3]


def test_a_page_of_more_than_ten_thousand_shards_cannot_be_asked_for(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    with refused("ValidationException", "InvalidArgumentException"):
        stream.shards(MaxResults=10_001)


@pytest.fixture(scope="module")
def split_once(kinesis_server: Server) -> tuple[TestStream, datetime, datetime]:
    """A stream whose first shard was split, a moment before that and a moment after it."""
    stream = TestStream.create(kinesis_server.kinesis(), shards=2)
    # Timestamps travel as whole seconds, so the split must be a second away from either moment.
    kinesis_server.let_pass(1.5)
    before = _now(kinesis_server)
    kinesis_server.let_pass(1.5)
    stream.split(S0, at=KEYS // 4)
    kinesis_server.let_pass(1.5)
    return stream, before, _now(kinesis_server)


def test_at_latest_lists_the_open_shards(split_once: tuple[TestStream, datetime, datetime]) -> None:
    stream, _, _ = split_once
    assert stream.shard_ids(Type="AT_LATEST") == [S1, S2, S3]


def test_at_trim_horizon_lists_the_shards_that_were_open_at_the_beginning(
    split_once: tuple[TestStream, datetime, datetime],
) -> None:
    stream, _, _ = split_once
    assert stream.shard_ids(Type="AT_TRIM_HORIZON") == [S0, S1]


def test_from_trim_horizon_lists_everything(split_once: tuple[TestStream, datetime, datetime]) -> None:
    stream, _, _ = split_once
    assert stream.shard_ids(Type="FROM_TRIM_HORIZON") == [S0, S1, S2, S3]


def test_after_shard_id_lists_what_follows(split_once: tuple[TestStream, datetime, datetime]) -> None:
    stream, _, _ = split_once
    assert stream.shard_ids(Type="AFTER_SHARD_ID", ShardId=S1) == [S2, S3]


def test_at_timestamp_lists_the_shards_open_then(split_once: tuple[TestStream, datetime, datetime]) -> None:
    stream, before, after = split_once
    assert stream.shard_ids(Type="AT_TIMESTAMP", Timestamp=before) == [S0, S1]
    assert stream.shard_ids(Type="AT_TIMESTAMP", Timestamp=after) == [S1, S2, S3]


def test_from_timestamp_lists_the_shards_open_since(split_once: tuple[TestStream, datetime, datetime]) -> None:
    stream, before, after = split_once
    assert stream.shard_ids(Type="FROM_TIMESTAMP", Timestamp=before) == [S0, S1, S2, S3]
    assert stream.shard_ids(Type="FROM_TIMESTAMP", Timestamp=after) == [S1, S2, S3]


@pytest.mark.parametrize(
    "shard_filter",
    [
        {"Type": "AFTER_SHARD_ID"},
        {"Type": "AT_TIMESTAMP"},
        {"Type": "FROM_TIMESTAMP"},
    ],
)
def test_a_filter_without_what_it_needs_is_refused(kinesis: KinesisClient, shard_filter: dict[str, str]) -> None:
    stream = TestStream.create(kinesis)
    with refused("InvalidArgumentException"):
        stream.shard_ids(**shard_filter)


def _now(server: Server) -> datetime:
    return datetime.fromtimestamp(server.now(), UTC)
