"""Tests of the resource on the embedded AWS of kcl_dagster. They need no AWS account and no Docker."""

from collections.abc import Iterator

import dagster as dg
import pytest
from kcl_dagster.testing import EmbeddedAws, embedded_aws

from dagster_kinesis import KinesisResource


@pytest.fixture(scope="module")
def aws() -> Iterator[EmbeddedAws]:
    with embedded_aws({"clicks": 1}) as running:
        yield running


@pytest.fixture
def resource(aws: EmbeddedAws, monkeypatch: pytest.MonkeyPatch) -> KinesisResource:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    return KinesisResource(
        endpoint_url=aws.resource().endpoint_url, region_name="us-east-1"
    )


def test_an_asset_puts_a_record_into_a_stream(resource: KinesisResource) -> None:
    @dg.asset
    def announced(kinesis: KinesisResource) -> None:
        kinesis.get_client().put_record(
            StreamName="clicks", Data=b"hello", PartitionKey="1"
        )

    assert dg.materialize([announced], resources={"kinesis": resource}).success

    client = resource.get_client()
    [shard] = client.list_shards(StreamName="clicks")["Shards"]
    iterator = client.get_shard_iterator(
        StreamName="clicks", ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    [record] = client.get_records(ShardIterator=iterator)["Records"]
    assert record["Data"] == b"hello"


def test_a_secret_in_the_code_is_refused() -> None:
    with pytest.raises(Exception, match="EnvVar"):
        KinesisResource(aws_access_key_id="id", aws_secret_access_key="secret")
