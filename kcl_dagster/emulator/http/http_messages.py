"""Requests and responses, independent of the version of HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

Header = tuple[str, str]


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request. In `headers`, all names are in lower case. `raw_headers` has the headers as the client sent
    them."""

    method: str
    target: str  # path and query, as the client sent them
    headers: dict[str, str]
    raw_headers: list[Header]
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


@dataclass(frozen=True, slots=True)
class Response:
    """One response. If the body is an iterator, each piece is sent as soon as the iterator yields it, until the
    iterator ends or the client disconnects."""

    status: int
    body: bytes | AsyncIterator[bytes] = b""
    headers: list[Header] = field(default_factory=list)


class Dropped(Exception):
    """Raised by a handler to close the connection without an answer."""


BodyLimit = Callable[[str, dict[str, str]], int]
"""A function that returns the size of the largest body that is accepted for a request, in bytes. It gets the target
and the headers of the request."""

Handler = Callable[[HttpRequest], Response | Awaitable[Response]]
