"""Converts requests to moto's classes, and moto's responses to the emulator's class `Response`."""

from __future__ import annotations

from typing import Any

from moto.core.request import Request as MotoRequest

from kcl_dagster.emulator.http.http_messages import Header, HttpRequest, Response

ACCOUNT_HEADER = "x-moto-account-id"

_HOP_HEADERS = frozenset({"connection", "content-length", "expect", "transfer-encoding", ACCOUNT_HEADER})


def to_moto(request: HttpRequest, account: str) -> MotoRequest:
    headers = {name: value for name, value in request.raw_headers if name.lower() not in _HOP_HEADERS}
    headers[ACCOUNT_HEADER] = account
    host = request.headers.get("host", "localhost")
    return MotoRequest.from_primitives(request.method, f"http://{host}{request.target}", headers, request.body)


def from_moto(answer: tuple[int, dict[str, Any], Any]) -> Response:
    status, headers, body = answer
    if isinstance(body, str):
        body = body.encode()
    elif not isinstance(body, bytes):
        body = b"".join(body or ())
    kept: list[Header] = [
        (str(name), str(value))
        for name, value in headers.items()
        if str(name).lower() not in ("status", "connection", "transfer-encoding")
    ]
    return Response(int(status), body, kept)
