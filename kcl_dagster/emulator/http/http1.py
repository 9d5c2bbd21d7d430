"""HTTP/1.1 with the features that AWS clients use: keep-alive, Expect, and chunked bodies in both directions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from http import HTTPStatus

from kcl_dagster.emulator.http.exchange import serve
from kcl_dagster.emulator.http.http_messages import BodyLimit, Handler, Header, HttpRequest, Response

LARGEST_HEAD = 64 * 1024
PIECE_BYTES = 256 * 1024  # written to the socket at once; asyncio copies the bytes that the socket does not accept
END_OF_HEAD = b"\r\n\r\n"
LONGEST_CHUNK_LINE = 1024  # the size and extensions of a chunk; no AWS client sends extensions
MOST_UNREAD = 1024 * 1024  # bytes that are read while a request is served; the others remain in the socket
TOO_LARGE = b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_CHUNK_SIZE = re.compile(rb"[0-9a-fA-F]{1,16}")
_LENGTH = re.compile(r"[0-9]{1,18}")
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
BODILESS = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})


class BadRequest(Exception):
    """The client does not use HTTP/1.1, or sent an invalid request."""


class TooLarge(Exception):
    """The body is larger than the service accepts."""


class Http1Connection:
    """One connection; requests are served one after the other."""

    def __init__(self, transport: asyncio.Transport, handler: Handler, limit: BodyLimit) -> None:
        self._transport = transport
        self._handler = handler
        self._limit = limit
        self._buffer = bytearray()
        self._searched = 0  # this many bytes of the buffer do not contain the end of a head
        self._head: _Head | None = None
        self._chunks: _Chunks | None = None
        self._task: asyncio.Task[None] | None = None
        self._busy = False
        self._serving = False
        self._body = memoryview(b"")
        self._after_body: Callable[[], None] | None = None
        self._paused = False
        self._writable = asyncio.Event()
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._serve_next()
        if self._busy and len(self._buffer) > MOST_UNREAD:
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._paused = True
        self._writable.clear()

    def resume_writing(self) -> None:
        self._paused = False
        self._writable.set()
        self._pump()

    def connection_lost(self) -> None:
        self._buffer.clear()
        self._body = memoryview(b"")
        self._after_body = None
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    def write(self, body: bytes, after: Callable[[], None]) -> None:
        """Send a body as fast as the client accepts it, then call `after`."""
        self._body = memoryview(body)
        self._after_body = after
        self._pump()

    async def writable(self) -> None:
        await self._writable.wait()

    def done(self) -> None:
        """Continue with the next request, after a response was sent."""
        self._busy = False
        if not self._transport.is_closing():
            self._transport.resume_reading()
        self._serve_next()

    def _pump(self) -> None:
        while self._body and not self._paused:
            self._transport.write(self._body[:PIECE_BYTES])
            self._body = self._body[PIECE_BYTES:]
        if not self._body and self._after_body is not None:
            after, self._after_body = self._after_body, None
            after()

    def _serve_next(self) -> None:
        """Serve the requests that have arrived, one after the other. If a response is complete at once, `serve`
        calls `done`, which calls this method again. The inner call returns at once, and the loop continues."""
        if self._serving:
            return
        self._serving = True
        try:
            while not self._busy and not self._transport.is_closing():
                request = self._next_request()
                if request is None:
                    break
                self._busy = True
                self._task = serve(self._handler, _Exchange(request, self._transport, self))
        except BadRequest:
            self._refuse(BAD_REQUEST)
        except TooLarge:
            self._refuse(TOO_LARGE)
        finally:
            self._serving = False

    def _refuse(self, answer: bytes) -> None:
        self._transport.write(answer)
        self._transport.close()
        self._buffer.clear()

    def _next_request(self) -> HttpRequest | None:
        if self._head is None:
            end = self._buffer.find(END_OF_HEAD, self._searched)
            if max(end, len(self._buffer) if end < 0 else 0) > LARGEST_HEAD:
                raise BadRequest("head too large")
            if end < 0:
                self._searched = max(0, len(self._buffer) - len(END_OF_HEAD) + 1)
                return None
            self._head = _Head(bytes(self._buffer[:end]))
            self._searched = 0
            del self._buffer[: end + len(END_OF_HEAD)]
            limit = self._limit(self._head.target, self._head.headers)
            if self._head.length > limit:
                raise TooLarge
            self._chunks = _Chunks(limit) if self._head.chunked else None
            if self._head.headers.get("expect", "").lower() == "100-continue":
                self._transport.write(CONTINUE)
        head = self._head
        body = _take(self._buffer, head.length) if self._chunks is None else self._chunks.take(self._buffer)
        if body is None:
            return None
        self._head = None
        return HttpRequest(head.method, head.target, head.headers, head.raw_headers, body)


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
        encoding = self.headers.get("transfer-encoding", "").lower()
        if encoding not in {"", "chunked"}:
            raise BadRequest(f"transfer-encoding {encoding!r}")
        self.chunked = encoding == "chunked"
        length = self.headers.get("content-length", "0")
        if not _LENGTH.fullmatch(length):
            raise BadRequest(f"content-length {length!r}")
        self.length = 0 if self.chunked else int(length)


def _take(buffer: bytearray, length: int) -> bytes | None:
    if len(buffer) < length:
        return None
    body = bytes(memoryview(buffer)[:length])
    del buffer[:length]
    return body


class _Chunks:
    """A chunked body while it arrives. Every byte is processed only once, even if chunks and packets are small."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._length = 0
        self._left: int | None = None  # bytes of the current chunk with its line end; None between two chunks
        self._ended = False

    def take(self, buffer: bytearray) -> bytes | None:
        """Return the whole body; None if it is not complete yet. Removes the bytes that it has read from the
        buffer."""
        while not self._ended:
            if self._left is None:
                line = _take_line(buffer)
                if line is None:
                    return None
                self._begin(line)
            elif len(buffer) < self._left:
                return None
            else:
                piece = _take(buffer, self._left)
                assert piece is not None
                if not piece.endswith(b"\r\n"):
                    raise BadRequest("a chunk is longer than it says")
                self._pieces.append(piece[:-2])
                self._left = None
        if _take_line(buffer) is None:  # an empty line; AWS clients send trailers only with TLS
            return None
        return b"".join(self._pieces)

    def _begin(self, line: bytes) -> None:
        text = line.partition(b";")[0].strip()
        if not _CHUNK_SIZE.fullmatch(text):
            raise BadRequest("chunk size")
        size = int(text, 16)
        self._length += size
        if self._length > self._limit:
            raise TooLarge
        self._ended = size == 0
        self._left = size + 2


def _take_line(buffer: bytearray) -> bytes | None:
    end = buffer.find(b"\r\n", 0, LONGEST_CHUNK_LINE)
    if end < 0:
        if len(buffer) >= LONGEST_CHUNK_LINE:
            raise BadRequest("a line without end")
        return None
    line = bytes(buffer[:end])
    del buffer[: end + 2]
    return line


class _Exchange:
    def __init__(self, request: HttpRequest, transport: asyncio.Transport, connection: Http1Connection) -> None:
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
    """Return the length for the header. The response to a HEAD request has the length of the body that it omits."""
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
