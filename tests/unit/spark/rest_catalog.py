"""A REST catalog in this process, on top of a SQL catalog: enough for what a sink asks, and strict about it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest

STATUSES = {NoSuchTableError: 404, TableAlreadyExistsError: 409, NamespaceAlreadyExistsError: 409}


@dataclass
class RestCatalog:
    """`vended` is the configuration that comes with each table, such as credentials for its files."""

    folder: Path
    vended: dict[str, str] = field(default_factory=dict)
    uri: str = ""
    requests: list[str] = field(default_factory=list)

    def catalog(self) -> SqlCatalog:
        return SqlCatalog("rest", uri=f"sqlite:///{self.folder}/rest.db", warehouse=str(self.folder))

    def answer(self, method: str, parts: list[str], body: Any) -> Any:
        catalog = self.catalog()
        match method, parts:
            case "GET", ["config"]:
                return {"defaults": {}, "overrides": {}}
            case "POST", ["namespaces"]:
                catalog.create_namespace(".".join(body["namespace"]))
                return body
            case "POST", ["namespaces", namespace, "tables"]:
                if body.get("stage-create"):
                    raise NotImplementedError("stage-create is not supported")
                wanted = CreateTableRequest.model_validate({"location": None} | body)
                return self._table(
                    catalog.create_table(
                        f"{namespace}.{wanted.name}",
                        wanted.table_schema,
                        partition_spec=wanted.partition_spec or UNPARTITIONED_PARTITION_SPEC,
                    )
                )
            case "GET", ["namespaces", namespace, "tables", table]:
                return self._table(catalog.load_table(f"{namespace}.{table}"))
            case "POST", ["namespaces", namespace, "tables", table]:
                asked = CommitTableRequest.model_validate(
                    body | {"identifier": {"namespace": [namespace], "name": table}}
                )
                found = catalog.load_table(f"{namespace}.{table}")
                done = catalog.commit_table(found, asked.requirements, asked.updates)
                return {
                    "metadata-location": done.metadata_location,
                    "metadata": json.loads(done.metadata.model_dump_json()),
                }
        raise NotImplementedError(f"{method} {parts}")

    def _table(self, table: Any) -> Any:
        metadata = json.loads(table.metadata.model_dump_json())
        return {"metadata-location": table.metadata_location, "metadata": metadata, "config": self.vended}


@contextmanager
def rest_catalog(folder: Path, **vended: str) -> Iterator[RestCatalog]:
    catalog = RestCatalog(
        folder, {name.replace("_", "-").replace("s3-", "s3.", 1): value for name, value in vended.items()}
    )

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            parts = [unquote(part) for part in urlsplit(self.path).path.split("/")[2:]]
            catalog.requests.append(f"{self.command} {'/'.join(parts)}")
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            try:
                status, answer = 200, catalog.answer(self.command, parts, body)
            except Exception as error:
                status = STATUSES.get(type(error), 409 if isinstance(error, CommitFailedException) else 400)
                answer = {"error": {"message": str(error), "type": type(error).__name__, "code": status}}
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_HEAD = _answer  # noqa: N815 - the base class finds them by these names

        def log_message(self, *_: Any) -> None:
            """Tests say what they want to know."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        catalog.uri = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield catalog
        server.shutdown()
        thread.join()
