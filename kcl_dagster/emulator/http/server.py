"""The TCP server. A connection uses HTTP/2 if it begins with the HTTP/2 preface, and HTTP/1.1 otherwise."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from kcl_dagster.emulator.http.http1 import Http1Connection
from kcl_dagster.emulator.http.http2 import Http2Connection
from kcl_dagster.emulator.http.http_messages import BodyLimit, Handler

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
BACKLOG = 1024


class HttpCodec(Protocol):
    """One version of HTTP on one connection."""

    def data_received(self, data: bytes) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def connection_lost(self) -> None: ...


class _Connection(asyncio.Protocol):
    def __init__(self, handler: Handler, limit: BodyLimit, connections: set[_Connection]) -> None:
        self._handler = handler
        self._limit = limit
        self._connections = connections
        self._codec: HttpCodec | None = None
        self._first = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._codec is not None:
            self._codec.data_received(data)
            return
        self._first += data
        assert self._transport is not None
        if self._first.startswith(PREFACE):
            self._codec = Http2Connection(self._transport, self._handler, self._limit)
        elif PREFACE.startswith(self._first):
            return
        else:
            self._codec = Http1Connection(self._transport, self._handler, self._limit)
        first, self._first = self._first, b""
        self._codec.data_received(first)

    def pause_writing(self) -> None:
        if self._codec is not None:
            self._codec.pause_writing()

    def resume_writing(self) -> None:
        if self._codec is not None:
            self._codec.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._connections.discard(self)
        if self._codec is not None:
            self._codec.connection_lost()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class HttpServer:
    """Serves requests until it is closed. All methods are called on one event loop."""

    def __init__(self, handler: Handler, limit: BodyLimit) -> None:
        self._handler = handler
        self._limit = limit
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Start to listen and return the port. Raises OSError if the port is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self._handler, self._limit, self._connections), host, port, backlog=BACKLOG
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and close every connection."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self._connections):
            connection.close()
        await self._server.wait_closed()
        self._server = None
