"""Requests and responses, independent of the version of HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

Header = tuple[str, str]


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request. `headers` has lower-case names; `raw_headers` keeps spelling, order and repetition."""

    method: str
    target: str  # path and query as they came
    headers: dict[str, str]
    raw_headers: list[Header]
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


@dataclass(frozen=True, slots=True)
class Response:
    """One response. A body that is an iterator is sent in pieces as they come, until it ends or the client
    disconnects."""

    status: int
    body: bytes | AsyncIterator[bytes] = b""
    headers: list[Header] = field(default_factory=list)


class Dropped(Exception):
    """Raised by a handler to close the connection without an answer."""


BodyLimit = Callable[[str, dict[str, str]], int]
"""The largest body in bytes that a request may have, by its target and its headers."""

Handler = Callable[[HttpRequest], Response | Awaitable[Response]]
