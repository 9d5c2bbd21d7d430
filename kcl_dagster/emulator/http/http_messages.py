"""Requests and responses, whatever version of HTTP carried them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

Header = tuple[str, str]


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """`headers` are by lower-case name; `raw_headers` keep spelling, order and repetition."""

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
    """A body that is an iterator is sent piece by piece as it comes, until it ends or the client hangs up."""

    status: int
    body: bytes | AsyncIterator[bytes] = b""
    headers: list[Header] = field(default_factory=list)


class Dropped(Exception):
    """Raised by a handler to close the connection without an answer."""


BodyLimit = Callable[[str, dict[str, str]], int]
"""The largest body in bytes that a request may have, by its target and its headers."""

Handler = Callable[[HttpRequest], Response | Awaitable[Response]]
