"""HTTP/2 without TLS ("prior knowledge"), which the asynchronous client of the Java SDK requires."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from kcl_dagster.emulator.http.exchange import serve
from kcl_dagster.emulator.http.http_messages import BodyLimit, Handler, Header, HttpRequest, Response

# A PutRecords request has up to 10 MiB. With the default window, every 64 KiB would need a round trip.
RECEIVE_WINDOW = 16 * 1024 * 1024
MOST_STREAMS = 1024


class Http2Connection:
    """One connection. Its streams are served concurrently."""

    def __init__(self, transport: asyncio.Transport, handler: Handler, limit: BodyLimit) -> None:
        self.transport = transport
        self.writable = asyncio.Event()
        self.writable.set()
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self._handler = handler
        self._limit = limit
        self._requests: dict[int, _Incoming] = {}
        self._exchanges: dict[int, _Exchange] = {}
        # The settings are initial values, because a later change would apply only after the peer has confirmed it.
        self.h2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.INITIAL_WINDOW_SIZE: RECEIVE_WINDOW,
                SettingCodes.MAX_CONCURRENT_STREAMS: MOST_STREAMS,
            },
        )
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(RECEIVE_WINDOW)
        self.flush()

    def data_received(self, data: bytes) -> None:
        try:
            events = self.h2.receive_data(data)
        except ProtocolError:
            self.flush()
            self.transport.close()
            return
        for event in events:
            react = _REACTIONS.get(type(event))
            if react is not None:
                react(self, event)
        self.flush()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self) -> None:
        self.writable.set()
        for exchange in list(self._exchanges.values()):
            exchange.cancel()
        self._exchanges.clear()

    def flush(self) -> None:
        data = self.h2.data_to_send()
        if data and not self.transport.is_closing():
            self.transport.write(data)

    def forget(self, stream: int) -> None:
        self._exchanges.pop(stream, None)

    def request_received(self, event: RequestReceived) -> None:
        self._requests[event.stream_id] = _Incoming(event.headers, self._limit)

    def body_received(self, event: DataReceived) -> None:
        incoming = self._requests.get(event.stream_id)
        if incoming is not None and not incoming.add(event.data):
            del self._requests[event.stream_id]  # the rest of the body is read and discarded
            self._exchanges[event.stream_id] = exchange = _Exchange(incoming.request(), event.stream_id, self)
            exchange.send(Response(413), b"")
        if event.flow_controlled_length:
            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)

    def request_ended(self, event: StreamEnded) -> None:
        incoming = self._requests.pop(event.stream_id, None)
        if incoming is None:
            return
        exchange = _Exchange(incoming.request(), event.stream_id, self)
        self._exchanges[event.stream_id] = exchange
        exchange.task = serve(self._handler, exchange)

    def stream_reset(self, event: StreamReset) -> None:
        self._requests.pop(event.stream_id, None)
        exchange = self._exchanges.pop(event.stream_id, None)
        if exchange is not None:
            exchange.cancel()

    def window_updated(self, event: WindowUpdated) -> None:
        if event.stream_id:
            exchange = self._exchanges.get(event.stream_id)
            waiting = [] if exchange is None else [exchange]
        else:
            waiting = list(self._exchanges.values())
        for exchange in waiting:
            exchange.pump()

    def terminated(self, _event: ConnectionTerminated) -> None:
        self.transport.close()


class _Incoming:
    """A request whose body is still arriving."""

    def __init__(self, headers: Any, limit: BodyLimit) -> None:
        self._headers: list[Header] = [(str(name), str(value)) for name, value in headers]
        by_name = dict(self._headers)
        self._largest = limit(by_name.get(":path", ""), by_name)
        self._body = bytearray()

    def add(self, data: bytes) -> bool:
        """Add a part of the body. If the body is too large, discard it and return False."""
        self._body += data
        if len(self._body) <= self._largest:
            return True
        self._body = bytearray()
        return False

    def request(self) -> HttpRequest:
        by_name = dict(self._headers)
        plain = [(name, value) for name, value in self._headers if not name.startswith(":")]
        if ":authority" in by_name:
            plain.append(("host", by_name[":authority"]))
        return HttpRequest(by_name[":method"], by_name[":path"], dict(plain), plain, bytes(self._body))


class _Exchange:
    """The response on one stream. It buffers the bytes that the flow control window does not admit yet."""

    def __init__(self, request: HttpRequest, stream: int, connection: Http2Connection) -> None:
        self.request = request
        self.task: asyncio.Task[None] | None = None
        self._stream = stream
        self._connection = connection
        self._pending = memoryview(b"")
        self._ended = False
        self._drained = asyncio.Event()
        self._drained.set()

    def send(self, response: Response, body: bytes) -> None:
        self.start(response)
        if self.request.method != "HEAD":
            self._pending = memoryview(body)
        self.finish()

    def start(self, response: Response) -> None:
        headers = [(":status", str(response.status))]
        headers += [(name.lower(), value) for name, value in response.headers if name.lower() != "connection"]
        self._guarded(lambda: self._connection.h2.send_headers(self._stream, headers))
        self._connection.flush()

    async def push(self, piece: bytes) -> None:
        self._pending = memoryview(piece)
        self.pump()
        await self._drained.wait()
        await self._connection.writable.wait()

    def finish(self) -> None:
        self._ended = True
        self.pump()

    def drop(self) -> None:
        # For the client, this request has lost its connection. The other streams of the connection continue.
        self._guarded(lambda: self._connection.h2.reset_stream(self._stream, ErrorCodes.INTERNAL_ERROR))
        self._connection.forget(self._stream)
        self._connection.flush()

    def cancel(self) -> None:
        self._pending = memoryview(b"")
        self._drained.set()
        if self.task is not None:
            self.task.cancel()

    def pump(self) -> None:
        """Send as many of the pending bytes as the flow control window admits."""
        self._guarded(self._pump)
        if self._pending:
            self._drained.clear()
        else:
            self._drained.set()
        self._connection.flush()

    def _pump(self) -> None:
        h2 = self._connection.h2
        while self._pending:
            room = min(h2.local_flow_control_window(self._stream), h2.max_outbound_frame_size)
            if room <= 0:
                return
            h2.send_data(self._stream, bytes(self._pending[:room]))
            self._pending = self._pending[room:]
        if self._ended:
            h2.end_stream(self._stream)
            self._connection.forget(self._stream)

    def _guarded(self, act: Callable[[], object]) -> None:
        """Run `act`. If the peer has closed the stream meanwhile, discard the rest of the response."""
        try:
            act()
        except ProtocolError:
            self._connection.forget(self._stream)
            self.cancel()


_REACTIONS: dict[type, Callable[[Http2Connection, Any], None]] = {
    RequestReceived: Http2Connection.request_received,
    DataReceived: Http2Connection.body_received,
    StreamEnded: Http2Connection.request_ended,
    StreamReset: Http2Connection.stream_reset,
    WindowUpdated: Http2Connection.window_updated,
    ConnectionTerminated: Http2Connection.terminated,
}
