"""Finds hash keys that no range of a set covers."""

from collections.abc import Iterable
from dataclasses import dataclass

from kcl_dagster.model.shard import MAX_HASH_KEY, HashRange


@dataclass(frozen=True, slots=True)
class Hole:
    """A range of hash keys that no unfinished lease covers. Both ends are inclusive."""

    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.start}..{self.end}"


def find_hole(ranges: Iterable[HashRange]) -> Hole | None:
    """The lowest gap that these ranges leave in the hash keys. None if they cover all hash keys."""
    covered = -1
    for one in sorted(ranges):
        if one.start > covered + 1:
            return Hole(covered + 1, one.start - 1)
        covered = max(covered, one.end)
    return Hole(covered + 1, MAX_HASH_KEY) if covered < MAX_HASH_KEY else None
