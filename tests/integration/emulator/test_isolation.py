"""The emulator keeps to itself: two do not share, and nobody else's boto3 is touched."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import EndpointConnectionError

from kcl_dagster.emulator import Emulator, Limits

pytestmark = pytest.mark.server

TABLE = {
    "TableName": "t",
    "KeySchema": [{"AttributeName": "k", "KeyType": "HASH"}],
    "AttributeDefinitions": [{"AttributeName": "k", "AttributeType": "S"}],
    "BillingMode": "PAY_PER_REQUEST",
}


def test_two_emulators_share_nothing() -> None:
    with Emulator() as one, Emulator() as other:
        for aws in (one, other):
            aws.client("kinesis").create_stream(StreamName="clicks", ShardCount=1)
            aws.client("dynamodb").create_table(**TABLE)
        one.client("dynamodb").put_item(TableName="t", Item={"k": {"S": "a"}})
        one.client("s3").create_bucket(Bucket="landing")
        assert "Item" not in other.client("dynamodb").get_item(TableName="t", Key={"k": {"S": "a"}})
        assert other.client("s3").list_buckets()["Buckets"] == []


def test_an_emulator_starts_empty_after_another_one_in_the_same_process() -> None:
    for _ in range(2):
        with Emulator() as aws:
            aws.client("dynamodb").create_table(**TABLE)
            aws.client("s3").create_bucket(Bucket="landing")


def test_clients_of_others_still_go_where_they_were_sent(aws: Emulator) -> None:
    aws.client("dynamodb").create_table(**TABLE)  # moto is loaded by now
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    session = boto3.Session("x", "x", region_name="us-east-1")
    config = Config(retries={"total_max_attempts": 1})
    nobody: Any = {"endpoint_url": f"http://127.0.0.1:{free}", "config": config}
    calls: list[Callable[[], object]] = [
        session.client("dynamodb", **nobody).list_tables,
        session.client("s3", **nobody).list_buckets,
        session.client("kinesis", **nobody).list_streams,
    ]
    for call in calls:
        with pytest.raises(EndpointConnectionError):
            call()


def test_the_public_names_load_without_moto() -> None:
    code = "import sys, kcl_dagster.emulator; sys.exit('moto' in sys.modules or 'h2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0


def test_stopping_leaves_no_thread_and_frees_the_port() -> None:
    before = set(threading.enumerate())
    with Emulator(limits=Limits.none()) as aws:
        port = int(aws.endpoint_url.rpartition(":")[2])
        aws.client("dynamodb").list_tables()
        aws.client("s3").list_buckets()
    assert set(threading.enumerate()) <= before
    with Emulator(port=port) as again:
        assert again.endpoint_url.endswith(f":{port}")


def test_a_port_in_use_is_an_os_error(aws: Emulator) -> None:
    port = int(aws.endpoint_url.rpartition(":")[2])
    with pytest.raises(OSError, match="in use"):
        Emulator(port=port).start()


def test_an_emulator_that_does_not_run_says_so() -> None:
    emulator = Emulator()
    with pytest.raises(RuntimeError, match="not running"):
        _ = emulator.endpoint_url
    emulator.stop()


def test_an_emulator_runs_once() -> None:
    emulator = Emulator()
    with emulator:
        pass
    with pytest.raises(RuntimeError, match="runs once"):
        emulator.start()
