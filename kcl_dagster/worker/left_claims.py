"""Claims of chains in the leases of a worker that decides its batches in the leases themselves, or that gives its
shards to record processors.

A lease has one where the setting of the sink was changed, and its last owner ended without giving it up.
"""

from dataclasses import dataclass

from kcl_dagster.errors import Unsafe
from kcl_dagster.model.lease import Lease
from kcl_dagster.worker.former_chains import FormerChains, stored_after
from kcl_dagster.worker.held_lease import Holding
from kcl_dagster.worker.holdings import Holdings
from kcl_dagster.worker.pending import binds, pin_of


@dataclass(slots=True)
class LeftClaims:
    """Called on the worker's main thread. `former_chains`: None if the sink is no place for chains."""

    holdings: Holdings
    former_chains: FormerChains | None

    def end(self, holding: Holding) -> Lease:
        """Settle the chain that the row of the lease names, and end the claim. Returns the lease as it is read from
        now on. Raises KclError: it may not be read now."""
        key, token = holding.key, holding.token
        lease = self.holdings.settled(key, token)
        if lease.claim is None or (self.former_chains is None and lease.claim.id is None):
            return lease  # entries from before a reset are no progress; a worker with that sink publishes them
        if self.former_chains is None:
            raise Unsafe(
                f'{key}: its last worker had commit="chains", and may have stored more than the checkpoint says. '
                "Start workers with that sink once more and stop them, which settles the lease; or reset it"
            )
        pin = pin_of(lease)
        if pin is not None and binds(pin):
            if lease.claim.id is None:  # the chain is from before a reset, and the batch from after it
                self.former_chains.of(lease.claim.chain)
                return lease  # the claim ends once the batch is stored
            raise Unsafe(
                f"{key} names a chain and is pinned to batch {pin.number}, which a worker of a former version has "
                "begun without settling the chain: some of its records may be stored twice. Reset the lease"
            )
        settlement = self.former_chains.of_claim(key, lease.claim)
        self.holdings.claims.end_claim(key, token, lambda row: stored_after(row, settlement))
        return self.holdings.settled(key, token)
