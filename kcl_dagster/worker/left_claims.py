"""Refuses leases that name a chain, for workers that do not use chains because the consumer had another sink
before.

A worker that stops settles its chain. A lease therefore names a chain only if its last owner ended without giving
it up.
"""

from kcl_dagster.errors import Unsafe
from kcl_dagster.model.lease import Lease


def refuse_claim(lease: Lease) -> None:
    """Raise Unsafe if the chain may have entries that the row of the lease does not include. Entries that were made
    before a reset are no progress of the lease. A worker with the former sink publishes them."""
    if lease.claim is not None and lease.claim.id is not None:
        raise Unsafe(
            f"{lease.key}: its last worker had another sink, of Parquet, Delta or Iceberg, and may have stored "
            "more than the checkpoint says. Start workers with that sink once more and stop them, which settles "
            "the lease; or reset it"
        )
