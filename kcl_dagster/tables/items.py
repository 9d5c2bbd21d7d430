"""Converts between `Lease` and its item in the table."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.claim import ChainId, Claim, ClaimId, is_chain_id, packed_claim, unpacked_claim
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.shard import HashRange
from kcl_dagster.model.stored import StoredCounts, packed, unpacked
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.tables import attributes as a
from kcl_dagster.tables.attributes import Item, ItemReader, Value, n, s
from kcl_dagster.tables.rows import worker_row_from_item, worker_row_to_item, worker_row_values

__all__ = [
    "checkpoint_values",
    "claim_values",
    "lease_from_changed_item",
    "lease_from_item",
    "lease_to_item",
    "throughput_value",
    "worker_row_from_item",
    "worker_row_to_item",
    "worker_row_values",
]

_PARENTS_PLURAL: Final = "parentShardIds"  # the name in some descriptions of the KCL; it is read, but never written


def lease_from_item(item: Mapping[str, Any], *, multi_stream: bool | None = None) -> Lease | None:
    """Return the lease in an item that KCL 2.x, 3.0-3.4, 3.5 or kcl_dagster wrote. None if the item is not a lease.

    `multi_stream`: whether leases have to name their stream, as in an application with several streams. A lease in
    the other form is refused. If `multi_stream` is None, both forms are accepted. Raises UnreadableItem for values
    that no KCL writes. Unknown attributes are ignored.
    """
    reader = ItemReader(item, a.LEASE_KEY)
    if reader.text(a.ENTITY_TYPE) not in {None, a.LEASE}:
        return None
    stream, shard_id = _shard(reader, multi_stream=multi_stream)
    return Lease(
        key=LeaseKey(reader.key),
        shard_id=shard_id,
        counter=reader.required_whole(a.COUNTER),
        owner=_worker(reader, a.OWNER),
        checkpoint_owner=_worker(reader, a.CHECKPOINT_OWNER),
        checkpoint=_checkpoint(reader, a.CHECKPOINT, a.CHECKPOINT_SUB),
        pending_checkpoint=_checkpoint(reader, a.PENDING, a.PENDING_SUB),
        pending_state=reader.blob(a.PENDING_STATE),
        owner_switches=reader.required_whole(a.SWITCHES),
        parents=reader.names(a.PARENTS) or reader.names(_PARENTS_PLURAL),
        children=reader.names(a.CHILDREN),
        hash_range=_hash_range(reader),
        throughput_kbps=_throughput(reader),
        stream=stream,
        batch=reader.whole(a.BATCH) or 0,
        stored_through=reader.whole(a.STORED_THROUGH),
        stored=_stored(reader),
        claim=_claim(reader),
        handoff=reader.whole(a.HANDOFF),
        ended_parent=reader.text(a.ENDED_PARENT),
    )


def lease_from_changed_item(item: Mapping[str, Any], before: Mapping[str, Any], lease: Lease) -> Lease | None:
    """Return the lease in `item`. `before`: an earlier item of the same lease, and `lease`: the lease that was
    parsed from it. Only the attributes that differ between the two items are parsed. This takes half the time of
    `lease_from_item`.

    Returns None if the items do not have the same attributes, or if an attribute that is not in `_WRITTEN_BY_OWNER`
    has changed. Raises UnreadableItem.
    """
    if item.keys() != before.keys():
        return None
    changed = [name for name, value in item.items() if value != before[name]]
    if not all(name in _WRITTEN_BY_OWNER for name in changed):
        return None
    reader = ItemReader(item, a.LEASE_KEY)
    fields = dict(_WRITTEN_BY_OWNER[name] for name in changed)
    return replace(lease, **{field: read(reader) for field, read in fields.items()})


def lease_to_item(lease: Lease) -> Item:
    """Return the whole item of a lease, with which the row of the lease is created."""
    item: Item = {a.LEASE_KEY: s(lease.key), a.ENTITY_TYPE: s(a.LEASE), a.COUNTER: n(lease.counter)}
    if lease.owner is not None:
        item[a.OWNER] = s(lease.owner)
    if lease.checkpoint_owner is not None:
        item[a.CHECKPOINT_OWNER] = s(lease.checkpoint_owner)
    item[a.SWITCHES] = n(lease.owner_switches)
    if lease.checkpoint is not None:
        item |= checkpoint_values(lease.checkpoint)
    if lease.pending_checkpoint is not None:
        item |= checkpoint_values(lease.pending_checkpoint, pending=True)
    if lease.pending_state is not None:
        item[a.PENDING_STATE] = {"B": lease.pending_state}
    if lease.parents:
        item[a.PARENTS] = a.names(lease.parents)
    if lease.children:
        item[a.CHILDREN] = a.names(lease.children)
    if lease.hash_range is not None:
        item |= hash_range_values(lease.hash_range)
    if lease.throughput_kbps is not None:
        item[a.THROUGHPUT] = throughput_value(lease.throughput_kbps)
    if lease.batch:
        item[a.BATCH] = n(lease.batch)
    if lease.stored_through is not None:
        item[a.STORED_THROUGH] = n(lease.stored_through)
    if lease.stored is not None:
        item[a.STORED] = {"B": packed(lease.stored)}
    if lease.ended_parent is not None:
        item[a.ENDED_PARENT] = s(lease.ended_parent)
    return item | stream_values(lease)


def checkpoint_values(checkpoint: Checkpoint, *, pending: bool = False) -> dict[str, Value]:
    sequence, sub = (a.PENDING, a.PENDING_SUB) if pending else (a.CHECKPOINT, a.CHECKPOINT_SUB)
    return {sequence: s(checkpoint.sequence), sub: n(checkpoint.sub_sequence)}


def claim_values(claim: Claim) -> dict[str, Value]:
    values = {a.CHAIN: s(claim.chain)}
    if claim.id is not None:
        values[a.CLAIM] = s(claim.id)
    state = packed_claim(claim)
    return values if state is None else {**values, a.CLAIM_STATE: s(state)}


def hash_range_values(hash_range: HashRange) -> dict[str, Value]:
    return {a.HASH_START: s(str(hash_range.start)), a.HASH_END: s(str(hash_range.end))}


def stream_values(lease: Lease) -> dict[str, Value]:
    """Return the attributes that name the stream and the shard of a lease; none in a single-stream application. The
    KCL writes them with every checkpoint."""
    if lease.stream is None or not lease.stream.is_multi:
        return {}
    return {a.STREAM: s(str(lease.stream)), a.SHARD: s(lease.shard_id)}


def throughput_value(kbps: float) -> Value:
    return {"N": a.java_double(a.rounded(kbps))}


def _worker(reader: ItemReader, attribute: str) -> WorkerId | None:
    text = reader.text(attribute)
    return WorkerId(text) if text is not None else None


def _claim(reader: ItemReader) -> Claim | None:
    chain, claim = reader.text(a.CHAIN), reader.text(a.CLAIM)
    if chain is None:
        return None
    if not is_chain_id(chain):
        reader.refuse(a.CHAIN, "is not the name of a chain")
    try:
        return unpacked_claim(ChainId(chain), None if claim is None else ClaimId(claim), reader.text(a.CLAIM_STATE))
    except ValueError as error:
        reader.refuse(a.CLAIM_STATE, f"is not the state of a claim: {error}")


def _checkpoint(reader: ItemReader, attribute: str, sub_attribute: str) -> Checkpoint | None:
    if attribute == a.PENDING and reader.raw(attribute, "S") == "":
        return None  # KCL 2.x writes an empty text if there is no pending checkpoint
    text = reader.text(attribute)
    sub = reader.whole(sub_attribute)
    if text is None:
        return None
    try:
        return Checkpoint(text, sub or 0)  # the oldest clients wrote no sub-sequence number
    except ValueError as error:
        reader.refuse(attribute, str(error))


def _throughput(reader: ItemReader) -> float | None:
    throughput = reader.number(a.THROUGHPUT)
    if throughput is not None and throughput < 0:
        reader.refuse(a.THROUGHPUT, f"should not be negative, is {throughput}")
    return throughput


def _stored(reader: ItemReader) -> StoredCounts | None:
    return unpacked(reader.blob(a.STORED) or b"")


def _hash_range(reader: ItemReader) -> HashRange | None:
    start, end = reader.hash_key(a.HASH_START), reader.hash_key(a.HASH_END)
    if start is None and end is None:
        return None
    if start is None or end is None:
        reader.refuse(a.HASH_START if start is None else a.HASH_END, "is missing while its counterpart is there")
    try:
        return HashRange(start, end)
    except ValueError as error:
        reader.refuse(a.HASH_START, str(error))


def _shard(reader: ItemReader, *, multi_stream: bool | None) -> tuple[StreamIdentifier | None, str]:
    stream_text, shard_text = reader.text(a.STREAM), reader.text(a.SHARD)
    if stream_text is None and shard_text is None:
        if multi_stream:
            reader.refuse(a.STREAM, "is missing: the lease belongs to a single-stream application")
        return None, reader.key
    if multi_stream is False:
        reader.refuse(a.STREAM, "is there: the lease belongs to a multi-stream application")
    if stream_text is None or shard_text is None:
        reader.refuse(a.STREAM if stream_text is None else a.SHARD, "is missing while its counterpart is there")
    try:
        stream = StreamIdentifier.parse(stream_text)
    except ValueError as error:
        reader.refuse(a.STREAM, str(error))
    if stream.lease_key(shard_text) != reader.key:
        reader.refuse(a.SHARD, f"{shard_text!r} and {a.STREAM} {stream_text!r} do not give the key")
    return stream, shard_text


# The attributes that renewals and checkpoints change, each with the field of the lease and the function that reads
# it.
_WRITTEN_BY_OWNER: Final[Mapping[str, tuple[str, Callable[[ItemReader], Any]]]] = {
    a.COUNTER: ("counter", lambda reader: reader.required_whole(a.COUNTER)),
    a.THROUGHPUT: ("throughput_kbps", _throughput),
    a.CHECKPOINT: ("checkpoint", lambda reader: _checkpoint(reader, a.CHECKPOINT, a.CHECKPOINT_SUB)),
    a.CHECKPOINT_SUB: ("checkpoint", lambda reader: _checkpoint(reader, a.CHECKPOINT, a.CHECKPOINT_SUB)),
    a.BATCH: ("batch", lambda reader: reader.whole(a.BATCH) or 0),
    a.STORED_THROUGH: ("stored_through", lambda reader: reader.whole(a.STORED_THROUGH)),
    a.STORED: ("stored", _stored),
}
