"""The KCL's auditor: when does a Java leader believe that hash keys are not covered?

It syncs at once where a stream has no leases at all, and otherwise only when it has found the very same hole in
several audits in a row. `kcl_dagster.leader.audit` acts on the first sight of a hole.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kcl_dagster.leader.audit import KCL_CONFIRMATIONS, HoleWatch, active_ranges, find_hole_as_kcl
from kcl_dagster.model.lease import Lease


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
