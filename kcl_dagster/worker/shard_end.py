"""The end of a shard. Leases for its children are created first, then SHARD_END is written.

Child leases always start at TRIM_HORIZON, whatever the application's start is, because every record of a child
comes after its parent's end. Child leases exist before the parent is finished, so there is a lease for every hash
key at all times. It does no harm if a worker owns a child lease early: a child is not read before its parent is
finished.

A worker can be paused at any point here. Meanwhile, other workers can finish the shard and read its children to
their end, and the leader can clean up. Each child's lease is therefore created in one transaction with a write to
its parent's lease, which must still be unfinished. It would be cheaper to create the child's lease without a
transaction, read the parent's lease again, and delete the child's lease if the parent is finished. But another
worker may have begun to read the child in between. Modelled in spec/Reshard.tla as ChildrenAreFenced.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from kcl_dagster.errors import KclError
from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.lease import Lease
from kcl_dagster.model.shard import ChildShard, Shard
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.worker.batch import Progress
from kcl_dagster.worker.parents import sibling_key

ListShards = Callable[[StreamIdentifier], Sequence[Shard]]
"""Returns all shards that the stream still has."""


class ShardEndWaits(KclError):
    """Raised if a shard was read to its end but cannot be finished yet. The worker tries again later; nothing is
    lost."""


class ShardEnds:
    def __init__(self, table: LeaseTable, list_shards: ListShards) -> None:
        self._table = table
        self._list_shards = list_shards

    def create_children(self, lease: Lease, progress: Progress) -> frozenset[str]:
        """Create a lease for each child that has none. Returns the shard ids of the children. Safe to repeat.

        Raises ShardEndWaits if the leases cannot be created yet, LeaseLost if another worker has finished the
        shard, or a ServiceError.
        """
        children = progress.children or self._listed_children(lease, progress)
        for child in children:
            self._check_other_parents(lease, child, progress)
        names, empty_at = frozenset(child.id for child in children), _empty_at(lease, progress)
        for child in children:
            wanted = replace(
                child_lease(lease, child),
                stored_through=empty_at,
                ended_parent=lease.shard_id if len(child.parents) > 1 else None,
            )
            self._table.create_child(lease, wanted, names)  # False: the child has a lease already
        return names

    def _listed_children(self, lease: Lease, progress: Progress) -> tuple[ChildShard, ...]:
        """List the children in the stream. Called if the last response named none. If the shard has left the
        stream, its children may have left it, too."""
        children = tuple(
            ChildShard(shard.id, shard.hash_range, shard.parents)
            for shard in self._list_shards(progress.range.stream)
            if lease.shard_id in shard.parents
        )
        if not children and not progress.gone:
            raise ShardEndWaits(f"{lease.key} is closed and the stream names no child shard yet")
        return children

    def _check_other_parents(self, lease: Lease, child: ChildShard, progress: Progress) -> None:
        """Raise ShardEndWaits if another parent of a merged shard is in the stream and has no lease yet. This
        ensures that no parent is read after its child. There is one exception: if the child's lease was created at
        the end of that other parent, nothing is raised, because that parent was read."""
        for parent in child.parents:
            if parent == lease.shard_id or self._table.get(sibling_key(lease, parent)) is not None:
                continue
            known = self._table.get(sibling_key(lease, child.id))
            if known is not None and known.ended_parent == parent:
                continue
            if any(shard.id == parent for shard in self._list_shards(progress.range.stream)):
                raise ShardEndWaits(
                    f"{lease.key} was merged with {parent} into {child.id}, and {parent} has no lease yet"
                )


def _empty_at(parent: Lease, progress: Progress) -> int | None:
    """A moment (epoch seconds) at which the children had no records, because they were opened after their parent's
    last record. The first reader of a child uses this moment to decide whether records may have left the stream
    unread."""
    known = [parent.stored_through, None if progress.last_arrival_ms is None else progress.last_arrival_ms // 1000]
    return max((moment for moment in known if moment is not None), default=None)


def child_lease(parent: Lease, child: ChildShard) -> Lease:
    """The lease of a child as the KCL creates it."""
    return Lease(
        key=sibling_key(parent, child.id),
        shard_id=child.id,
        checkpoint=TRIM_HORIZON,
        parents=frozenset(child.parents),
        hash_range=child.hash_range,
        stream=parent.stream,
    )
