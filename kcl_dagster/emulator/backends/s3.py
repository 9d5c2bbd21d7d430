"""S3 with path-style addresses. It uses moto, which keeps the buckets of all emulators of a process in one
collection, by account. Each emulator therefore has an account number of its own.
"""

from __future__ import annotations

import threading

from moto.core.exceptions import ServiceException
from moto.s3.models import s3_backends
from moto.s3.responses import S3Response
from werkzeug.exceptions import HTTPException

from kcl_dagster.emulator.backends.moto_request import from_moto, to_moto
from kcl_dagster.emulator.http.http_messages import HttpRequest, Response

PARTITION = "aws"


class S3:
    """The buckets of one emulator. Any thread can call `handle`."""

    def __init__(self, account: str) -> None:
        self._account = account
        self._lock = threading.Lock()

    def handle(self, request: HttpRequest) -> Response:
        with self._lock:
            message = to_moto(request, self._account)
            _, _, key = request.path.lstrip("/").partition("/")
            serve = S3Response.key_dispatch if key else S3Response.bucket_dispatch
            try:
                return from_moto(serve(message, message.raw_url, message.headers))
            except HTTPException as error:
                body = error.get_body()
                return Response(error.code or 400, body.encode(), [("content-type", "application/xml")])
            except ServiceException as error:
                body = f"<Error><Code>{error.code}</Code><Message>{error.message}</Message></Error>"
                return Response(400, body.encode(), [("content-type", "application/xml")])

    def close(self) -> None:
        """Delete the buckets, which moto would otherwise keep as long as the process runs."""
        with self._lock:
            backend = s3_backends[self._account][PARTITION]
            for name in list(backend.buckets):
                s3_backends.bucket_accounts.pop(name, None)
            backend.reset()
