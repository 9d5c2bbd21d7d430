"""Schema registries on 127.0.0.1. The one with Confluent's API is a small server of the tests: it answers the two
requests that readers send, as Confluent documents them. The one of AWS Glue is moto's behind a port."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from moto.core.exceptions import ServiceException
from moto.core.request import Request as MotoRequest
from moto.glue.models import glue_backends
from moto.glue.responses import GlueResponse


@dataclass
class ConfluentServer:
    """Schemas by id, and ids by subject and version. `failures` are HTTP statuses, with which the next requests are
    answered; `authorization` is the header that is required."""

    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    versions: dict[tuple[str, int], int] = field(default_factory=dict)
    failures: list[int] = field(default_factory=list)
    authorization: str | None = None
    asked: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    body: bytes | None = None
    """Answers every request, instead of a schema."""

    url: str = ""

    def register(self, id_: int, subject: str, version: int, schema: Any, *references: Any, kind: str = "") -> None:
        """References are names, subjects and versions."""
        text = schema if kind else json.dumps(schema)
        found: dict[str, Any] = {"schema": text, **({"schemaType": kind} if kind else {})}
        if references:
            found["references"] = [
                {"name": name, "subject": other, "version": number} for name, other, number in references
            ]
        self.schemas[id_] = found
        self.versions[subject, version] = id_

    def answer(self, path: str, headers: dict[str, str]) -> tuple[int, Any]:
        self.asked.append(path)
        self.headers.append(headers)
        if self.failures:
            return self.failures.pop(0), {"error_code": 50001, "message": "Error in the backend data store"}
        if self.authorization is not None and headers.get("Authorization") != self.authorization:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        match [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]:
            case ["schemas", "ids", id_]:
                found = self.schemas.get(int(id_))
                return (200, found) if found else (404, {"error_code": 40403, "message": "Schema not found"})
            case ["schemas", "types"]:
                return 200, ["JSON", "PROTOBUF", "AVRO"]
            case ["subjects", subject, "versions", version]:
                number = self.versions.get((subject, int(version)))
                if number is None:
                    return 404, {"error_code": 40402, "message": "Version not found."}
                return 200, {"subject": subject, "version": int(version), "id": number, **self.schemas[number]}
        return 404, None


def basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URL of a server on a free port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def confluent_server() -> Iterator[ConfluentServer]:
    registry = ConfluentServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, found = registry.answer(self.path, dict(self.headers))
            body = b"<html>" if found is None else json.dumps(found).encode()
            if status == 200 and registry.body is not None:
                body = registry.body
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", f"{registry.url}/elsewhere")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: Any) -> None:
            pass

    with served(Handler) as registry.url:
        yield registry


@contextmanager
def glue_server(account: str = "123456789012") -> Iterator[str]:
    """The URL of moto's Glue."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            url = f"http://{self.headers['Host']}{self.path}"
            asked = MotoRequest.from_primitives("POST", url, {**self.headers, "x-moto-account-id": account}, body)
            try:
                status, headers, text = GlueResponse.dispatch(asked, url, asked.headers)
            except ServiceException as error:
                status, headers = 400, {"x-amzn-errortype": error.code}
                text = json.dumps({"__type": error.code, "message": error.message})
            content = text.encode() if isinstance(text, str) else bytes(text)
            self.send_response(int(status))
            if "x-amzn-errortype" in headers:
                self.send_header("x-amzn-errortype", headers["x-amzn-errortype"])
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_arguments: Any) -> None:
            pass

    with served(Handler) as url:
        try:
            yield url
        finally:
            glue_backends[account]["us-east-1"].reset()
