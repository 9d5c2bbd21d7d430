"""Aggregates as the Kinesis Producer Library writes them: input for tests of consumers."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import md5

from kcl_dagster.streams.deaggregation import MAGIC

_KEYS, _HASH_KEYS, _RECORDS = 1, 2, 3


@dataclass(frozen=True, slots=True)
class UserRecord:
    """What a producer hands to the library."""

    partition_key: str
    data: bytes
    explicit_hash_key: str | None = None


def aggregate(records: Sequence[UserRecord]) -> bytes:
    """The payload of one Kinesis record that holds all of these."""
    keys = list(dict.fromkeys(record.partition_key for record in records))
    hash_keys = list(dict.fromkeys(r.explicit_hash_key for r in records if r.explicit_hash_key is not None))
    message = b"".join(
        [
            *(_field(_KEYS, key.encode()) for key in keys),
            *(_field(_HASH_KEYS, key.encode()) for key in hash_keys),
            *(_field(_RECORDS, _record(record, keys, hash_keys)) for record in records),
        ]
    )
    return sealed(message)


def sealed(message: bytes) -> bytes:
    """A protobuf message, right or wrong, with the magic before it and its digest behind it."""
    return MAGIC + message + md5(message, usedforsecurity=False).digest()


def _record(record: UserRecord, keys: list[str], hash_keys: list[str]) -> bytes:
    body = _number(1, keys.index(record.partition_key))
    if record.explicit_hash_key is not None:
        body += _number(2, hash_keys.index(record.explicit_hash_key))
    return body + _field(3, record.data)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
