"""HTTP/1.1, as far as AWS clients use it: keep-alive, Expect, chunked bodies both ways."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from http import HTTPStatus

from kcl_dagster.emulator.http.exchange import serve
from kcl_dagster.emulator.http.messages import Handler, Header, Request, Response

LARGEST_HEAD = 64 * 1024
PIECE_BYTES = 256 * 1024  # handed to the socket at once: what it does not take is copied by asyncio
END_OF_HEAD = b"\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
BODILESS = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})


class BadRequest(Exception):
    """The peer does not speak HTTP/1.1."""


class Http1Connection:
    """One connection; requests are served one after the other."""

    def __init__(self, transport: asyncio.Transport, handler: Handler) -> None:
        self._transport = transport
        self._handler = handler
        self._buffer = bytearray()
        self._head: _Head | None = None
        self._waiting: deque[Request] = deque()
        self._task: asyncio.Task[None] | None = None
        self._busy = False
        self._body = memoryview(b"")
        self._after_body: Callable[[], None] | None = None
        self._paused = False
        self._writable = asyncio.Event()
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            while (request := self._next_request()) is not None:
                self._waiting.append(request)
        except BadRequest as error:
            self._transport.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            self._transport.close()
            self._buffer.clear()
            if not str(error):
                return
        self._serve_next()

    def pause_writing(self) -> None:
        self._paused = True
        self._writable.clear()

    def resume_writing(self) -> None:
        self._paused = False
        self._writable.set()
        self._pump()

    def connection_lost(self) -> None:
        self._waiting.clear()
        self._body = memoryview(b"")
        self._after_body = None
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    def write(self, body: bytes, after: Callable[[], None]) -> None:
        """Send a body as fast as the client takes it, then call `after`."""
        self._body = memoryview(body)
        self._after_body = after
        self._pump()

    async def writable(self) -> None:
        await self._writable.wait()

    def done(self) -> None:
        """An exchange was answered."""
        self._busy = False
        self._serve_next()

    def _pump(self) -> None:
        while self._body and not self._paused:
            self._transport.write(self._body[:PIECE_BYTES])
            self._body = self._body[PIECE_BYTES:]
        if not self._body and self._after_body is not None:
            after, self._after_body = self._after_body, None
            after()

    def _serve_next(self) -> None:
        while self._waiting and not self._busy and not self._transport.is_closing():
            self._busy = True
            self._task = serve(self._handler, _Exchange(self._waiting.popleft(), self._transport, self))

    def _next_request(self) -> Request | None:
        if self._head is None:
            end = self._buffer.find(END_OF_HEAD)
            if end < 0:
                if len(self._buffer) > LARGEST_HEAD:
                    raise BadRequest("head too large")
                return None
            self._head = _Head(bytes(self._buffer[:end]))
            del self._buffer[: end + len(END_OF_HEAD)]
            if self._head.headers.get("expect", "").lower() == "100-continue":
                self._transport.write(CONTINUE)
        head = self._head
        body = _take_chunks(self._buffer) if head.chunked else _take(self._buffer, head.length)
        if body is None:
            return None
        self._head = None
        return Request(head.method, head.target, head.headers, head.raw_headers, body)


class _Head:
    __slots__ = ("chunked", "headers", "length", "method", "raw_headers", "target")

    def __init__(self, raw: bytes) -> None:
        lines = raw.decode("latin-1").split("\r\n")
        parts = lines[0].split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            raise BadRequest(f"not a request line: {lines[0]!r}")
        self.method, self.target = parts[0], parts[1]
        self.raw_headers: list[Header] = []
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon:
                raise BadRequest(f"not a header: {line!r}")
            self.raw_headers.append((name, value.strip()))
        self.headers = {name.lower(): value for name, value in self.raw_headers}
        self.chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        length = self.headers.get("content-length", "0")
        if not length.isdigit():
            raise BadRequest(f"content-length {length!r}")
        self.length = int(length)


def _take(buffer: bytearray, length: int) -> bytes | None:
    if len(buffer) < length:
        return None
    body = bytes(memoryview(buffer)[:length])
    del buffer[:length]
    return body


def _take_chunks(buffer: bytearray) -> bytes | None:
    """The whole chunked body, or None while some of it is still to come."""
    pieces = []
    at = 0
    while True:
        end = buffer.find(b"\r\n", at)
        if end < 0:
            return None
        try:
            size = int(bytes(buffer[at:end]).partition(b";")[0], 16)
        except ValueError as error:
            raise BadRequest("chunk size") from error
        at = end + 2
        if size == 0:
            break
        if len(buffer) < at + size + 2:
            return None
        pieces.append(bytes(buffer[at : at + size]))
        at += size + 2
    end = buffer.find(b"\r\n", at)  # trailers are not used by AWS clients without TLS
    if end < 0:
        return None
    del buffer[: end + 2]
    return b"".join(pieces)


class _Exchange:
    def __init__(self, request: Request, transport: asyncio.Transport, connection: Http1Connection) -> None:
        self.request = request
        self._transport = transport
        self._connection = connection

    def send(self, response: Response, body: bytes) -> None:
        head = _head(
            response, None if response.status in BODILESS else f"content-length: {_length(response, body)}"
        )
        if self.request.method == "HEAD" or response.status in BODILESS:
            body = b""
        if len(body) < PIECE_BYTES:
            self._transport.write(head + body)
            self._end()
        else:
            self._transport.write(head)
            self._connection.write(body, self._end)

    def start(self, response: Response) -> None:
        self._transport.write(_head(response, "transfer-encoding: chunked"))

    async def push(self, piece: bytes) -> None:
        self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await self._connection.writable()

    def finish(self) -> None:
        self._transport.write(b"0\r\n\r\n")
        self._end()

    def drop(self) -> None:
        self._transport.abort()

    def _end(self) -> None:
        if self.request.headers.get("connection", "").lower() == "close":
            self._transport.close()
        self._connection.done()


def _length(response: Response, body: bytes) -> str:
    """HEAD answers carry the length of the body that they leave out."""
    return next((value for name, value in response.headers if name.lower() == "content-length"), str(len(body)))


def _head(response: Response, framing: str | None) -> bytes:
    lines = [f"HTTP/1.1 {response.status} {_reason(response.status)}"]
    lines += [f"{name}: {value}" for name, value in response.headers if name.lower() != "content-length"]
    if framing is not None:
        lines.append(framing)
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
