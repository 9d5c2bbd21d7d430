"""Decompresses payloads, up to a maximum size."""

import re
import zlib
from contextlib import suppress
from typing import Final, Literal

import pyarrow as pa

from kcl_dagster.errors import ConfigurationError

Compression = Literal["gzip", "zstd", "auto"]
"""The compression of payloads. `auto` detects it by their first bytes; payloads with other first bytes remain
unchanged.
"""

MOST_DECOMPRESSED_BYTES: Final = 64 * 1024 * 1024  # a compressed megabyte can contain a gigabyte of zeros
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_GZIP_FORMAT: Final = 16 + zlib.MAX_WBITS  # makes zlib expect the header of gzip
_NO_ZERO: Final = re.compile(rb"[^\0]")
_FIRST_PIECE: Final = 1_024  # bytes of a payload; see `_member`


def checked(compression: Compression | None) -> Compression | None:
    """Return `compression`. Raises ConfigurationError if it is no valid setting."""
    if compression not in (None, "gzip", "zstd", "auto"):
        raise ConfigurationError(f"compression {compression!r} is none of 'gzip', 'zstd' and 'auto'")
    return compression


def opened(payload: bytes, compression: Compression | None) -> bytes:
    """The content of a payload. Raises ValueError if the payload is not compressed in this way, if it is cut off,
    or if its content has more than `MOST_DECOMPRESSED_BYTES`."""
    if compression is None:
        return payload
    if compression == "auto":
        compression = _by_first_bytes(payload)
    match compression:
        case "gzip":
            return _gunzipped(payload)
        case "zstd":
            return _of_zstd(payload)
        case _:
            return payload


def inflated(value: bytes) -> bytes:
    """Decompress zlib data, and ignore bytes after it. Raises ValueError as `opened` does."""
    inflating = zlib.decompressobj()
    try:
        found = inflating.decompress(value, MOST_DECOMPRESSED_BYTES)
    except zlib.error as error:
        raise ValueError(f"the payload cannot be decompressed: {error}") from error
    if not inflating.eof:
        raise ValueError(f"the payload is cut off, or holds more than {MOST_DECOMPRESSED_BYTES} bytes")
    return found


def _by_first_bytes(payload: bytes) -> Compression | None:
    if payload.startswith(_GZIP):
        return "gzip"
    return "zstd" if payload.startswith(_ZSTD) else None


def _gunzipped(payload: bytes) -> bytes:
    """Decompress gzip, which can consist of several members. Ignores zeros after a member, like gzip itself."""
    parts: list[bytes] = []
    size = place = 0
    while True:
        found, place = _member(payload, place, MOST_DECOMPRESSED_BYTES - size)
        size += len(found)
        parts.append(found)
        start = _NO_ZERO.search(payload, place)
        if start is None:
            return b"".join(parts)
        place = start.start()


def _member(payload: bytes, place: int, most: int) -> tuple[bytes, int]:
    """Decompress the member of gzip that begins at a place. Returns its content and the place after it.

    zlib copies the bytes that follow a member. If it got the whole rest of the payload for each member, many small
    members would take quadratic time. So it gets pieces of the payload, each twice as long as the piece before.
    """
    inflating = zlib.decompressobj(_GZIP_FORMAT)
    parts: list[bytes] = []
    length = _FIRST_PIECE
    while not inflating.eof:
        piece = payload[place : place + length]
        try:
            parts.append(inflating.decompress(piece, most + 1))
        except zlib.error as error:
            raise ValueError(f"the payload cannot be decompressed: {error}") from error
        most -= len(parts[-1])
        if most < 0:
            raise ValueError(f"the payload holds more than {MOST_DECOMPRESSED_BYTES} bytes")
        place += len(piece) - len(inflating.unused_data)
        if not (piece or inflating.eof):
            raise ValueError("the payload is cut off")
        length *= 2
    return b"".join(parts), place


def _of_zstd(payload: bytes) -> bytes:
    if not payload.startswith(_ZSTD):
        raise ValueError("the payload is not compressed by zstd")
    size = _size_said(payload)
    if 0 < size <= MOST_DECOMPRESSED_BYTES:
        # Decompression in one call costs a tenth of decompression as a stream. If it fails, the payload is broken
        # or has several frames, and is decompressed as a stream.
        with suppress(OSError):
            whole: bytes = pa.Codec("zstd").decompress(payload, size, asbytes=True)
            return whole
    try:
        with pa.CompressedInputStream(pa.BufferReader(payload), "zstd") as stream:
            found: bytes = stream.read(MOST_DECOMPRESSED_BYTES + 1)
    except OSError as error:
        raise ValueError(f"the payload cannot be decompressed: {error}") from error
    if len(found) > MOST_DECOMPRESSED_BYTES:
        raise ValueError(f"the payload holds more than {MOST_DECOMPRESSED_BYTES} bytes")
    return found


def _size_said(frame: bytes) -> int:
    """The size of the content according to the frame's header (RFC 8878, 3.1.1.1); 0 if the header has no size."""
    if len(frame) <= len(_ZSTD):
        return 0
    descriptor = frame[len(_ZSTD)]
    is_single_segment = bool(descriptor & 0b10_0000)
    length = (1 if is_single_segment else 0, 2, 4, 8)[descriptor >> 6]
    window, dictionary = (0 if is_single_segment else 1), (0, 1, 2, 4)[descriptor & 0b11]
    start = len(_ZSTD) + 1 + window + dictionary
    said = int.from_bytes(frame[start : start + length], "little")
    return said + 256 if length == 2 else said  # a field of two bytes contains the size minus 256
