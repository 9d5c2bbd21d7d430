"""FakeKinesis speaks as boto3 does. What the streams do is tested with the embedded Kinesis itself."""

from datetime import UTC, datetime

import pytest
from botocore.exceptions import ClientError, ParamValidationError

from kcl_dagster.emulator.kinesis import Limits
from tests.doubles.clock import FakeClock
from tests.doubles.kinesis import FakeKinesis


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(start=1_800_000_000.0)


@pytest.fixture
def kinesis(clock: FakeClock) -> FakeKinesis:
    client = FakeKinesis(clock)
    client.create_stream(StreamName="clicks", ShardCount=1)
    return client


def iterator(kinesis: FakeKinesis) -> str:
    answer = kinesis.get_shard_iterator(
        StreamName="clicks", ShardId="shardId-000000000000", ShardIteratorType="TRIM_HORIZON"
    )
    return str(answer["ShardIterator"])


def test_what_was_put_is_read_back_with_datetimes_as_botocore_makes_them(kinesis: FakeKinesis) -> None:
    kinesis.put_record(StreamName="clicks", Data=b"hello", PartitionKey="k")
    page = kinesis.get_records(ShardIterator=iterator(kinesis))
    (record,) = page["Records"]
    assert (record["Data"], record["PartitionKey"]) == (b"hello", "k")
    assert record["ApproximateArrivalTimestamp"] == datetime.fromtimestamp(1_800_000_000, UTC)
    assert page["MillisBehindLatest"] == 0
    assert page["ResponseMetadata"]["HTTPStatusCode"] == 200


def test_refusals_are_client_errors_with_the_services_code(kinesis: FakeKinesis) -> None:
    with pytest.raises(ClientError) as refused:
        kinesis.describe_stream_summary(StreamName="taps")
    assert refused.value.response["Error"]["Code"] == "ResourceNotFoundException"
    assert refused.value.operation_name == "DescribeStreamSummary"


def test_misspelt_parameters_are_refused_as_boto3_does(kinesis: FakeKinesis) -> None:
    with pytest.raises(ParamValidationError):
        kinesis.put_record(Stream="clicks", Data=b"x", PartitionKey="k")


def test_an_operation_that_does_not_exist_is_an_attribute_error(kinesis: FakeKinesis) -> None:
    with pytest.raises(AttributeError, match="no operation"):
        kinesis.get_record(ShardId="shardId-000000000000")


def test_iterators_expire_by_the_given_clock(kinesis: FakeKinesis, clock: FakeClock) -> None:
    place = iterator(kinesis)
    clock.advance(301)
    with pytest.raises(ClientError, match="ExpiredIteratorException"):
        kinesis.get_records(ShardIterator=place)


def test_clients_of_one_service_share_its_streams(kinesis: FakeKinesis, clock: FakeClock) -> None:
    other = FakeKinesis(clock, service=kinesis.service, limits=Limits.none())
    assert other.list_streams()["StreamNames"] == ["clicks"]


def test_a_subscription_pushes_events_until_it_expires(kinesis: FakeKinesis, clock: FakeClock) -> None:
    stream = kinesis.describe_stream_summary(StreamName="clicks")["StreamDescriptionSummary"]
    consumer = kinesis.register_stream_consumer(StreamARN=stream["StreamARN"], ConsumerName="app")["Consumer"]
    clock.advance(60)
    kinesis.put_record(StreamName="clicks", Data=b"pushed", PartitionKey="k")
    began = clock.monotonic()
    answer = kinesis.subscribe_to_shard(
        ConsumerARN=consumer["ConsumerARN"],
        ShardId="shardId-000000000000",
        StartingPosition={"Type": "TRIM_HORIZON"},
    )
    events = [event["SubscribeToShardEvent"] for event in answer["EventStream"]]
    assert [record["Data"] for event in events for record in event["Records"]] == [b"pushed"]
    assert clock.monotonic() - began == pytest.approx(300, abs=1)
