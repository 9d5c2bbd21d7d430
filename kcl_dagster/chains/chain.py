"""A chain as its owner uses it: decide batches, and delete entries that are no longer needed.

The owner stops using a chain if a successor closes it, or if it is not known whether an entry was made. The owner
then begins another chain, and claims its leases again: it writes the name of the new chain into their rows. Before
it claims a lease, it settles the former chain. It does this in the same way as with the chain of another worker: it
closes the chain and publishes the decided batches. For further cases, see `kcl_dagster.worker.claims`.

Modelled in spec/Chain.tla.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from kcl_dagster.chains.entry import (
    ONE_TABLE_VERSION,
    VERSION,
    PublishingEntry,
    StagedFile,
    StoredRange,
    TableOutput,
    TableRules,
)
from kcl_dagster.chains.store import Entries
from kcl_dagster.errors import OutcomeUnknown
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.claim import ChainId
from kcl_dagster.model.lease import LeaseKey

NO_OTHERS: Final[Mapping[str, TableOutput]] = MappingProxyType({})
TRIES: Final = 5  # attempts to create an entry, as long as no entry with its number is found


@dataclass(slots=True)
class Chain:
    """One chain, used by its owner on one thread. `id` must be new, so that no other process decides batches in
    this chain."""

    entries: Entries
    id: ChainId
    new_id: Callable[[], str]
    is_over: bool = False
    _last: int = 0
    _waiting: dict[int, dict[LeaseKey, Checkpoint]] = field(default_factory=dict)
    """The entries that were not deleted, by number. For each entry, the checkpoints that the rows of its leases
    have not reached yet, by lease."""

    def decide(
        self,
        files: Sequence[StagedFile],
        ranges: Sequence[StoredRange],
        rules: TableRules | None = None,
        others: Mapping[str, TableOutput] = NO_OTHERS,
    ) -> PublishingEntry | None:
        """Decide a batch with the next entry of the chain. Returns the entry. Returns None if the chain is closed;
        the batch is then never published.

        All files must be staged before the call. For `others`, see `PublishingEntry`. If an error is raised, it is
        not known whether the batch is decided. This chain then takes no more batches, and the outcome becomes known
        when the chain is settled.
        """
        if self.is_over:
            return None
        version = VERSION if others else ONE_TABLE_VERSION
        entry = PublishingEntry(self.new_id(), tuple(files), tuple(ranges), version, rules, dict(others))
        number = self._last + 1
        self.is_over = True  # until it is known whether the entry was made
        if not self._is_made(number, entry):
            return None
        self.is_over = False
        self._last = number
        self._waiting[number] = {one.lease: one.through for one in ranges}
        return entry

    def _is_made(self, number: int, entry: PublishingEntry) -> bool:
        for _ in range(TRIES):
            if self.entries.create(self.id, number, entry):
                return True
            found = self.entries.read(self.id, number)
            if found is not None:
                return found.attempt == entry.attempt  # equal if this call made the entry, but got no response
        raise OutcomeUnknown(f"entry {number} of chain {self.id} is neither made nor found")

    def written(self, rows: Mapping[LeaseKey, Checkpoint]) -> None:
        """Record the checkpoints that the rows of these leases have reached. All entries through these checkpoints
        must be published before the call. SHARD_END means that the row of the lease includes all entries, and no
        longer names this chain."""
        for number, waiting in self._waiting.items():
            self._waiting[number] = {
                lease: through for lease, through in waiting.items() if lease not in rows or rows[lease] < through
            }

    def waits_without(self, held: Collection[LeaseKey]) -> bool:
        """Whether an entry, apart from the last one, waits for a lease that is not in `held`: the row of the lease
        lacks the entry's checkpoint. This worker has lost such a lease, and never writes the row again. So the
        worker could never delete this entry and the entries after it.
        """
        return any(
            number != self._last and not waiting.keys() <= set(held) for number, waiting in self._waiting.items()
        )

    @property
    def last(self) -> int:
        return self._last

    def delete_entries(self, visible: int | None = None) -> int:
        """Delete entries in order. Stops before the first entry whose checkpoint is missing in the row of a lease.
        Returns how many were deleted.

        The last entry is always kept, because the process that closes the chain needs its number. Entries with a
        number above `visible` are kept, too, because they are not published yet. If `visible` is None, all entries
        are visible.
        """
        over = []
        for number in sorted(self._waiting):
            if self._waiting[number] or number == self._last or (visible is not None and number > visible):
                break
            over.append(number)
        self.entries.delete(self.id, over)
        for number in over:
            del self._waiting[number]
        return len(over)
