"""Answers that arrive in part, or byte by byte."""

import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from kcl_dagster import aws
from kcl_dagster.integrity import fault_of
from kcl_dagster.streams.parsing import install
from kcl_dagster.time_limit import TimeIsOver

ROW = {"TableName": "orders", "Key": {"leaseKey": {"S": "a"}}}
CUT = b'{"Items":[{"leaseKey":{"S":"x'
LIMIT = 0.5


@contextmanager
def served(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """The URL of an endpoint that answers each request in this way and closes the connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    connection.recv(65536)
                    answer(connection)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def http(body: bytes, *headers: str, length: int | None = None, status: str = "200 OK") -> bytes:
    said = len(body) if length is None else length
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {said}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def client(service: str, endpoint: str, **settings: Any) -> aws.Client:
    return aws.client(
        service, region="us-east-1", access_key="a", secret_key="b", endpoint_url=endpoint, **settings
    )


CALLS: dict[str, dict[str, Any]] = {
    "scan": {"TableName": "orders"},
    "query": {"TableName": "orders", "KeyConditionExpression": "a = b"},
    "get_item": ROW,
    "update_item": {**ROW, "ReturnValues": "ALL_NEW"},
    "put_item": {"TableName": "orders", "Item": {"leaseKey": {"S": "a"}}},
    "delete_item": ROW,
    "transact_write_items": {"TransactItems": [{"Delete": ROW}]},
}


@pytest.mark.parametrize("method", CALLS)
@pytest.mark.parametrize(
    "answer",
    [
        http(CUT),
        http(CUT, length=500),
        http(b"{}", length=500),
        http(b"{}", "x-amz-crc32: 1"),
        http(b""),
        http(b"<html>log in</html>"),
        http(CUT, status="400 Bad Request"),
        http(b'{"__type":"ConditionalCheckFailedException"}', "x-amz-crc32: 1", status="400 Bad Request"),
    ],
)
def test_an_answer_that_is_not_whole_is_no_answer(method: str, answer: bytes) -> None:
    with served(lambda connection: connection.sendall(answer)) as endpoint, pytest.raises(aws.Unanswered):
        aws.call(client("dynamodb", endpoint), method, **CALLS[method])


@pytest.mark.parametrize("method", ["scan", "query", "update_item"])
def test_an_answer_without_what_was_asked_for_is_no_answer(method: str) -> None:
    with (
        served(lambda connection: connection.sendall(http(b"{}"))) as endpoint,
        pytest.raises(aws.Unanswered, match="is not whole"),
    ):
        aws.call(client("dynamodb", endpoint), method, **CALLS[method])


def test_a_row_that_does_not_exist_is_answered_by_nothing() -> None:
    answer = http(b"{}", f"x-amz-crc32: {zlib.crc32(b'{}')}")
    with served(lambda connection: connection.sendall(answer)) as endpoint:
        assert "Item" not in aws.call(client("dynamodb", endpoint), "get_item", **ROW)


def test_records_that_are_parsed_apart_are_whole() -> None:
    answer = http(b'{"Records":[],"MillisBehindLatest":0}')
    with served(lambda connection: connection.sendall(answer)) as endpoint:
        kinesis = client("kinesis", endpoint)
        install(kinesis)
        assert aws.call(kinesis, "get_records", ShardIterator="i")["Records"] == []


def test_records_that_are_cut_off_are_no_answer() -> None:
    with served(lambda connection: connection.sendall(http(b'{"Records":['))) as endpoint:
        kinesis = client("kinesis", endpoint)
        install(kinesis)
        with pytest.raises(aws.Unanswered):
            aws.call(kinesis, "get_records", ShardIterator="i")


def test_the_page_of_a_proxy_is_reported_with_its_text() -> None:
    assert fault_of(b"<html>blocked</html>", {}, 403, may_be_empty=False) is None


@pytest.mark.parametrize("begins_with", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"])
def test_an_answer_that_arrives_byte_by_byte_is_given_up_by_the_clock(begins_with: bytes) -> None:
    is_over = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(begins_with)
        while not is_over.wait(LIMIT / 20):  # never as long as the timeout of one read
            connection.sendall(b"H")

    with served(drip) as endpoint:
        began = time.monotonic()
        try:
            with pytest.raises(aws.Unanswered) as caught:
                aws.call(client("dynamodb", endpoint, total_seconds=LIMIT), "get_item", **ROW)
        finally:
            is_over.set()
    assert isinstance(caught.value.__cause__, TimeIsOver)
    assert time.monotonic() - began < 10 * LIMIT
