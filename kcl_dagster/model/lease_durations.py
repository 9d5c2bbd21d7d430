"""The lease duration of each lease: after this time without a renewal, the lease expires.

Leaders, and workers without a leader, apply `lease_durations` to the rows that they have read. They therefore all
use the same duration for a lease.
"""

from collections.abc import Iterable
from typing import Final

from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.worker_row import WorkerRow

# Seconds; the longest lease duration that is accepted from a worker's row. The lock has the same limit.
LONGEST_BELIEVED: Final = 3600.0


def lease_durations(leases: Iterable[Lease], workers: Iterable[WorkerRow], ours: float) -> dict[LeaseKey, float]:
    """For each lease, the longer of two durations in seconds: `ours`, which is the lease duration of this process,
    and the lease duration of the lease's owner. An owner that began with a longer duration renews less often. The
    rows of Java workers have no lease duration, so `ours` applies to their leases."""
    longer = {row.id: min(row.lease_ms / 1000, LONGEST_BELIEVED) for row in workers if row.lease_ms}
    return {
        lease.key: max(ours, longer.get(lease.actual_owner, ours)) if lease.actual_owner else ours
        for lease in leases
    }
