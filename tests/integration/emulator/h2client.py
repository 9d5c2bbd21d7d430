"""A client of HTTP/2 without TLS, small enough to misbehave on purpose."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

import cbor2
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, StreamEnded, StreamReset
from h2.settings import SettingCodes, Settings

CBOR = "application/x-amz-cbor-1.1"
TIMEOUT_SECONDS = 120.0


@dataclass
class Reply:
    """What has come back on one stream so far."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    ended: bool = False
    reset: bool = False

    def cbor(self) -> Any:
        return cbor2.loads(bytes(self.body), semantic_decoders={1: lambda millis, _: millis})


class H2Client:
    """One connection. `window` is how many bytes of a reply the server may send unasked."""

    def __init__(self, endpoint_url: str, window: int = 65_535) -> None:
        address = urlsplit(endpoint_url)
        self._authority = address.netloc
        self._socket = socket.create_connection((address.hostname, address.port), TIMEOUT_SECONDS)
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._h2.local_settings = Settings(
            client=True, initial_values={SettingCodes.INITIAL_WINDOW_SIZE: window, SettingCodes.ENABLE_PUSH: 0}
        )
        self._h2.initiate_connection()
        self._replies: dict[int, Reply] = {}
        self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, operation: str, parameters: dict[str, Any]) -> int:
        """A Kinesis request in CBOR; answers the stream."""
        body = cbor2.dumps(parameters)
        stream = int(self._h2.get_next_available_stream_id())
        self._replies[stream] = Reply()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", self._authority),
            (":path", "/"),
            ("x-amz-target", f"Kinesis_20131202.{operation}"),
            ("content-type", CBOR),
        ]
        self._h2.send_headers(stream, headers)
        while body:
            room = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size)
            if room == 0:
                self._flush()
                self._receive()
                continue
            self._h2.send_data(stream, body[:room])
            body = body[room:]
        self._h2.end_stream(stream)
        self._flush()
        return stream

    def wait(self, stream: int) -> Reply:
        """The whole reply."""
        reply = self._replies[stream]
        while not (reply.ended or reply.reset):
            self._receive()
        return reply

    def wait_for(self, stream: int, wanted: bytes) -> Reply:
        """The reply as soon as it holds `wanted`."""
        reply = self._replies[stream]
        while wanted not in reply.body:
            assert not reply.ended, bytes(reply.body)
            self._receive()
        return reply

    def call(self, operation: str, **parameters: Any) -> Any:
        reply = self.wait(self.send(operation, parameters))
        assert reply.status == 200, bytes(reply.body)
        return reply.cbor() if reply.body else {}

    def _receive(self) -> None:
        data = self._socket.recv(65_536)
        if not data:
            raise ConnectionError("the server hung up")
        for event in self._h2.receive_data(data):
            reply = self._replies.get(getattr(event, "stream_id", 0))
            if reply is None:
                continue
            if isinstance(event, ResponseReceived):
                headers = {str(name): str(value) for name, value in event.headers}
                reply.status, reply.headers = int(headers[":status"]), headers
            elif isinstance(event, DataReceived):
                reply.body += event.data
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, StreamEnded):
                reply.ended = True
            elif isinstance(event, StreamReset):
                reply.reset = True
        self._flush()

    def _flush(self) -> None:
        self._socket.sendall(self._h2.data_to_send())
