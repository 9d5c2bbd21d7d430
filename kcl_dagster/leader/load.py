"""Learns the throughput of leases and the CPU costs of workers from observations over time.

Workers publish a throughput with every renewal of a lease. A Java worker does not update the throughput when the
shard has no more records. The leader averages the published values, so that jitter causes no moves. It reduces a
value if nothing shows that records still arrive. These values are kept in the leader's process. Only the CPU costs
are also saved in the leader's memory row, because it takes minutes to learn them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kcl_dagster.leader.assignment.policy import LeaseLoad, WorkerLoad
from kcl_dagster.leader.liveness import WorkerSight, averages_of, ceilings_of
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.worker_row import CPU

# Samples jitter, so two means are kept. The slow one is used, and the fast one shows whether the value has changed.
FAST_SECONDS: Final = 30.0  # the time constant of the fast mean: a few renewals
SLOW_SECONDS: Final = 600.0  # the time constant of the slow mean
# The value has changed if the two means differ by more than this part of the slow mean. If samples jitter by 30 %,
# the fast mean differs from the slow mean by a fifth of it at most.
CHANGED: Final = 0.25
# The means must also differ by more than this many mean deviations of the samples. With independent samples every
# 5 s, the fast mean typically differs from the slow mean by a third of a mean deviation.
_CHANGED_SPREADS: Final = 1.5
# Loads that were watched for a shorter time cause no handoffs: their jitter has not been averaged out.
WATCH_SECONDS: Final = 60.0
# A throughput is used for balancing after this time without a change. By then, a peak of some seconds has hardly
# any influence on the mean. Such a peak is, for example, a backlog that is read much faster than records arrive.
# The first bursts of records may count as changes. Each burst increases the spread, so later bursts do not count as
# changes, and the mean over all bursts is used.
SETTLE_SECONDS: Final = 180.0
# Workers that were launched together begin to read within this time of each other, even on a busy machine. For this
# time after the first worker begins to read, workers that start slowly keep their leases.
TOGETHER_SECONDS: Final = 15.0
# If neither checkpoint nor throughput has changed for this long, no records arrive
IDLE_AFTER_SECONDS: Final = 60.0
HALF_LIFE_SECONDS: Final = 30.0  # in this time, a throughput that is no longer confirmed falls to a half
# If a worker is out of balance in this many ticks in a row, the imbalance is not jitter. With default timings, this
# many ticks take a minute.
PATIENCE: Final = 12
# CPU per KB/s is measured only on workers with at least this part of the mean load. With less load, the CPU that
# the process itself uses would dominate the result.
_COST_NEEDS: Final = 0.5
_COST_SETTLES_SECONDS: Final = 60.0  # CPU averages lag behind a change of leases
_COST_WATCH_SECONDS: Final = 120.0  # a cost is used only after it was watched for this time
# Machines of one fleet do not differ by a larger factor; a larger one is a measurement error
_COST_RANGE: Final = 4.0


@dataclass(slots=True)
class Estimate:
    """The mean of noisy samples. `value` is the mean over `SLOW_SECONDS`, or over a shorter time after a change."""

    value: float
    fast: float
    spread: float = 0.0
    """The mean deviation of a sample from the fast mean."""

    seconds: float = 0.0
    """For how long the value has been watched since it began or changed."""

    settled: float | None = None
    """The last value that had been watched for `SETTLE_SECONDS`."""

    is_known: bool = False
    """Whether the first value was measured before this leader began, and has not changed since. If so, the value is
    used at once."""

    def see(self, sample: float, seconds: float) -> None:
        """Add a sample. `seconds`: the time since the last sample."""
        self.seconds += seconds
        fast, slow = (
            1 - math.exp(-seconds / max(seconds, min(constant, self.seconds))) if seconds > 0 else 0.0
            for constant in (FAST_SECONDS, SLOW_SECONDS)
        )
        self.spread += (abs(sample - self.fast) - self.spread) * slow
        self.fast += (sample - self.fast) * fast
        self.value += (sample - self.value) * slow
        if abs(self.fast - self.value) > max(CHANGED * self.value, _CHANGED_SPREADS * self.spread):
            self.spread *= self.fast / self.value if self.value > 0 else 1.0
            self.value, self.seconds = self.fast, min(self.seconds, FAST_SECONDS)
            self.is_known = False
        if self.is_settled:
            self.settled = self.value

    @property
    def is_settled(self) -> bool:
        return self.is_known or self.seconds >= SETTLE_SECONDS

    def fade(self, factor: float) -> None:
        """Reduce a value that is no longer confirmed."""
        self.value *= factor
        self.fast *= factor
        self.spread *= factor
        if self.settled is not None:
            self.settled *= factor


@dataclass(slots=True)
class _Flow:
    """The throughput of one lease."""

    published: float | None
    checkpoint: object
    changed_at: float
    seen_at: float
    estimate: Estimate | None


@dataclass(slots=True)
class _Cost:
    """The CPU per KB/s of one worker."""

    holds: frozenset[LeaseKey]
    since: float
    seen_at: float
    estimate: Estimate | None = None
    value: float | None = None
    """The value that is used: the estimate, limited to a range around the median of the fleet (`_COST_RANGE`).
    None until the estimate was watched for long enough."""


@dataclass(slots=True)
class LoadBook:
    """Remembers throughputs, costs, imbalance, and the slot that last held each lease. Not safe for several threads
    at the same time."""

    _flows: dict[LeaseKey, _Flow] = field(default_factory=dict)
    _costs: dict[WorkerId, _Cost] = field(default_factory=dict)
    _homes: dict[LeaseKey, str] = field(default_factory=dict)
    _passes_outside: dict[WorkerId, int] = field(default_factory=dict)
    _began: float | None = None
    _seen_at: float = 0.0
    _reads_since: float | None = None
    """The monotonic time since when some worker can read. Minus infinity if a worker could read at the first tick;
    None if no worker can read."""

    def see(self, leases: Sequence[Lease], workers: Sequence[WorkerSight], at: float) -> None:
        """Record the leases and workers that one tick has read. `at`: monotonic seconds."""
        is_first = self._began is None
        self._began, self._seen_at = at if self._began is None else self._began, at
        if not any(seen.alive and seen.ready for seen in workers):
            self._reads_since = None
        elif self._reads_since is None:
            self._reads_since = -math.inf if is_first else at
        present = {lease.key for lease in leases}
        for book in (self._flows, self._homes):
            for key in [key for key in book if key not in present]:
                del book[key]
        for lease in leases:
            self._see_flow(lease, at, is_known=is_first)
            if lease.actual_owner is not None:
                self._homes[lease.key] = lease.actual_owner.rpartition(":")[0] or lease.actual_owner
        self._see_costs(leases, workers, at)

    @property
    def is_watched(self) -> bool:
        """Whether loads were watched for long enough to distinguish them from jitter."""
        return self._began is not None and self._seen_at - self._began >= WATCH_SECONDS

    @property
    def _has_just_begun_to_read(self) -> bool:
        return self._reads_since is not None and self._seen_at - self._reads_since < TOGETHER_SECONDS

    @property
    def costs(self) -> dict[WorkerId, float]:
        """CPU per KB/s, for workers that were watched for long enough."""
        return {worker: cost.value for worker, cost in self._costs.items() if cost.value is not None}

    def recall_costs(self, costs: Mapping[WorkerId, float]) -> None:
        """Use the costs that an earlier leader learned, for workers without a cost in this object."""
        for worker, value in costs.items():
            estimate = Estimate(value, value, seconds=SLOW_SECONDS)
            self._costs.setdefault(worker, _Cost(frozenset(), self._seen_at, self._seen_at, estimate, value))

    def kbps(self, lease: Lease) -> float | None:
        flow = self._flows.get(lease.key)
        if flow is None:
            return lease.throughput_kbps
        return flow.estimate.value if flow.estimate is not None else None

    def load(self, lease: Lease, *, unserved: str | None, pinned: bool, age: float) -> LeaseLoad:
        flow = self._flows.get(lease.key)
        estimate = None if flow is None else flow.estimate
        return LeaseLoad(
            key=lease.key,
            owner=lease.actual_owner,
            next_owner=lease.owner if lease.in_handoff else None,
            kbps=self.kbps(lease),
            unsettled=estimate is not None and not estimate.is_settled,
            settled_kbps=None if estimate is None else estimate.settled,
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
            starts_slowly=sight.starts_slowly and not self._has_just_begun_to_read,
            cost=cost.value if cost is not None else None,
            averages=averages_of(sight.row),
            ceilings=ceilings_of(sight.row),
        )

    def note_outside(self, outside: frozenset[WorkerId]) -> None:
        """Record which workers were out of balance in this tick."""
        self._passes_outside = {worker: self._passes_outside.get(worker, 0) + 1 for worker in sorted(outside)}

    @property
    def settled(self) -> frozenset[WorkerId]:
        """Workers that have been out of balance for long enough to exclude jitter."""
        return frozenset(worker for worker, passes in self._passes_outside.items() if passes >= PATIENCE)

    def _see_flow(self, lease: Lease, at: float, *, is_known: bool) -> None:
        """Record the throughput of one lease. `is_known`: the published throughput was measured before this leader
        began."""
        flow = self._flows.get(lease.key)
        published = lease.throughput_kbps
        if flow is None:
            estimate = None
            if published is not None:
                settled = published if is_known else None
                estimate = Estimate(published, published, settled=settled, is_known=is_known)
            self._flows[lease.key] = _Flow(published, lease.checkpoint, at, at, estimate)
            return
        if (published, lease.checkpoint) != (flow.published, flow.checkpoint):
            flow.published, flow.checkpoint, flow.changed_at = published, lease.checkpoint, at
        if published is not None:
            silent = at - max(flow.seen_at, flow.changed_at + IDLE_AFTER_SECONDS)
            if flow.estimate is None:
                flow.estimate = Estimate(published, published)
            if silent > 0:
                flow.estimate.fade(0.5 ** (silent / HALF_LIFE_SECONDS))
            else:
                flow.estimate.see(published, max(0.0, at - flow.seen_at))
        flow.seen_at = at

    def _see_costs(self, leases: Sequence[Lease], workers: Sequence[WorkerSight], at: float) -> None:
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
                cost = _Cost(holds, at, at) if cost is None else _Cost(holds, at, at, cost.estimate, cost.value)
            elif at - cost.since >= _COST_SETTLES_SECONDS and CPU in averages:
                carried = kbps.get(worker, 0.0)
                if mean > 0 and carried >= mean * _COST_NEEDS:
                    now = averages[CPU] / carried
                    if cost.estimate is None:
                        cost.estimate = Estimate(now, now)
                    cost.estimate.see(now, max(0.0, at - cost.seen_at))
            cost.seen_at = at
            fresh[worker] = cost
        self._costs = fresh
        _limit(fresh)


def _limit(costs: Mapping[WorkerId, _Cost]) -> None:
    """Set the `value` of each cost that was watched for long enough: its estimate, limited to a range around the
    median."""
    learnt = {
        worker: cost.estimate.value
        for worker, cost in costs.items()
        if cost.estimate is not None and cost.estimate.seconds >= _COST_WATCH_SECONDS
    }
    if not learnt:
        return
    middle = sorted(learnt.values())[len(learnt) // 2]
    for worker, value in learnt.items():
        costs[worker].value = min(max(value, middle / _COST_RANGE), middle * _COST_RANGE)
