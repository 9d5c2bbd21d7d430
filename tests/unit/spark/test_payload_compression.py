"""Payloads that are compressed: opened whole, or malformed."""

import gzip
import random
import zlib
from collections.abc import Callable
from typing import Any

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


@pytest.mark.parametrize("first", [b"", b"x", random.Random(16).randbytes(5_000)])
@pytest.mark.parametrize("size", [0, 1, 900, 1_000, 1_024, 3_000, 200_000])
def test_members_of_gzip_may_have_any_size(first: bytes, size: int) -> None:
    second, third = random.Random(16).randbytes(size), bytes(size)
    members = [gzip.compress(one) for one in (first, second, third, b"last")]
    assert opened(b"".join(members), "gzip") == first + second + third + b"last"
    assert opened(bytes(2_000).join(members), "gzip") == first + second + third + b"last"
    for cut in (1, 8, 9, len(members[-1]), len(members[-1]) + 1):
        broken = b"".join(members)[:-cut]
        if cut == len(members[-1]):
            assert opened(broken, "gzip") == first + second + third
        else:
            with pytest.raises(ValueError, match="payload"):
                opened(broken, "gzip")


def test_zeros_after_gzip_are_ignored() -> None:
    whole = gzip.compress(CONTENT)
    for compression in ("gzip", "auto"):
        assert opened(whole + bytes(700), compression) == CONTENT
        for broken in (whole + bytes(700) + b"more", bytes(1) + whole):
            with pytest.raises(ValueError, match="payload"):
                opened(broken, "gzip")


def test_many_members_take_time_in_proportion_to_their_number() -> None:
    """Counted in bytes that are copied from zlib, because times depend on the machine."""
    copied = 0
    real = zlib.decompressobj

    class Counting:
        def __init__(self, window_bits: int) -> None:
            self._inflating = real(window_bits)

        def __getattr__(self, name: str) -> Any:
            nonlocal copied
            found = getattr(self._inflating, name)
            copied += len(found) if name == "unused_data" else 0
            return found

    one = gzip.compress(b'{"a":1}\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zlib, "decompressobj", Counting)
        assert opened(one * 10_000, "gzip") == b'{"a":1}\n' * 10_000
    assert copied < 10_000 * 2_000


def test_a_header_that_lies_about_the_size_is_malformed() -> None:
    honest = zstd(bytes(1_000))
    for place in range(5, 9):
        lying = honest[:place] + bytes([honest[place] ^ 0x55]) + honest[place + 1 :]
        with pytest.raises(ValueError, match="payload"):
            opened(lying, "zstd")


def test_values_of_zlib_end_where_they_end() -> None:
    assert inflated(zlib.compress(b"x") + b"rest") == b"x"
    with pytest.raises(ValueError, match="cannot be decompressed"):
        inflated(b"no zlib")
