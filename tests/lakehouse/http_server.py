"""A server of HTTP in this process, on 127.0.0.1 and a free port, and a proxy before another one."""

import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

_OF_ONE_HOP: Final = frozenset({"connection", "content-length", "transfer-encoding", "keep-alive"})
_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Request:
    """`target` is the path with the query. `headers` by names in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


@contextmanager
def served(answer: Callable[[Request], Answer]) -> Iterator[str]:
    """Yields the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            if headers.get("expect", "").lower() == "100-continue":
                headers.pop("expect")
            said = answer(Request(self.command, self.path, headers, self._body(headers)))
            self.send_response(said.status)
            for name, value in said.headers.items():
                self.send_header(name, value)
            if self.command != "HEAD":
                self.send_header("Content-Length", str(len(said.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(said.body)

        def _body(self, headers: dict[str, str]) -> bytes:
            if headers.get("transfer-encoding", "").lower() != "chunked":
                return self.rfile.read(int(headers.get("content-length") or 0))
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = _answer  # noqa: N815 - found by these names

        def log_message(self, *_: Any) -> None:
            """Cells say what they want to know."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def forwarded(request: Request, to: str) -> Answer:
    """What the server at `to` answers."""
    connection = http.client.HTTPConnection(urlsplit(to).netloc, timeout=_SECONDS)
    try:
        headers = {name: value for name, value in request.headers.items() if name not in _OF_ONE_HOP}
        if request.body or request.method in {"PUT", "POST"}:
            headers["content-length"] = str(len(request.body))
        connection.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(request.body or None)
        found = connection.getresponse()
        kept = {name: value for name, value in found.getheaders() if name.lower() not in _OF_ONE_HOP}
        body = found.read()
        if request.method == "HEAD" and found.getheader("content-length"):
            kept["Content-Length"] = str(found.getheader("content-length"))
        return Answer(found.status, kept, body)
    finally:
        connection.close()
