"""Decides which leases workers of version 0.1 get while workers of this version read for the same application.

A claim in the row of a lease names a chain whose entries may have stored records after the checkpoint of the lease.
A worker of version 0.1 ignores claims, so it would read these records again. It therefore gets no more leases as
soon as a worker of this version reads. It never gets a lease with a claim that was not ended. A lease that was
handed over has no claim, so handoffs are safe in both directions.
"""

from dataclasses import replace

from kcl_dagster.leader.observation import Sight


def spare_former_workers(sight: Sight) -> Sight:
    """Return the view of the tables that the assignment uses. If no worker of version 0.1 is alive, `sight` is
    returned unchanged.

    If workers of version 0.1 are alive and a worker of this version can read, the workers of version 0.1 are marked
    as accepting no leases. If no worker of this version can read, leases with a claim that was not ended are left
    out.
    """
    former = {seen.id for seen in sight.workers if seen.alive and seen.row.passes_over_claims}
    if not former:
        return sight
    if any(seen.alive and seen.accepts and seen.ready and seen.id not in former for seen in sight.workers):
        workers = (
            replace(seen, accepts=False, why="it is of version 0.1") if seen.id in former else seen
            for seen in sight.workers
        )
        return replace(sight, workers=tuple(workers))
    return sight.without(
        lease.key for lease in sight.leases if lease.claim is not None and lease.claim.id is not None
    )
