"""Which leases workers of version 0.1 may get while workers of this version share the leases with them.

A worker of version 0.1 passes over claims: it would read again what the entries of a chain have stored. So it gets
no more leases as soon as a worker of this version reads, and at no time one whose claim was not ended. A lease that
one worker hands over to another has no claim, so handoffs are safe in both directions.
"""

from dataclasses import replace

from kcl_dagster.leader.observation import Sight


def spare_former_workers(sight: Sight) -> Sight:
    """What the assignment may decide about. Leases that have to wait for a worker of this version are left out."""
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
