"""The KCL's auditor: when does a Java leader believe that hash keys are not covered?

A Java leader syncs at once where a stream has no leases at all, and otherwise only when it has found the very same
hole in several audits in a row. `kcl_dagster.leader.sync_stage` acts on the first sight of a hole: a sync that
finds nothing to create costs one listing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kcl_dagster.leader.hash_ranges import active_ranges
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


@dataclass(frozen=True, slots=True)
class HoleWatch:
    """Counts, as the KCL does, how often in a row the same hole was found."""

    hole: Hole | None = None
    seen: int = 0

    def saw(self, hole: Hole | None) -> "HoleWatch":
        if hole is None:
            return HoleWatch()
        return HoleWatch(hole, self.seen + 1) if hole == self.hole else HoleWatch(hole, 1)

    @property
    def is_confirmed(self) -> bool:
        return self.seen >= KCL_CONFIRMATIONS


@dataclass(slots=True)
class Auditor:
    """One stream's audits, in the memory of one leader."""

    confirmations: int = KCL_CONFIRMATIONS
    watch: HoleWatch = field(default_factory=HoleWatch)

    def wants_sync(self, leases: Sequence[Lease]) -> bool:
        """After one more audit. Leases without a hash range are to be completed before."""
        if not leases:
            return True
        self.watch = self.watch.saw(find_hole_as_kcl(active_ranges(leases)))
        return self.watch.seen >= self.confirmations
