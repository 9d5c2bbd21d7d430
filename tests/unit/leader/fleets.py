"""Small fleets to decide about, and what becomes of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kcl_dagster.leader.assignment.balanced import balanced, count, throughput
from kcl_dagster.leader.assignment.policy import Assignment, AssignmentLimits, LeaseLoad, WorkerLoad
from kcl_dagster.model.lease import LeaseKey, WorkerId

POLICIES = [balanced, throughput, count]
NO_LIMITS = AssignmentLimits(moves=1_000_000)


def lease(number: int, owner: str | None = None, kbps: float | None = 100.0, **more: Any) -> LeaseLoad:
    held = None if owner is None else WorkerId(owner)
    unserved = None if owner is not None else "no worker owns it"
    return replace(LeaseLoad(LeaseKey(f"shard-{number:04d}"), held, kbps=kbps, unserved=unserved), **more)


def worker(name: str, **more: Any) -> WorkerLoad:
    return replace(WorkerLoad(WorkerId(name), slot=name.split(":")[0]), **more)


def fleet(number: int, **more: Any) -> list[WorkerLoad]:
    return [worker(f"w{index}", **more) for index in range(number)]


def after(leases: Sequence[LeaseLoad], decided: Assignment) -> list[LeaseLoad]:
    """The leases once all moves are done."""
    to = {move.lease: move.to for move in decided.moves}
    return [
        replace(one, owner=to[one.key], next_owner=None, unserved=None) if one.key in to else one for one in leases
    ]


def counts(leases: Sequence[LeaseLoad]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in leases:
        if one.owner is not None:
            found[one.owner] = found.get(one.owner, 0) + 1
    return found


def loads(leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad]) -> dict[str, float]:
    found: dict[str, float] = {one.id: 0.0 for one in workers}
    for one in leases:
        if one.owner in found:
            found[one.owner] += one.kbps or 0.0
    return found
