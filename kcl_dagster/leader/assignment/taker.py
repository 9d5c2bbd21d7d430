"""The taking rules of KCL 2.x as a policy of the leader.

The policy decides for one worker after another, and each decision takes into account the leases that earlier
workers took. The result is that of a 2.x fleet without its races. This result is known to be uneven. The first
worker of a new application takes all leases, and the other workers steal one lease at a time. A worker that lacks
only one lease steals none from a worker that has exactly its share.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from kcl_dagster.leader.assignment.policy import Assignment, AssignmentLimits, LeaseLoad, Move, WorkerLoad
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.lease_taking import Candidate, TakingRules, plan_taking


@dataclass(frozen=True, slots=True)
class TakerPolicy:
    """Applies `rules` for each worker. The application's cap on leases per worker replaces the cap in `rules`."""

    rules: TakingRules
    chance: Random

    def __call__(
        self, leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad], limits: AssignmentLimits
    ) -> Assignment:
        if not limits.balance:
            return Assignment(unplaced=tuple(lease.key for lease in leases if lease.unserved))
        rules = replace(self.rules, max_leases=limits.max_leases)
        fleet = _Fleet(
            {lease.key: lease for lease in leases}, {lease.key: candidate(lease, rules) for lease in leases}
        )
        for worker in workers:
            if worker.accepts:
                plan = plan_taking(list(fleet.candidates.values()), worker.id, rules, self.chance)
                fleet.take(worker.id, plan.take, plan.steal)
        unplaced = tuple(lease.key for lease in fleet.leases.values() if lease.unserved)
        return Assignment(tuple(fleet.moves.values()), unplaced)


def candidate(lease: LeaseLoad, rules: TakingRules) -> Candidate:
    """Return a lease in the form in which the taking rules of a 2.x worker need it. If the lease is unserved and
    has an owner, it counts as expired. If it is unserved because the owner's run is over, its counter may have
    changed recently, and it counts as expired nevertheless. If an unserved lease has no owner, it counts as
    never served."""
    if not lease.unserved:
        return Candidate(lease.key, lease.owner, 0.0)
    if lease.owner is None:
        return Candidate(lease.key, None, math.inf)
    return Candidate(lease.key, lease.owner, max(lease.age, math.nextafter(rules.lease_duration, math.inf)))


@dataclass(slots=True)
class _Fleet:
    leases: dict[LeaseKey, LeaseLoad]
    candidates: dict[LeaseKey, Candidate]
    moves: dict[LeaseKey, Move] = field(default_factory=dict)

    def take(self, worker: WorkerId, taken: Sequence[LeaseKey], stolen: Sequence[LeaseKey]) -> None:
        for key in (*taken, *stolen):
            lease = self.leases[key]
            if lease.pinned and not lease.unserved:
                continue
            because = lease.unserved or f"{worker} has too few leases and {lease.owner} the most"
            move = Move(key, worker, "balance" if key in stolen else "unserved", because)
            earlier = self.moves.get(key)  # set if another worker has just taken this lease in the same call
            self.moves[key] = move if earlier is None else replace(earlier, to=worker)
            self.leases[key] = replace(lease, owner=worker, unserved=None, age=0.0)
            self.candidates[key] = Candidate(key, worker, 0.0)
