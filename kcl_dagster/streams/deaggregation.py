"""Records inside records: the aggregation format of the Kinesis Producer Library.

An aggregate is four magic bytes, a protobuf message, and the MD5 digest of the message. The message holds a table
of partition keys, a table of explicit hash keys, and records that point into both.

Two rules differ from the KCL on purpose, because its own lose data without a word. A record outside the shard's
hash range is left out alone (the producer library sends it again), where the KCL leaves out the whole aggregate.
And a message with a good digest that cannot be read is an error that names its cause, where the KCL delivers the
part before the fault. `kcl=True` gives the KCL's behaviour, for comparisons.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import Final, NamedTuple

from kcl_dagster.errors import BrokenAggregate
from kcl_dagster.model.shard import MAX_HASH_KEY, HashRange

MAGIC: Final = b"\xf3\x89\x9a\xc2"
DIGEST_BYTES: Final = 16

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_LEAST_USUAL: Final = 4  # bytes: an index with its tag, and empty data with its tag
_MAX_VARINT_BITS: Final = 63  # ten bytes of seven bits; anything longer is not a varint


class SubRecord(NamedTuple):
    """A user record inside an aggregate."""

    sub_sequence: int
    partition_key: str
    explicit_hash_key: str | None
    data: bytes


_new: Final = SubRecord._make  # a third of the price of calling the class


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What an aggregate holds for one shard.

    `last_index` is the sub-sequence number of its last record, whichever shard that belongs to: a checkpoint
    there covers the aggregate. `misplaced` counts records outside the shard's hash range.
    """

    records: Sequence[SubRecord]
    last_index: int
    misplaced: int = 0


def is_aggregate(data: bytes) -> bool:
    """Whether `data` is an aggregate: magic, at least one byte of message, and the right digest."""
    return (
        data.startswith(MAGIC)
        and len(data) > len(MAGIC) + DIGEST_BYTES
        and md5(data[len(MAGIC) : -DIGEST_BYTES], usedforsecurity=False).digest() == data[-DIGEST_BYTES:]
    )


def hash_key(partition_key: str) -> int:
    """The 128-bit hash key Kinesis derives from a partition key."""
    return int.from_bytes(md5(partition_key.encode(), usedforsecurity=False).digest(), "big")


def deaggregate(data: bytes, hash_range: HashRange | None = None, *, kcl: bool = False) -> Aggregate | None:
    """Open an aggregate, keeping what belongs to `hash_range`. None when `data` is not an aggregate.

    Raises BrokenAggregate when the digest is right and the message is not; with `kcl`, such a message is None
    (a plain record) if it does not parse at all, and the records before the fault if an index is wrong.
    """
    if not is_aggregate(data):
        return None
    try:
        message = _Message.parse(data[len(MAGIC) : -DIGEST_BYTES])
    except _Malformed as error:
        if kcl:
            return None
        raise BrokenAggregate(f"aggregate of {len(data)} bytes: {error}") from error
    try:
        records: Sequence[SubRecord] = message.resolve()
    except _BadIndex as error:
        if not kcl:
            raise BrokenAggregate(f"aggregate of {len(data)} bytes: {error}") from error
        records = error.before
    last_index = max(len(message.records) - 1, 0)
    if hash_range is None:
        return Aggregate(records, last_index)
    mine = _within(records, hash_range)
    misplaced = len(records) - len(mine)
    if kcl and misplaced:
        return Aggregate((), last_index, misplaced=len(records))
    return Aggregate(mine, last_index, misplaced)


def _within(records: Sequence[SubRecord], hash_range: HashRange) -> Sequence[SubRecord]:
    if hash_range.start == 0 and hash_range.end == MAX_HASH_KEY:
        return records
    # An aggregate repeats few keys, and hashing is the dear part.
    inside: dict[tuple[str, str | None], bool] = {}
    mine = []
    for record in records:
        key = (record.partition_key, record.explicit_hash_key)
        belongs = inside.get(key)
        if belongs is None:
            explicit = record.explicit_hash_key
            belongs = (int(explicit) if explicit else hash_key(record.partition_key)) in hash_range
            inside[key] = belongs
        if belongs:
            mine.append(record)
    return mine


class _Malformed(Exception):
    """The message is not a valid aggregated record."""


class _BadIndex(Exception):
    """A record points outside a table."""

    def __init__(self, problem: str, before: Sequence[SubRecord]) -> None:
        super().__init__(problem)
        self.before = before


@dataclass(frozen=True, slots=True)
class _Message:
    """A parsed message: tables, and records as (partition key index, explicit hash key index or None, data)."""

    partition_keys: list[str]
    explicit_hash_keys: list[str]
    records: list[tuple[int, int | None, bytes]]

    @classmethod
    def parse(cls, message: bytes) -> "_Message":
        partition_keys: list[str] = []
        explicit_hash_keys: list[str] = []
        records: list[tuple[int, int | None, bytes]] = []
        position, end = 0, len(message)
        while position < end:
            tag, position = _varint(message, position, end)
            field, wire = tag >> 3, tag & 7
            if wire != _LENGTH or field not in (1, 2, 3):
                position = _skip(message, position, end, field, wire)
                continue
            size, position = _varint(message, position, end)
            stop = position + size
            if stop > end:
                raise _Malformed(f"field {field} at byte {position} runs past the end")
            if field == 3:
                records.append(_usual_record(message, position, stop) or _record(message, position, stop))
            else:
                table = partition_keys if field == 1 else explicit_hash_keys
                try:
                    table.append(message[position:stop].decode())
                except UnicodeDecodeError as error:
                    raise _Malformed(f"key at byte {position} is not UTF-8") from error
            position = stop
        return cls(partition_keys, explicit_hash_keys, records)

    def resolve(self) -> list[SubRecord]:
        resolved: list[SubRecord] = []
        keys, explicit_keys = self.partition_keys, self.explicit_hash_keys
        for index, (key, explicit, data) in enumerate(self.records):
            if key >= len(keys):
                raise _BadIndex(f"record {index} names partition key {key} of {len(keys)}", resolved)
            explicit_key = None
            if explicit is not None:
                if explicit >= len(explicit_keys):
                    raise _BadIndex(f"record {index} names hash key {explicit} of {len(explicit_keys)}", resolved)
                explicit_key = explicit_keys[explicit]
                if explicit_key and not _is_hash_key(explicit_key):
                    raise _BadIndex(f"record {index} has hash key {explicit_key[:50]!r}", resolved)
            resolved.append(_new((index, keys[key], explicit_key, data)))
        return resolved


def _is_hash_key(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _usual_record(message: bytes, position: int, stop: int) -> tuple[int, int | None, bytes] | None:
    """A record as every known producer writes it: small indexes first, then data and nothing more. Reading it this
    way is three times as fast; None for any other form, right or wrong."""
    if stop - position < _LEAST_USUAL or message[position] != 1 << 3 or message[position + 1] >= 0x80:
        return None
    key = message[position + 1]
    explicit = None
    position += 2
    if message[position] == 2 << 3 and message[position + 1] < 0x80:
        explicit = message[position + 1]
        position += 2
    if stop - position < 2 or message[position] != (3 << 3 | _LENGTH):
        return None
    size = message[position + 1]
    position += 2
    if size >= 0x80:
        high = message[position] if position < stop else 0x80
        if high >= 0x80:
            return None
        size = size & 0x7F | high << 7
        position += 1
    return (key, explicit, message[position:stop]) if position + size == stop else None


def _record(message: bytes, position: int, end: int) -> tuple[int, int | None, bytes]:
    key: int | None = None
    explicit: int | None = None
    data: bytes | None = None
    while position < end:
        tag, position = _varint(message, position, end)
        if tag == 1 << 3 | _VARINT:
            key, position = _varint(message, position, end)
        elif tag == 2 << 3 | _VARINT:
            explicit, position = _varint(message, position, end)
        elif tag == 3 << 3 | _LENGTH:
            size, position = _varint(message, position, end)
            if position + size > end:
                raise _Malformed(f"record data at byte {position} runs past the end")
            data = message[position : position + size]
            position += size
        else:
            position = _skip(message, position, end, tag >> 3, tag & 7)
    if key is None or data is None:
        raise _Malformed(f"record before byte {end} has no {'partition key' if key is None else 'data'}")
    return key, explicit, data


def _varint(message: bytes, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > _MAX_VARINT_BITS:
            break
    raise _Malformed(f"number at byte {position} does not end")


def _skip(message: bytes, position: int, end: int, field: int, wire: int) -> int:
    """Step over a field of a later version of the format, or one we do not need (tags)."""
    if field == 0:
        raise _Malformed(f"field number 0 at byte {position}")
    if wire == _VARINT:
        _, position = _varint(message, position, end)
    elif wire == _FIXED64:
        position += 8
    elif wire == _FIXED32:
        position += 4
    elif wire == _LENGTH:
        size, position = _varint(message, position, end)
        position += size
    else:
        raise _Malformed(f"wire type {wire} at byte {position}")
    if position > end:
        raise _Malformed(f"field {field} runs past the end")
    return position
