"""Gaps in the hash keys that a set of ranges covers."""

from collections.abc import Iterable
from dataclasses import dataclass

from kcl_dagster.model.shard import MAX_HASH_KEY, HashRange


@dataclass(frozen=True, slots=True)
class Hole:
    """A range of hash keys between two others that no unfinished lease covers."""

    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.start}..{self.end}"


def find_hole(ranges: Iterable[HashRange]) -> Hole | None:
    covered = -1
    for one in sorted(ranges):
        if one.start > covered + 1:
            return Hole(covered + 1, one.start - 1)
        covered = max(covered, one.end)
    return Hole(covered + 1, MAX_HASH_KEY) if covered < MAX_HASH_KEY else None
