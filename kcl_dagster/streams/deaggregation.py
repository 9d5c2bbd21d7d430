"""Records inside records: the aggregation format of the Kinesis Producer Library.

An aggregate is four magic bytes, a protobuf message, and the MD5 digest of the message. The message holds a table
of partition keys, a table of explicit hash keys, and records that point into both.

Two rules differ from the KCL on purpose, because its own lose data without a word. A record outside the shard's
hash range is left out alone (the producer library sends it again), where the KCL leaves out the whole aggregate.
And a message with a good digest that cannot be read is an error that names its cause, where the KCL delivers the
part before the fault. `kcl=True` gives the KCL's behaviour, for comparisons.

A few bytes of a message can stand for very much: a record is six bytes and names a key of any length. So an
aggregate is opened in slices. Its message is checked to the end at every reading, in time that grows with its
bytes, and only the records that are wanted and have room become objects.
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
_FIRST_FIELD: Final = 1 << 3  # below it is no tag of a field
_LONGEST_HEAD: Final = 10  # bytes of a usual record before its data: tags, sizes of two bytes, indexes of one
_MOST_DIGITS: Final = len(str(MAX_HASH_KEY))  # a producer may write any number of them, and Python reads only some
_MAX_VARINT_BITS: Final = 63  # ten bytes of seven bits; anything longer is not a varint
_ABSENT: Final = -1  # the index of a hash key that a record does not name
# Records are taken from a message in windows of about this size: what is not wanted of one is dropped at its end.
_WINDOW_BYTES: Final = 64 * 1024
_WINDOW_RECORDS: Final = 4096
_KEPT_KEYS: Final = 65_536  # of a table that are kept as text


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


class Room(NamedTuple):
    """What a slice of an aggregate may hold. `bytes` count payloads and keys, the key of each record anew."""

    rows: int
    bytes: int


UNBOUNDED: Final = Room(sys.maxsize, sys.maxsize)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What a slice of an aggregate holds for one shard.

    `last_index` is the sub-sequence number of the aggregate's last record, whichever shard that belongs to: a
    checkpoint there covers the aggregate. `reached` is that of the last record the slice covers; what follows it
    had no room. `misplaced` counts records of the slice outside the shard's hash range, `bytes` is the size of the
    others.
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
    """The 128-bit hash key Kinesis derives from a partition key."""
    return int.from_bytes(md5(partition_key.encode(), usedforsecurity=False).digest(), "big")


def explicit_hash(digits: str) -> int:
    """The number that an explicit hash key stands for, or one beyond all hash keys."""
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
    """Open an aggregate, keeping what belongs to `hash_range`. None when `data` is not an aggregate.

    The slice begins at the record `first`, ends with `last` if that is given, and earlier where `room` is used up.
    A room of one row and as many bytes as `data` has always admits one more record.

    Raises BrokenAggregate when the digest is right and the message is not, wherever the fault is. With `kcl`, such
    a message is None (a plain record) if it does not parse at all, and the records before the fault if an index is
    wrong.
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
    """The sub-sequence number at which a record is processed to its end: 0 unless it is an aggregate of several
    user records that can be opened."""
    try:
        aggregate = deaggregate(data, room=Room(1, len(data)))
    except BrokenAggregate:
        return 0
    return 0 if aggregate is None else aggregate.last_index


class _Malformed(Exception):
    """The message is not a valid aggregated record."""


class _Fault(NamedTuple):
    """A record that points outside a table, or at what is no hash key."""

    at: int
    problem: str


@dataclass(frozen=True, slots=True)
class _Window:
    """Records as columns that point into tables."""

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
    """The keys of a message. A message can hold millions that no record names: of those beyond the first ones it
    is only known where in the message they are."""

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
        """Those of many records: one that many records name is one object."""
        try:
            return [self._texts[index] for index in indexes]
        except IndexError:
            found = {index: self.text(index) for index in set(indexes)}
            return [found[index] for index in indexes]


class _Walk:
    """Steps through a message once. The tables are complete when `windows` is at its end."""

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
        """Take the keys of less than 128 bytes that come next, and step over short numbers that nothing is known
        of; where that ends."""
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
        """Take the records that are as every known producer writes them: indexes below 128 first, then data of less
        than 16 KiB and nothing more. Where that or the window ends; a record in any other form, right or wrong, is
        left alone.

        All that is read of most records is read in this loop, so it calls nothing it can do without.
        """
        window = self._window
        keys, explicits, data = window.keys.append, window.explicits.append, window.data.append
        # What begins here at the latest can be looked at without running past the end.
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
        """Take one field in whatever form; where it ends."""
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
    """The records of a message from `first` on that are wanted, and what has to be known of all others."""

    partition_keys: _Table
    hash_keys: _Table
    first: int
    count: int = 0
    """Of all records of the message."""

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
        """The first record that points nowhere, or at what is no hash key."""
        points_nowhere = self.highest_key >= len(self.partition_keys) or self.highest_explicit >= len(
            self.hash_keys
        )
        # Each key is looked at once: it may be as long as the message, and named by each of a thousand records.
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
        """The records of the slice that belong to the range and have room. `whole_or_none`: none where one does not
        belong to it."""
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
        """Which records belong to the range; None if all do. A key is hashed once, however many records name it."""
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
