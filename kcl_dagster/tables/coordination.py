"""Requests that write rows other than leases, as data: worker rows, the leader lock, the state rows, the leader's
memory, and start positions.

Each function returns a request and sends nothing. Its docstring says what the request does. "Fails if ..." means
that DynamoDB refuses the request because its condition does not hold.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kcl_dagster.model.lease import WorkerId
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.tables import attributes as a
from kcl_dagster.tables.attributes import Item, Value, n, s
from kcl_dagster.tables.expressions import Request, Update, delete, put
from kcl_dagster.tables.places import Place
from kcl_dagster.tables.rows import DRAIN, LAST_UPDATE

ABSENT: Final = "attribute_not_exists(#key)"
PRESENT: Final = "attribute_exists(#key)"

# --- worker rows -------------------------------------------------------------------------------------------------


def put_worker(place: Place, worker: WorkerId, values: Mapping[str, Value]) -> Request:
    """Write a heartbeat of a worker, and create the worker's row if there is none. In a layout with one table for
    all rows, the request fails if a row of another kind has the key."""
    update = Update(place.table, place.key, s(worker)).set(values)
    if place.key == a.LEASE_KEY:
        update.set({a.ENTITY_TYPE: s(a.WORKER)}).require(f"({ABSENT} OR {a.ENTITY_TYPE} = :{a.ENTITY_TYPE})")
    return update.request()


def beat_worker(place: Place, worker: WorkerId, values: Mapping[str, Value]) -> Request:
    """Write a heartbeat into an existing row. Fails if there is no row: a heartbeat that arrives after the worker
    has deleted its row must not create the row again."""
    update = Update(place.table, place.key, s(worker)).set(values).require(PRESENT)
    if place.key == a.LEASE_KEY:
        update.set({a.ENTITY_TYPE: s(a.WORKER)}).require(f"{a.ENTITY_TYPE} = :{a.ENTITY_TYPE}")
    return update.request()


def delete_worker(place: Place, row: WorkerRow) -> Request:
    """Delete a worker's row. Fails if the worker has written since `row` was read."""
    update = Update(place.table, place.key, s(row.id)).require(PRESENT)
    update.require_equal(LAST_UPDATE, "seen", None if row.last_update is None else n(row.last_update))
    condition = update.remove(LAST_UPDATE).request().parameters
    return delete(
        place.table,
        place.key,
        s(row.id),
        condition["ConditionExpression"],
        condition.get("ExpressionAttributeValues"),
    )


def request_drain(place: Place, worker: WorkerId, *, wanted: bool) -> Request:
    """Ask a worker to drain, or withdraw the request. Fails if the worker has no row."""
    update = Update(place.table, place.key, s(worker)).require(PRESENT).require(f"attribute_exists({LAST_UPDATE})")
    return update.set({DRAIN: {"BOOL": wanted}}).request()


# --- leader lock: the rows and conditions of Amazon's lock client ------------------------------------------------

LEADER_KEY: Final = "Leader"
LOCK_OWNER: Final = "ownerName"
LOCK_DURATION: Final = "leaseDuration"  # milliseconds, as text
LOCK_VERSION: Final = "recordVersionNumber"
LOCK_RELEASED: Final = "isReleased"
LOCK_PROCESS: Final = "kdProcess"  # the process that holds the lock, and its machine; the KCL ignores the attribute


def _lock_item(place: Place, owner: str, milliseconds: int, version: str, process: str | None) -> Item:
    item = {
        place.key: s(LEADER_KEY),
        a.ENTITY_TYPE: s(a.LEADER),
        LOCK_OWNER: s(owner),
        LOCK_DURATION: s(str(milliseconds)),
        LOCK_VERSION: s(version),
    }
    return item if process is None else {**item, LOCK_PROCESS: s(process)}


def acquire_lock(
    place: Place, owner: str, milliseconds: int, version: str, *, process: str | None = None
) -> Request:
    """Acquire a lock that has no row. Fails if there is a row."""
    return put(place.table, place.key, _lock_item(place, owner, milliseconds, version, process), ABSENT)


def take_lock(
    place: Place, owner: str, milliseconds: int, version: str, watched: str, *, process: str | None = None
) -> Request:
    """Replace the row of a lock that was released, or whose holder has ended. Fails if the version in the row is
    not `watched`."""
    return put(
        place.table,
        place.key,
        _lock_item(place, owner, milliseconds, version, process),
        f"{PRESENT} AND {LOCK_VERSION} = :watched",
        {":watched": s(watched)},
    )


def heartbeat_lock(
    place: Place, owner: str, milliseconds: int, version: str, held: str, *, process: str | None = None
) -> Request:
    """Renew a lock that `owner` holds. Fails if the row has another version than `held`, or another owner."""
    update = Update(place.table, place.key, s(LEADER_KEY)).require(PRESENT)
    update.require_equal(LOCK_VERSION, "held", s(held)).require_equal(LOCK_OWNER, "owner", s(owner))
    update.set({LOCK_DURATION: s(str(milliseconds)), LOCK_VERSION: s(version)})
    if process is not None:
        update.set({LOCK_PROCESS: s(process)})
    return update.request("NONE")


def still_leads(place: Place, owner: str, milliseconds: int, version: str) -> Request:
    """Write the row of the lock without a change. Fails if the row has another version or another owner. For use
    within a transaction."""
    update = Update(place.table, place.key, s(LEADER_KEY)).require(PRESENT)
    update.require_equal(LOCK_VERSION, "held", s(version)).require_equal(LOCK_OWNER, "owner", s(owner))
    return update.set({LOCK_DURATION: s(str(milliseconds))}).request("NONE")


def release_lock(place: Place, owner: str, held: str) -> Request:
    """Delete the row of the lock. Fails if the row has another version than `held` or another owner."""
    return delete(
        place.table,
        place.key,
        s(LEADER_KEY),
        f"{PRESENT} AND {LOCK_VERSION} = :held AND {LOCK_OWNER} = :owner",
        {":held": s(held), ":owner": s(owner)},
    )


# --- client version ----------------------------------------------------------------------------------------------

CLIENT_VERSION_KEY: Final = "Migration3.0"
VERSION: Final = "cv"
MODIFIED_BY: Final = "mb"
MODIFIED: Final = "mts"  # epoch milliseconds
HISTORY: Final = "h"  # newest first
HISTORY_LENGTH: Final = 10


def _version_values(version: str, by: str, at: int) -> dict[str, Value]:
    return {VERSION: s(version), MODIFIED_BY: s(by), MODIFIED: n(at)}


def create_version(place: Place, version: str, by: str, at: int) -> Request:
    """Declare the protocol that a new application's workers use. Fails if a protocol is declared already."""
    item: dict[str, Any] = {place.key: s(CLIENT_VERSION_KEY), a.ENTITY_TYPE: s(a.CLIENT_VERSION)}
    history = [{"M": _version_values("CLIENT_VERSION_INIT", by, at)}]
    return put(place.table, place.key, item | _version_values(version, by, at) | {HISTORY: {"L": history}}, ABSENT)


def change_version(
    place: Place, version: str, by: str, at: int, known: Mapping[str, Value], history: Sequence[Value]
) -> Request:
    """Declare another protocol. Fails if the version in the row is no longer the version in `known`. `history`: the
    history that the row has now."""
    kept = [{"M": {name: known[name] for name in (VERSION, MODIFIED_BY, MODIFIED) if name in known}}, *history]
    update = Update(place.table, place.key, s(CLIENT_VERSION_KEY)).require(PRESENT)
    update.require_equal(VERSION, "known", known[VERSION]).set(_version_values(version, by, at))
    return update.set({HISTORY: {"L": kept[:HISTORY_LENGTH]}}).request()


# --- rows of kcl_dagster -----------------------------------------------------------------------------------------

MEMORY_KEY: Final = "kdLeaderMemory"  # one row, which each save overwrites
DOCUMENT: Final = "document"
FORMAT: Final = "format"

STARTS_PREFIX: Final = "kdStart:"
START_STREAM: Final = "stream"
START_POSITION: Final = "position"
START_TIMESTAMP: Final = "startsAt"  # epoch milliseconds
START_CREATED: Final = "streamCreated"  # epoch seconds
START_ADOPTED: Final = "isAdopted"
START_COUNTED: Final = "countedSince"  # epoch seconds


def save_memory(place: Place, document: bytes, layout_version: int) -> Request:
    """Save the leader's memory without a condition. If a document is lost or replaced by an older one, a takeover
    or a launch may be delayed. There is no other effect."""
    item: Item = {
        place.key: s(MEMORY_KEY),
        a.ENTITY_TYPE: s(a.LEADER_MEMORY),
        FORMAT: n(layout_version),
        DOCUMENT: {"B": document},
    }
    return put(place.table, place.key, item, None)


def record_start(place: Place, stream: str, values: Mapping[str, Value]) -> Request:
    """Store the position at which a stream's shards start. Fails if a position is stored already."""
    return put(place.table, place.key, start_item(place.key, stream, values), ABSENT)


def replace_start(place: Place, stream: str, values: Mapping[str, Value]) -> Request:
    """Replace the position at which a stream's shards start: for an audited reset, or for another stream with the
    same name."""
    return put(place.table, place.key, start_item(place.key, stream, values), None)


def delete_start(place: Place, stream: str) -> Request:
    """Delete the position at which a stream's shards start. Only for multi-stream applications, in which the key of
    the row contains the stream's creation time. A newer stream with the same name therefore has another row, and
    sending the request twice does no harm."""
    return delete(place.table, place.key, s(start_key(stream)), None)


def start_key(stream: str) -> str:
    return f"{STARTS_PREFIX}{stream}"


def start_item(key_attribute: str, stream: str, values: Mapping[str, Value]) -> Item:
    key = {key_attribute: s(start_key(stream)), a.ENTITY_TYPE: s(a.START_POSITION), START_STREAM: s(stream)}
    return {**key, **values}
