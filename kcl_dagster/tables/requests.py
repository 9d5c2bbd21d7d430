"""Every transition of a lease, as a request.

    create            without owner, nothing read; by the leader, or by the worker that finishes the parent
    take              owned by the worker that takes it; the counter is the one that it read
    assign            owned by the worker that the leader chose; any counter
    initiate_handoff  two owners: the next owner, and the old owner that still reads
    transfer          owned by the next owner
    renew             the counter is raised
    prepare           the pending checkpoint is set: a batch is about to be written
    checkpoint        the batch is written, nothing is pending; a chain may claim the lease, or end its claim
    release           without owner again
    vacate            without owner, also out of a handoff whose next owner has ended
    delete            the row is removed

The conditions are the KCL's or stricter: its clients and ours may race on any row. `assign` can be made conditional
on the counter. In this way a lease is taken without its owner's consent: a renewal in between makes the write fail.
All writes are per attribute, so the attributes of other clients remain as they are.

Modelled in spec/ExactlyOnce.tla: each condition can be switched off there, and the model then finds a violation.
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
    """Fails if anything has this key."""
    if lease.checkpoint is None:
        msg = f"lease {lease.key} has no checkpoint: the KCL could not read it"
        raise ValueError(msg)
    return put_item(table, a.LEASE_KEY, lease_to_item(lease), "attribute_not_exists(#key)")


def create_child(table: str, child: Lease, parent: LeaseKey, children: frozenset[str]) -> Request:
    """Create the lease of a child, and record the `children` in the parent's lease. Fails if the child has a lease,
    and if the parent's lease is finished or deleted.

    A child is not read, finished or cleaned up while its parent is unfinished. So a process that is paused before
    this write cannot recreate the lease of a child that others have read meanwhile.
    """
    note = _update(table, parent).require(_EXISTS)
    note.require(f"{a.CHECKPOINT} <> :end", {":end": s(SHARD_END.sequence)}).set({a.CHILDREN: names(children)})
    return guarded(create(table, child), note.request())


def renew(
    table: str, lease: Lease, throughput_kbps: float | None = None, stored_through: int | None = None
) -> Request:
    """Raise the counter. Fails if the counter or the owner changed, or if a handoff began that is not in
    `lease`."""
    update = _by_owner(table, lease)
    if lease.checkpoint_owner is None:
        update.require(f"attribute_not_exists({a.CHECKPOINT_OWNER})")
    if throughput_kbps is not None:
        update.set({a.THROUGHPUT: throughput_value(throughput_kbps)})
    if stored_through is not None:
        update.set({a.STORED_THROUGH: n(stored_through)})
        if lease.ended_parent is not None:  # the shard was read
            update.remove(a.ENDED_PARENT)
    return update.request("NONE")  # the condition implies what the row holds now


def take(table: str, lease: Lease, new_owner: WorkerId) -> Request:
    """Take a lease, with or without its owner's consent. Fails if its counter moved. Ends a handoff."""
    update = _by_counter(table, lease).set({a.OWNER: s(new_owner)}).remove(a.CHECKPOINT_OWNER)
    return _count_switch(update, lease, new_owner).request()


def assign(table: str, lease: Lease, to: WorkerId, counter: int | None = None) -> Request:
    """Give a lease to a worker. Fails if its owners changed; with `counter` also if that moved. Ends a handoff."""
    update = _by_owners(table, lease)
    if counter is not None:
        update.require_equal(a.COUNTER, "counter", n(counter))
    update.set({a.OWNER: s(to)}).remove(a.CHECKPOINT_OWNER).add_one(a.COUNTER)
    return _count_switch(update, lease, to).request()


def transfer(table: str, lease: Lease) -> Request:
    """Complete a handoff: the old owner stops, the next one may start."""
    if lease.owner is None or lease.checkpoint_owner is None:
        msg = f"lease {lease.key} is not being handed over"
        raise ValueError(msg)
    return assign(table, lease, lease.owner)


def initiate_handoff(table: str, lease: Lease, to: WorkerId) -> Request:
    """Name the next owner; the present one goes on until it transfers. The counter stays, so it keeps renewing.

    Fails if the owner changed or a handoff is under way.
    """
    if lease.owner is None or lease.checkpoint_owner is not None or to == lease.owner:
        msg = f"lease {lease.key} of {lease.owner} cannot be handed over to {to}"
        raise ValueError(msg)
    update = _update(table, lease.key).require(_EXISTS)
    update.require_equal(a.OWNER, "owner", s(lease.owner))
    update.require_equal(a.CHECKPOINT_OWNER, "checkpointOwner", None)
    return update.set({a.OWNER: s(to), a.CHECKPOINT_OWNER: s(lease.owner)}).copy(a.COUNTER, a.HANDOFF).request()


def release(table: str, lease: Lease) -> Request:
    """Give a lease up: unowned, or in a handoff the next owner's. Fails if its owners changed."""
    update = _by_owners(table, lease)
    if lease.checkpoint_owner is None:
        update.remove(a.OWNER)
    return update.remove(a.CHECKPOINT_OWNER).add_one(a.COUNTER).request()


def vacate(table: str, lease: Lease, counter: int | None = None) -> Request:
    """Leave a lease without an owner, also one in a handoff. Fails if its owners changed; with `counter` also if
    that moved."""
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
    """Record progress, clear what was pending, count as a renewal. Fails if the counter moved."""
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
    """Announce a batch before it is written; progress stays. Counts as a renewal. Fails if the counter moved."""
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
    """Put an unowned lease to another position, whatever was pending. Fails if another process owns or wrote it.

    `counted_since`: all records that arrived then (epoch seconds) or later are behind the position. What is stored
    of windows that begin earlier is not known from then on. None: it is found with the first batch.

    The chain that may have entries for the lease remains named, so its next owner settles it: they are no progress.
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
    """Fails if the lease is gone: a late write must not bring back half a lease."""
    return _update(table, key).require(_EXISTS).set({a.CHILDREN: names(children)}).request()


def update_hash_range(table: str, key: LeaseKey, hash_range: HashRange) -> Request:
    return _update(table, key).require(_EXISTS).set(hash_range_values(hash_range)).request()


def delete_lease(table: str, lease: Lease, *, forced: bool = False) -> Request:
    """Remove a finished lease; `forced`: any lease whose owners did not change. The KCL asks for neither."""
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
    """A write by the owner, conditional on the counter and on the owner. The counter alone would suffice if leases
    were never deleted: a new lease counts from 0 again, and reaches the number that a former owner read."""
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
    """As the KCL counts: a completed handoff is not a switch, because the next owner was already written."""
    if (lease.owner is not None and lease.owner != new_owner) or lease.checkpoint_owner == new_owner:
        update.add_one(a.SWITCHES)
    return update
