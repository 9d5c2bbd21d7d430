"""Makes a policy prefer workers that can already read, if the policy itself does not distinguish them.

A kcl_dagster worker writes its row before its Spark has started. Until Spark has started, the worker gets a lease
only if no worker that can read has room for the lease. The KCL's rules have no such state: a Java worker never
writes that it is starting, so it counts as able to read. In a fleet of Java workers, leases are therefore assigned
as the KCL assigns them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kcl_dagster.leader.assignment.policy import Assignment, AssignmentLimits, LeaseLoad, Move, Policy, WorkerLoad
from kcl_dagster.model.lease import WorkerId


@dataclass(frozen=True, slots=True)
class ReadersFirst:
    """Applies `policy` to the workers that can read. Workers that start slowly hand over their leases to workers
    that can read. A worker that cannot read yet only gets unserved leases for which no worker that can read has
    room. It gets no leases from workers that read, because it might have to give them back."""

    policy: Policy

    def __call__(
        self, leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad], limits: AssignmentLimits
    ) -> Assignment:
        readers = [worker for worker in workers if worker.accepts and worker.ready]
        if not readers or len(readers) == len(workers):
            return self.policy(leases, workers, limits)
        slow = {worker.id for worker in workers if worker.starts_slowly and not worker.drains}
        shown = [_to_be_moved(lease, slow) for lease in leases]
        handed = {new.key for old, new in zip(leases, shown, strict=True) if new is not old}
        decided = self.policy(
            shown, [worker if worker.ready else replace(worker, accepts=False) for worker in workers], limits
        )
        moves = [_consented(move) if move.lease in handed else move for move in decided.moves]
        targets = {move.lease: move.to for move in moves}
        after = [_moved(lease, targets.get(lease.key)) for lease in leases]
        waiting = {lease.key for lease in after if lease.unserved}
        if waiting:
            others = self.policy(after, workers, limits)
            moves += [move for move in others.moves if move.lease in waiting]
            waiting &= set(others.unplaced)
        return replace(
            decided,
            moves=tuple(moves),
            unplaced=tuple(lease.key for lease in leases if lease.key in waiting),
        )


def _moved(lease: LeaseLoad, to: WorkerId | None) -> LeaseLoad:
    return lease if to is None else replace(lease, owner=to, next_owner=None, unserved=None, age=0.0)


def _to_be_moved(lease: LeaseLoad, slow: set[WorkerId]) -> LeaseLoad:
    """Return the lease as an unserved lease if its worker starts slowly, and unchanged otherwise."""
    if lease.unserved or lease.pinned or lease.holder not in slow:
        return lease
    return replace(lease, unserved=f"{lease.holder} has not started yet")


def _consented(move: Move) -> Move:
    """Return the move as a handoff with the owner's consent."""
    return replace(move, kind="drain")
