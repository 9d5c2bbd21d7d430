"""Leases go to workers that can read, for policies that know no other ones.

A worker of ours writes its row before its Spark has started, and gets leases meanwhile only if no other worker can
read them. The KCL's rules know no such worker: a Java worker never writes that it is starting, so it counts as one
that reads, and a fleet of Java workers is assigned as the KCL does it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kcl_dagster.leader.assignment.policy import Assignment, LeaseLoad, Limits, Move, Policy, WorkerLoad
from kcl_dagster.model.lease import WorkerId


@dataclass(frozen=True, slots=True)
class ReadersFirst:
    """Applies `policy` to the workers that can read, as long as one of them has room. Leases of workers that start
    slowly are handed over to them. If none has room, `policy` decides about all workers."""

    policy: Policy

    def __call__(self, leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad], limits: Limits) -> Assignment:
        readers = [worker for worker in workers if worker.accepts and worker.ready]
        if len(readers) == len(workers) or not any(_has_room(worker, leases, limits) for worker in readers):
            return self.policy(leases, workers, limits)
        slow = {worker.id for worker in workers if worker.starts_slowly and not worker.drains}
        shown = [_to_be_moved(lease, slow) for lease in leases]
        handed = {new.key for old, new in zip(leases, shown, strict=True) if new is not old}
        decided = self.policy(
            shown, [worker if worker.ready else replace(worker, accepts=False) for worker in workers], limits
        )
        return replace(
            decided,
            moves=tuple(_consented(move) if move.lease in handed else move for move in decided.moves),
            unplaced=tuple(key for key in decided.unplaced if key not in handed),
        )


def _has_room(worker: WorkerLoad, leases: Sequence[LeaseLoad], limits: Limits) -> bool:
    held = [lease for lease in leases if lease.holder == worker.id]
    if limits.max_leases is not None and len(held) >= limits.max_leases:
        return False
    return limits.max_kbps is None or sum(lease.kbps or 0.0 for lease in held) < limits.max_kbps


def _to_be_moved(lease: LeaseLoad, slow: set[WorkerId]) -> LeaseLoad:
    """The lease as one that needs an owner, if its worker starts slowly."""
    if lease.unserved or lease.pinned or lease.holder not in slow:
        return lease
    return replace(lease, unserved=f"{lease.holder} has not started yet")


def _consented(move: Move) -> Move:
    """Its owner hands it over."""
    return replace(move, kind="drain")
