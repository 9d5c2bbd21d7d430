"""HTTP/1.1 from clients that mean harm or are merely odd."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from kcl_dagster.emulator.gateway import LARGEST_API_BODY, LARGEST_CONTROL_BODY, LARGEST_S3_BODY, largest_body
from kcl_dagster.emulator.http import http1
from kcl_dagster.emulator.http.http1 import MOST_UNREAD, Http1Connection
from kcl_dagster.emulator.http.http_messages import HttpRequest, Response

HEAD = b"POST /%b HTTP/1.1\r\nhost: localhost\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"


class Transport:
    """What a connection writes, and whether it reads and is open."""

    def __init__(self) -> None:
        self.written = b""
        self.reading = True
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Client:
    """One connection whose requests are answered at once with 204, unless `answers` is off."""

    def __init__(self, limit: int = 1000) -> None:
        self.transport = Transport()
        self.requests: list[HttpRequest] = []
        transport: Any = self.transport
        self.connection = Http1Connection(transport, self._handle, lambda *_: limit)

    def _handle(self, request: HttpRequest) -> Response:
        self.requests.append(request)
        return Response(204)

    def send(self, *pieces: bytes) -> Client:
        for piece in pieces:
            self.connection.data_received(piece)
        return self

    def reads(self) -> bool:
        return self.transport.reading

    @property
    def status(self) -> bytes:
        return self.transport.written.split(b" ", 2)[1]


def work(chunks: int) -> int:
    """How many lines of the codec run for a body of one-byte chunks, each in a packet of its own."""
    client, lines = Client(limit=chunks), 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != http1.__file__:
            return None
        lines += event == "line"
        return count

    client.send(HEAD % b"" + CHUNKED)
    before = sys.gettrace()
    sys.settrace(count)
    try:
        client.send(*[b"1\r\nx\r\n"] * chunks, b"0\r\n\r\n")
    finally:
        sys.settrace(before)
    assert client.requests[0].body == b"x" * chunks
    return lines


@pytest.mark.audit("D9")
def test_reading_a_body_in_chunks_costs_as_much_as_it_is_long() -> None:
    assert work(400) < 2.5 * work(200)


@pytest.mark.audit("D9")
@pytest.mark.parametrize(
    "rest",
    [
        b"content-length: 1001\r\n\r\n",
        b"content-length: 999999999999\r\n\r\n",
        CHUNKED + b"3e9\r\n",
        CHUNKED + b"ffffffffffffffff\r\n",
        CHUNKED + b"3e8\r\n" + b"x" * 1000 + b"\r\n1\r\n",
    ],
    ids=["by one", "by far", "chunk", "largest chunk", "second chunk"],
)
def test_a_body_that_is_too_large_is_refused_before_it_arrives(rest: bytes) -> None:
    client = Client().send(HEAD % b"" + rest)
    assert client.status == b"413"
    assert client.transport.closed
    assert not client.requests


@pytest.mark.audit("D9")
@pytest.mark.parametrize(
    "rest",
    [
        CHUNKED + b"-5\r\n",
        CHUNKED + b"0x5\r\n",
        CHUNKED + b"1_0\r\n",
        CHUNKED + b"\r\n",
        CHUNKED + b"1\r\nxyz",
        CHUNKED + b"1;" + b"e" * 2000,
        b"content-length: -1\r\n\r\n",
        "content-length: ²\r\n\r\n".encode("latin-1"),
        b"content-length: " + b"9" * 5000 + b"\r\n\r\n",
        b"transfer-encoding: gzip, chunked\r\n\r\n",
        b"a: " + b"b" * 70_000 + b"\r\n\r\n",
        b"a: " + b"b" * 70_000,
    ],
)
def test_what_is_no_http_is_refused(rest: bytes) -> None:
    client = Client(limit=10**9).send(HEAD % b"" + rest)
    assert client.status == b"400"
    assert client.transport.closed
    assert not client.requests


@pytest.mark.audit("D9")
def test_thousands_of_requests_in_one_packet_are_served() -> None:
    client = Client().send((HEAD % b"a" + b"\r\n") * 5000)
    assert len(client.requests) == 5000
    assert not client.transport.closed


@pytest.mark.audit("D9")
def test_a_client_that_does_not_wait_for_answers_is_not_read_any_further() -> None:
    client = Client(limit=10**9)
    client.connection.write(b"", lambda: None)
    client.connection._busy = True  # an answer is under way
    client.send(HEAD % b"a" + b"content-length: 2000000\r\n\r\n", b"x" * (MOST_UNREAD + 1))
    assert client.reads() is False
    client.connection.done()
    assert client.reads() is True
    client.send(b"x" * (2_000_000 - MOST_UNREAD - 1))
    assert [len(request.body) for request in client.requests] == [2_000_000]


def test_a_request_may_come_byte_by_byte() -> None:
    text = HEAD % b"a" + CHUNKED + b"2;x=y\r\nhi\r\n3\r\n you\r\n0\r\n\r\n" + HEAD % b"b" + b"\r\n"
    text = text.replace(b"3\r\n you", b"4\r\n you")
    client = Client().send(*[text[at : at + 1] for at in range(len(text))])
    assert [(request.target, request.body) for request in client.requests] == [("/a", b"hi you"), ("/b", b"")]


@pytest.mark.audit("D9")
def test_every_service_has_a_limit() -> None:
    assert largest_body("/_kcl/faults", {}) == LARGEST_CONTROL_BODY
    assert largest_body("/", {"x-amz-target": "Kinesis_20131202.PutRecords"}) == LARGEST_API_BODY
    assert largest_body("/bucket/key", {}) == LARGEST_S3_BODY
