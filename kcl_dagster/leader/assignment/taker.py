"""The taking rules of KCL 2.x: every worker decides for itself what it takes and steals.

`Taking` is one worker's run. As a policy of the leader all workers run one after the other, each seeing what those
before it took: a fleet of 2.x without its races. Known for uneven results: the first worker of a new application
takes everything, the others steal one lease at a time, and stealing stops one short of even.
"""

import math
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kcl_dagster.leader.assignment.lease_count import target_leases
from kcl_dagster.leader.assignment.policy import Assignment, LeaseLoad, Limits, Move, WorkerLoad
from kcl_dagster.model.lease import LeaseKey, WorkerId

# A lease whose counter stood this many lease durations is taken by whoever comes first.
VERY_OLD: Final = 3

Shuffle = Callable[[MutableSequence[Any]], None]


@dataclass(frozen=True, slots=True)
class TakingSettings:
    """Of KCL 2.x. `priority`: very old leases are taken whatever the target. `steals`: at most so many a run."""

    lease_duration: float
    priority: bool = True
    steals: int = 1


@dataclass(frozen=True, slots=True)
class Taken:
    """What one run takes; `stolen` is the part of it that has a living owner."""

    leases: tuple[LeaseKey, ...] = ()
    stolen: tuple[LeaseKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Taking:
    """One worker's run."""

    worker: WorkerId
    settings: TakingSettings
    shuffle: Shuffle

    def counts(self, leases: Sequence[LeaseLoad]) -> dict[WorkerId | None, int]:
        """Leases per owner, as far as they are served. The worker itself is always there, and a lease without
        owner that is not up for taking counts for nobody, under None."""
        counts: dict[WorkerId | None, int] = {self.worker: 0}
        for lease in leases:
            if not lease.unserved:
                counts[lease.owner] = counts.get(lease.owner, 0) + 1
        return counts

    def run(self, leases: Sequence[LeaseLoad], most: int | None = None) -> Taken:
        """`most`: the worker's limit. `age` of a lease without owner that was never seen counts as infinite."""
        counts = self.counts(leases)
        mine = counts[self.worker]
        target = target_leases(len(leases), len(counts), most)
        available = [lease for lease in leases if lease.unserved]
        if self.settings.priority:
            oldest = [lease for lease in available if self._is_very_old(lease)]
            if oldest:
                room = len(oldest) if most is None else max(0, most - mine)
                return Taken(tuple(lease.key for lease in oldest[:room]))
        needed = target - mine
        if needed <= 0:
            return Taken()
        if available:
            self.shuffle(available)
            return Taken(tuple(lease.key for lease in available[:needed]))
        stolen = self._steal(leases, counts, target, needed)
        return Taken(stolen, stolen)

    def _is_very_old(self, lease: LeaseLoad) -> bool:
        age = math.inf if lease.owner is None else lease.age
        return age > VERY_OLD * self.settings.lease_duration

    def _steal(
        self, leases: Sequence[LeaseLoad], counts: dict[WorkerId | None, int], target: int, needed: int
    ) -> tuple[LeaseKey, ...]:
        others = [(count, owner) for owner, count in counts.items() if owner not in {self.worker, None}]
        if not others:
            return ()
        load, victim = max(others, key=lambda entry: entry[0])
        number = min(needed, load - target) if load >= target else 0
        if load >= target and needed > 1 and number == 0:
            number = 1
        candidates = [lease.key for lease in leases if lease.owner == victim and not lease.unserved]
        self.shuffle(candidates)
        return tuple(candidates[: min(number, self.settings.steals)])


@dataclass(frozen=True, slots=True)
class TakerPolicy:
    """All workers of a fleet, one after the other."""

    settings: TakingSettings
    shuffle: Shuffle

    def __call__(self, leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad], limits: Limits) -> Assignment:
        fleet = _Fleet({lease.key: lease for lease in leases})
        if not limits.balance:
            return Assignment(unplaced=tuple(lease.key for lease in leases if lease.unserved))
        for worker in workers:
            if worker.accepts:
                taking = Taking(worker.id, self.settings, self.shuffle)
                fleet.take(worker.id, taking.run(list(fleet.leases.values()), limits.max_leases))
        unplaced = tuple(lease.key for lease in fleet.leases.values() if lease.unserved)
        return Assignment(tuple(fleet.moves.values()), unplaced)


@dataclass(slots=True)
class _Fleet:
    leases: dict[LeaseKey, LeaseLoad]
    moves: dict[LeaseKey, Move] = field(default_factory=dict)

    def take(self, worker: WorkerId, taken: Taken) -> None:
        for key in taken.leases:
            lease = self.leases[key]
            if lease.pinned and not lease.unserved:
                continue
            because = lease.unserved or f"{worker} has too few leases and {lease.owner} the most"
            move = Move(key, worker, "balance" if key in taken.stolen else "unserved", because)
            earlier = self.moves.get(key)  # stolen at once from whoever has just taken it
            self.moves[key] = move if earlier is None else replace(earlier, to=worker)
            self.leases[key] = replace(lease, owner=worker, unserved=None, age=0.0)
