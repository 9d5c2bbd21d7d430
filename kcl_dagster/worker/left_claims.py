"""Refuses leases whose row names a chain (a worker's log of committed batches). A worker that uses no chain finds
such a row if the consumer had another sink before.

An owner removes the name of its chain from the row when it gives up the lease. A row therefore names a chain only
if a former owner could not do this, for example because it was killed.
"""

from kcl_dagster.errors import Unsafe
from kcl_dagster.model.lease import Lease


def refuse_claim(lease: Lease) -> None:
    """Raise Unsafe if the row names a chain that may have stored more of the lease than the row's checkpoint says.
    If the lease was reset, its claim has no id, and nothing is raised. The entries of the chain then do not move
    the lease's checkpoint any more. A worker with the former sink can still publish these entries."""
    if lease.claim is not None and lease.claim.id is not None:
        raise Unsafe(
            f"{lease.key}: its last worker had another sink, of Parquet, Delta or Iceberg, and may have stored "
            "more than the checkpoint says. Start workers with that sink once more and stop them, which settles "
            "the lease; or reset it"
        )
