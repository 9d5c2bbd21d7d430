"""Deletes the files of an Iceberg table that only expired snapshots contained. These are manifest lists, manifests,
and the data and delete files that this package or another writer has replaced.

A data or delete file is deleted only if two conditions hold:

- An expired snapshot, or the oldest remaining snapshot, has removed the file from the table.
- No remaining snapshot contains the file, whether the snapshot belongs to a branch, to a tag, or to neither.

The metadata of each snapshot lists the files that the snapshot has removed. So the work grows with the number of
changes, and not with the number of files in the table.

The files are deleted after the commit that has expired the snapshots, according to the table's metadata after this
commit. If the worker is killed before it has deleted them, they become orphan files, which an engine can remove.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Any, Final

from kcl_dagster.spark.sinks.completeness import application_key
from kcl_dagster.spark.sinks.snapshot_expiry import OldSnapshots, history_of

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.statistics import StatisticsFile

_OWN: Final = application_key("")  # the prefix of the sink's entries in the summary of a snapshot

log = logging.getLogger(__name__)


def remove_expired(old: OldSnapshots, statistics: "Sequence[StatisticsFile]", table: "Table") -> None:
    """Delete the files that only the expired snapshots `old` contained. `statistics`: the statistics files of the
    table before the commit that has expired the snapshots. `table`: the table after this commit. Errors are only
    logged, because the commit itself has succeeded."""
    if not old.expired:
        return
    try:
        paths = ExpiredFiles(old, table.metadata, table.io).paths()
    except Exception as error:  # its class depends on the library that the FileIO uses
        log.warning("the files of %d expired snapshots of %s remain: %s", len(old.expired), table.name(), error)
        return
    remain = {one.statistics_path for one in table.metadata.statistics}
    delete_files(table.io, [*paths, *({one.statistics_path for one in statistics} - remain)])


@dataclass(frozen=True, slots=True)
class ExpiredFiles:
    """Finds the files to delete. `metadata`: the metadata of the table after the commit that has expired the
    snapshots."""

    old: OldSnapshots
    metadata: "TableMetadata"
    io: "FileIO"

    def paths(self) -> list[str]:
        """The paths of the files to delete. A file comes before the files that refer to it, so that the remaining
        files can still be found if the deletion is interrupted."""
        main, others = self._remaining()
        expired = _in_parallel(self._found_manifests, self.old.expired)
        remain = [one for found in _in_parallel(self._manifests, [main[0], main[-1], *others]) for one in found]
        kept = {one.manifest_path for one in remain}
        manifests = {one.manifest_path for found in expired for one in found} - kept
        lists = [one.manifest_list for one in self.old.expired]
        return [*self._files(main, others), *manifests, *lists]

    def _remaining(self) -> "tuple[list[Snapshot], list[Snapshot]]":
        """Two lists of remaining snapshots: those of the main branch that follow the last expired one, the oldest
        first; and all others."""
        newest = self.metadata.current_snapshot()
        history = [] if newest is None else history_of(self.metadata.snapshots, newest)
        ids = [one.snapshot_id for one in history]
        main = history[ids.index(self.old.later[-1].snapshot_id) :]
        of_main = {one.snapshot_id for one in main}
        return main, [one for one in self.metadata.snapshots if one.snapshot_id not in of_main]

    def _files(self, main: "list[Snapshot]", others: "list[Snapshot]") -> set[str]:
        """The data and delete files that no remaining snapshot contains."""
        removals = _in_parallel(self._removed_by, self.old.later)
        if not any(removals):
            return set()
        removed: set[str] = set()
        for gone, back in zip(removals, _in_parallel(self._added_again_by, self.old.later), strict=True):
            removed = (removed | gone) - back
        manifests = {one.manifest_path: one for found in _in_parallel(self._manifests, others) for one in found}
        return removed.difference(
            *_in_parallel(self._added_again_by, main[1:]), *_in_parallel(self._files_of, manifests.values())
        )

    def _removed_by(self, snapshot: "Snapshot") -> set[str]:
        from pyiceberg.manifest import ManifestEntryStatus
        from pyiceberg.table.snapshots import Operation

        if snapshot.summary is not None and snapshot.summary.operation == Operation.APPEND:
            return set()
        of = snapshot.snapshot_id
        return {
            entry.data_file.file_path
            for manifest in self._found_manifests(snapshot)
            if manifest.added_snapshot_id == of and manifest.deleted_files_count != 0
            for entry in manifest.fetch_manifest_entry(self.io, discard_deleted=False)
            if entry.status == ManifestEntryStatus.DELETED and entry.snapshot_id == of
        }

    def _added_again_by(self, snapshot: "Snapshot") -> set[str]:
        """The files that a snapshot has added, and that may have been in the table before. Empty for snapshots of
        the sink, because the sink never adds a file again."""
        if _is_own(snapshot):
            return set()
        added = [
            one
            for one in self._found_manifests(snapshot)
            if one.added_snapshot_id == snapshot.snapshot_id and one.has_added_files()
        ]
        return set().union(*map(self._files_of, added))

    def _files_of(self, manifest: "ManifestFile") -> set[str]:
        return {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(self.io)}

    def _manifests(self, snapshot: "Snapshot") -> "list[ManifestFile]":
        return snapshot.manifests(self.io)

    def _found_manifests(self, snapshot: "Snapshot") -> "list[ManifestFile]":
        """The manifests of a snapshot. Empty if another writer has also expired the snapshot and deleted its
        files."""
        try:
            return self._manifests(snapshot)
        except FileNotFoundError:
            if self.metadata.snapshot_by_id(snapshot.snapshot_id) is None:
                return []
            raise


def delete_files(io: "FileIO", paths: Iterable[str]) -> None:
    """Delete these files, several at a time. Files that cannot be deleted remain until an engine removes orphan
    files. If the store does not permit deletion, only the first files are tried."""
    forbidden = Event()
    failures: list[str] = []

    def delete(path: str) -> None:
        if forbidden.is_set():
            return
        try:
            io.delete(path)
        except FileNotFoundError:
            pass
        except Exception as error:  # its class depends on the library that the FileIO uses
            if isinstance(error, PermissionError):
                forbidden.set()
            failures.append(f"{path}: {error}")

    _in_parallel(delete, paths)
    if failures:
        log.warning("%d files of expired snapshots could not be deleted, such as %s", len(failures), failures[0])


def _is_own(snapshot: "Snapshot") -> bool:
    """Whether a commit of a sink has made the snapshot."""
    summary = snapshot.summary
    return summary is not None and any(name.startswith(_OWN) for name in summary.additional_properties)


def _in_parallel(call: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
    """Call the function for each value, on the threads on which pyiceberg reads manifests."""
    from pyiceberg.utils.concurrent import ExecutorFactory

    return list(ExecutorFactory.get_or_create().map(call, values))
