"""How a Java worker ends its work on a lease.

`kcl_dagster.worker.shard_end` differs: it waits where the KCL gives up at random, and asks the stream where the KCL
believes an empty answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kcl_dagster.errors import KclError, TableNotFound
from kcl_dagster.model.lease import Lease, WorkerId
from kcl_dagster.model.shard import ChildShard
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.worker.parents import sibling_key
from kcl_dagster.worker.shard_end import child_lease

# A merge whose other parent has no lease is given up in one of so many attempts, and otherwise tried again.
ONE_IN: Final = 30
_MERGED_PARENTS: Final = 2


class Callback(StrEnum):
    """What the record processor is told."""

    SHARD_ENDED = "shardEnded"
    LEASE_LOST = "leaseLost"


@dataclass(frozen=True, slots=True)
class Ending:
    """What became of a lease.

    `waits`: the other parent of a merged shard has no lease yet, so nothing was done and it is tried again.
    """

    callback: Callback | None = None
    created: tuple[Lease, ...] = ()
    children: frozenset[str] = frozenset()
    waits: bool = False
    dropped: bool = False
    transferred: bool = False

    @property
    def is_cleaned_up_later(self) -> bool:
        """Finished leases are kept until their children have been started."""
        return self.callback is Callback.SHARD_ENDED


class LeaseEnds:
    """One worker's endings."""

    def __init__(self, table: LeaseTable, worker: WorkerId) -> None:
        self._table = table
        self._worker = worker

    def at_shard_end(
        self, lease: Lease, children: Sequence[ChildShard] | None, *, gives_up: bool = False
    ) -> Ending:
        """The shard was read to its end, whose last answer named `children`. `gives_up`: the one time in thirty.

        Leases of children are made first. Raises a ServiceError; it is tried again then.
        """
        if not children:
            return Ending(Callback.SHARD_ENDED)
        if len(children) == 1 and not self._may_start(lease, children[0]):
            return Ending(Callback.LEASE_LOST, dropped=True) if gives_up else Ending(waits=True)
        wanted = [child_lease(lease, child) for child in children]
        try:
            created = tuple(child for child in wanted if self._table.create(child))
        except TableNotFound:
            return Ending(Callback.LEASE_LOST, dropped=True)
        names = frozenset(child.shard_id for child in wanted)
        self._table.update_children(lease.key, names)
        return Ending(Callback.SHARD_ENDED, created, names)

    def _may_start(self, lease: Lease, child: ChildShard) -> bool:
        """A merged shard names two parents, and both have leases or none has."""
        if len(child.parents) != _MERGED_PARENTS:
            return False
        known = [self._table.get(sibling_key(lease, parent)) is not None for parent in child.parents]
        return all(known) or not any(known)

    def after_loss(self, lease: Lease) -> Ending:
        """The lease is no longer ours. One that was to be handed over and never was goes to its next owner now."""
        if lease.checkpoint_owner != self._worker:
            return Ending(Callback.LEASE_LOST)
        try:
            transferred = self._table.transfer(lease) is not None
        except KclError:
            transferred = False  # the leader's deadline ends the handoff
        return Ending(Callback.LEASE_LOST, dropped=True, transferred=transferred)
