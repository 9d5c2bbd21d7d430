"""Payloads that are compressed: opened whole, or malformed."""

import gzip
import zlib
from collections.abc import Callable

import pyarrow as pa
import pytest

from kcl_dagster.spark import payload_compression
from kcl_dagster.spark.payload_compression import Compression, inflated, opened

CONTENT = b'{"id": 1}' * 1_000


def zstd(content: bytes) -> bytes:
    """With the size of the content in the header."""
    found: bytes = pa.Codec("zstd").compress(content, asbytes=True)
    return found


def streamed_zstd(content: bytes) -> bytes:
    """Without the size, as a producer writes that does not know it."""
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as stream:
        for start in range(0, len(content), 1_000):
            stream.write(content[start : start + 1_000])
    found: bytes = out.getvalue().to_pybytes()
    return found


BOTH = [("gzip", gzip.compress), ("zstd", zstd), ("zstd", streamed_zstd)]


@pytest.mark.parametrize(("name", "compress"), BOTH)
@pytest.mark.parametrize("content", [CONTENT, b"x", bytes(300), bytes(100_000)])
def test_payloads_are_opened(name: Compression, compress: Callable[[bytes], bytes], content: bytes) -> None:
    for compression in (name, "auto"):
        assert opened(compress(content), compression) == content
        assert opened(compress(content) + compress(b"more"), compression) == content + b"more"
    assert opened(compress(content), None) == compress(content)


def test_a_payload_that_is_not_compressed_is_left_as_it_is_only_with_auto() -> None:
    for payload in (CONTENT, b"", b"\x00\x00\x00\x00\x07x", b"\x03\x00"):
        assert opened(payload, "auto") == payload
        for compression in ("gzip", "zstd"):
            with pytest.raises(ValueError, match="payload"):
                opened(payload, compression)


@pytest.mark.parametrize(("name", "compress"), BOTH)
def test_what_is_cut_off_or_goes_on_is_malformed(name: Compression, compress: Callable[[bytes], bytes]) -> None:
    whole = compress(CONTENT)
    for broken in (whole[:-1], whole[: len(whole) // 2], whole[:4], whole + b"more"):
        with pytest.raises(ValueError, match="payload"):
            opened(broken, name)


@pytest.mark.parametrize(("name", "compress"), BOTH)
def test_a_bomb_is_malformed(
    name: Compression, compress: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_compression, "MOST_DECOMPRESSED_BYTES", 100_000)
    assert len(opened(compress(bytes(100_000)), name)) == 100_000
    for bomb in (compress(bytes(100_001)), compress(bytes(60_000)) * 2):
        with pytest.raises(ValueError, match="more than 100000 bytes"):
            opened(bomb, name)


def test_a_header_that_lies_about_the_size_is_malformed() -> None:
    honest = zstd(bytes(1_000))
    for place in range(5, 9):
        lying = honest[:place] + bytes([honest[place] ^ 0x55]) + honest[place + 1 :]
        with pytest.raises(ValueError, match="payload"):
            opened(lying, "zstd")


def test_values_of_zlib_end_where_they_end() -> None:
    assert inflated(zlib.compress(b"x") + b"rest") == (b"x", b"rest")
    with pytest.raises(ValueError, match="cannot be decompressed"):
        inflated(b"no zlib")
