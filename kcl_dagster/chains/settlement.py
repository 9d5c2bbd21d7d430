"""Settles a chain: a successor makes sure that no further entry can be made, and publishes the decided batches.

Any process can settle any chain, at any time, even if other processes settle it at the same time. If the chain of a
running worker is settled, the batch that this worker has begun but not decided is never published.

Modelled in spec/Chain.tla.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kcl_dagster.chains.entry import ClosingEntry, PublishingEntry, StoredRange
from kcl_dagster.chains.publication import FolderPublisher, Publisher
from kcl_dagster.chains.store import Entries
from kcl_dagster.errors import OutcomeUnknown
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.claim import ChainId, ClaimId
from kcl_dagster.model.lease import LeaseKey

TRIES_TO_CLOSE: Final = 100  # a running owner makes an entry every few seconds


@dataclass(frozen=True, slots=True)
class Settlement:
    """The decided and published entries of a closed chain. Deleted entries are missing in `entries`. The rows of
    the leases already have the checkpoints of deleted entries."""

    chain: ChainId
    entries: tuple[PublishingEntry, ...]

    def progress(self, lease: LeaseKey, claim: ClaimId | None, after: Checkpoint) -> list[StoredRange]:
        """The ranges of a lease that end beyond `after`, in order. `after` and `claim`: the checkpoint and the
        claim in the row of the lease. If `claim` is None, there are no such ranges. Raises OutcomeUnknown if the
        entries of the claim leave a gap.
        """
        found = [one for entry in self.entries if (one := entry.range_of(lease, claim)) is not None]
        problem = missing_part(found, after)
        if problem is not None:
            raise OutcomeUnknown(
                f"{lease}: entries of chain {self.chain} are missing ({problem}), so it is not known what was "
                "stored. Reset the lease to read it again from a place of your choice"
            )
        return progress_beyond(found, after)


def missing_part(ranges: Sequence[StoredRange], after: Checkpoint) -> str | None:
    """Describe a gap between the ranges of a claim; None if there is none. Each range begins where the previous one
    ended, and the owner deletes an entry only when the row's checkpoint `after` has reached the end of the range. A
    gap beyond `after` therefore means that entries were lost. A gap before a range without a number is ignored,
    because an earlier version made the entry (see `StoredRange`)."""
    reached = after
    for one in ranges:
        if one.number is not None and one.after > reached:
            return f"between {reached} and {one.after}"
        reached = max(reached, one.through)
    return None


def progress_beyond(ranges: Sequence[StoredRange], after: Checkpoint) -> list[StoredRange]:
    """The ranges, in the order of their entries, that end beyond the checkpoint `after`.

    The first of these ranges can begin before `after`. This is so if a Java worker had the lease meanwhile, and has
    stored the beginning of the range again. Only the rest of the range is then progress.
    """
    return [one for one in ranges if one.through > after]


def settle(
    entries: Entries, chain: ChainId, by: str, new_id: Callable[[], str], publisher: Publisher | None = None
) -> Settlement:
    """Close a chain, publish its decided entries, and remove all its other staged files. `publisher`: None for
    folders. Raises the errors of the store and the publisher. Can be called again after an error."""
    close(entries, chain, by, new_id)
    decided = {
        number: entry
        for number in entries.numbers(chain)
        if isinstance(entry := entries.read(chain, number), PublishingEntry)
    }
    (publisher or FolderPublisher(entries.files)).settle(chain, decided)
    return Settlement(chain, tuple(decided.values()))


def close(entries: Entries, chain: ChainId, by: str, new_id: Callable[[], str]) -> None:
    """Close the chain: make sure that its last entry is a closing entry.

    Between the listing and the create, the owner may make entries and delete earlier ones. A closing entry with the
    number of a deleted entry closes nothing. The chain is therefore listed again after each create. The owner
    always keeps its last entry, so the listing shows whether there is an entry with a higher number.
    """
    closing = ClosingEntry(new_id(), by)
    for _ in range(TRIES_TO_CLOSE):
        numbers = entries.numbers(chain)
        last = numbers[-1] if numbers else 0
        if last and isinstance(entries.read(chain, last), ClosingEntry):
            return
        entries.create(chain, last + 1, closing)
    raise OutcomeUnknown(f"chain {chain} could not be closed: its worker has made an entry before each attempt")
