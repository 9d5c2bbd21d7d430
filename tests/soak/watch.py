"""What a soak sees in the lease table: leases that change hands, and shards that are not read. Pure."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId


@dataclass
class Watch:
    """Shown the leases every second.

    While the database is away no lease may leave a worker that lives: `lost` says which did. `silence` is, by
    lease, the longest time that it did not advance while records arrived.
    """

    lost: list[str] = field(default_factory=list)
    silence: dict[LeaseKey, float] = field(default_factory=dict)
    _seen: dict[LeaseKey, Lease] = field(default_factory=dict)
    _advanced: dict[LeaseKey, float] = field(default_factory=dict)

    def look(self, now: float, leases: Iterable[Lease], *, is_outage: bool, harmed: AbstractSet[WorkerId]) -> None:
        """`harmed`: workers that may lose their leases, because a fault has struck them."""
        found = {lease.key: lease for lease in leases}
        for key, lease in found.items():
            before = self._seen.get(key)
            if before is not None and is_outage:
                self._compare(before, lease, harmed)
            if before is None or before.checkpoint != lease.checkpoint or lease.is_finished:
                self._advanced[key] = now
            self.silence[key] = max(self.silence.get(key, 0.0), now - self._advanced.get(key, now))
        self._seen = found

    def begin(self, now: float) -> None:
        """Count silence from now on."""
        self.silence.clear()
        self._advanced = dict.fromkeys(self._advanced, now)

    def longest_silence(self) -> float:
        return max(self.silence.values(), default=0.0)

    def _compare(self, before: Lease, after: Lease, harmed: AbstractSet[WorkerId]) -> None:
        owner = before.actual_owner
        if owner is None or owner in harmed or before.in_handoff or after.is_finished:
            return
        if after.actual_owner != owner:
            self.lost.append(f"{before.key} left {owner} for {after.actual_owner or 'no owner'}")
