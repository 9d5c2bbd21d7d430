"""Measures how fast the embedded AWS is: `make bench-emulator`, or `python benchmarks/emulator.py`.

The server is a process of its own. For the raw figures, the client does not parse the replies, so that it does not
limit the speed of the server. For the figure with boto3, stock boto3 reads from the same server. Each figure is the
best of ten short rounds. Takes about half a minute.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import boto3

SHARD = "shardId-000000000000"
KINESIS = "Kinesis_20131202."
DYNAMODB = "DynamoDB_20120810."
RECORDS_PER_PUT = 500
LARGEST_REPLY = 32 * 1024 * 1024
ROUNDS = 10  # the best round counts: the machine's other work slowed the others down
SECONDS_PER_ROUND = 0.3
MB = 1_000_000


@dataclass(frozen=True)
class Figure:
    """One measured number. `bar`: the least value that is good enough."""

    name: str
    value: float
    unit: str
    bar: float

    @property
    def ok(self) -> bool:
        return self.value >= self.bar

    def as_json(self) -> str:
        facts = {"figure": self.name, "value": round(self.value, 1), "unit": self.unit, "bar": self.bar}
        return json.dumps({**facts, "ok": self.ok})


class RawClient:
    """A client with one keep-alive connection. `call` does not parse replies, and `pages` parses only their
    ends."""

    def __init__(self, endpoint_url: str) -> None:
        self._authority = urlsplit(endpoint_url).netloc
        self._http = http.client.HTTPConnection(self._authority)

    def call(self, target: str, body: dict[str, Any] | bytes) -> bytes:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"X-Amz-Target": target, "Content-Type": "application/x-amz-json-1.1"}
        self._http.request("POST", "/", data, headers)
        reply = self._http.getresponse()
        content = reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{target}: {content!r}")
        return content

    def pages(self, iterator: str) -> Iterator[int]:
        """Read a shard to its tip with GetRecords. All replies are read into the same buffer. Yields the size of
        each reply, in bytes."""
        address = urlsplit(f"//{self._authority}")
        buffer = bytearray(LARGEST_REPLY)
        with socket.create_connection((address.hostname, address.port)) as raw:
            behind = 1
            while behind:
                body = json.dumps({"ShardIterator": iterator}).encode()
                head = f"POST / HTTP/1.1\r\nhost: {self._authority}\r\nx-amz-target: {KINESIS}GetRecords\r\n"
                raw.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
                total = _receive(raw, buffer)
                end = bytes(buffer[max(0, total - 1024) : total])
                rest = json.loads(b'{"' + end[end.rindex(b'],"') + 3 :])
                iterator, behind = rest["NextShardIterator"], rest["MillisBehindLatest"]
                yield total

    def close(self) -> None:
        self._http.close()


def main() -> int:
    with _server() as endpoint_url:
        figures = list(_measure(endpoint_url))
    width = max(len(figure.name) for figure in figures)
    print(f"{'figure':{width}}  {'value':>12}  {'bar':>10}  unit")
    for figure in figures:
        verdict = "" if figure.ok else "  below the bar"
        print(f"{figure.name:{width}}  {figure.value:12,.0f}  {figure.bar:10,.0f}  {figure.unit}{verdict}")
    for figure in figures:
        print(figure.as_json())
    return 0


def _measure(endpoint_url: str) -> Iterator[Figure]:
    client = RawClient(endpoint_url)
    put_rate = _fill(client, "large", size=1024, count=20_000)
    yield Figure("GetRecords raw, 1 KB records", _read_rate(client, "large", 20_000) * 1024 / MB, "MB/s", 100)
    _fill(client, "small", size=100, count=100_000)
    yield Figure("GetRecords raw, 100 B records", _read_rate(client, "small", 100_000), "records/s", 300_000)
    yield Figure("PutRecords, 1 KB records", put_rate, "records/s", 10_000)
    yield Figure("DynamoDB conditional updates", _update_rate(client), "updates/s", 300)
    yield Figure("DynamoDB scan of 1,000 leases", _scan_rate(client), "leases/s", 10_000)
    yield Figure("GetRecords by boto3, 1 KB records", _boto3_rate(endpoint_url, "large"), "MB/s", 10)
    client.close()


def _fill(client: RawClient, stream: str, size: int, count: int) -> float:
    """Put random records into a new stream. Returns the number of records per second."""
    client.call(f"{KINESIS}CreateStream", {"StreamName": stream, "ShardCount": 1})
    data = [base64.b64encode(os.urandom(size)).decode() for _ in range(RECORDS_PER_PUT)]
    records = [{"Data": piece, "PartitionKey": f"key-{i}"} for i, piece in enumerate(data)]
    body = json.dumps({"StreamName": stream, "Records": records}).encode()

    def put() -> None:
        reply = client.call(f"{KINESIS}PutRecords", body)
        if not reply.startswith(b'{"FailedRecordCount":0'):
            raise RuntimeError(f"records failed: {reply[:200]!r}")

    calls = count // RECORDS_PER_PUT // ROUNDS
    rounds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(calls):
            put()
        rounds.append(calls * RECORDS_PER_PUT / (time.perf_counter() - started))
    return max(rounds)


def _read_rate(client: RawClient, stream: str, count: int) -> float:
    """The number of records per second if a stream of `count` records is read again and again."""
    request = {"StreamName": stream, "ShardId": SHARD, "ShardIteratorType": "TRIM_HORIZON"}
    iterator = json.loads(client.call(f"{KINESIS}GetShardIterator", request))["ShardIterator"]

    def read() -> None:
        for _ in client.pages(iterator):
            pass

    return count * _times_a_second(read)


def _update_rate(client: RawClient) -> float:
    """The number of renewals of one lease per second. Each requires the counter that the renewal before has
    written."""
    client.call(
        f"{DYNAMODB}CreateTable",
        {
            "TableName": "leases",
            "KeySchema": [{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": "leaseKey", "AttributeType": "S"}],
            "BillingMode": "PAY_PER_REQUEST",
        },
    )
    for index in range(1000):
        lease = {
            "leaseKey": {"S": f"shardId-{index:012d}"},
            "leaseOwner": {"S": "worker-000:1a2b3c4d"},
            "leaseCounter": {"N": "0"},
            "checkpoint": {"S": "49587497311274533994574834252742144236107130636007899138"},
            "checkpointSubSequenceNumber": {"N": "0"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
        }
        client.call(f"{DYNAMODB}PutItem", {"TableName": "leases", "Item": lease})
    counter = 0

    def renew() -> None:
        nonlocal counter
        client.call(
            f"{DYNAMODB}UpdateItem",
            {
                "TableName": "leases",
                "Key": {"leaseKey": {"S": SHARD}},
                "UpdateExpression": "SET leaseCounter = :n, throughputKBps = :t",
                "ConditionExpression": "leaseCounter = :c AND attribute_not_exists(checkpointOwner)",
                "ExpressionAttributeValues": {
                    ":n": {"N": str(counter + 1)},
                    ":c": {"N": str(counter)},
                    ":t": {"N": "85.3"},
                },
            },
        )
        counter += 1

    return _times_a_second(renew)


def _scan_rate(client: RawClient) -> float:
    return 1000 * _times_a_second(lambda: client.call(f"{DYNAMODB}Scan", {"TableName": "leases"}))


def _boto3_rate(endpoint_url: str, stream: str) -> float:
    """The megabytes of payload per second that stock boto3 reads and parses."""
    session = boto3.Session("bench", "bench", region_name="us-east-1")
    kinesis = session.client("kinesis", endpoint_url=endpoint_url)
    iterator = kinesis.get_shard_iterator(StreamName=stream, ShardId=SHARD, ShardIteratorType="TRIM_HORIZON")[
        "ShardIterator"
    ]
    payload = 0

    def read() -> None:
        nonlocal payload
        page = kinesis.get_records(ShardIterator=iterator)
        payload = sum(len(record["Data"]) for record in page["Records"])

    rate = _times_a_second(read)
    return payload * rate / MB


def _times_a_second(act: Callable[[], object]) -> float:
    act()  # the first call also imports modules and opens connections
    rounds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        done = 0
        while (elapsed := time.perf_counter() - started) < SECONDS_PER_ROUND:
            act()
            done += 1
        rounds.append(done / elapsed)
    return max(rounds)


def _receive(raw: socket.socket, buffer: bytearray) -> int:
    """Read one reply into the buffer. Returns the length of the reply."""
    view = memoryview(buffer)
    received, total = 0, LARGEST_REPLY
    while received < total:
        received += raw.recv_into(view[received:])
        if total == LARGEST_REPLY and (head := buffer.find(b"\r\n\r\n", 0, received)) >= 0:
            at = buffer.index(b"content-length: ", 0, head) + len(b"content-length: ")
            total = head + 4 + int(buffer[at : buffer.index(b"\r\n", at)])
    return total


@contextmanager
def _server() -> Iterator[str]:
    command = [sys.executable, "-m", "kcl_dagster.emulator", "--no-limits"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


if __name__ == "__main__":
    sys.exit(main())
