"""The KCL's assignment by number of leases (its strategy LEASE_COUNT_BASED).

Its defect is reproduced: every worker that it considers receives at least one lease, even at its limit.
"""

from collections.abc import Sequence

from kcl_dagster.leader.assignment.policy import Assignment, AssignmentLimits, LeaseLoad, Move, WorkerLoad
from kcl_dagster.model.lease import LeaseKey, WorkerId


def target_leases(leases: int, workers: int, most: int | None = None) -> int:
    """How many leases a worker should have: the even share, rounded up and capped."""
    if workers == 0:
        return 0
    target = 1 if workers >= leases else -(-leases // workers)
    return target if most is None else min(target, most)


def lease_count(leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad], limits: AssignmentLimits) -> Assignment:
    """Assign as the KCL does: first the unserved leases. Then move one lease at a time, from the worker with the
    most to the worker with the fewest."""
    held: dict[WorkerId, list[LeaseLoad]] = {worker.id: [] for worker in workers if worker.accepts}
    target = target_leases(len(leases), len(held), limits.max_leases)
    for lease in leases:
        if lease.owner in held:
            held[lease.owner].append(lease)
    moves, unplaced = _serve(leases, held, target)
    if limits.balance:
        moves += _balance(held, target)
    return Assignment(tuple(moves), tuple(unplaced))


def _serve(
    leases: Sequence[LeaseLoad], held: dict[WorkerId, list[LeaseLoad]], target: int
) -> tuple[list[Move], list[LeaseKey]]:
    waiting = sorted(
        (lease for lease in leases if lease.unserved), key=lambda lease: (lease.owner is not None, -lease.age)
    )
    moves: list[Move] = []
    emptiest = iter(sorted(held, key=lambda worker: len(held[worker])))
    worker = next(emptiest, None)
    for index, lease in enumerate(waiting):
        if worker is None:
            return moves, [left.key for left in waiting[index:]]
        if lease.owner in held:
            held[lease.owner].remove(lease)
        held[worker].append(lease)
        moves.append(Move(lease.key, worker, "unserved", lease.unserved or ""))
        if len(held[worker]) >= target:
            worker = next(emptiest, None)
    return moves, []


def _balance(held: dict[WorkerId, list[LeaseLoad]], target: int) -> list[Move]:
    order = sorted(held, key=lambda worker: len(held[worker]))
    moves: list[Move] = []
    low, high = 0, len(order) - 1
    while low < high:
        receiver, donor = order[low], order[high]
        if len(held[receiver]) >= target:
            low += 1
            continue
        movable = [lease for lease in held[donor] if not lease.pinned]
        if len(held[donor]) <= target or not movable:
            high -= 1
            continue
        lease = movable[0]
        held[donor].remove(lease)
        held[receiver].append(lease)
        because = f"{donor} has more than {target} leases"
        moves.append(Move(lease.key, receiver, "balance", because))
    return moves
