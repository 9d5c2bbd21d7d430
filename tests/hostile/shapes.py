"""Shapes of aggregates, as a search may change them: each gives the bytes of one Kinesis record."""

from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any, Final

from tests.doubles.aggregation import sealed

KEYS_TAG, HASH_KEYS_TAG, RECORD_TAG = b"\x0a", b"\x12", b"\x1a"
FILLINGS: Final = ("ascii", "digits", "zeros", "wide", "mixed", "torn")
EXTRAS: Final = ("none", "tags", "repeated", "long numbers", "empty fields", "groups", "endless number")
ENDINGS: Final = ("none", "bad index", "bad hash key", "cut off", "unfinished number", "keys at the end")


@dataclass(frozen=True)
class Shape:
    """What an aggregate is made of. Sizes are wishes: the record is cut to its size, where records end."""

    keys: int = 1
    key_bytes: int = 10
    key_filling: str = "ascii"
    hash_keys: int = 0
    hash_key_bytes: int = 38
    hash_key_filling: str = "digits"
    payload_bytes: int = 1
    names_a_key: int = 1
    """Each record names the key of its number modulo this; 0 for always the last key."""

    extra: str = "none"
    """What is in each record beside key and payload."""

    between: int = 0
    """Unknown fields between two records."""

    nesting: int = 1
    """Aggregates inside of aggregates: only the outermost is opened."""

    ending: str = "none"

    def record(self, size: int) -> bytes:
        """The payload of a Kinesis record of about `size` bytes."""
        body = self._message(size)
        for _ in range(self.nesting - 1):
            inner = sealed(body)
            body = _field(KEYS_TAG, b"k") + _field(RECORD_TAG, b"\x08\x00" + _field(b"\x1a", inner))
        return sealed(body)

    def _message(self, size: int) -> bytes:
        keys = _table(KEYS_TAG, self.keys, self.key_bytes, self.key_filling, size // 2)
        hash_keys = _table(HASH_KEYS_TAG, self.hash_keys, self.hash_key_bytes, self.hash_key_filling, size // 4)
        tables = b"".join(keys + hash_keys)
        parts, length, number = [] if self.ending == "keys at the end" else [tables], len(tables), 0
        while length < size:
            part = self._record(number, len(keys), len(hash_keys)) + b"\x20\x05" * self.between
            repeats = max(1, min(1000, (size - length) // len(part))) if self.names_a_key <= 1 else 1
            parts.append(part * repeats)
            length += len(part) * repeats
            number += repeats
        match self.ending:
            case "bad index":
                parts.append(_field(RECORD_TAG, b"\x08" + _varint(2**40) + b"\x1a\x00"))
            case "bad hash key":
                parts += [_field(HASH_KEYS_TAG, b"9" * 50_000 + b"x")]
                parts += [_field(RECORD_TAG, b"\x08\x00\x10" + _varint(len(hash_keys)) + b"\x1a\x00")] * 100
            case "cut off":
                parts.append(b"\x1a\x7f\x08")
            case "unfinished number":
                parts.append(b"\xff" * 40)
            case "keys at the end":
                parts.append(tables)
        return b"".join(parts)

    def _record(self, number: int, keys: int, hash_keys: int) -> bytes:
        key = (number % self.names_a_key) % max(keys, 1) if self.names_a_key else max(keys - 1, 0)
        body = b"\x08" + _varint(key)
        if hash_keys:
            body += b"\x10" + _varint(number % hash_keys)
        match self.extra:
            case "tags":
                body += _field(b"\x22", b"\x0a\x01t") * 3
            case "repeated":
                body += (b"\x08" + _varint(key)) * 20
            case "long numbers":
                body += b"\x28" + b"\x80" * 8 + b"\x01"
            case "empty fields":
                body += b"\x22\x00" * 20
            case "groups":
                body += b"\x23\x24"
            case "endless number":
                body += b"\x28" + b"\xff" * 12
        return _field(RECORD_TAG, body + _field(b"\x1a", b"x" * self.payload_bytes))

    def changed(self, chance: Random) -> "Shape":
        """A neighbour: one or two of its traits are others."""
        shape = self
        for _ in range(chance.choice((1, 1, 2))):
            name = chance.choice([field.name for field in fields(self)])
            changes: dict[str, Any] = {name: _trait(name, getattr(shape, name), chance)}
            shape = replace(shape, **changes)
        return shape


def any_shape(chance: Random) -> Shape:
    shape = Shape()
    for _ in range(6):
        shape = shape.changed(chance)
    return shape


def _trait(name: str, value: object, chance: Random) -> object:
    choices: dict[str, tuple[str, ...]] = {
        "key_filling": FILLINGS,
        "hash_key_filling": FILLINGS,
        "extra": EXTRAS,
        "ending": ENDINGS,
    }
    if name in choices:
        return chance.choice(choices[name])
    if name == "nesting":
        return chance.randint(1, 4)
    assert isinstance(value, int)
    least = 1 if name == "keys" else 0
    return max(
        least, chance.choice((value * 2, value // 2, value + 1, value * 10, 0, 1, chance.choice((100, 5000))))
    )


def _table(tag: bytes, count: int, size: int, filling: str, most: int) -> list[bytes]:
    """Keys of one size, and no more than there is room for."""
    size = min(size, max(most, 1))
    count = min(count, max(most // (size + 2), 1)) if count else 0
    return [_field(tag, _text(number, size, filling)) for number in range(count)]


def _text(number: int, size: int, filling: str) -> bytes:
    if filling == "torn":
        return b"\xc3" * size
    if filling == "wide":
        return "é".encode() * (size // 2)
    begin = b"%d" % number
    rest = {"ascii": b"k", "digits": b"7", "zeros": b"0", "mixed": b"7k"}[filling]
    return ((b"" if filling == "zeros" else begin) + rest * size)[:size]


def _field(tag: bytes, content: bytes) -> bytes:
    return tag + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
