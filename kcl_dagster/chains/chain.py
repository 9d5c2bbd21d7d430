"""The owner's side of a chain: decide batches, and delete entries that are not needed any more.

A chain ends when a successor closes it, and when the outcome of a create is not known. The worker then begins
another chain, and claims its leases again; the former chain is settled like that of any other worker.

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
TRIES: Final = 5  # creates that a store neither carried out nor refused for an entry that is there


@dataclass(slots=True)
class Chain:
    """For use on one thread. `id` must be new: no other process may decide batches in this chain."""

    entries: Entries
    id: ChainId
    new_id: Callable[[], str]
    is_over: bool = False
    _last: int = 0
    _waiting: dict[int, dict[LeaseKey, Checkpoint]] = field(default_factory=dict)
    """How far an entry stores the leases whose rows do not have that yet, by the entry's number."""

    def decide(
        self,
        files: Sequence[StagedFile],
        ranges: Sequence[StoredRange],
        rules: TableRules | None = None,
        others: Mapping[str, TableOutput] = NO_OTHERS,
    ) -> PublishingEntry | None:
        """Decide that a batch is stored. None: the chain is closed, and the batch is void for ever. `others`: see
        `PublishingEntry`.

        If this raises, the batch may have been decided: the chain is over, and its settlement shows it. All files
        have to be staged before.
        """
        if self.is_over:
            return None
        version = VERSION if others else ONE_TABLE_VERSION
        entry = PublishingEntry(self.new_id(), tuple(files), tuple(ranges), version, rules, dict(others))
        number = self._last + 1
        self.is_over = True  # until it is known what became of the entry
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
                return found.attempt == entry.attempt  # the answer to an earlier try may have been lost
        raise OutcomeUnknown(f"entry {number} of chain {self.id} is neither made nor found")

    def written(self, rows: Mapping[LeaseKey, Checkpoint]) -> None:
        """The rows of these leases have what is stored through their checkpoints, and what is stored through there
        is published. SHARD_END for a lease whose row has everything and names this chain no more."""
        for number, waiting in self._waiting.items():
            self._waiting[number] = {
                lease: through for lease, through in waiting.items() if lease not in rows or rows[lease] < through
            }

    def waits_without(self, held: Collection[LeaseKey]) -> bool:
        """Whether an entry other than the last one waits for a lease that is not in `held`. If that lease was lost,
        no write of this worker ends the wait, and the entries behind it cannot be deleted either."""
        return any(
            number != self._last and not waiting.keys() <= set(held) for number, waiting in self._waiting.items()
        )

    @property
    def last(self) -> int:
        """The number of the last entry; 0: there is none."""
        return self._last

    def delete_entries(self, visible: int | None = None) -> int:
        """Delete the first entries that no row waits for; returns how many. The last one remains: the process
        that closes the chain has to find the number after which to close it. `visible`: those behind this number
        remain, too; None: all are visible."""
        over = []
        for number in sorted(self._waiting):
            if self._waiting[number] or number == self._last or (visible is not None and number > visible):
                break
            over.append(number)
        self.entries.delete(self.id, over)
        for number in over:
            del self._waiting[number]
        return len(over)
