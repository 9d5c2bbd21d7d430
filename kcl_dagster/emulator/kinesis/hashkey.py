"""The space of hash keys: 0 .. 2^128 - 1, and ranges of it."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass

KEYS = 1 << 128


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys from `start` through `end`, both included."""

    start: int
    end: int

    def __contains__(self, key: int) -> bool:
        return self.start <= key <= self.end

    def is_followed_by(self, other: KeyRange) -> bool:
        return self.end + 1 == other.start

    def describe(self) -> dict[str, str]:
        return {"StartingHashKey": str(self.start), "EndingHashKey": str(self.end)}


def of_partition_key(partition_key: str) -> int:
    """Return the hash key of a record that has no explicit hash key."""
    return int.from_bytes(hashlib.md5(partition_key.encode(), usedforsecurity=False).digest())


def uniform(count: int) -> list[KeyRange]:
    """Return `count` ranges that together cover all hash keys, and differ in size by at most one key."""
    starts = [KEYS * i // count for i in range(count)] + [KEYS]
    return [KeyRange(low, high - 1) for low, high in itertools.pairwise(starts)]
