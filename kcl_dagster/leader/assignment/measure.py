"""The weights of leases and the costs of work, by CPU, by throughput or by number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kcl_dagster.leader.assignment.policy import LeaseLoad, WorkerLoad
from kcl_dagster.model.lease import LeaseKey, WorkerId

# If the mean throughput per worker is lower, load is negligible: a single core can read a hundred times as much.
IDLE_KBPS: Final = 64.0
# The cost of a lease in addition to its bytes (renewals, empty reads), as a part of the mean throughput of a lease.
# This part is so small that the shares of bytes remain nearly equal, and so large that workers with equal shares of
# bytes get equal numbers of leases.
BASE_WEIGHT: Final = 0.001


@dataclass(frozen=True, slots=True)
class Measure:
    """The weights of leases, the cost of work on each worker, and whether the load is negligible (`idle`)."""

    weights: Mapping[LeaseKey, float]
    factors: Mapping[WorkerId, float]
    idle: bool
    unit: str


def by_count(leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad]) -> Measure:
    return Measure({lease.key: 1.0 for lease in leases}, {w.id: 1.0 for w in workers}, idle=False, unit="leases")


def by_throughput(leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad]) -> Measure:
    """Weigh leases by throughput. If a lease's throughput is not known, or was not measured for long enough, the
    mean of the other leases is used. A short measurement is often too high, because a shard often begins with a
    backlog, which is read much faster than records arrive.

    If the total load is negligible, an equal amount is added to the weight of every lease. The less load there is,
    the larger is this amount. The assignment thus changes gradually from even throughput to even numbers of leases.
    """
    settled = [lease.balanced_kbps for lease in leases if lease.balanced_kbps is not None]
    known = settled or [lease.kbps for lease in leases if lease.kbps is not None]
    mean = sum(known) / len(known) if known else 0.0
    carried = {lease.key: mean if lease.balanced_kbps is None else lease.balanced_kbps for lease in leases}
    lacking = IDLE_KBPS * max(1, sum(worker.accepts for worker in workers)) - sum(carried.values())
    base = mean * BASE_WEIGHT + max(0.0, lacking) / max(1, len(leases))
    weights = {key: kbps + base for key, kbps in carried.items()}
    return Measure(weights, {worker.id: 1.0 for worker in workers}, idle=lacking > 0, unit="KB/s")


def by_cpu(leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad]) -> Measure:
    measure = by_throughput(leases, workers)
    costs = {worker.id: worker.cost for worker in workers if worker.cost is not None and worker.cost > 0}
    if measure.idle or not costs:
        return measure
    mean = sum(costs.values()) / len(costs)
    factors = {worker.id: costs.get(worker.id, mean) / mean for worker in workers}
    return replace(measure, factors=factors, unit="CPU")
