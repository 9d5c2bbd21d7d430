"""Shards and their hash ranges."""

from dataclasses import dataclass
from typing import Final

MAX_HASH_KEY: Final = 2**128 - 1


@dataclass(frozen=True, slots=True, order=True)
class HashRange:
    """A range of 128-bit hash keys, both ends included."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end <= MAX_HASH_KEY:
            msg = f"hash range {self.start}..{self.end} is not within 0..2^128-1"
            raise ValueError(msg)

    def __contains__(self, hash_key: int) -> bool:
        return self.start <= hash_key <= self.end


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard as ListShards describes it. `parents` can name shards that have left the stream. ListShards does
    not list these shards."""

    id: str
    hash_range: HashRange
    starting_sequence: str
    ending_sequence: str | None = None  # None while the shard is open
    parents: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        return self.ending_sequence is None


@dataclass(frozen=True, slots=True)
class ChildShard:
    id: str
    hash_range: HashRange
    parents: tuple[str, ...]
