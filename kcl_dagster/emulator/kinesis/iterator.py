"""Shard iterators and paging tokens. They contain all data that the service needs, in a form that only the service
reads."""

from __future__ import annotations

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass

_SEPARATOR = "\x1f"


@dataclass(frozen=True, slots=True)
class ShardIterator:
    """The position of a reader in a shard. `born`: the creation time of the stream, which distinguishes it from a
    later stream with the same name."""

    stream: str
    born: float
    shard: str
    position: int
    issued_at: float

    def encode(self) -> str:
        return seal("i", self.stream, repr(self.born), self.shard, str(self.position), repr(self.issued_at))

    @classmethod
    def decode(cls, text: str) -> ShardIterator:
        """Read an iterator. Raises ValueError if this service did not issue it."""
        stream, born, shard, position, issued_at = unseal("i", text)
        return cls(stream, float(born), shard, int(position), float(issued_at))


def seal(kind: str, *parts: str) -> str:
    """Pack texts into a token. Its checksum shows `unseal` whether the token is damaged."""
    body = _SEPARATOR.join((kind, *parts)).encode()
    return urlsafe_b64encode(zlib.crc32(body).to_bytes(4) + body).decode()


def unseal(kind: str, token: str) -> list[str]:
    """Return the texts in a token of this kind. Raises ValueError for any other text."""
    raw = urlsafe_b64decode(token.encode())
    body = raw[4:]
    if zlib.crc32(body).to_bytes(4) != raw[:4]:
        raise ValueError("checksum mismatch")
    found, *parts = body.decode().split(_SEPARATOR)
    if found != kind:
        raise ValueError(f"token of kind {found!r}, expected {kind!r}")
    return parts
