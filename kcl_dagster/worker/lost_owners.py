"""Counts the owners of a lease whose processes ended during the same batch, for workers that decide batches in a
chain. Each such owner is a loss.

Before an owner stages its first batch of a lease, it writes into its claim on the lease that the batch is begun. If
the owner's process ends before an entry of the chain decides the batch, this note remains, and the next owner
counts one loss. When the checkpoint of the lease advances, the note is removed, together with the losses in it.
"""

from dataclasses import dataclass, field, replace

from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.claim import Begun
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.batch import Progress
from kcl_dagster.worker.batch_retries import LOSSES_TO_ISOLATE, LOSSES_TO_NARROW
from kcl_dagster.worker.held_lease import Holding
from kcl_dagster.worker.holdings import Holdings


@dataclass(slots=True)
class LostOwners:
    """Reads and writes, in the claims on leases, the notes of begun batches. Called on the worker's main thread."""

    holdings: Holdings
    code: str | None = None
    """The version of the consumer's code."""

    _own: dict[LeaseKey, tuple[int, Begun]] = field(default_factory=dict)
    """The batches that this worker has begun, and the ownership (token) under which each was begun."""

    _first: dict[LeaseKey, int] = field(default_factory=dict)
    """For each lease, the last ownership (token) under which a batch was begun."""

    def is_suspect(self, holding: Holding) -> bool:
        """Whether former owners may have ended because of the next batch of the lease. The end of the last owner
        alone is no sign of this, because most owners end for another reason."""
        begun = self.holdings.claims.begun(holding.key)
        if begun is None:
            return False
        return begun.losses - (not begun.is_open) >= LOSSES_TO_ISOLATE

    def until(self, holding: Holding) -> Checkpoint | None:
        """The last record that the next batch is allowed to have. None if the batch is not limited because of
        losses."""
        begun = self.holdings.claims.begun(holding.key)
        return begun.through if begun is not None and begun.losses >= LOSSES_TO_NARROW else None

    def of(self, holding: Holding, progress: Progress) -> int:
        """How many former owners ended during the batch that was read. 0 if this worker has begun the batch
        itself."""
        begun = self.holdings.claims.begun(holding.key)
        if begun is None or begun.after != progress.range.after or self._is_own(holding, begun):
            return 0
        return begun.losses

    def begin(self, holding: Holding, progress: Progress, *, is_piece: bool) -> None:
        """Write a note into the claim: a batch is about to be staged. The note is written in three cases only:

        - The batch is the first of this ownership.
        - The batch is a piece of a batch that has ended processes (`is_piece`).
        - The claim has another note: about another batch, about more records, or about a batch that this owner has
          not begun yet.

        Raises KclError if the row may lack the note.
        """
        key, through = holding.key, progress.through
        known = self.holdings.claims.begun(key)
        is_first = self._first.get(key) != holding.token
        if through is None or not (is_first or is_piece or known is not None):
            return
        is_same = known is not None and known.after == progress.range.after
        if known is not None and is_same and known.is_open and known.through <= through:
            return
        losses = known.losses if known is not None and is_same else 0
        if is_piece:
            losses = LOSSES_TO_NARROW - 1
        arrived = None if progress.first_arrival_ms is None else progress.first_arrival_ms // 1000
        begun = Begun(progress.range.number, progress.range.after, through, arrived, losses, self.code)
        self.holdings.claims.begin_batch(key, holding.token, begun)
        self._own[key] = holding.token, begun
        self._first[key] = holding.token

    def survived(self, holding: Holding) -> None:
        """Reset the number of losses. Called when the batch has failed and this process has not ended: the batch
        then did not end the processes of former owners, either. Raises KclError."""
        begun = self.holdings.claims.begun(holding.key)
        if begun is not None and begun.losses and self._is_own(holding, begun):
            begun = replace(begun, losses=0)
            self.holdings.claims.begin_batch(holding.key, holding.token, begun)
            self._own[holding.key] = holding.token, begun

    def narrow(self, holding: Holding, through: Checkpoint) -> None:
        """Record that only the batch's records through `through` are tried next, because the batch has ended
        processes. If these records end one more process, the next owner halves them again. Raises KclError."""
        begun = self.holdings.claims.begun(holding.key)
        if begun is not None:
            piece = replace(begun, through=through, losses=LOSSES_TO_NARROW - 1, is_open=False)
            self.holdings.claims.begin_batch(holding.key, holding.token, piece)

    def _is_own(self, holding: Holding, begun: Begun) -> bool:
        return self._own.get(holding.key) == (holding.token, begun)
