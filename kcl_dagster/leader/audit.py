"""Find hash keys that no unfinished lease covers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kcl_dagster.model.hole import Hole, find_hole
from kcl_dagster.model.lease import Lease
from kcl_dagster.model.shard import MAX_HASH_KEY, HashRange

# The KCL acts on a hole only if it has found the same one this often, two minutes apart.
KCL_CONFIRMATIONS: Final = 3


def find_hole_as_kcl(ranges: Iterable[HashRange]) -> Hole | None:
    """Find a hole as the KCL does: only the last range in order may reach the end. So if a range is nested in one
    that reaches the end, a hole is reported although nothing is missing."""
    ordered = sorted(ranges)
    hole = find_hole(ordered)
    if hole is None and ordered[-1].end != MAX_HASH_KEY:
        return Hole(ordered[-1].end + 1, MAX_HASH_KEY)
    return hole


def active_ranges(leases: Iterable[Lease]) -> list[HashRange]:
    """The known ranges of the leases whose shards are still read."""
    return [lease.hash_range for lease in leases if not lease.is_finished and lease.hash_range is not None]


def lack_range(leases: Iterable[Lease]) -> list[Lease]:
    """Unfinished leases without a range, as old clients write them. The stream has their ranges."""
    return [lease for lease in leases if not lease.is_finished and lease.hash_range is None]


@dataclass(frozen=True, slots=True)
class HoleWatch:
    """Counts, as the KCL does, how often in a row the same hole was found. Our own sync does not wait: a sync that
    finds nothing to create costs one listing."""

    hole: Hole | None = None
    seen: int = 0

    def saw(self, hole: Hole | None) -> "HoleWatch":
        if hole is None:
            return HoleWatch()
        return HoleWatch(hole, self.seen + 1) if hole == self.hole else HoleWatch(hole, 1)

    @property
    def is_confirmed(self) -> bool:
        return self.seen >= KCL_CONFIRMATIONS


def covers_everything(ranges: Sequence[HashRange]) -> bool:
    return bool(ranges) and find_hole(ranges) is None
