"""Old snapshots of an Iceberg table, which a commit expires: each commit reads and writes the list of all of them.

Only a table that says for how long it keeps its snapshots is treated (`history.expire.max-snapshot-age-ms`), and
only the oldest ones, as far as they and the one after them are appends. No data file belongs to such a snapshot
alone, so that what has to be deleted are manifest lists and manifests. What another writer has replaced or deleted
is left to the maintenance of an engine, which has to find the data files in the snapshots.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

AGE: Final = "history.expire.max-snapshot-age-ms"  # properties of a table, as Iceberg defines them
_MIN_SNAPSHOTS: Final = "history.expire.min-snapshots-to-keep"
_MAY_DELETE: Final = "gc.enabled"
# Where a table does not say it: two hours of commits. A snapshot has the time of the worker that made it, and one
# whose clock is ahead would take all others for old.
LEAST_KEPT: Final = 240
FEWEST: Final = 20  # at once: a commit that expires some reads the manifest list of each
MOST: Final = 100  # at once, so that a commit does not take long

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OldSnapshots:
    """`ids`: of the snapshots that are expired, in order. `files`: those that no other snapshot has."""

    ids: list[int]
    files: list[str]


NOTHING_OLD: Final = OldSnapshots([], [])


def old_snapshots(metadata: "TableMetadata", io: "FileIO") -> OldSnapshots:
    """What the next commit expires."""
    old = expirable(metadata)
    if not old:
        return NOTHING_OLD
    *expired, following = old
    try:
        kept = {manifest.manifest_path for manifest in following.manifests(io)}
        # Manifests that have been merged are in no later snapshot.
        found = {
            path: None
            for snapshot in expired
            for path in (snapshot.manifest_list, *(one.manifest_path for one in snapshot.manifests(io)))
        }
    except FileNotFoundError as error:  # deleted by hand: what is left is for an engine
        log.warning("snapshots are not expired, because the manifest list of one is missing: %s", error)
        return NOTHING_OLD
    return OldSnapshots([one.snapshot_id for one in expired], [path for path in found if path not in kept])


def expirable(metadata: "TableMetadata") -> "list[Snapshot]":
    """The snapshots that the next commit expires, in order, and the oldest one that remains. Empty if they are too
    few, or left to an engine. Pure: age counts until the newest snapshot, and the newest ones remain whatever their
    age."""
    properties, newest = metadata.properties, metadata.current_snapshot()
    age, least = properties.get(AGE, ""), properties.get(_MIN_SNAPSHOTS, str(LEAST_KEPT))
    is_allowed = properties.get(_MAY_DELETE, "true").lower() != "false"
    if newest is None or not (age.isdigit() and least.isdigit() and is_allowed) or set(metadata.refs) != {"main"}:
        return []
    history = _history(metadata.snapshots, newest)
    if len(history) != len(metadata.snapshots):
        return []  # a table that was rolled back, or that has snapshots which no branch has yet
    appends = sum(1 for _ in takewhile(_is_append, history))
    # Not until the first that is younger: one whose worker's clock was ahead would keep all that follow it.
    aged = sum(one.timestamp_ms < newest.timestamp_ms - int(age) for one in history)
    count = min(appends - 1, aged, len(history) - max(1, int(least)), MOST)
    return history[: count + 1] if count >= FEWEST else []


def delete_files(io: "FileIO", paths: Iterable[str]) -> None:
    """Of snapshots that have been expired. What cannot be deleted is left to the removal of orphan files."""
    for path in paths:
        try:
            io.delete(path)
        except Exception as error:
            log.warning("%s of an expired snapshot could not be deleted: %s", path, error)


def _history(snapshots: "Iterable[Snapshot]", newest: "Snapshot") -> "list[Snapshot]":
    """The snapshot and its ancestors, the oldest one first."""
    known = {snapshot.snapshot_id: snapshot for snapshot in snapshots}
    found, one = [], known.get(newest.snapshot_id)
    while one is not None:
        found.append(one)
        one = None if one.parent_snapshot_id is None else known.get(one.parent_snapshot_id)
    return found[::-1]


def _is_append(snapshot: "Snapshot") -> bool:
    return snapshot.summary is not None and snapshot.summary.operation.value == "append"
