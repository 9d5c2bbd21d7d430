"""The successor's side: nothing more can come from a chain, and what was decided in it is published.

Any process may settle any chain, at any time and several at once. The chain of a worker that runs may be settled,
too: its batch that is not decided yet is void then.

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

TRIES_TO_CLOSE: Final = 100  # an owner that runs makes an entry every few seconds


@dataclass(frozen=True, slots=True)
class Settlement:
    """What was decided in a chain, and is published. `entries`: those that were not deleted. The rows of leases
    have what the deleted ones decided."""

    chain: ChainId
    entries: tuple[PublishingEntry, ...]

    def progress(self, lease: LeaseKey, claim: ClaimId | None, after: Checkpoint) -> list[StoredRange]:
        """The ranges of a lease that are stored behind `after`, the checkpoint of its row, in order. `claim`: the
        claim in the row; without one there is no progress. Raises OutcomeUnknown where a part is missing between
        two of them."""
        found = [one for entry in self.entries if (one := entry.range_of(lease, claim)) is not None]
        problem = missing_part(found, after)
        if problem is not None:
            raise OutcomeUnknown(
                f"{lease}: entries of chain {self.chain} are missing ({problem}), so it is not known what was "
                "stored. Reset the lease to read it again from a place of your choice"
            )
        return progress_beyond(found, after)


def missing_part(ranges: Sequence[StoredRange], after: Checkpoint) -> str | None:
    """Which entries must have been removed: the ranges of a claim follow each other, and those that were deleted
    lie before the checkpoint of the row."""
    reached = after
    for one in ranges:
        if one.number is not None and one.after > reached:
            return f"between {reached} and {one.after}"
        reached = max(reached, one.through)
    return None


def progress_beyond(ranges: Sequence[StoredRange], after: Checkpoint) -> list[StoredRange]:
    """The ranges, in the order of their entries, that lie behind the checkpoint `after`.

    A Java worker may have stored part of a range again before it lost the lease: then the rest of the range counts.
    """
    return [one for one in ranges if one.through > after]


def settle(
    entries: Entries, chain: ChainId, by: str, new_id: Callable[[], str], publisher: Publisher | None = None
) -> Settlement:
    """Close a chain, publish what was decided in it, and remove what else is staged for it. `publisher`: None for
    folders. Raises what the store and the publisher raise, and may then be called again."""
    close(entries, chain, by, new_id)
    decided = {
        number: entry
        for number in entries.numbers(chain)
        if isinstance(entry := entries.read(chain, number), PublishingEntry)
    }
    (publisher or FolderPublisher(entries.files)).settle(chain, decided)
    return Settlement(chain, tuple(decided.values()))


def close(entries: Entries, chain: ChainId, by: str, new_id: Callable[[], str]) -> None:
    """Make a closing entry the last one of the chain, unless it is.

    The owner may make entries and delete former ones between the list and the create. A closing entry at the number
    of a deleted one closes nothing. So the chain is listed again: the owner keeps its last entry, so an entry that
    has a higher number is seen.
    """
    closing = ClosingEntry(new_id(), by)
    for _ in range(TRIES_TO_CLOSE):
        numbers = entries.numbers(chain)
        last = numbers[-1] if numbers else 0
        if last and isinstance(entries.read(chain, last), ClosingEntry):
            return
        entries.create(chain, last + 1, closing)
    raise OutcomeUnknown(f"chain {chain} could not be closed: its worker has made an entry before each attempt")
