"""Decides which leases a stream needs.

Shards form a hierarchy: a child holds the records that arrived after its parents were closed. Leases are created
for the oldest shards that have to be read. Their children get leases when the parents have been read to their end,
so that records are read in order. If the table already has leases, the rules of the KCL apply. Three defects of
these rules are repaired, except with `as_kcl`:

- The child of a finished parent can lack a lease, for example because an operator deleted the lease. In this case,
  the KCL syncs every two minutes for ever and creates nothing. This module creates the lease of the child.
- If only a middle generation has leases, the KCL can create leases for the ancestors of a shard that is being read,
  and then reads old records after new ones. This module creates no such leases: the ancestors of a shard that is
  being read count as finished.
- A merged shard is read only after both parents. If the lease of one parent was deleted, the KCL reads neither this
  parent nor the merged shard. This module creates the deleted lease again, even if the lease of the other parent
  was deleted, too, after this other parent was read to its end.

Modelled in spec/Reshard.tla.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kcl_dagster.application import Position
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.shard import Shard
from kcl_dagster.model.stored import nothing_since
from kcl_dagster.model.stream import StreamIdentifier

# Positions that include records which are already in the stream. With them, closed shards need leases, too.
_INCLUDE_THE_PAST: Final = (Position.TRIM_HORIZON, Position.AT_TIMESTAMP)


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """The changes that a sync should make.

    - `creates`: leases to create, in this order, oldest first.
    - `inconsistent`: shards with a parent that is listed as open. A shard is closed before it has children. If
      there are such shards, the listing shows the stream at two different times, and must not be used.
    - `gone`: leases of shards that left the stream before they were read to their end.
    """

    creates: tuple[Lease, ...] = ()
    inconsistent: tuple[str, ...] = ()
    gone: tuple[Lease, ...] = ()


def plan_first_sync(
    shards: Iterable[Shard],
    start: Position,
    stream: StreamIdentifier | None = None,
    counted_since: int | None = None,
) -> SyncPlan:
    """Plan the leases of a stream without leases: one for each shard that the service lists for the initial
    position.

    `counted_since`: see `StartPosition`. Only these first leases get it. Children that get leases later do not need
    it, because the leases of their parents have the counts of earlier windows.
    """
    checkpoint = Checkpoint(start.value)
    stored = None if counted_since is None else nothing_since(counted_since, checkpoint)
    leases = (new_lease(shard, checkpoint, stream) for shard in in_order(shards))
    return SyncPlan(tuple(replace(lease, stored=stored) for lease in leases))


def plan_sync(
    shards: Sequence[Shard],
    leases: Sequence[Lease],
    start: Position,
    stream: StreamIdentifier | None = None,
    *,
    roots: Collection[str] = (),
    ignore_unexpected_children: bool = False,
    as_kcl: bool = False,
) -> SyncPlan:
    """Plan the missing leases of a stream that has leases. `shards` is a complete, unfiltered listing of the
    stream. `leases` are the leases of this stream.

    `roots`: the shards that were open when the application began at LATEST. A root that is closed by now must have
    a lease, or a descendant with a lease. If there is neither, the root was missed when the first leases were
    created, and it gets a lease now.

    An empty listing gives an empty plan. An inconsistent listing gives a plan with `inconsistent` only, unless
    `ignore_unexpected_children` is set.
    """
    if not shards:
        return SyncPlan()
    unexpected = inconsistent_shards(shards)
    if unexpected and not ignore_unexpected_children:
        return SyncPlan(inconsistent=unexpected)
    listed = {shard.id: shard for shard in shards}
    held = {lease.shard_id: lease for lease in leases}
    creates: dict[str, Checkpoint] = {}
    if not as_kcl:
        for orphan in _orphans(listed, held):
            creates[orphan] = TRIM_HORIZON
        for parent in _awaited(listed, held):
            # The parent may be one of the application's first shards, so its lease gets the start position. If this
            # is LATEST, workers read from the stored time for which LATEST stands.
            creates[parent] = Checkpoint(start.value)
        past = _ancestors(listed, held)
        for root in roots:
            if root in listed and not listed[root].is_open and root not in held and root not in past:
                creates.setdefault(root, Checkpoint(start.value))
        if start is Position.LATEST:
            for severed in _severed(listed, held, past):
                creates.setdefault(severed, Checkpoint(start.value))
        for done in _ancestors(listed, [*held, *creates]) - held.keys() - creates.keys():
            listed.pop(done, None)
    walk = _Walk(listed, frozenset(held.keys() | creates.keys()), start)
    for shard in in_order(listed.values()):
        if shard.is_open and shard.id not in unexpected:
            walk.visit(shard.id)
    creates.update(walk.creates)
    wanted = in_order(listed[name] for name in creates)
    gone = {lease.shard_id: lease for lease in leases if lease.shard_id not in listed and not lease.is_finished}
    created = tuple(
        replace(new_lease(shard, creates[shard.id], stream), stored_through=_empty_at(shard, gone))
        for shard in wanted
    )
    return SyncPlan(created, unexpected, tuple(gone.values()))


def inconsistent_shards(shards: Iterable[Shard]) -> tuple[str, ...]:
    """Shards with a parent that is listed as open."""
    shards = list(shards)
    still_open = {shard.id for shard in shards if shard.is_open}
    return tuple(shard.id for shard in in_order(shards) if not still_open.isdisjoint(shard.parents))


def descends(name: str | None, shards: Sequence[Shard], leases: Iterable[Lease], start: Position) -> bool:
    """Whether the shard or an ancestor has a lease, or an ancestor has to be read; see `_Walk`. False if the shard
    is not listed."""
    listed = {shard.id: shard for shard in shards}
    if name is None or name not in listed:
        return False
    return _Walk(listed, frozenset(lease.shard_id for lease in leases), start).leads_to(name)


def in_order(shards: Iterable[Shard]) -> list[Shard]:
    """Sort by starting sequence number, then by id as text: parents come before their children."""
    return sorted(shards, key=lambda shard: (int(shard.starting_sequence), shard.id))


def new_lease(shard: Shard, checkpoint: Checkpoint, stream: StreamIdentifier | None) -> Lease:
    """A new lease: counter 0, without an owner."""
    key = stream.lease_key(shard.id) if stream is not None else shard.id
    return Lease(
        key=LeaseKey(key),
        shard_id=shard.id,
        checkpoint=checkpoint,
        parents=frozenset(shard.parents),
        hash_range=shard.hash_range,
        stream=stream if stream is not None and stream.is_multi else None,
    )


def _empty_at(shard: Shard, gone: Mapping[str, Lease]) -> int | None:
    """Return a moment before which a new shard had no records; None if none is known.

    The moment is the latest `stored_through` of those parents that left the stream before they were read to their
    end. `gone`: the leases of such shards. The new shard had no records before the moment, because a shard gets its
    first record only after its parents were closed. Records that arrived in the new shard after the moment may have
    left the stream, as records of its parents did.
    """
    known = [gone[parent].stored_through for parent in shard.parents if parent in gone]
    return max((moment for moment in known if moment is not None), default=None)


def children_of(shards: Iterable[Shard]) -> dict[str, set[str]]:
    """The listed children of every shard."""
    children: dict[str, set[str]] = {}
    for shard in shards:
        for parent in shard.parents:
            children.setdefault(parent, set()).add(shard.id)
    return children


def _ancestors(listed: Mapping[str, Shard], names: Iterable[str]) -> set[str]:
    """Return all ancestors of `names`. A member of `names` is included only if it is an ancestor of another
    member."""
    found: set[str] = set()
    queue = list(names)
    while queue:
        shard = listed.get(queue.pop())
        new = set(shard.parents) - found if shard is not None else set()
        found |= new
        queue.extend(new)
    return found


def _orphans(listed: Mapping[str, Shard], held: Mapping[str, Lease]) -> set[str]:
    """Return the shards without a lease that need one now.

    A shard needs a lease if a parent of it is finished, or if a parent has left the stream while the lease of this
    parent remains. There are two exceptions:

    - A descendant of the shard has a lease. The shard needs no lease, because it was read, and its lease was then
      cleaned up.
    - The shard has a second parent that was not begun yet. This parent is still in the stream, and neither the
      parent nor a descendant of it has a lease. It must be read before the shard, so the shard needs no lease yet.
    """
    past = _ancestors(listed, held)
    found: set[str] = set()
    for shard in listed.values():
        if shard.id in held or shard.id in past:
            continue
        parents = [parent for parent in shard.parents if parent in listed or parent in held]
        released = any(parent in held and (held[parent].is_finished or parent not in listed) for parent in parents)
        if released and all(parent in held or parent in past for parent in parents):
            found.add(shard.id)
    return found


def _severed(listed: Mapping[str, Shard], held: Mapping[str, Lease], past: Collection[str]) -> set[str]:
    """Return the closed shards that have no lease and would therefore never be read.

    Normally, a shard gets its lease when its parents have been read. The parents of these shards will not be read,
    because they have left the stream and have no leases. This happens if there was no leader for a long time.

    Only an application that began at LATEST needs this function. With other start positions, `_Walk` finds these
    shards among the ancestors of the open shards. The result can include shards that were closed before the
    application began. A lease does no harm there: it begins at the stored time of LATEST, and the shard has no
    records after this time.
    """
    return {
        shard.id
        for shard in listed.values()
        if not shard.is_open and shard.parents and shard.id not in held and shard.id not in past
        if not any(parent in listed or parent in held for parent in shard.parents)
    }


def _awaited(listed: Mapping[str, Shard], held: Mapping[str, Lease]) -> set[str]:
    """Return the parents whose leases were lost.

    Each of them is listed without a lease, and is a parent of a merged shard that has a lease and is not read yet.
    The other parent of the merged shard is being read, or was read to its end. Clean-up does not delete the lease
    of a parent before its children are read, so the missing lease was not cleaned up.
    """
    found: set[str] = set()
    for name, lease in held.items():
        if name not in listed or lease.checkpoint is None or not lease.checkpoint.is_initial_position:
            continue
        parents = set(listed[name].parents) - {lease.ended_parent}
        is_read = any(parent in held and not held[parent].is_finished for parent in parents)
        lost = parents if is_read else lease.awaited_parents
        found |= {parent for parent in lost if parent in listed and parent not in held}
    return found


@dataclass(slots=True)
class _Walk:
    """Visits shards from the open shards upwards, each once.

    A shard *descends* if it or an ancestor has a lease, or if an ancestor has to be read. If a shard that descends
    has no lease yet, it gets one later, when its parents have been read to their end.
    """

    listed: Mapping[str, Shard]
    held: frozenset[str]
    start: Position
    creates: dict[str, Checkpoint] = field(default_factory=dict)
    _descends: dict[str, bool] = field(default_factory=dict)
    _wanted: set[str] = field(default_factory=set)

    def visit(self, name: str) -> None:
        """Visit an open shard. If neither it nor an ancestor has or gets a lease, it needs one now."""
        if not self.leads_to(name) and name not in self.held:
            self.creates[name] = Checkpoint(self.start.value)

    def leads_to(self, name: str) -> bool:
        for shard in self._upwards(name):
            self._judge(self.listed[shard])
        return self._descends[name]

    def _upwards(self, name: str) -> list[str]:
        """Return `name` and its ancestors that `_judge` has not seen yet, parents before children. Ancestors of a
        shard with a lease are left out. This is a loop instead of a recursion, because the history of a stream can
        have thousands of generations."""
        order: list[str] = []
        stack = [(name, False)]
        entered: set[str] = set()
        while stack:
            shard, expanded = stack.pop()
            if expanded:
                order.append(shard)
            elif shard in self.listed and shard not in self._descends and shard not in entered:
                entered.add(shard)
                stack.append((shard, True))
                if shard not in self.held:
                    stack.extend((parent, False) for parent in self.listed[shard].parents)
        return order

    def _judge(self, shard: Shard) -> None:
        if shard.id in self.held:
            self._descends[shard.id] = True
            return
        parents = [parent for parent in shard.parents if parent in self.listed]
        leading = {parent for parent in parents if self._descends[parent] or parent in self._wanted}
        self._descends[shard.id] = bool(leading)
        if leading:
            self._complete(parents, leading)
        elif self.start in _INCLUDE_THE_PAST:
            self._wanted.add(shard.id)

    def _complete(self, parents: Iterable[str], leading: set[str]) -> None:
        """Plan leases for the parents of a shard that descends, because every parent must be read before the shard.
        Parents that have a lease or descend themselves are left out."""
        for parent in parents:
            if parent in self.held:
                continue
            if parent in self._wanted or parent not in leading:
                from_its_start = parent in leading and self.start is not Position.AT_TIMESTAMP
                self.creates[parent] = TRIM_HORIZON if from_its_start else Checkpoint(self.start.value)
