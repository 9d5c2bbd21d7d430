"""S3 that checks with whose key a request comes, and that may know as few requests as the buckets of S3 Tables do.

A proxy before the embedded S3. It looks at the access key of a request and at the session token, and verifies no
signature.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs, urlsplit

from tests.lakehouse.http_server import Answer, Request, forwarded, served

_ACCESS_KEY: Final = re.compile(r"Credential=([^/]+)/")
_OF_TABLES: Final = frozenset({"GET", "HEAD", "PUT"})
_UPLOADS: Final = frozenset({"uploads", "uploadId"})  # an upload in parts


@dataclass
class GuardedS3:
    """`keys`: of whom each bucket accepts requests, by access key; one that is not named accepts all. `tokens`: the
    session token that comes with a key. `tables`: buckets that are S3 Tables' own, where nothing can be copied,
    listed or deleted. `refused`: what was, as `METHOD path`."""

    behind: str
    keys: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    tables: set[str] = field(default_factory=set)
    uri: str = ""
    refused: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)

    def answer(self, request: Request) -> Answer:
        split = urlsplit(request.target)
        bucket, _, key = split.path.lstrip("/").partition("/")
        named = _ACCESS_KEY.search(request.headers.get("authorization", ""))
        access_key = named[1] if named else ""
        wanted = self.keys.get(bucket)
        token = self.tokens.get(access_key)
        if wanted is not None and access_key != wanted:
            return self._refused(request, 403, "AccessDenied", f"{access_key or 'anonymous'} may not use {bucket}")
        if token is not None and request.headers.get("x-amz-security-token") != token:
            return self._refused(request, 403, "InvalidToken", f"{access_key} has another session token")
        if bucket in self.tables:
            query = parse_qs(split.query, keep_blank_values=True)
            is_upload = request.method == "POST" and not _UPLOADS.isdisjoint(query)
            if "x-amz-copy-source" in request.headers or not key or "list-type" in query:
                return self._refused(request, 405, "MethodNotAllowed", "not allowed in a bucket of S3 Tables")
            if request.method not in _OF_TABLES and not is_upload:
                return self._refused(request, 405, "MethodNotAllowed", "not allowed in a bucket of S3 Tables")
        self.accepted.append(f"{request.method} {split.path}")
        return forwarded(request, self.behind)

    def _refused(self, request: Request, status: int, code: str, message: str) -> Answer:
        self.refused.append(f"{request.method} {request.target}: {message}")
        body = (
            f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
        )
        return Answer(status, {"Content-Type": "application/xml"}, body.encode())


@contextmanager
def guarded_s3(behind: str) -> Iterator[GuardedS3]:
    s3 = GuardedS3(behind)
    with served(s3.answer) as uri:
        s3.uri = uri
        yield s3
