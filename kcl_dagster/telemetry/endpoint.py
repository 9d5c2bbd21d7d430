"""The page that Prometheus and compatible scrapers read: `http://127.0.0.1:9400/metrics`."""

import asyncio
import threading
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.server_socket import open_server_socket
from kcl_dagster.telemetry.openmetrics import CONTENT_TYPE, Render

PATH: Final = "/metrics"
REQUEST_SECONDS: Final = 5.0  # from the connection to the last byte of the response
MOST_CONNECTIONS: Final = 64  # if more are opened, the oldest is closed; a scraper needs one, for milliseconds
LARGEST_HEAD: Final = 16 * 1024
JOIN_SECONDS: Final = 2.0


class MetricsEndpoint:
    """An HTTP server that runs on its own thread as long as the `with` block lasts. It responds from memory.

    The server uses one thread and a limited number of connections, whatever its clients do. Every connection serves
    one request. It is closed after `request_seconds`, even if its client sends or reads slowly.
    """

    def __init__(self, render: Render, host: str, port: int, request_seconds: float = REQUEST_SECONDS) -> None:
        """Start to listen. Port 0 stands for any free port. Raises ConfigurationError if the server cannot
        listen."""
        try:
            self._socket = open_server_socket(host, port)
        except OSError as error:
            raise ConfigurationError(
                f"metrics cannot be served at {host}:{port}: {error.strerror or error}"
            ) from None
        self._render = render
        self._request_seconds = request_seconds
        self._open: dict[asyncio.StreamWriter, None] = {}  # oldest first
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="kcl-metrics", daemon=True)

    @property
    def url(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}{PATH}"

    def __enter__(self) -> Self:
        self._url = self.url
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._socket, limit=LARGEST_HEAD)
        await self._stop.wait()
        server.close()
        for writer in self._open:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MOST_CONNECTIONS:
            next(iter(self._open)).transport.abort()
        self._open[writer] = None
        try:
            async with asyncio.timeout(self._request_seconds):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            writer.transport.abort()
        finally:
            del self._open[writer]

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in {"GET", "HEAD"}:
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"")
        if path != PATH:
            return _response(HTTPStatus.NOT_FOUND, "text/plain", b"")
        body = self._render().encode()
        return _response(HTTPStatus.OK, CONTENT_TYPE, body, with_body=method == "GET")


def _response(status: HTTPStatus, kind: str, body: bytes, *, with_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
