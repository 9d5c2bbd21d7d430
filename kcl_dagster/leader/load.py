"""What leases cost, seen over time.

Workers publish a throughput with every renewal; a worker of a Java fleet leaves the last one standing when the
shard falls silent. The leader smooths what it reads, so that jitter is no reason to move anything, and lets a value
age when nothing shows that records still flow. All of it lives in the process: losing it means to look again.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kcl_dagster.leader.assignment.policy import LeaseLoad, WorkerLoad
from kcl_dagster.leader.liveness import WorkerSight, averages_of, ceilings_of
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.worker import CPU

SMOOTHING_SECONDS: Final = 30.0  # time constant; a few renewals
IDLE_AFTER_SECONDS: Final = 60.0  # neither checkpoint nor throughput changed for this long: nothing flows
HALF_LIFE_SECONDS: Final = 30.0  # of a throughput that nothing confirms any more
# Passes in a row that a worker must be out of balance before the imbalance is believed: a minute of ticks.
PATIENCE: Final = 12
# CPU per KB/s is believed of a worker with this part of the mean load; below, the process itself dominates.
_COST_NEEDS: Final = 0.5
_COST_SETTLES_SECONDS: Final = 60.0  # CPU averages lag behind a change of leases
_COST_SMOOTHING: Final = 0.1
_COST_RANGE: Final = 4.0  # machines of one fleet do not differ more; what does is a bad measurement


@dataclass(slots=True)
class _Flow:
    """One lease's throughput."""

    published: float | None
    checkpoint: object
    changed_at: float
    seen_at: float
    smooth: float | None


@dataclass(slots=True)
class _Cost:
    """One worker's CPU per KB/s."""

    holds: frozenset[LeaseKey]
    since: float
    value: float | None = None


@dataclass(slots=True)
class LoadBook:
    """Remembers flows, costs, homes and imbalance between passes. One thread at a time."""

    _flows: dict[LeaseKey, _Flow] = field(default_factory=dict)
    _costs: dict[WorkerId, _Cost] = field(default_factory=dict)
    _homes: dict[LeaseKey, str] = field(default_factory=dict)
    _passes_outside: dict[WorkerId, int] = field(default_factory=dict)

    def see(self, leases: Sequence[Lease], workers: Iterable[WorkerSight], at: float) -> None:
        """Once a pass, with everything that was read; `at` in monotonic seconds."""
        present = {lease.key for lease in leases}
        for book in (self._flows, self._homes):
            for key in [key for key in book if key not in present]:
                del book[key]
        for lease in leases:
            self._see_flow(lease, at)
            if lease.actual_owner is not None:
                self._homes[lease.key] = lease.actual_owner.rpartition(":")[0] or lease.actual_owner
        self._see_costs(leases, workers, at)

    def kbps(self, lease: Lease) -> float | None:
        flow = self._flows.get(lease.key)
        return flow.smooth if flow is not None else lease.throughput_kbps

    def load(self, lease: Lease, *, unserved: str | None, pinned: bool, age: float) -> LeaseLoad:
        return LeaseLoad(
            key=lease.key,
            owner=lease.actual_owner,
            next_owner=lease.owner if lease.in_handoff else None,
            kbps=self.kbps(lease),
            unserved=unserved,
            pinned=pinned,
            home=self._homes.get(lease.key),
            age=age,
        )

    def worker(self, sight: WorkerSight) -> WorkerLoad:
        cost = self._costs.get(sight.id)
        return WorkerLoad(
            id=sight.id,
            slot=sight.row.slot,
            zone=sight.row.zone,
            accepts=sight.accepts,
            drains=sight.drains,
            ready=sight.ready,
            starts_slowly=sight.starts_slowly,
            cost=cost.value if cost is not None else None,
            averages=averages_of(sight.row),
            ceilings=ceilings_of(sight.row),
        )

    def note_outside(self, outside: frozenset[WorkerId]) -> None:
        """Workers that were out of balance in this pass."""
        self._passes_outside = {worker: self._passes_outside.get(worker, 0) + 1 for worker in sorted(outside)}

    @property
    def settled(self) -> frozenset[WorkerId]:
        """Workers whose imbalance is no jitter."""
        return frozenset(worker for worker, passes in self._passes_outside.items() if passes >= PATIENCE)

    def _see_flow(self, lease: Lease, at: float) -> None:
        flow = self._flows.get(lease.key)
        published = lease.throughput_kbps
        if flow is None:
            self._flows[lease.key] = _Flow(published, lease.checkpoint, at, at, published)
            return
        if (published, lease.checkpoint) != (flow.published, flow.checkpoint):
            flow.published, flow.checkpoint, flow.changed_at = published, lease.checkpoint, at
        if published is not None:
            silent = max(0.0, at - flow.changed_at - IDLE_AFTER_SECONDS)
            now = published * 0.5 ** (silent / HALF_LIFE_SECONDS)
            share = 1 - math.exp(-max(0.0, at - flow.seen_at) / SMOOTHING_SECONDS)
            flow.smooth = now if flow.smooth is None else flow.smooth + (now - flow.smooth) * share
        flow.seen_at = at

    def _see_costs(self, leases: Sequence[Lease], workers: Iterable[WorkerSight], at: float) -> None:
        held: dict[WorkerId, set[LeaseKey]] = {}
        kbps: dict[WorkerId, float] = {}
        for lease in leases:
            owner = lease.actual_owner
            if owner is not None and not lease.is_finished:
                held.setdefault(owner, set()).add(lease.key)
                kbps[owner] = kbps.get(owner, 0.0) + (self.kbps(lease) or 0.0)
        measured = {sight.id: averages_of(sight.row) for sight in workers if sight.alive}
        mean = sum(kbps.get(worker, 0.0) for worker in measured) / len(measured) if measured else 0.0
        fresh: dict[WorkerId, _Cost] = {}
        for worker, averages in measured.items():
            holds = frozenset(held.get(worker, ()))
            cost = self._costs.get(worker)
            if cost is None or cost.holds != holds:
                cost = _Cost(holds, at, cost.value if cost is not None else None)
            elif at - cost.since >= _COST_SETTLES_SECONDS and CPU in averages:
                carried = kbps.get(worker, 0.0)
                if mean > 0 and carried >= mean * _COST_NEEDS:
                    now = averages[CPU] / carried
                    cost.value = now if cost.value is None else cost.value + (now - cost.value) * _COST_SMOOTHING
            fresh[worker] = cost
        self._costs = fresh
        _limit(fresh)


def _limit(costs: Mapping[WorkerId, _Cost]) -> None:
    known = sorted(cost.value for cost in costs.values() if cost.value is not None)
    if not known:
        return
    middle = known[len(known) // 2]
    for cost in costs.values():
        if cost.value is not None:
            cost.value = min(max(cost.value, middle / _COST_RANGE), middle * _COST_RANGE)
