"""With a key of KMS, every object that is written to the lake is encrypted with that key."""

import random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from kcl_dagster.aws import client
from kcl_dagster.emulator import Endpoint
from kcl_dagster.spark.sinks.delta_compaction import _reached
from kcl_dagster.spark.sinks.delta_log import delta_options
from kcl_dagster.spark.storage import S3Options, open_store

KEY = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"

pytestmark = pytest.mark.server


@pytest.fixture
def bucket(sidecar: Endpoint) -> str:
    name = f"bucket-{random.getrandbits(40):x}"
    requests(sidecar).create_bucket(Bucket=name)
    return name


def requests(sidecar: Endpoint) -> Any:
    return client("s3", region="us-east-1", endpoint_url=sidecar.url, access_key="test", secret_key="test")


def encrypted(sidecar: Endpoint) -> S3Options:
    return S3Options("us-east-1", sidecar.url, access_key="test", secret_key="test", kms_key=KEY)


def keys_of(sidecar: Endpoint, bucket: str) -> dict[str, str | None]:
    s3 = requests(sidecar)
    names = [found["Key"] for found in s3.list_objects_v2(Bucket=bucket)["Contents"]]
    return {name: s3.head_object(Bucket=bucket, Key=name).get("SSEKMSKeyId") for name in names}


def test_what_a_store_puts_and_moves_is_encrypted_with_the_key(sidecar: Endpoint, bucket: str) -> None:
    store = open_store(f"s3://{bucket}/lake", encrypted(sidecar))
    store.put("put", b"1")
    store.put("staged", b"2")
    assert store.put_new("new", b"3")
    assert store.move({"staged": "moved"}) == []
    assert keys_of(sidecar, bucket) == {"lake/put": KEY, "lake/new": KEY, "lake/moved": KEY}
    assert store.get("moved") == b"2"


def test_the_log_of_a_delta_table_is_encrypted_with_the_key(sidecar: Endpoint, bucket: str) -> None:
    options = delta_options(encrypted(sidecar))
    write_deltalake(f"s3://{bucket}/table", pa.table({"n": [1]}), storage_options=options)
    found = keys_of(sidecar, bucket)
    assert any("_delta_log/" in name for name in found)
    assert set(found.values()) == {KEY}
    assert _reached(S3Options(), options).kms_key == KEY  # of the compaction's lock
