"""The state of one lease that this worker holds, including what is stored and not yet written to the row."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.claim import ChainId, Claim
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.stored import BatchCounts


@dataclass(frozen=True, slots=True)
class Holding:
    """A held lease at the time it was read. `token`: identifies this ownership. Work that began under one token
    must not be finished under another."""

    lease: Lease
    token: int
    is_leaving: bool = False
    """Whether the lease is in a handoff and is not read any more."""

    @property
    def key(self) -> LeaseKey:
        return self.lease.key


@dataclass(frozen=True, slots=True)
class Unwritten:
    """What is stored of a lease beyond the checkpoint in its row, for a worker that uses a chain. The next renewal
    writes this to the row. `counts`: None if not known. `number`: the number of the last batch."""

    through: Checkpoint
    stored_through: int | None = None
    counts: BatchCounts | None = None
    number: int | None = None

    def followed_by(self, later: "Unwritten") -> "Unwritten":
        known = [moment for moment in (self.stored_through, later.stored_through) if moment is not None]
        counts = None
        if self.counts is not None and later.counts is not None:
            counts = self.counts.followed_by(later.counts)
        numbers = [number for number in (self.number, later.number) if number is not None]
        return Unwritten(later.through, max(known, default=None), counts, max(numbers, default=None))


@dataclass(slots=True)
class Unpublished:
    """What entry `number` of a chain has decided for a lease, while readers do not see the batch yet. It is written
    to the row only when readers see the batch. The row is therefore never ahead of what readers see."""

    number: int
    stored: Unwritten
    moment: int = 0  # see `LeaseRegistry.stored_through`


@dataclass(slots=True)
class HeldLease:
    """A lease, and what this worker knows about it beyond the lease's row. `lock` is held during every write. Times
    are monotonic, except for `stored_through`, which is in epoch seconds."""

    lease: Lease
    token: int
    trusted_until: float
    written_at: float
    lock: AbstractContextManager[object]
    busy: bool = False
    was_read: bool = False  # whether it was in a batch of this worker
    handoff_since: float | None = None
    stored_through: int | None = None
    in_doubt: bool = False  # a write was sent, and its outcome is not known
    pinned: int | None = None  # the number of the batch that this owner pinned last
    unwritten: Unwritten | None = None
    in_flight: Unwritten | None = None  # the content of the last write, until its outcome is known
    claimed: Claim | None = None  # the claim that this worker has written since it acquired the lease
    is_deciding: bool = False  # whether an entry for the lease may have been made, so that its claim must remain
    unpublished: list[Unpublished] = field(default_factory=list)  # in the order of their numbers

    def caught_up(self, lease: Lease) -> None:
        """Record `lease`, the row that was read after a write of this worker was refused. The row had changed for
        one of two reasons: an earlier write of this worker was applied and its response was lost, or a handoff has
        begun. `lease` shows the outcomes of all earlier writes. So if the response to the next write is lost, only
        the outcome of that write is unknown."""
        self.lease = lease

    def add_stored(self, stored: Unwritten) -> None:
        """Add what was stored to the next write of the row."""
        self.unwritten = stored if self.unwritten is None else self.unwritten.followed_by(stored)

    def is_claimed_by(self, chain: ChainId) -> bool:
        return self.claimed is not None and self.claimed.chain == chain

    def newer_moment(self, committed: int | None = None) -> int | None:
        """The moment through which the lease is stored, to be written to its row. None if the row already has this
        moment or a later one. The moment in the row falls only by a reset of the lease."""
        newest = max(self.stored_through or 0, committed or 0)
        return newest if newest > (self.lease.stored_through or 0) else None

    def next_number(self, stored: Unwritten) -> int | None:
        """The batch number to write to the row. None if it is not known. The number never falls, because late rows
        are detected by it."""
        return None if stored.number is None else max(stored.number, self.lease.batch + 1)


def renewed_claim(claim: Claim, at: Checkpoint) -> Claim:
    """Return the claim to write together with the checkpoint `at`. If `at` is beyond the beginning of the batch
    that the claim records as begun, this batch is stored, and the new claim records no begun batch."""
    begun = claim.begun
    return replace(claim, at=at, begun=begun if begun is not None and begun.after >= at else None)
