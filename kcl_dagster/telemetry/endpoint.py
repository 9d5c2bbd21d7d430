"""The page that Prometheus and its like scrape: `http://127.0.0.1:9400/metrics`."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Final, Self

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.telemetry.board import CONTENT_TYPE, Render

PATH: Final = "/metrics"
REQUEST_SECONDS: Final = 5.0  # a scraper that says nothing does not keep a thread
JOIN_SECONDS: Final = 2.0


class MetricsEndpoint:
    """Serves between `with` and the end of its block, on threads of its own. Answers from memory."""

    def __init__(self, render: Render, host: str, port: int) -> None:
        """Port 0 is any free one. Raises ConfigurationError where it cannot listen."""
        try:
            self._server = _Server((host, port), _handler(render))
        except OSError as error:
            raise ConfigurationError(
                f"metrics cannot be served at {host}:{port}: {error.strerror or error}"
            ) from None
        self._thread = threading.Thread(target=self._serve, name="kcl-metrics", daemon=True)

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}{PATH}"

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.2)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(JOIN_SECONDS)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a scraper that hangs must not hold up the end of a worker


def _handler(render: Render) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != PATH:
                self.send_error(404)
                return
            body = render().encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - its base's name
            """A scrape every few seconds is not news."""

    return Handler
