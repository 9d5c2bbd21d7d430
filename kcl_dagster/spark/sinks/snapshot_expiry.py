"""Chooses the snapshots of an Iceberg table that the next commit expires: the oldest snapshots of its main branch.

Many snapshots have two costs: each commit reads and writes the list of all snapshots, and files that were replaced
remain until the snapshots that contain them are expired. The choice follows these rules:

- Snapshots are expired only in tables that set for how long they are kept (`history.expire.max-snapshot-age-ms`, or
  the same setting of the main branch).
- A snapshot with a tag remains. A snapshot that another branch contains, too, remains as long as the settings of
  that branch or of the table require.
- Snapshots outside the history of the main branch are not expired here, but by engines: snapshots of other
  branches, snapshots that were rolled back, and snapshots that another writer has staged.

`expired_files` then deletes the files of the expired snapshots.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.refs import SnapshotRef
    from pyiceberg.table.snapshots import Snapshot

AGE: Final = "history.expire.max-snapshot-age-ms"  # properties of a table that Iceberg defines
_MIN_SNAPSHOTS: Final = "history.expire.min-snapshots-to-keep"
_MAY_DELETE: Final = "gc.enabled"
_MAIN: Final = "main"
# The number of snapshots that remain if the table does not set it: those of two hours of commits. Without such a
# minimum, one snapshot of a worker whose clock was ahead would make all other snapshots count as old.
LEAST_KEPT: Final = 240
FEWEST: Final = 20  # the fewest snapshots that one commit expires; each such commit has to read many manifest lists
MOST: Final = 100  # the most snapshots that one commit expires, so that the commit does not take long
# The most files in snapshots that remain outside the history of the main branch. These files are compared with the
# files to delete. For this many files, the comparison takes four seconds; see `expired_files`.
MOST_COMPARED: Final = 20_000


@dataclass(frozen=True, slots=True)
class OldSnapshots:
    """`expired`: the snapshots that a commit expires, the oldest first. `later`: snapshots of the main branch. The
    first of them follows the first expired snapshot, and the last of them follows the last expired snapshot."""

    expired: "tuple[Snapshot, ...]" = ()
    later: "tuple[Snapshot, ...]" = ()

    @property
    def ids(self) -> list[int]:
        return [one.snapshot_id for one in self.expired]


NOTHING_OLD: Final = OldSnapshots()


def old_snapshots(metadata: "TableMetadata") -> OldSnapshots:
    """Choose the snapshots that the next commit expires. The age of a snapshot is the time between it and the
    newest snapshot. A minimum number of snapshots remains, whatever their age is. Chooses none in three cases:

    - Fewer than `FEWEST` snapshots are old.
    - The table does not set for how long snapshots are kept, or has `gc.enabled=false`.
    - More than `MOST_COMPARED` files would have to be compared, or their number is not known.
    """
    properties, newest, main = metadata.properties, metadata.current_snapshot(), metadata.refs.get(_MAIN)
    if newest is None or main is None or properties.get(_MAY_DELETE, "true").lower() == "false":
        return NOTHING_OLD
    age, least = _age(main, properties), _least(main, properties, LEAST_KEPT)
    if age is None or least is None:
        return NOTHING_OLD
    history = history_of(metadata.snapshots, newest)
    # All old snapshots are counted, and not only those before the first younger one. Otherwise a snapshot of a
    # worker whose clock was ahead would keep all later snapshots.
    aged = sum(one.timestamp_ms < newest.timestamp_ms - age for one in history)
    candidates = history[: max(0, min(aged, len(history) - max(1, least)))]
    kept = _kept_by_others(metadata, newest.timestamp_ms)
    places = [place for place, one in enumerate(candidates) if one.snapshot_id not in kept][:MOST]
    if len(places) < FEWEST:
        return NOTHING_OLD
    first, last = places[0], places[-1]
    old = OldSnapshots(tuple(history[place] for place in places), tuple(history[first + 1 : last + 2]))
    later = {one.snapshot_id for one in history[last + 1 :]}
    return old if _can_be_compared(metadata, later.union(old.ids)) else NOTHING_OLD


@dataclass(frozen=True, slots=True)
class Unreferenced:
    """A requirement of a commit that expires these snapshots: none of them has a tag or a branch. Catalogs would
    remove a tag that was made since the commit was prepared, together with the snapshot.

    If pyiceberg itself makes the new state of the table, it validates the requirement against the state that the
    commit replaces. REST catalogs do not know this requirement, so a request before the commit checks it. If a tag
    is made between this request and the commit, the tag is lost, as with engines that expire snapshots."""

    snapshots: frozenset[int]

    def validate(self, metadata: "TableMetadata | None") -> None:
        from pyiceberg.exceptions import CommitFailedException

        refs = {} if metadata is None else metadata.refs
        named = [name for name, ref in refs.items() if ref.snapshot_id in self.snapshots]
        if named:
            raise CommitFailedException(f"{named} names a snapshot that was to be expired")


def history_of(snapshots: "Iterable[Snapshot]", newest: "Snapshot") -> "list[Snapshot]":
    """The snapshot and its ancestors, the oldest first."""
    return list(_ancestors(snapshots, newest.snapshot_id))[::-1]


def _ancestors(snapshots: "Iterable[Snapshot]", snapshot: int | None) -> "Iterator[Snapshot]":
    """The snapshot and its ancestors, the newest first."""
    known = {one.snapshot_id: one for one in snapshots}
    while snapshot is not None and snapshot in known:
        one = known.pop(snapshot)
        yield one
        snapshot = one.parent_snapshot_id


def _age(ref: "SnapshotRef", properties: dict[str, str]) -> int | None:
    """The age in milliseconds from which on a snapshot of this branch can be expired. None: neither the branch nor
    the table sets this age."""
    return ref.max_snapshot_age_ms or _number(properties.get(AGE, ""))


def _least(ref: "SnapshotRef", properties: dict[str, str], default: int) -> int | None:
    return ref.min_snapshots_to_keep or _number(properties.get(_MIN_SNAPSHOTS, str(default)))


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _kept_by_others(metadata: "TableMetadata", now: int) -> set[int]:
    """The ids of the snapshots that are kept by tags, or by branches other than the main branch."""
    from pyiceberg.table.refs import SnapshotRefType

    kept = set()
    for name, ref in metadata.refs.items():
        kept.add(ref.snapshot_id)
        if name == _MAIN or ref.snapshot_ref_type == SnapshotRefType.TAG:
            continue
        age, least = _age(ref, metadata.properties), _least(ref, metadata.properties, 1)
        for place, one in enumerate(_ancestors(metadata.snapshots, ref.snapshot_id)):
            if age is not None and least is not None and place >= least and one.timestamp_ms < now - age:
                break
            kept.add(one.snapshot_id)
    return kept


def _can_be_compared(metadata: "TableMetadata", not_compared: set[int]) -> bool:
    """Whether the snapshots that are not in `not_compared` together have at most MOST_COMPARED files. False if the
    number of files is not known."""
    total = 0
    for one in metadata.snapshots:
        if one.snapshot_id in not_compared:
            continue
        summary: Mapping[str, str] = one.summary or {}
        files = _number(str(summary.get("total-data-files")))
        if files is None:
            return False
        total += files + (_number(str(summary.get("total-delete-files"))) or 0)
    return total <= MOST_COMPARED
