"""Owners of leases that ended while they worked on a batch which they would have decided in a chain.

Before its first batch of a lease, an owner writes beside its claim that the batch is begun. An owner that ends
without an entry leaves it so, and the next owner counts it. The count goes with the first checkpoint that moves.
"""

from dataclasses import dataclass, field, replace

from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.claim import Begun
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.batch import Progress
from kcl_dagster.worker.failure import LOSSES_TO_ISOLATE, LOSSES_TO_NARROW
from kcl_dagster.worker.held_lease import Holding
from kcl_dagster.worker.holdings import Holdings


@dataclass(slots=True)
class LostOwners:
    """Called on the worker's main thread."""

    holdings: Holdings
    code: str | None = None
    """The version of the consumer's code."""

    _own: dict[LeaseKey, tuple[int, Begun]] = field(default_factory=dict)
    """What this worker has begun, and the ownership (token) under which it did."""

    _first: dict[LeaseKey, int] = field(default_factory=dict)
    """The ownerships (tokens) under which a batch was begun."""

    def is_suspect(self, holding: Holding) -> bool:
        """Whether former owners may have ended because of the next batch of the lease. The last one does not count:
        most end for another reason."""
        begun = self.holdings.claims.begun(holding.key)
        if begun is None:
            return False
        return begun.losses - (not begun.is_open) >= LOSSES_TO_ISOLATE

    def until(self, holding: Holding) -> Checkpoint | None:
        """The end of a batch that is narrowed before it is staged."""
        begun = self.holdings.claims.begun(holding.key)
        return begun.through if begun is not None and begun.losses >= LOSSES_TO_NARROW else None

    def of(self, holding: Holding, progress: Progress) -> int:
        """How many owners were lost to what was read, unless this worker has begun it."""
        begun = self.holdings.claims.begun(holding.key)
        if begun is None or begun.after != progress.range.after or self._is_own(holding, begun):
            return 0
        return begun.losses

    def begin(self, holding: Holding, progress: Progress, *, is_piece: bool) -> None:
        """Before a batch is staged. `is_piece`: of a batch that has ended processes. Raises KclError: it is not
        known whether the row has it."""
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
        """The batch has failed and the process lives, so it was not the batch that ended the former ones. Raises
        KclError."""
        begun = self.holdings.claims.begun(holding.key)
        if begun is not None and begun.losses and self._is_own(holding, begun):
            begun = replace(begun, losses=0)
            self.holdings.claims.begin_batch(holding.key, holding.token, begun)
            self._own[holding.key] = holding.token, begun

    def narrow(self, holding: Holding, through: Checkpoint) -> None:
        """The batch is cut for its losses; the piece through `through` is tried next, and cut with the next loss.
        Raises KclError."""
        begun = self.holdings.claims.begun(holding.key)
        if begun is not None:
            piece = replace(begun, through=through, losses=LOSSES_TO_NARROW - 1, is_open=False)
            self.holdings.claims.begin_batch(holding.key, holding.token, piece)

    def _is_own(self, holding: Holding, begun: Begun) -> bool:
        return self._own.get(holding.key) == (holding.token, begun)
