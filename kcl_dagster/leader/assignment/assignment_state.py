"""The state of a policy while it decides: which worker would hold which leases."""

import heapq
from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kcl_dagster.leader.assignment.policy import AssignmentLimits, WorkerLoad
from kcl_dagster.model.lease import LeaseKey, WorkerId

EPSILON: Final = 1e-9  # sums of floats differ in their last digits


def weight_of(entry: tuple[float, LeaseKey]) -> float:
    return entry[0]


@dataclass(slots=True)
class Holder:
    """One worker and the leases that it holds. `factor`: the relative cost of work on this worker. `load`: the
    weight of its leases, times `factor`."""

    worker: WorkerLoad
    factor: float = 1.0
    load: float = 0.0
    kbps: float = 0.0
    count: int = 0
    movable: list[tuple[float, LeaseKey]] = field(default_factory=list)
    """Sorted by weight, ascending."""

    fixed: float = 0.0
    """The weight of the heaviest lease that must not be moved now."""

    @property
    def id(self) -> WorkerId:
        return self.worker.id

    @property
    def heaviest(self) -> float:
        return max(self.fixed, self.movable[-1][0] if self.movable else 0.0)


class AssignmentState:
    """All holders, and the weight of each lease. Every change updates loads, throughputs and counts."""

    def __init__(
        self, holders: Iterable[Holder], weights: Mapping[LeaseKey, float], limits: AssignmentLimits
    ) -> None:
        self.holders = {holder.id: holder for holder in holders}
        self.weights = weights
        self._limits = limits

    def put(self, key: LeaseKey, kbps: float, holder: Holder, *, movable: bool) -> None:
        weight = self.weights[key]
        holder.load += weight * holder.factor
        holder.kbps += kbps
        holder.count += 1
        if movable:
            insort(holder.movable, (weight, key))
        else:
            holder.fixed = max(holder.fixed, weight)

    def take(self, key: LeaseKey, kbps: float, holder: Holder) -> None:
        """Remove a lease, which must be movable."""
        weight = self.weights[key]
        holder.load -= weight * holder.factor
        holder.kbps -= kbps
        holder.count -= 1
        holder.movable.pop(bisect_right(holder.movable, (weight, key)) - 1)

    def is_full(self, holder: Holder) -> bool:
        """Whether the worker has as many leases as the cap allows."""
        return self._limits.max_leases is not None and holder.count >= self._limits.max_leases

    def may_hold(self, holder: Holder, kbps: float) -> bool:
        """Whether the caps allow the worker one more lease of this throughput. A lease that alone exceeds the
        throughput cap is allowed on a worker without leases: otherwise no worker could ever serve it."""
        limits = self._limits
        if not holder.worker.accepts or self.is_full(holder):
            return False
        return limits.max_kbps is None or holder.count == 0 or holder.kbps + kbps <= limits.max_kbps


class Queue:
    """Orders holders by load, ascending, then by number of leases, then by name. One heap contains all holders.
    Each zone has another heap with the holders of the zone."""

    def __init__(self, holders: Iterable[Holder]) -> None:
        self._heaps: dict[str | None, list[tuple[float, int, WorkerId, Holder]]] = {None: []}
        for holder in holders:
            self.push(holder)

    def push(self, holder: Holder) -> None:
        """Add a holder. Add the holder again after every change of its load or number of leases: its former entry
        is then outdated and skipped."""
        entry = (holder.load, holder.count, holder.id, holder)
        heapq.heappush(self._heaps[None], entry)
        if holder.worker.zone is not None:
            heapq.heappush(self._heaps.setdefault(holder.worker.zone, []), entry)

    def least(self, zone: str | None = None) -> Holder | None:
        """Return the first holder of a zone. If `zone` is None, return the first of all holders. Returns None if
        there is no holder. Removes outdated entries before the first valid one."""
        heap = self._heaps.get(zone, [])
        while heap:
            load, count, _, holder = heap[0]
            if load == holder.load and count == holder.count:
                return holder
            heapq.heappop(heap)
        return None

    def drop(self, zone: str | None = None) -> None:
        """Remove the first entry of a heap: of the heap of a zone, or, if `zone` is None, of the heap that
        contains all holders. Right after `least`, this is the entry of the holder that `least` has returned."""
        heapq.heappop(self._heaps[zone])


def fair_share(weights: Iterable[float], factors: Iterable[float]) -> float:
    """Return the load that every worker would have if work could be divided freely; 0 if there is no load to share.

    If a lease is heavier than this share, it fills one worker alone, and the other workers share the rest.
    """
    speeds = [1 / factor for factor in factors]
    whole = total = sum(weights := list(weights))
    left = len(speeds)
    speed = sum(speeds) / left if left else 0.0
    for weight in sorted(weights, reverse=True):
        if left == 0 or weight * left * speed <= total:
            break
        total -= weight
        left -= 1
    return total / (left * speed) if left and total > EPSILON * whole else 0.0
