"""Encodes messages of `application/vnd.amazon.eventstream`: lengths, headers, payload, two checksums."""

from __future__ import annotations

import struct
import zlib

CONTENT_TYPE = "application/vnd.amazon.eventstream"

_STRING = 7  # the header type for text
_PRELUDE = struct.Struct(">II")
_CHECKSUM = struct.Struct(">I")
_FIXED_BYTES = _PRELUDE.size + 2 * _CHECKSUM.size


def frame(headers: dict[str, str], payload: bytes) -> bytes:
    """Encode one message."""
    encoded = b"".join(_header(name, value) for name, value in headers.items())
    prelude = _PRELUDE.pack(_FIXED_BYTES + len(encoded) + len(payload), len(encoded))
    prelude += _CHECKSUM.pack(zlib.crc32(prelude))
    message = prelude + encoded + payload
    return message + _CHECKSUM.pack(zlib.crc32(message))


def event(kind: str, content_type: str, payload: bytes) -> bytes:
    return frame({":message-type": "event", ":event-type": kind, ":content-type": content_type}, payload)


def exception(kind: str, content_type: str, payload: bytes) -> bytes:
    return frame({":message-type": "exception", ":exception-type": kind, ":content-type": content_type}, payload)


def _header(name: str, value: str) -> bytes:
    text = value.encode()
    return struct.pack(">B", len(name)) + name.encode() + struct.pack(">BH", _STRING, len(text)) + text
