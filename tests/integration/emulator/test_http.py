"""Both versions of HTTP on one port, with the oddities of real clients."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import pytest
from botocore.eventstream import EventStreamBuffer

from kcl_dagster.emulator import Emulator, FaultRule
from kcl_dagster.emulator.gateway import LARGEST_API_BODY
from tests.integration.emulator.h2client import H2Client

pytestmark = pytest.mark.server

S0 = "shardId-000000000000"
STREAM = "clicks"
HEAD = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-amz-json-1.1\r\n"
LIST = b"x-amz-target: Kinesis_20131202.ListStreams\r\n"


@pytest.fixture
def stream(aws: Emulator) -> str:
    aws.kinesis.call("CreateStream", {"StreamName": STREAM, "ShardCount": 1})
    return STREAM


# HTTP/1.1


def test_one_connection_serves_many_requests(aws: Emulator, stream: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(aws.endpoint_url).netloc)
    local_ports = set()
    for _ in range(3):
        headers = {"X-Amz-Target": "Kinesis_20131202.ListStreams"}
        connection.request("POST", "/", b"{}", headers)
        local_ports.add(connection.sock.getsockname()[1])
        assert json.loads(connection.getresponse().read())["StreamNames"] == [stream]
    assert len(local_ports) == 1
    connection.close()


def test_requests_sent_in_one_go_are_answered_in_order(aws: Emulator, stream: str) -> None:
    describe = b"x-amz-target: DynamoDB_20120810.DescribeTable\r\ncontent-length: 17\r\n\r\n" + b'{"TableName":"t"}'
    with _connection(aws) as raw:
        raw.sendall(HEAD + describe + HEAD + LIST + b"content-length: 2\r\n\r\n{}")
        first, second = _responses(raw, 2)
    assert first[0] == 400  # slower, as a thread serves it, and still first
    assert json.loads(second[1])["StreamNames"] == [stream]


def test_a_body_may_come_in_chunks(aws: Emulator, stream: str) -> None:
    with _connection(aws) as raw:
        raw.sendall(HEAD + LIST + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n")
        raw.sendall(b"1;name=value\r\n}\r\n0\r\n\r\n")
        [(status, body)] = _responses(raw, 1)
    assert status == 200
    assert json.loads(body)["StreamNames"] == [stream]


def test_a_client_that_waits_for_leave_to_send_its_body_gets_it(aws: Emulator, stream: str) -> None:
    with _connection(aws) as raw:
        raw.sendall(HEAD + LIST + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        assert raw.recv(1024) == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw.sendall(b"{}")
        [(status, _)] = _responses(raw, 1)
    assert status == 200


def test_a_client_may_ask_to_close_the_connection(aws: Emulator, stream: str) -> None:
    with _connection(aws) as raw:
        raw.sendall(HEAD + LIST + b"connection: close\r\ncontent-length: 2\r\n\r\n{}")
        [(status, _)] = _responses(raw, 1)
        assert status == 200
        assert raw.recv(1) == b""


@pytest.mark.parametrize(
    "garbage",
    [
        b"hello\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        HEAD + b"content-length: x\r\n\r\n",
        b"\x16\x03\x01\r\n\r\n",
    ],
)
def test_what_is_not_http_is_turned_away(aws: Emulator, garbage: bytes) -> None:
    with _connection(aws) as raw:
        raw.sendall(garbage)
        assert raw.recv(1024).startswith(b"HTTP/1.1 400 ")


@pytest.mark.audit("D9")
def test_a_body_of_any_size_is_not_taken(aws: Emulator) -> None:
    with _connection(aws) as raw:
        raw.sendall(HEAD + LIST + b"content-length: 999999999999\r\n\r\n")
        assert raw.recv(1024).startswith(b"HTTP/1.1 413 ")
    with H2Client(aws.endpoint_url) as client:
        assert client.wait(client.send("PutRecord", {"Data": bytes(LARGEST_API_BODY + 1)})).status == 413
        assert client.call("ListStreams")["StreamNames"] == []


@pytest.mark.audit("D9")
def test_a_web_page_cannot_steer_it(aws: Emulator) -> None:
    request = b"POST /_kcl/faults HTTP/1.1\r\nhost: localhost\r\norigin: https://evil.example\r\n"
    with _connection(aws) as raw:
        raw.sendall(request + b'content-length: 28\r\n\r\n{"error": "InternalFailure"}')
        [(status, _)] = _responses(raw, 1)
    assert status == 403
    assert not aws.faults.rules


def test_an_unknown_service_is_named(aws: Emulator) -> None:
    with _connection(aws) as raw:
        raw.sendall(HEAD + b"x-amz-target: Firehose_20150804.ListDeliveryStreams\r\ncontent-length: 2\r\n\r\n{}")
        [(status, body)] = _responses(raw, 1)
    assert status == 400
    assert "Firehose" in json.loads(body)["message"]


def test_a_reply_of_megabytes_reaches_a_slow_reader_whole(aws: Emulator, stream: str) -> None:
    data = os.urandom(1_000_000)
    for _ in range(9):
        aws.kinesis.call("PutRecord", {"StreamName": stream, "Data": data, "PartitionKey": "k"})
    kinesis = aws.client("kinesis")
    iterator = kinesis.get_shard_iterator(StreamName=stream, ShardId=S0, ShardIteratorType="TRIM_HORIZON")
    body = json.dumps({"ShardIterator": iterator["ShardIterator"]}).encode()
    with _connection(aws) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        raw.sendall(
            HEAD + b"x-amz-target: Kinesis_20131202.GetRecords\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        # Kinesis serves others while this reader is at it.
        assert kinesis.list_streams()["StreamNames"] == [stream]
        [(status, reply)] = _responses(raw, 1)
    assert status == 200
    assert len(json.loads(reply)["Records"]) == 9


# HTTP/2 and CBOR


def test_records_travel_in_cbor_over_http2(aws: Emulator) -> None:
    with H2Client(aws.endpoint_url) as client:
        client.call("CreateStream", StreamName=STREAM, ShardCount=1)
        put = client.call("PutRecord", StreamName=STREAM, Data=b"\x00\xff", PartitionKey="k")
        iterator = client.call("GetShardIterator", StreamName=STREAM, ShardId=S0, ShardIteratorType="TRIM_HORIZON")[
            "ShardIterator"
        ]
        page = client.call("GetRecords", ShardIterator=iterator)
    [record] = page["Records"]
    assert (record["Data"], record["PartitionKey"]) == (b"\x00\xff", "k")
    assert record["SequenceNumber"] == put["SequenceNumber"]
    assert abs(record["ApproximateArrivalTimestamp"] / 1000 - aws.clock()) < 60


def test_errors_in_cbor_carry_their_name(aws: Emulator) -> None:
    with H2Client(aws.endpoint_url) as client:
        reply = client.wait(client.send("DescribeStreamSummary", {"StreamName": "nowhere"}))
    assert reply.status == 400
    assert reply.headers["x-amzn-errortype"] == "ResourceNotFoundException"
    assert reply.cbor()["__type"] == "ResourceNotFoundException"


@pytest.mark.parametrize("window", [1_000, 65_535, 10_000_000])
def test_large_bodies_pass_both_ways_whatever_the_window(aws: Emulator, stream: str, window: int) -> None:
    data = os.urandom(100_000)
    with H2Client(aws.endpoint_url, window) as client:
        records = [{"Data": data, "PartitionKey": str(i)} for i in range(20)]
        assert client.call("PutRecords", StreamName=stream, Records=records)["FailedRecordCount"] == 0
        iterator = client.call("GetShardIterator", StreamName=stream, ShardId=S0, ShardIteratorType="TRIM_HORIZON")[
            "ShardIterator"
        ]
        page = client.call("GetRecords", ShardIterator=iterator)
    assert [record["Data"] for record in page["Records"]] == [data] * 20


def test_streams_of_one_connection_do_not_wait_for_each_other(aws: Emulator, stream: str) -> None:
    consumer = _consumer(aws, stream)
    with H2Client(aws.endpoint_url) as client:
        pushed = client.send("SubscribeToShard", _subscription(consumer, "LATEST"))
        client.wait_for(pushed, b"SubscribeToShardEvent")
        for i in range(3):
            client.call("PutRecord", StreamName=stream, Data=b"record-%d" % i, PartitionKey="k")
        reply = client.wait_for(pushed, b"record-2")
    buffer = EventStreamBuffer()
    buffer.add_data(bytes(reply.body))
    messages: Any = list(buffer)
    assert messages[0].headers[":event-type"] == "initial-response"
    assert {message.headers[":content-type"] for message in messages} == {"application/x-amz-cbor-1.1"}


def test_the_end_of_a_shard_ends_the_stream(aws: Emulator, stream: str) -> None:
    consumer = _consumer(aws, stream)
    with H2Client(aws.endpoint_url) as client:
        pushed = client.send("SubscribeToShard", _subscription(consumer, "TRIM_HORIZON"))
        client.wait_for(pushed, b"SubscribeToShardEvent")
        aws.kinesis.call(
            "SplitShard", {"StreamName": stream, "ShardToSplit": S0, "NewStartingHashKey": str(1 << 127)}
        )
        reply = client.wait(pushed)
    assert b"ChildShards" in reply.body


def test_hanging_up_frees_the_subscription(aws: Emulator, stream: str) -> None:
    # With limits on takeover this would be refused if the server had not noticed.
    consumer = _consumer(aws, stream)
    for _ in range(3):
        with H2Client(aws.endpoint_url) as client:
            pushed = client.send("SubscribeToShard", _subscription(consumer, "LATEST"))
            client.wait_for(pushed, b"SubscribeToShardEvent")


def test_a_dropped_request_leaves_the_other_streams_alone(aws: Emulator, stream: str) -> None:
    aws.faults.add(FaultRule(operation="ListStreams", drop=True, times=1))
    with H2Client(aws.endpoint_url) as client:
        assert client.wait(client.send("ListStreams", {})).reset
        assert client.call("ListStreams")["StreamNames"] == [stream]


# The other services


def test_s3_keeps_objects_under_any_key(aws: Emulator) -> None:
    s3 = aws.client("s3")
    s3.create_bucket(Bucket="landing")
    keys = ["plain", "a/b c/ü+%.parquet", "date=2026-11-20/part-0.parquet", "trailing/"]
    for key in keys:
        s3.put_object(Bucket="landing", Key=key, Body=key.encode(), Metadata={"origin": "test"})
    for key in keys:
        stored = s3.get_object(Bucket="landing", Key=key)
        assert stored["Body"].read() == key.encode()
        assert stored["Metadata"] == {"origin": "test"}
        assert s3.head_object(Bucket="landing", Key=key)["ContentLength"] == len(key.encode())
    listed = s3.list_objects_v2(Bucket="landing", Prefix="date=")
    assert [entry["Key"] for entry in listed["Contents"]] == ["date=2026-11-20/part-0.parquet"]
    s3.delete_object(Bucket="landing", Key="plain")
    with pytest.raises(s3.exceptions.NoSuchKey):
        s3.get_object(Bucket="landing", Key="plain")


def test_s3_takes_an_object_in_parts(aws: Emulator) -> None:
    s3 = aws.client("s3")
    s3.create_bucket(Bucket="parts")
    upload = s3.create_multipart_upload(Bucket="parts", Key="big")["UploadId"]
    piece = os.urandom(5 * 1024 * 1024)
    tags = [
        s3.upload_part(Bucket="parts", Key="big", PartNumber=n, UploadId=upload, Body=piece)["ETag"] for n in (1, 2)
    ]
    parts = [{"PartNumber": n, "ETag": tag} for n, tag in enumerate(tags, start=1)]
    s3.complete_multipart_upload(Bucket="parts", Key="big", UploadId=upload, MultipartUpload={"Parts": parts})
    assert s3.get_object(Bucket="parts", Key="big")["Body"].read() == piece * 2
    assert s3.get_object(Bucket="parts", Key="big", Range="bytes=0-9")["Body"].read() == piece[:10]


def test_dynamodb_does_not_hold_up_kinesis(aws: Emulator, stream: str) -> None:
    dynamodb, kinesis = aws.client("dynamodb"), aws.client("kinesis")
    dynamodb.create_table(
        TableName="t",
        KeySchema=[{"AttributeName": "k", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "k", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    aws.faults.add(FaultRule(service="dynamodb", latency_seconds=30))
    waiting = threading.Thread(target=_ignore, args=(dynamodb.list_tables,), daemon=True)
    waiting.start()
    assert kinesis.list_streams()["StreamNames"] == [stream]


def _ignore(act: Any) -> None:
    try:
        act()
    except Exception:
        return


def _consumer(aws: Emulator, stream: str) -> str:
    arn = aws.kinesis.call("DescribeStreamSummary", {"StreamName": stream})["StreamDescriptionSummary"]["StreamARN"]
    registered = aws.kinesis.call("RegisterStreamConsumer", {"StreamARN": arn, "ConsumerName": "reader"})
    return str(registered["Consumer"]["ConsumerARN"])


def _subscription(consumer: str, kind: str) -> dict[str, Any]:
    return {"ConsumerARN": consumer, "ShardId": S0, "StartingPosition": {"Type": kind}}


@contextmanager
def _connection(aws: Emulator) -> Iterator[socket.socket]:
    address = urlsplit(aws.endpoint_url)
    with socket.create_connection((address.hostname, address.port), 20) as raw:
        yield raw


def _responses(raw: socket.socket, count: int) -> list[tuple[int, bytes]]:
    """Status and body of that many responses."""
    with raw.makefile("rb") as incoming:
        return [_response(incoming) for _ in range(count)]


def _response(incoming: BinaryIO) -> tuple[int, bytes]:
    status = int(incoming.readline().split(b" ")[1])
    length = 0
    while (line := incoming.readline()) != b"\r\n":
        name, _, value = line.lower().partition(b": ")
        if name == b"content-length":
            length = int(value)
    return status, incoming.read(length)
