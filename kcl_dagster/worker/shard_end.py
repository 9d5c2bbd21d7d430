"""The end of a shard: leases for its children first, then SHARD_END.

Child leases always start at TRIM_HORIZON, whatever the application's start: nothing of a child lies before its
parent's end. They exist before the parent is finished, so there is no moment at which a part of the hash range
belongs to no lease; being blocked by their parent they may be owned early.

A worker may rest at any point here, while others finish the shard, read its children to their end, and clean up.
Each child's lease is therefore made in one transaction with a note on its parent's, which has to be unfinished
still. Reading the parent again afterwards and taking the child back would be cheaper and not enough: in between
somebody may have begun to read it. Modelled in spec/Reshard.tla as ChildrenAreFenced.
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
"""All shards the stream still has."""


class ShardEndWaits(KclError):
    """A shard was read to its end but cannot be finished yet. It is tried again; nothing is lost by waiting."""


class ShardEnds:
    def __init__(self, table: LeaseTable, list_shards: ListShards) -> None:
        self._table = table
        self._list_shards = list_shards

    def create_children(self, lease: Lease, progress: Progress) -> frozenset[str]:
        """Make sure that every child has a lease; the children's shard ids.

        Raises ShardEndWaits when that is not possible now, LeaseLost when somebody else has finished the shard, or
        a ServiceError. Doing it twice does no harm.
        """
        children = progress.children or self._listed_children(lease, progress)
        for child in children:
            self._check_other_parents(lease, child, progress)
        names, empty_at = frozenset(child.id for child in children), _empty_at(lease, progress)
        for child in children:
            wanted = replace(child_lease(lease, child), stored_through=empty_at)
            self._table.create_child(lease, wanted, names)  # False: it has one, which is as good
        return names

    def _listed_children(self, lease: Lease, progress: Progress) -> tuple[ChildShard, ...]:
        """The last answer named no child: ask the stream. A shard that is gone may have none left at all."""
        children = tuple(
            ChildShard(shard.id, shard.hash_range, shard.parents)
            for shard in self._list_shards(progress.range.stream)
            if lease.shard_id in shard.parents
        )
        if not children and not progress.gone:
            raise ShardEndWaits(f"{lease.key} is closed and the stream names no child shard yet")
        return children

    def _check_other_parents(self, lease: Lease, child: ChildShard, progress: Progress) -> None:
        """A merged shard may not start before both parents are known to the application: a parent that is in the
        stream and not in the table yet would be read after its child."""
        for parent in child.parents:
            if parent == lease.shard_id or self._table.get(sibling_key(lease, parent)) is not None:
                continue
            if any(shard.id == parent for shard in self._list_shards(progress.range.stream)):
                raise ShardEndWaits(
                    f"{lease.key} was merged with {parent} into {child.id}, and {parent} has no lease yet"
                )


def _empty_at(parent: Lease, progress: Progress) -> int | None:
    """Epoch seconds by which nothing lay in the children: they were opened after their parents' last record. By it
    whoever reads a child first knows whether records can have left the stream before."""
    known = [parent.stored_through, None if progress.last_arrival_ms is None else progress.last_arrival_ms // 1000]
    return max((moment for moment in known if moment is not None), default=None)


def child_lease(parent: Lease, child: ChildShard) -> Lease:
    return Lease(
        key=sibling_key(parent, child.id),
        shard_id=child.id,
        checkpoint=TRIM_HORIZON,
        parents=frozenset(child.parents),
        hash_range=child.hash_range,
        stream=parent.stream,
    )
