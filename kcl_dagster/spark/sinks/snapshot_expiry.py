"""Expires old snapshots of an Iceberg table within a commit, because each commit reads and writes the list of all
of them.

- Only tables that set how long snapshots are kept (`history.expire.max-snapshot-age-ms`).
- Only the oldest snapshots, as long as they and the one after them are appends. All data files of such a snapshot
  are also in later ones, so only manifest lists and manifests have to be deleted.
- As soon as another writer has replaced or deleted something, expiry is left to the maintenance of an engine, which
  has to find the data files of the snapshots.
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

AGE: Final = "history.expire.max-snapshot-age-ms"  # properties of a table that Iceberg defines
_MIN_SNAPSHOTS: Final = "history.expire.min-snapshots-to-keep"
_MAY_DELETE: Final = "gc.enabled"
# If the table does not set it: two hours of commits. A snapshot has the time of the worker that made it, and if
# that worker's clock was ahead, all other snapshots would count as old.
LEAST_KEPT: Final = 240
FEWEST: Final = 20  # at a time, because a commit that expires some reads the manifest list of each
MOST: Final = 100  # at a time, so that a commit does not take long

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OldSnapshots:
    """`ids`: the expired snapshots, in order. `files`: files that no other snapshot has."""

    ids: list[int]
    files: list[str]


NOTHING_OLD: Final = OldSnapshots([], [])


def old_snapshots(metadata: "TableMetadata", io: "FileIO") -> OldSnapshots:
    """The snapshots that the next commit expires, and their files."""
    old = expirable(metadata)
    if not old:
        return NOTHING_OLD
    *expired, following = old
    try:
        kept = {manifest.manifest_path for manifest in following.manifests(io)}
        # Manifests that were merged are in no later snapshot.
        found = {
            path: None
            for snapshot in expired
            for path in (snapshot.manifest_list, *(one.manifest_path for one in snapshot.manifests(io)))
        }
    except FileNotFoundError as error:  # deleted by hand: leave the rest to an engine
        log.warning("snapshots are not expired, because the manifest list of one is missing: %s", error)
        return NOTHING_OLD
    return OldSnapshots([one.snapshot_id for one in expired], [path for path in found if path not in kept])


def expirable(metadata: "TableMetadata") -> "list[Snapshot]":
    """The snapshots that the next commit expires, in order, and the oldest one that remains. Empty if there are
    too few, or if they are left to an engine. Pure: the age is that at the time of the newest snapshot, and a
    minimum number of snapshots remains whatever their age is."""
    properties, newest = metadata.properties, metadata.current_snapshot()
    age, least = properties.get(AGE, ""), properties.get(_MIN_SNAPSHOTS, str(LEAST_KEPT))
    is_allowed = properties.get(_MAY_DELETE, "true").lower() != "false"
    if newest is None or not (age.isdigit() and least.isdigit() and is_allowed) or set(metadata.refs) != {"main"}:
        return []
    history = _history(metadata.snapshots, newest)
    if len(history) != len(metadata.snapshots):
        return []  # the table was rolled back, or has snapshots that belong to no branch yet
    appends = sum(1 for _ in takewhile(_is_append, history))
    # All are counted, and not only those before the first younger one: a snapshot with a clock that was ahead would
    # otherwise keep all later ones.
    aged = sum(one.timestamp_ms < newest.timestamp_ms - int(age) for one in history)
    count = min(appends - 1, aged, len(history) - max(1, int(least)), MOST)
    return history[: count + 1] if count >= FEWEST else []


def delete_files(io: "FileIO", paths: Iterable[str]) -> None:
    """Delete the files of expired snapshots. Files that cannot be deleted are left to the removal of orphan
    files."""
    for path in paths:
        try:
            io.delete(path)
        except Exception as error:
            log.warning("%s of an expired snapshot could not be deleted: %s", path, error)


def _history(snapshots: "Iterable[Snapshot]", newest: "Snapshot") -> "list[Snapshot]":
    """The snapshot and its ancestors, the oldest first."""
    known = {snapshot.snapshot_id: snapshot for snapshot in snapshots}
    found, one = [], known.get(newest.snapshot_id)
    while one is not None:
        found.append(one)
        one = None if one.parent_snapshot_id is None else known.get(one.parent_snapshot_id)
    return found[::-1]


def _is_append(snapshot: "Snapshot") -> bool:
    return snapshot.summary is not None and snapshot.summary.operation.value == "append"
