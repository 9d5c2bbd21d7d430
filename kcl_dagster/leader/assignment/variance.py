"""The KCL 3.x assignment: even utilization, with the KCL's own arithmetic.

This policy is for fleets that must behave as with a Java leader, and for comparisons. Known defects of the KCL are
kept:

- In a fleet without any measured throughput all ranks are equal, and only the first and the last worker of the
  queue get leases.
- A worker at 0 % utilization ranks below a worker at less than half of the average.
- If the limit of a worker prevents a move from one donor, the worker receives nothing from other donors in the same
  tick.
"""

import math
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kcl_dagster.leader.assignment.javaqueue import HighestFirst, compare
from kcl_dagster.leader.assignment.policy import Assignment, AssignmentLimits, LeaseLoad, Move, WorkerLoad
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.worker_row import THROUGHPUT

_FULL: Final = 100.0  # the ceiling of the throughput metric that is calculated for workers without metrics
_UNLIMITED: Final = 1.7976931348623157e308  # Java's Double.MAX_VALUE: the rank of a worker without any metric

Shuffle = Callable[[MutableSequence[Any]], None]


@dataclass(frozen=True, slots=True)
class VarianceSettings:
    """The settings of the policy, with the KCL's defaults. `dampening`: the part of the excess that is moved at
    once. `overshoot`: whether the smallest lease is moved if no lease fits."""

    dampening: float = 0.6
    overshoot: bool = True


@dataclass(slots=True)
class _Host:
    """A worker during the KCL's calculation: its values grow with every lease that it gets."""

    worker: WorkerLoad
    values: dict[str, float]
    ceilings: dict[str, float]
    leases: list[LeaseLoad] = field(default_factory=list)
    kbps: float = 0.0

    @property
    def id(self) -> WorkerId:
        return self.worker.id

    def rank(self, averages: dict[str, float]) -> float:
        """How far the worker is below the average, by its worst metric."""
        rank = _UNLIMITED
        for metric, value in self.values.items():
            distance = 1.0 if value == 0 else (averages[metric] - value) / value
            rank = math.nan if math.isnan(distance) or math.isnan(rank) else min(rank, distance)
        return rank


@dataclass(frozen=True, slots=True)
class Variance:
    """The policy. `shuffle` decides which leases of an overloaded worker are considered first."""

    shuffle: Shuffle
    settings: VarianceSettings = VarianceSettings()

    def __call__(
        self, leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad], limits: AssignmentLimits
    ) -> Assignment:
        return _Pass(leases, [worker for worker in workers if worker.accepts], limits, self).run()

    def throughput_to_take(
        self, leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad], limits: AssignmentLimits
    ) -> dict[WorkerId, float]:
        """The throughput that the balancing phase would take from each overloaded worker, before leases are
        chosen."""
        accepting = [worker for worker in workers if worker.accepts]
        return dict(_Pass(leases, accepting, limits, self).takes())


class _Pass:
    def __init__(
        self, leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad], limits: AssignmentLimits, policy: Variance
    ) -> None:
        self.limits, self.policy = limits, policy
        self.leases = leases
        known = [lease.kbps for lease in leases if lease.kbps is not None]
        self.mean_kbps = sum(known) / len(known) if known else 0.0
        self.target_kbps = self.mean_kbps * len(leases) / max(1, len(workers))
        self.target_leases = max(1, len(leases) // len(workers)) if workers else 1
        self.owner: dict[LeaseKey, WorkerId | None] = {lease.key: lease.owner for lease in leases}
        self.hosts = {worker.id: _Host(worker, dict(worker.averages), dict(worker.ceilings)) for worker in workers}
        for lease in leases:
            host = self.hosts.get(lease.owner) if lease.owner is not None else None
            if host is not None:
                host.leases.append(lease)
                host.kbps += self.kbps(lease)
        for host in self.hosts.values():
            if not host.values:
                host.values = {THROUGHPUT: self._made_up(host)}
                host.ceilings = {THROUGHPUT: _FULL}
        self.averages = self._averages()
        self.moved: dict[LeaseKey, tuple[WorkerId, str]] = {}
        self.unplaced: list[LeaseKey] = []

    def kbps(self, lease: LeaseLoad) -> float:
        return self.mean_kbps if lease.kbps is None else lease.kbps

    def run(self) -> Assignment:
        self._serve()
        if self.limits.balance:
            self._balance()
        by_key = {lease.key: lease for lease in self.leases}
        moves: list[Move] = []
        for key, (to, because) in self.moved.items():
            lease = by_key[key]
            # An assignment to the present owner is no move, unless it ends a handoff that has expired.
            is_unchanged = to == lease.owner and lease.next_owner is None
            if (lease.pinned and not lease.unserved) or is_unchanged:
                continue  # as in the KCL, such a move counts during the decision, and is dropped before the write
            moves.append(Move(key, to, "unserved" if lease.unserved else "balance", because))
        return Assignment(tuple(moves), tuple(self.unplaced))

    def takes(self) -> list[tuple[WorkerId, float]]:
        """Return the overloaded workers and the throughput to take from each, largest throughput first. Uses the
        metric by which the most would be taken in total."""
        best: list[tuple[WorkerId, float]] = []
        most = -1.0
        for metric, average in self.averages.items():
            found = self._takes_by(metric, average)
            total = sum(take for _, take in found)
            if found and total > most:
                best, most = found, total
        return sorted(best, key=lambda entry: -entry[1])

    def _made_up(self, host: _Host) -> float:
        if self.target_kbps == 0:
            return math.nan if host.kbps == 0 else math.inf
        return _FULL * host.kbps / self.target_kbps

    def _averages(self) -> dict[str, float]:
        samples: dict[str, list[float]] = {}
        for host in self.hosts.values():
            for metric, value in host.values.items():
                samples.setdefault(metric, []).append(value)
        return {metric: sum(values) / len(values) for metric, values in samples.items()}

    def _queue(self) -> HighestFirst[_Host]:
        return HighestFirst(
            (host.rank(self.averages), host) for host in self.hosts.values() if self._has_room(host)
        )

    def _has_room(self, host: _Host) -> bool:
        """Whether the limits allow the worker another lease. As in the KCL, a worker exactly at its throughput
        limit can get one."""
        limits = self.limits
        return (limits.max_kbps is None or host.kbps <= limits.max_kbps) and (
            limits.max_leases is None or len(host.leases) < limits.max_leases
        )

    def _serve(self) -> None:
        queue = self._queue()
        waiting = [lease for lease in self.leases if lease.unserved]
        for lease in sorted(waiting, key=lambda lease: (lease.owner is not None, -lease.age)):
            host = queue.poll()
            if host is None:
                self.unplaced.append(lease.key)
            elif lease.owner == host.id and lease.next_owner is None:
                queue.add(host.rank(self.averages), host)  # the lease stays with its owner and counts as served
            else:
                self._give(lease, host, queue, lease.unserved or "")

    def _give(self, lease: LeaseLoad, host: _Host, queue: HighestFirst[_Host], because: str) -> None:
        old = self.hosts.get(owner) if (owner := self.owner[lease.key]) is not None else None
        if old is not None:
            old.leases.remove(lease)
            old.kbps -= self.kbps(lease)
        host.values = self._with(host, lease)
        host.leases.append(lease)
        host.kbps += self.kbps(lease)
        self.owner[lease.key] = host.id
        self.moved[lease.key] = host.id, because
        if self._has_room(host):
            queue.add(host.rank(self.averages), host)

    def _with(self, host: _Host, lease: LeaseLoad) -> dict[str, float]:
        """Return the metrics that the worker would have with this lease."""

        def grown(metric: str, value: float) -> float:
            average = self.averages[metric]
            if self.target_kbps > 0:
                return value + self.kbps(lease) * average / self.target_kbps
            return value + average / self.target_leases

        return {metric: grown(metric, value) for metric, value in host.values.items()}

    def _takes_by(self, metric: str, average: float) -> list[tuple[WorkerId, float]]:
        having = [host for host in self.hosts.values() if metric in host.values]
        upper, lower = average * (1 + self.limits.imbalance), average * (1 - self.limits.imbalance)

        def is_above_range(host: _Host) -> bool:
            return host.values[metric] > host.ceilings.get(metric, math.inf)

        if not any(
            host.values[metric] > upper or host.values[metric] < lower or is_above_range(host) for host in having
        ):
            return []
        donors = [host for host in having if host.values[metric] >= upper or is_above_range(host)]
        if not donors:
            donors = [self._most_loaded(having, metric)]
        takes: list[tuple[WorkerId, float]] = []
        for host in donors:
            value = host.values[metric]
            excess = (value - average) / value if value else math.nan
            takes.append((host.id, host.kbps * excess * self.policy.settings.dampening))
        return takes

    @staticmethod
    def _most_loaded(hosts: Sequence[_Host], metric: str) -> _Host:
        most = hosts[0]
        for host in hosts[1:]:
            if compare(host.values[metric], most.values[metric]) > 0:
                most = host
        return most

    def _balance(self) -> None:
        takes = self.takes()
        if not takes:
            return
        queue = self._queue()
        for name, take in takes:
            donor = self.hosts[name]
            for lease in self._chosen(donor, take):
                host = queue.poll()
                if host is None:
                    return
                if self._exceeds(host, lease):
                    break
                self._give(lease, host, queue, f"{name} is above the average utilization")

    def _chosen(self, donor: _Host, take: float) -> list[LeaseLoad]:
        if not donor.leases:
            return []
        if donor.kbps == 0:
            return donor.leases[:1]
        candidates = list(donor.leases)
        self.policy.shuffle(candidates)
        chosen: list[LeaseLoad] = []
        left = take
        for lease in candidates:
            if left - self.kbps(lease) > 0:
                left -= self.kbps(lease)
                chosen.append(lease)
        if not chosen and self.policy.settings.overshoot:
            chosen = [min(candidates, key=self.kbps)]
        return chosen

    def _exceeds(self, host: _Host, lease: LeaseLoad) -> bool:
        return any(
            value > self.averages[metric] or value > host.ceilings.get(metric, math.inf)
            for metric, value in self._with(host, lease).items()
        )
