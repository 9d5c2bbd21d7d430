"""Opens aggregates: Kinesis records into which the Kinesis Producer Library packed several user records.

An aggregate consists of four magic bytes, a protobuf message, and the MD5 digest of the message. The message has a
table of partition keys, a table of explicit hash keys, and records that refer to both tables.

Two rules differ from the KCL on purpose, because the KCL's rules lose data silently. `kcl=True` selects the KCL's
rules, for comparisons.

- If a record is outside the shard's hash range, only this record is left out (the producer sends it again). The KCL
  leaves out the whole aggregate.
- If the digest of a message is right but the message is invalid, an error names the cause. The KCL delivers the
  records before the fault.

A small message can expand to very much data, because a record of six bytes can refer to a key of any length. An
aggregate is therefore opened in slices. For each slice, the whole message is checked, in time proportional to its
size. Objects are made only for the records that are wanted and have room.
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import md5
from itertools import accumulate, compress
from typing import Any, Final, NamedTuple

from kcl_dagster.errors import BrokenAggregate
from kcl_dagster.model.shard import MAX_HASH_KEY, HashRange
from kcl_dagster.streams.records import utf8_sizes

MAGIC: Final = b"\xf3\x89\x9a\xc2"
DIGEST_BYTES: Final = 16

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_KEYS_TAG: Final = 1 << 3 | _LENGTH  # in the message
_HASH_KEYS_TAG: Final = 2 << 3 | _LENGTH
_RECORD_TAG: Final = 3 << 3 | _LENGTH
_KEY_TAG, _EXPLICIT_TAG, _DATA_TAG = 1 << 3 | _VARINT, 2 << 3 | _VARINT, 3 << 3 | _LENGTH  # in a record
_FIRST_FIELD: Final = 1 << 3  # smaller numbers are not tags of a field
_LONGEST_HEAD: Final = 10  # bytes of a usual record before its data: tags, sizes of two bytes, indexes of one byte
# The most digits of a hash key. A longer number is not parsed, because Python refuses to parse very long numbers.
_MOST_DIGITS: Final = len(str(MAX_HASH_KEY))
_MAX_VARINT_BITS: Final = 63  # ten bytes of seven bits; a longer number is not a varint
_ABSENT: Final = -1  # stands for the index in a record without an explicit hash key
# Records are taken from a message in windows of about this size. Unwanted records are dropped after each window.
_WINDOW_BYTES: Final = 64 * 1024
_WINDOW_RECORDS: Final = 4096
_KEPT_KEYS: Final = 65_536  # keys of a table that are kept as text


class SubRecord(NamedTuple):
    sub_sequence: int
    partition_key: str
    explicit_hash_key: str | None
    data: bytes


@dataclass(frozen=True, slots=True)
class SubRecords:
    """User records as columns, the form in which they are stored. Making one object per record would take longer
    than parsing the record."""

    places: Sequence[int] = ()
    """The sub-sequence numbers of the records."""

    partition_keys: Sequence[str] = ()
    explicit_hash_keys: Sequence[str | None] = ()
    data: Sequence[bytes] = ()

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[SubRecord]:
        return map(SubRecord._make, zip(*self._columns(), strict=True))

    def only(self, wanted: Sequence[bool]) -> "SubRecords":
        """The records for which `wanted` is True."""
        return SubRecords(*(list(compress(column, wanted)) for column in self._columns()))

    def _columns(self) -> tuple[Sequence[Any], ...]:
        return self.places, self.partition_keys, self.explicit_hash_keys, self.data


class Room(NamedTuple):
    """The most that a slice of an aggregate is allowed to contain. `bytes` counts payloads and keys, each key once
    per record."""

    rows: int
    bytes: int


UNBOUNDED: Final = Room(sys.maxsize, sys.maxsize)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The records of an aggregate's slice that belong to one shard.

    - `last_index`: the sub-sequence number of the aggregate's last record, even if that is of another shard. A
      checkpoint with this number covers the whole aggregate.
    - `reached`: the sub-sequence number of the last record that the slice covers. Later records had no room, or
      were not requested.
    - `misplaced`: the number of the slice's records outside the shard's hash range.
    - `bytes`: the size of the slice's records inside that range.
    """

    records: SubRecords
    last_index: int
    reached: int
    misplaced: int = 0
    bytes: int = 0


def is_aggregate(data: bytes) -> bool:
    """Whether `data` is an aggregate: magic, at least one byte of message, and the right digest."""
    return (
        data.startswith(MAGIC)
        and len(data) > len(MAGIC) + DIGEST_BYTES
        and md5(data[len(MAGIC) : -DIGEST_BYTES], usedforsecurity=False).digest() == data[-DIGEST_BYTES:]
    )


def hash_key(partition_key: str) -> int:
    """The 128-bit hash key that Kinesis derives from a partition key."""
    return int.from_bytes(md5(partition_key.encode(), usedforsecurity=False).digest(), "big")


def explicit_hash(digits: str) -> int:
    """An explicit hash key as a number. If the text is too long, the result is a number above all hash keys."""
    significant = digits.lstrip("0")
    return int(significant or "0") if len(significant) <= _MOST_DIGITS else MAX_HASH_KEY + 1


def deaggregate(
    data: bytes,
    hash_range: HashRange | None = None,
    *,
    first: int = 0,
    last: int | None = None,
    room: Room = UNBOUNDED,
    kcl: bool = False,
) -> Aggregate | None:
    """Open an aggregate, and keep the records that belong to `hash_range`. Returns None if `data` is not an
    aggregate.

    The slice begins at the record `first`. It ends with the record `last`, if given, or earlier if `room` is used
    up. At least one record has room if `room` has one row or more, and at least as many bytes as `data`.

    Raises BrokenAggregate if the digest is right but the message is invalid anywhere. With `kcl`, it raises no
    error. It then returns None if the message cannot be parsed. If a record has a wrong index or hash key, it
    returns only the records before this record.
    """
    if not is_aggregate(data):
        return None
    message = data[len(MAGIC) : -DIGEST_BYTES]
    stop = first + room.rows if last is None else min(first + room.rows, last + 1)
    try:
        opened = _Slice.of(message, first, stop)
    except _Malformed as error:
        if kcl:
            return None
        raise BrokenAggregate(f"aggregate of {len(data)} bytes: {error}") from error
    fault = opened.fault(message)
    if fault is not None:
        if not kcl:
            raise BrokenAggregate(f"aggregate of {len(data)} bytes: {fault.problem}")
        opened.wanted = opened.wanted.part(0, max(fault.at - first, 0))
    return opened.resolve(hash_range, room.bytes, whole_or_none=kcl)


def last_index(data: bytes) -> int:
    """The sub-sequence number of the last user record in a Kinesis record: 0 for a record that is not a valid
    aggregate, or has only one user record."""
    try:
        aggregate = deaggregate(data, room=Room(1, len(data)))
    except BrokenAggregate:
        return 0
    return 0 if aggregate is None else aggregate.last_index


class _Malformed(Exception):
    """Raised if the message is not a valid aggregated record."""


class _Fault(NamedTuple):
    """A record that refers to a key outside a table, or to an explicit hash key that is not a number."""

    at: int
    problem: str


@dataclass(frozen=True, slots=True)
class _Window:
    """Records as columns of payloads and of indexes into the tables."""

    keys: list[int] = field(default_factory=list)
    explicits: list[int] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)

    def part(self, start: int, stop: int) -> "_Window":
        return _Window(self.keys[start:stop], self.explicits[start:stop], self.data[start:stop])

    def extend(self, other: "_Window") -> None:
        self.keys.extend(other.keys)
        self.explicits.extend(other.explicits)
        self.data.extend(other.data)


class _Table:
    """The keys of a message. A message can have millions of keys to which no record refers, so only the first ones
    are kept as text. For the others, only their positions in the message are kept."""

    __slots__ = ("_message", "_starts", "_stops", "_texts")

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._texts: list[str] = []
        self._starts = array("I")
        self._stops = array("I")

    def __len__(self) -> int:
        return len(self._texts) + len(self._starts)

    def add(self, start: int, stop: int) -> None:
        try:
            text = self._message[start:stop].decode()
        except UnicodeDecodeError as error:
            raise _Malformed(f"key at byte {start} is not UTF-8") from error
        if len(self._texts) < _KEPT_KEYS:
            self._texts.append(text)
        else:
            self._starts.append(start)
            self._stops.append(stop)

    def text(self, index: int) -> str:
        if index < len(self._texts):
            return self._texts[index]
        index -= len(self._texts)
        return self._message[self._starts[index] : self._stops[index]].decode()

    def texts(self, indexes: Sequence[int]) -> list[str]:
        """The keys with these indexes. Records with the same index share one object."""
        try:
            return [self._texts[index] for index in indexes]
        except IndexError:
            found = {index: self.text(index) for index in set(indexes)}
            return [found[index] for index in indexes]


class _Walk:
    """Passes through a message once. The tables are complete when `windows` has ended."""

    def __init__(self, message: bytes) -> None:
        self.partition_keys = _Table(message)
        self.hash_keys = _Table(message)
        self._message = message
        self._window = _Window()

    def windows(self) -> Iterator[_Window]:
        """The message's records, in order. Raises _Malformed."""
        message = self._message
        position, end = 0, len(message)
        while position < end:
            position = self._usual_keys(position, end)
            position = self._usual_records(message, position, end)
            if position < end:
                position = self._field(position, end)
            if len(self._window.keys) >= _WINDOW_RECORDS:
                yield self._window
                self._window = _Window()
        yield self._window

    def _usual_keys(self, position: int, end: int) -> int:
        """Take the next keys that are shorter than 128 bytes, and skip short unknown numeric fields. Returns the
        position of the first field of another form."""
        message, last = self._message, end - 2
        while position <= last:
            tag, start = message[position], position + 2
            size = message[start - 1]
            stop = start + size
            if size >= 0x80 or tag & 7 == _VARINT:
                if size >= 0x80 or not _FIRST_FIELD <= tag < 0x80:
                    break
                position = start
                continue
            if stop > end:
                break
            if tag == _KEYS_TAG:
                self.partition_keys.add(start, stop)
            elif tag == _HASH_KEYS_TAG:
                self.hash_keys.add(start, stop)
            else:
                break
            position = stop
        return position

    def _usual_records(self, message: bytes, position: int, end: int) -> int:
        """Take the next records in the form that all known producers write: indexes below 128, then less than 16
        KiB of data, and nothing else. Returns the position of the first record in another form (valid or not), or
        of the window's end.

        Most records are read completely by this loop, so it avoids function calls.
        """
        window = self._window
        keys, explicits, data = window.keys.append, window.explicits.append, window.data.append
        # A record that begins here or earlier can be examined without reading past the end.
        last = min(end - _LONGEST_HEAD, position + _WINDOW_BYTES)
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
            explicit = _ABSENT
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

    def _field(self, position: int, end: int) -> int:
        """Take one field of any form. Returns the position after it."""
        message = self._message
        tag, position = _varint(message, position, end)
        number, wire = tag >> 3, tag & 7
        if wire != _LENGTH or number not in (1, 2, 3):
            return _skip(message, position, end, number, wire)
        size, position = _varint(message, position, end)
        stop = position + size
        if stop > end:
            raise _Malformed(f"field {number} at byte {position} runs past the end")
        if number == 1:
            self.partition_keys.add(position, stop)
        elif number == 2:
            self.hash_keys.add(position, stop)
        else:
            key, explicit, data = _record(message, position, stop)
            self._window.keys.append(key)
            self._window.explicits.append(explicit)
            self._window.data.append(data)
        return stop


@dataclass(slots=True)
class _Slice:
    """The wanted records of a message from `first` on, and the facts that are needed to check all other records."""

    partition_keys: _Table
    hash_keys: _Table
    first: int
    count: int = 0
    """The number of all records of the message."""

    highest_key: int = _ABSENT
    highest_explicit: int = _ABSENT
    wanted: _Window = field(default_factory=_Window)

    @classmethod
    def of(cls, message: bytes, first: int, stop: int) -> "_Slice":
        walk = _Walk(message)
        found = cls(walk.partition_keys, walk.hash_keys, first)
        for window in walk.windows():
            found._add(window, stop)
        return found

    def _add(self, window: _Window, stop: int) -> None:
        count = len(window.keys)
        if not count:
            return
        key, explicit = max(window.keys), max(window.explicits)
        self.highest_key = max(self.highest_key, key)
        self.highest_explicit = max(self.highest_explicit, explicit)
        low, high = max(self.first - self.count, 0), max(stop - self.count, 0)
        self.count += count
        if low == 0 and high >= count and not self.wanted.keys:
            self.wanted = window
        elif low < high:
            self.wanted.extend(window.part(low, high))

    def fault(self, message: bytes) -> _Fault | None:
        """The first record with an index outside a table, or with an explicit hash key that is not a number. None
        if there is no such record."""
        points_nowhere = self.highest_key >= len(self.partition_keys) or self.highest_explicit >= len(
            self.hash_keys
        )
        # Each key is checked once, because a key can be as long as the message, and thousands of records can refer
        # to it.
        unsound = bytearray(not _is_hash_key(self.hash_keys.text(i) or "0") for i in range(len(self.hash_keys)))
        if not points_nowhere and not any(unsound):
            return None
        start = 0
        for window in _Walk(message).windows():
            for index, (key, explicit) in enumerate(zip(window.keys, window.explicits, strict=True), start):
                if key >= len(self.partition_keys):
                    return _Fault(index, f"record {index} names partition key {key} of {len(self.partition_keys)}")
                if explicit >= len(self.hash_keys):
                    return _Fault(index, f"record {index} names hash key {explicit} of {len(self.hash_keys)}")
                if explicit != _ABSENT and unsound[explicit]:
                    return _Fault(index, f"record {index} has hash key {self.hash_keys.text(explicit)[:50]!r}")
            start += len(window.keys)
        return None

    def resolve(self, hash_range: HashRange | None, most_bytes: int, *, whole_or_none: bool) -> Aggregate:
        """The slice's records that belong to the hash range and have room. `whole_or_none`: if any record of the
        slice is outside the hash range, return no records."""
        last_index = max(self.count - 1, 0)
        keys, explicits, data = self.wanted.keys, self.wanted.explicits, self.wanted.data
        places: Sequence[int] = range(self.first, self.first + len(data))
        reached = last_index if self.first + len(data) >= self.count else self.first + len(data) - 1
        inside = self._inside(hash_range)
        misplaced = 0
        if inside is not None:
            if whole_or_none:
                return Aggregate(SubRecords(), last_index, reached, len(data))
            keys, explicits = list(compress(keys, inside)), list(compress(explicits, inside))
            data = list(compress(data, inside))
            places = list(compress(places, inside))
            misplaced = len(inside) - len(data)
        partition_keys = self.partition_keys.texts(keys)
        hash_keys: Sequence[str | None] = [None] * len(data)
        if self.highest_explicit != _ABSENT:
            texts = {index: None if index == _ABSENT else self.hash_keys.text(index) for index in set(explicits)}
            hash_keys = [texts[index] for index in explicits]
        columns = [list(map(len, data)), utf8_sizes(partition_keys)]
        if self.highest_explicit != _ABSENT:
            columns.append(utf8_sizes([text or "" for text in hash_keys]))
        size = sum(map(sum, columns))
        if size > most_bytes:
            sizes = list(map(sum, zip(*columns, strict=True)))
            room = bisect_right(list(accumulate(sizes)), most_bytes)
            size, reached = sum(sizes[:room]), places[room] - 1
            places, data = places[:room], data[:room]
            partition_keys, hash_keys = partition_keys[:room], hash_keys[:room]
            misplaced = reached + 1 - self.first - room
        records = SubRecords(places, partition_keys, hash_keys, data)
        return Aggregate(records, last_index, reached, misplaced, size)

    def _inside(self, hash_range: HashRange | None) -> list[bool] | None:
        """For each record, whether it belongs to the hash range. None if all records belong to it. Each key is
        hashed once, even if many records refer to it."""
        if hash_range is None or (hash_range.start == 0 and hash_range.end == MAX_HASH_KEY):
            return None
        keys, explicits = self.wanted.keys, self.wanted.explicits
        by_explicit = {
            explicit: explicit_hash(self.hash_keys.text(explicit)) in hash_range
            for explicit in set(explicits)
            if explicit != _ABSENT and self.hash_keys.text(explicit)
        }
        by_key = (
            {key: hash_key(self.partition_keys.text(key)) in hash_range for key in set(keys)}
            if any(explicit not in by_explicit for explicit in set(explicits))
            else {}
        )
        if all(by_explicit.values()) and all(by_key.values()):
            return None
        inside = [
            by_explicit[explicit] if explicit in by_explicit else by_key[key]
            for key, explicit in zip(keys, explicits, strict=True)
        ]
        return None if all(inside) else inside


def _is_hash_key(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _record(message: bytes, position: int, end: int) -> tuple[int, int, bytes]:
    key: int | None = None
    explicit = _ABSENT
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
    """Skip a field of a later version of the format, or a field that is not needed (tags). Returns the position
    after it."""
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
