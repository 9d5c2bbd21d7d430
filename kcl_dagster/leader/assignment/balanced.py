"""The policies of kcl_dagster: even load with few handoffs.

The three policies differ only in the weight of a lease:

- `balanced`: its use of CPU. If that is not known, its throughput.
- `throughput`: its throughput.
- `count`: the same weight for all leases.

All three assign leases by their weights in the following steps. The band is the range around a worker's fair share
within which its load counts as balanced.

1. Unserved leases are placed at once, heaviest first, on the least loaded worker.
2. Workers that drain hand over all their leases.
3. Balancing starts only if a worker is outside the band. In addition, the worker must be far outside, or have been
   outside for a long time, or step 1 or 2 must have moved leases. The reasons are that measured load always
   jitters, and that a handoff stops the reading of a shard for about the duration of a batch. Once started,
   balancing continues until every worker is well inside the band. The heaviest leases that fit are moved, so that
   few moves are needed.
"""

from collections.abc import Callable, Sequence

from kcl_dagster.leader.assignment.measure import Measure, by_count, by_cpu, by_throughput
from kcl_dagster.leader.assignment.placing import AssignmentRound
from kcl_dagster.leader.assignment.policy import Assignment, AssignmentLimits, LeaseLoad, WorkerLoad


def balanced(leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad], limits: AssignmentLimits) -> Assignment:
    """Make the use of CPU even. If workers do not publish it, make their throughputs even. If there is no load,
    make the numbers of leases even."""
    return _assign(leases, workers, limits, by_cpu)


def throughput(leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad], limits: AssignmentLimits) -> Assignment:
    """Make throughput even, regardless of CPU."""
    return _assign(leases, workers, limits, by_throughput)


def count(leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad], limits: AssignmentLimits) -> Assignment:
    """Make the numbers of leases even."""
    return _assign(leases, workers, limits, by_count)


def _assign(
    leases: Sequence[LeaseLoad],
    workers: Sequence[WorkerLoad],
    limits: AssignmentLimits,
    measured: Callable[[Sequence[LeaseLoad], Sequence[WorkerLoad]], Measure],
) -> Assignment:
    leases = sorted(leases, key=lambda lease: lease.key)
    workers = sorted(workers, key=lambda worker: worker.id)
    return AssignmentRound(leases, workers, limits, measured(leases, workers)).run()
