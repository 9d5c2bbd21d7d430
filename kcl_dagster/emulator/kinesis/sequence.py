"""Sequence numbers: 56 decimal digits that contain the shard, the order and the time, in the layout of AWS.

    186 bits =  2  (mark, always 2)
             | 36  seconds at which the shard was opened
             |  4  low bits of the shard number
             | 64  number of the record within the shard (0 = before the first record)
             |  8  unused
             | 36  seconds at which the record was written
             | 32  shard number
             |  4  layout version, always 2

Each record of a shard has a higher sequence number than the records before it. The opening time in the sequence
numbers of a child is at least one second later than that of its parents, so all sequence numbers of the child are
higher than those of the parents.
"""

from __future__ import annotations

from dataclasses import dataclass

MARK = 2
LAYOUT_VERSION = 2
BITS = 186
END_OF_SHARD = (1 << 63) - 1  # the record number in a closed shard's ending sequence number

_VERSION_BITS = 4
_SHARD_BITS = 32
_SECONDS_BITS = 36
_NUMBER_BITS = 64
_SHARD_SHIFT = _VERSION_BITS
_WRITTEN_SHIFT = _SHARD_SHIFT + _SHARD_BITS
_NUMBER_SHIFT = _WRITTEN_SHIFT + _SECONDS_BITS + 8
_NIBBLE_SHIFT = _NUMBER_SHIFT + _NUMBER_BITS
_OPENED_SHIFT = _NIBBLE_SHIFT + 4
_MARK_SHIFT = _OPENED_SHIFT + _SECONDS_BITS


@dataclass(frozen=True, slots=True)
class SequenceNumber:
    """The fields of one sequence number."""

    opened: int
    number: int
    written: int
    shard: int

    def __int__(self) -> int:
        return stem(self.opened, self.shard) | self.number << _NUMBER_SHIFT | self.written << _WRITTEN_SHIFT

    def __str__(self) -> str:
        return str(int(self))


def stem(opened: int, shard: int) -> int:
    """Return the bits that are the same in all sequence numbers of one shard."""
    return (
        MARK << _MARK_SHIFT
        | opened << _OPENED_SHIFT
        | (shard & 0xF) << _NIBBLE_SHIFT
        | shard << _SHARD_SHIFT
        | LAYOUT_VERSION
    )


def numbered(shard_stem: int, number: int, written: int) -> int:
    """Return the sequence number of one record as an integer. The result equals `int(SequenceNumber(...))`, but is
    calculated faster."""
    return shard_stem | number << _NUMBER_SHIFT | written << _WRITTEN_SHIFT


def parse(text: str) -> SequenceNumber:
    """Read a sequence number that this emulator made. Raises ValueError for any other text."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is not a decimal number")
    value = int(text)
    if value.bit_length() != BITS or value >> _MARK_SHIFT != MARK or value & 0xF != LAYOUT_VERSION:
        raise ValueError(f"{text} is not a version {LAYOUT_VERSION} sequence number")
    return SequenceNumber(
        opened=_field(value, _OPENED_SHIFT, _SECONDS_BITS),
        number=_field(value, _NUMBER_SHIFT, _NUMBER_BITS),
        written=_field(value, _WRITTEN_SHIFT, _SECONDS_BITS),
        shard=_field(value, _SHARD_SHIFT, _SHARD_BITS),
    )


def _field(value: int, shift: int, bits: int) -> int:
    return value >> shift & (1 << bits) - 1
