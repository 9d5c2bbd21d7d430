"""Settles the chains of former owners: closes these logs of committed batches, and publishes the batches that they
have decided. Then finds through which record the former owners have stored a lease."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Final

from kcl_dagster.chains.publication import Publisher
from kcl_dagster.chains.settlement import Settlement, settle
from kcl_dagster.chains.store import Entries
from kcl_dagster.errors import SinkError, Unsafe
from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.claim import ChainId, Claim
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.worker.held_lease import Unwritten

SETTLED_KEPT: Final = 8  # few are enough: an ended worker's leases have one chain and are mostly acquired together


@dataclass(slots=True)
class FormerChains:
    """Settles the chains of former owners, and keeps the last settlements. Called on the worker's main thread.
    Errors of the store are raised as SinkError."""

    entries: Entries
    worker: str
    new_id: Callable[[], str]
    publisher: Publisher
    _settled: dict[ChainId, Settlement] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """A digest of the sink's path, see `Claim.place`."""
        return hashlib.sha256(self.entries.files.root.encode()).hexdigest()[:12]

    def of_claim(self, key: LeaseKey, claim: Claim) -> Settlement:
        """Settle the chain of a claim, or return its earlier settlement. Raises Unsafe if the chain is stored below
        the path of another sink."""
        if claim.place is None or claim.place == self.place:
            return self.of(claim.chain)
        raise Unsafe(
            f"{key}: its last worker decided batches in chain {claim.chain}, which is not below "
            f"{self.entries.files.root}, and may have stored more than the checkpoint says. Start workers with the "
            "former path of the sink once more and stop them, which settles the lease; or reset it"
        )

    def of(self, chain: ChainId) -> Settlement:
        """Settle a chain, or return its earlier settlement. A settled chain gets no more entries."""
        found = self._settled.get(chain)
        if found is None:
            with store_errors(self.entries, self.worker, "could not be settled"):
                found = settle(self.entries, chain, self.worker, self.new_id, self.publisher)
            while len(self._settled) >= SETTLED_KEPT:
                del self._settled[next(iter(self._settled))]
            self._settled[chain] = found
        return found


@contextmanager
def store_errors(entries: Entries, worker: str, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SinkError(f"{entries.files.root}: the chain of {worker} {what}: {error}") from error


def stored_after(lease: Lease, settlement: Settlement | None) -> Unwritten:
    """What is stored of a lease, according to the lease's row and to the settlement of the chain that the row
    names. Raises OutcomeUnknown, see `Settlement.progress`."""
    row = lease.checkpoint or TRIM_HORIZON
    nothing = Unwritten(row)
    if settlement is None or lease.claim is None or lease.claim.chain != settlement.chain:
        return nothing
    if lease.claim.is_put_back(row):
        return nothing  # the lease was reset, so its records have to be read again
    found = settlement.progress(lease.key, lease.claim.id, row)
    parts = [Unwritten(one.through, one.stored_through, one.counts, one.number) for one in found]
    return reduce(Unwritten.followed_by, parts) if parts else nothing
