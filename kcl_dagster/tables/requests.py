"""Every transition of a lease, as a request.

    create            no owner, initial checkpoint; by the leader, or by the worker that finishes the parent
    take              owned by the worker that takes it; requires the counter that this worker read
    assign            owned by the worker that the leader chose; accepts any counter
    initiate_handoff  two owners: the next owner, and the old owner that still reads
    transfer          owned by the next owner
    renew             the counter is raised
    prepare           the pending checkpoint is set: a batch is about to be written
    checkpoint        the batch is written, nothing is pending; the write can also begin or end a chain's claim
    release           no owner; in a handoff, owned by the next owner
    vacate            no owner, even if a handoff was under way
    delete            the row is removed

Each line names a request, and the state of the lease after it. Each function returns a request and sends nothing.
Its docstring says what the request does. "Fails if ..." means that DynamoDB refuses the request.

The conditions are at least as strict as those of the KCL, because Java workers and kcl_dagster workers may write a
row at the same time. `assign` can be made conditional on the counter. The leader uses such a request to take a
lease without its owner's consent. The request fails if the owner has renewed the lease since the leader read it.
Updates change only the attributes that they name, so attributes of other clients are preserved. A chain is a
worker's log of committed batches, see `kcl_dagster.chains`.

Modelled in spec/ExactlyOnce.tla. If one of the conditions is switched off in the model, the model checker finds a
violation.
"""

from kcl_dagster.model.checkpoint import SHARD_END, Checkpoint
from kcl_dagster.model.claim import Claim
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.shard import HashRange
from kcl_dagster.model.stored import StoredCounts, nothing_since, packed
from kcl_dagster.tables import attributes as a
from kcl_dagster.tables.attributes import n, names, s
from kcl_dagster.tables.expressions import Request, Update, guarded
from kcl_dagster.tables.expressions import delete as delete_item
from kcl_dagster.tables.expressions import put as put_item
from kcl_dagster.tables.items import (
    checkpoint_values,
    claim_values,
    hash_range_values,
    lease_to_item,
    stream_values,
    throughput_value,
)

_EXISTS = f"attribute_exists({a.LEASE_KEY})"


def create(table: str, lease: Lease) -> Request:
    """Create a lease. Fails if the key is in use."""
    if lease.checkpoint is None:
        msg = f"lease {lease.key} has no checkpoint: the KCL could not read it"
        raise ValueError(msg)
    return put_item(table, a.LEASE_KEY, lease_to_item(lease), "attribute_not_exists(#key)")


def create_child(table: str, child: Lease, parent: LeaseKey, children: frozenset[str]) -> Request:
    """Create the lease of a child, and record the `children` in the parent's lease. Fails if the child has a lease,
    or if the parent's lease is finished or deleted.

    The child's lease is finished and deleted only after the parent's lease is finished. So if this process pauses
    before the write, and other processes create, finish and delete the child's lease meanwhile, the parent's lease
    is finished, too. The write then fails, and does not create the child's lease again.
    """
    note = _update(table, parent).require(_EXISTS)
    note.require(f"{a.CHECKPOINT} <> :end", {":end": s(SHARD_END.sequence)}).set({a.CHILDREN: names(children)})
    return guarded(create(table, child), note.request())


def renew(
    table: str, lease: Lease, throughput_kbps: float | None = None, stored_through: int | None = None
) -> Request:
    """Raise the counter. Fails if the counter or the owner has changed, or if a handoff has begun since `lease` was
    read."""
    update = _by_owner(table, lease)
    if lease.checkpoint_owner is None:
        update.require(f"attribute_not_exists({a.CHECKPOINT_OWNER})")
    if throughput_kbps is not None:
        update.set({a.THROUGHPUT: throughput_value(throughput_kbps)})
    if stored_through is not None:
        update.set({a.STORED_THROUGH: n(stored_through)})
        if lease.ended_parent is not None:  # the shard has been read, so this attribute is no longer needed
            update.remove(a.ENDED_PARENT)
    return update.request("NONE")  # the condition determines the row, so the response need not contain it


def take(table: str, lease: Lease, new_owner: WorkerId) -> Request:
    """Take a lease, with or without its owner's consent. Fails if the counter has changed. Ends a handoff."""
    update = _by_counter(table, lease).set({a.OWNER: s(new_owner)}).remove(a.CHECKPOINT_OWNER)
    return _count_switch(update, lease, new_owner).request()


def assign(table: str, lease: Lease, to: WorkerId, counter: int | None = None) -> Request:
    """Give a lease to a worker. If the lease is in a handoff, this ends the handoff. The request fails if the
    owners have changed. If `counter` is given, it also fails if the lease has another counter."""
    update = _by_owners(table, lease)
    if counter is not None:
        update.require_equal(a.COUNTER, "counter", n(counter))
    update.set({a.OWNER: s(to)}).remove(a.CHECKPOINT_OWNER).add_one(a.COUNTER)
    return _count_switch(update, lease, to).request()


def transfer(table: str, lease: Lease) -> Request:
    """Complete a handoff: the old owner has stopped, and the next owner can start. Fails if the owners have
    changed."""
    if lease.owner is None or lease.checkpoint_owner is None:
        msg = f"lease {lease.key} is not being handed over"
        raise ValueError(msg)
    return assign(table, lease, lease.owner)


def initiate_handoff(table: str, lease: Lease, to: WorkerId) -> Request:
    """Begin a handoff: write the next owner. The present owner continues to read until it transfers the lease. The
    counter is not changed, so the present owner can still renew. Fails if the owner has changed or a handoff is
    under way."""
    if lease.owner is None or lease.checkpoint_owner is not None or to == lease.owner:
        msg = f"lease {lease.key} of {lease.owner} cannot be handed over to {to}"
        raise ValueError(msg)
    update = _update(table, lease.key).require(_EXISTS)
    update.require_equal(a.OWNER, "owner", s(lease.owner))
    update.require_equal(a.CHECKPOINT_OWNER, "checkpointOwner", None)
    return update.set({a.OWNER: s(to), a.CHECKPOINT_OWNER: s(lease.owner)}).copy(a.COUNTER, a.HANDOFF).request()


def release(table: str, lease: Lease) -> Request:
    """Give up a lease. Afterwards, the lease has no owner. In a handoff, the next owner owns it. Fails if the
    owners have changed."""
    update = _by_owners(table, lease)
    if lease.checkpoint_owner is None:
        update.remove(a.OWNER)
    return update.remove(a.CHECKPOINT_OWNER).add_one(a.COUNTER).request()


def vacate(table: str, lease: Lease, counter: int | None = None) -> Request:
    """Remove the owners of a lease, also during a handoff. Fails if the owners have changed. If `counter` is given,
    it also fails if the lease has another counter."""
    update = _by_owners(table, lease)
    if counter is not None:
        update.require_equal(a.COUNTER, "counter", n(counter))
    return update.remove(a.OWNER).remove(a.CHECKPOINT_OWNER).add_one(a.COUNTER).request()


def checkpoint(
    table: str,
    lease: Lease,
    checkpoint: Checkpoint,
    *,
    batch: int | None = None,
    children: frozenset[str] = frozenset(),
    throughput_kbps: float | None = None,
    stored_through: int | None = None,
    stored: StoredCounts | None = None,
    claim: Claim | None = None,
    ends_claim: bool = False,
) -> Request:
    """Record progress and clear the pending checkpoint. Counts as a renewal. Fails if the counter has changed."""
    update = _by_owner(table, lease).set(checkpoint_values(checkpoint)).set({a.SWITCHES: n(0)})
    if children:
        update.set({a.CHILDREN: names(children)})
    if lease.hash_range is not None:
        update.set(hash_range_values(lease.hash_range))
    if throughput_kbps is not None:
        update.set({a.THROUGHPUT: throughput_value(throughput_kbps)})
    if batch is not None:
        update.set({a.BATCH: n(batch)})
    if stored_through is not None:
        update.set({a.STORED_THROUGH: n(stored_through)})
    if stored is not None:
        update.set({a.STORED: {"B": packed(stored)}})
    if claim is not None:
        update.set(claim_values(claim))
    elif ends_claim:
        update.remove(a.CHAIN, a.CLAIM, a.CLAIM_STATE)
    update.set(stream_values(lease))
    return update.remove(a.PENDING, a.PENDING_SUB, a.PENDING_STATE).request()


def prepare_checkpoint(
    table: str, lease: Lease, pending: Checkpoint, *, state: bytes | None = None, batch: int | None = None
) -> Request:
    """Record that a batch begins. The checkpoint is not changed. Counts as a renewal. Fails if the counter has
    changed."""
    update = _by_owner(table, lease).set(checkpoint_values(pending, pending=True))
    if batch is not None:
        update.set({a.BATCH: n(batch)})
    if state is None:
        update.remove(a.PENDING_STATE)
    else:
        update.set({a.PENDING_STATE: {"B": state}})
    return update.request()


def rewind(
    table: str,
    lease: Lease,
    checkpoint: Checkpoint,
    counted_since: int | None = None,
    ended_parent: str | None = None,
) -> Request:
    """Move a lease without an owner to another position, and clear the pending checkpoint. Fails if another process
    owns the lease or has written it.

    `counted_since`: a time in epoch seconds. All records that arrived at this time or later are after the position.
    Once the lease is moved, the counts of windows that begin before this time are not known. If `counted_since` is
    None, the first batch after the move determines this time.

    The row still names the chain that may have entries for the lease. The next owner settles this chain, but its
    entries do not advance the lease.
    """
    update = _by_counter(table, lease).remove(a.CLAIM, a.CLAIM_STATE)
    if ended_parent is None:
        update.remove(a.ENDED_PARENT)
    else:
        update.set({a.ENDED_PARENT: s(ended_parent)})
    update.require_equal(a.OWNER, "owner", None).require_equal(a.CHECKPOINT_OWNER, "checkpointOwner", None)
    update.set(checkpoint_values(checkpoint))
    update.remove(a.PENDING, a.PENDING_SUB, a.PENDING_STATE, a.STORED_THROUGH)
    if counted_since is None:
        return update.remove(a.STORED).request()
    return update.set({a.STORED: {"B": packed(nothing_since(counted_since, checkpoint))}}).request()


def update_children(table: str, key: LeaseKey, children: frozenset[str]) -> Request:
    """Record the children of a shard. Fails if the shard has no lease, because a late write must not create an
    incomplete row."""
    return _update(table, key).require(_EXISTS).set({a.CHILDREN: names(children)}).request()


def update_hash_range(table: str, key: LeaseKey, hash_range: HashRange) -> Request:
    return _update(table, key).require(_EXISTS).set(hash_range_values(hash_range)).request()


def delete_lease(table: str, lease: Lease, *, forced: bool = False) -> Request:
    """Delete a lease. Fails if the lease is not finished. With `forced`, it fails only if the owners have changed.
    The KCL has neither of these conditions."""
    key = s(lease.key)
    if not forced:
        condition, values = f"{a.CHECKPOINT} = :end", {":end": s(SHARD_END.sequence)}
        return delete_item(table, a.LEASE_KEY, key, condition, values)
    owners = _by_owners(table, lease).remove(a.OWNER).request().parameters
    return delete_item(
        table, a.LEASE_KEY, key, owners["ConditionExpression"], owners.get("ExpressionAttributeValues")
    )


def _update(table: str, key: LeaseKey) -> Update:
    return Update(table, a.LEASE_KEY, s(key))


def _by_owner(table: str, lease: Lease) -> Update:
    """Return a write by the owner, conditional on the counter and on the owner. If leases were never deleted, the
    counter alone would suffice. But the counter of a lease that was created again begins at 0, and could reach the
    counter that a former owner read.
    """
    update = _by_counter(table, lease)
    owner = lease.actual_owner
    if owner is None:
        return update
    return update.require(f"({a.OWNER} = :me OR {a.CHECKPOINT_OWNER} = :me)", {":me": s(owner)})


def _by_counter(table: str, lease: Lease) -> Update:
    update = _update(table, lease.key).require_equal(a.COUNTER, "counter", n(lease.counter))
    return update.set({a.COUNTER: n(lease.counter + 1)})


def _by_owners(table: str, lease: Lease) -> Update:
    update = _update(table, lease.key).require(_EXISTS)
    update.require_equal(a.OWNER, "owner", s(lease.owner) if lease.owner is not None else None)
    previous = s(lease.checkpoint_owner) if lease.checkpoint_owner is not None else None
    return update.require_equal(a.CHECKPOINT_OWNER, "handingOver", previous)


def _count_switch(update: Update, lease: Lease, new_owner: WorkerId) -> Update:
    """Count a switch of owners as the KCL does. The completion of a handoff does not count, because the next owner
    was written when the handoff began."""
    if (lease.owner is not None and lease.owner != new_owner) or lease.checkpoint_owner == new_owner:
        update.add_one(a.SWITCHES)
    return update
