"""Records inside records: the aggregation format of the Kinesis Producer Library.

An aggregate is four magic bytes, a protobuf message, and the MD5 digest of the message. The message holds a table
of partition keys, a table of explicit hash keys, and records that point into both.

Two rules differ from the KCL on purpose, because its own lose data without a word. A record outside the shard's
hash range is left out alone (the producer library sends it again), where the KCL leaves out the whole aggregate.
And a message with a good digest that cannot be read is an error that names its cause, where the KCL delivers the
part before the fault. `kcl=True` gives the KCL's behaviour, for comparisons.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import md5
from itertools import compress
from typing import Any, Final, NamedTuple

from kcl_dagster.errors import BrokenAggregate
from kcl_dagster.model.shard import MAX_HASH_KEY, HashRange

MAGIC: Final = b"\xf3\x89\x9a\xc2"
DIGEST_BYTES: Final = 16

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_RECORD_TAG: Final = 3 << 3 | _LENGTH  # in the message
_KEY_TAG, _EXPLICIT_TAG, _DATA_TAG = 1 << 3 | _VARINT, 2 << 3 | _VARINT, 3 << 3 | _LENGTH  # in a record
_LONGEST_HEAD: Final = 10  # bytes of a usual record before its data: tags, sizes of two bytes, indexes of one
_MOST_DIGITS: Final = len(str(MAX_HASH_KEY))  # a producer may write any number of them, and Python reads only some
_MAX_VARINT_BITS: Final = 63  # ten bytes of seven bits; anything longer is not a varint


class SubRecord(NamedTuple):
    """A user record inside an aggregate."""

    sub_sequence: int
    partition_key: str
    explicit_hash_key: str | None
    data: bytes


@dataclass(frozen=True, slots=True)
class SubRecords:
    """User records as columns, as which they are stored: an object for each would cost more than to read it."""

    places: Sequence[int] = ()
    """Their sub-sequence numbers."""

    partition_keys: Sequence[str] = ()
    explicit_hash_keys: Sequence[str | None] = ()
    data: Sequence[bytes] = ()

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[SubRecord]:
        return map(SubRecord._make, zip(*self._columns(), strict=True))

    def only(self, wanted: Sequence[bool]) -> "SubRecords":
        """Those that are wanted."""
        return SubRecords(*(list(compress(column, wanted)) for column in self._columns()))

    def _columns(self) -> tuple[Sequence[Any], ...]:
        return self.places, self.partition_keys, self.explicit_hash_keys, self.data


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What an aggregate holds for one shard.

    `last_index` is the sub-sequence number of its last record, whichever shard that belongs to: a checkpoint
    there covers the aggregate. `misplaced` counts records outside the shard's hash range.
    """

    records: SubRecords
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


def explicit_hash(digits: str) -> int:
    """The number that an explicit hash key stands for, or one beyond all hash keys."""
    significant = digits.lstrip("0")
    return int(significant or "0") if len(significant) <= _MOST_DIGITS else MAX_HASH_KEY + 1


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
        records = message.resolve()
    except _BadIndex as error:
        if not kcl:
            raise BrokenAggregate(f"aggregate of {len(data)} bytes: {error}") from error
        records = error.before
    last_index = max(len(message.data) - 1, 0)
    if hash_range is None:
        return Aggregate(records, last_index)
    mine = _within(records, hash_range)
    misplaced = len(records) - len(mine)
    if kcl and misplaced:
        return Aggregate(SubRecords(), last_index, misplaced=len(records))
    return Aggregate(mine, last_index, misplaced)


def _within(records: SubRecords, hash_range: HashRange) -> SubRecords:
    if hash_range.start == 0 and hash_range.end == MAX_HASH_KEY:
        return records
    # An aggregate repeats few keys, and hashing is the dear part.
    pairs = list(zip(records.partition_keys, records.explicit_hash_keys, strict=True))
    inside = {
        (key, explicit): (explicit_hash(explicit) if explicit else hash_key(key)) in hash_range
        for key, explicit in set(pairs)
    }
    if all(inside.values()):
        return records
    return records.only([inside[pair] for pair in pairs])


class _Malformed(Exception):
    """The message is not a valid aggregated record."""


class _BadIndex(Exception):
    """A record points outside a table."""

    def __init__(self, problem: str, before: SubRecords) -> None:
        super().__init__(problem)
        self.before = before


@dataclass(slots=True)
class _Message:
    """A parsed message: two tables, and the records as columns that point into them."""

    partition_keys: list[str] = field(default_factory=list)
    explicit_hash_keys: list[str] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    explicits: list[int | None] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)

    @classmethod
    def parse(cls, message: bytes) -> "_Message":
        parsed = cls()
        position, end = 0, len(message)
        while position < end:
            position = parsed._usual_records(message, position, end)
            if position < end:
                position = parsed._field(message, position, end)
        return parsed

    def _usual_records(self, message: bytes, position: int, end: int) -> int:
        """Take the records that are as every known producer writes them: indexes below 128 first, then data of less
        than 16 KiB and nothing more. Where that ends; a record in any other form, right or wrong, is left alone.

        All that is read of most records is read in this loop, so it calls nothing it can do without.
        """
        keys, explicits, data = self.keys.append, self.explicits.append, self.data.append
        last = end - _LONGEST_HEAD  # what begins here at the latest can be looked at without running past the end
        while position <= last and message[position] == _RECORD_TAG:
            start, high = position + 2, message[position + 2]
            size = message[position + 1]
            if size >= 0x80:
                if high >= 0x80:
                    break
                size, start = size & 0x7F | high << 7, start + 1
            stop = start + size
            key = message[start + 1]
            if message[start] != _KEY_TAG or key >= 0x80:
                break
            explicit: int | None = None
            start += 2
            if message[start] == _EXPLICIT_TAG:
                explicit = message[start + 1]
                if explicit >= 0x80:
                    break
                start += 2
            if message[start] != _DATA_TAG:
                break
            size = message[start + 1]
            start += 2
            if size >= 0x80:
                if start >= end or (high := message[start]) >= 0x80:
                    break
                size, start = size & 0x7F | high << 7, start + 1
            if start + size != stop or stop > end:
                break
            keys(key)
            explicits(explicit)
            data(message[start:stop])
            position = stop
        return position

    def _field(self, message: bytes, position: int, end: int) -> int:
        """Take one field in whatever form; where it ends."""
        tag, position = _varint(message, position, end)
        number, wire = tag >> 3, tag & 7
        if wire != _LENGTH or number not in (1, 2, 3):
            return _skip(message, position, end, number, wire)
        size, position = _varint(message, position, end)
        stop = position + size
        if stop > end:
            raise _Malformed(f"field {number} at byte {position} runs past the end")
        if number == 3:
            key, explicit, data = _record(message, position, stop)
            self.keys.append(key)
            self.explicits.append(explicit)
            self.data.append(data)
        else:
            table = self.partition_keys if number == 1 else self.explicit_hash_keys
            try:
                table.append(message[position:stop].decode())
            except UnicodeDecodeError as error:
                raise _Malformed(f"key at byte {position} is not UTF-8") from error
        return stop

    def resolve(self) -> SubRecords:
        count, tables = len(self.data), (self.partition_keys, self.explicit_hash_keys)
        if any(key and not _is_hash_key(key) for key in self.explicit_hash_keys):
            count = self._count_of_sound()
        try:
            records = self._resolved(count, *tables)
        except IndexError:
            count = self._count_of_sound()
            records = self._resolved(count, *tables)
        if count < len(self.data):
            raise _BadIndex(self._fault(count) or "", records)
        return records

    def _resolved(self, count: int, partition_keys: list[str], explicit_keys: list[str]) -> SubRecords:
        explicits = self.explicits[:count]
        return SubRecords(
            range(count),
            [partition_keys[key] for key in self.keys[:count]],
            [None if explicit is None else explicit_keys[explicit] for explicit in explicits],
            self.data[:count],
        )

    def _count_of_sound(self) -> int:
        """How many records come before the first that points nowhere, or at what is no hash key."""
        return next((index for index in range(len(self.data)) if self._fault(index)), len(self.data))

    def _fault(self, index: int) -> str | None:
        key, explicit = self.keys[index], self.explicits[index]
        if key >= len(self.partition_keys):
            return f"record {index} names partition key {key} of {len(self.partition_keys)}"
        if explicit is None:
            return None
        if explicit >= len(self.explicit_hash_keys):
            return f"record {index} names hash key {explicit} of {len(self.explicit_hash_keys)}"
        explicit_key = self.explicit_hash_keys[explicit]
        if explicit_key and not _is_hash_key(explicit_key):
            return f"record {index} has hash key {explicit_key[:50]!r}"
        return None


def _is_hash_key(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _record(message: bytes, position: int, end: int) -> tuple[int, int | None, bytes]:
    key: int | None = None
    explicit: int | None = None
    data: bytes | None = None
    while position < end:
        tag, position = _varint(message, position, end)
        if tag == _KEY_TAG:
            key, position = _varint(message, position, end)
        elif tag == _EXPLICIT_TAG:
            explicit, position = _varint(message, position, end)
        elif tag == _DATA_TAG:
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
