"""Snapshots of an Iceberg table in which some data files take the place of others, with pyiceberg's own parts."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _MergeAppendFiles, _OverwriteFiles

if TYPE_CHECKING:
    from pyiceberg.table import Transaction


class FileReplacement(_OverwriteFiles, _MergeAppendFiles):
    """An overwrite as pyiceberg makes it, which merges small manifests as its appends do. pyiceberg's own leaves
    one more manifest with each commit."""

    def _build_delete_files_partition_predicate(self) -> None:
        """In which partitions the files are, so that other manifests are not read."""
        try:
            super()._build_delete_files_partition_predicate()
        except ValueError:  # pyiceberg has no expression for NaN
            for spec in {file.spec_id for file in self._deleted_data_files}:
                self.partition_filters[spec] = AlwaysTrue()

    def _existing_manifests(self) -> list[ManifestFile]:
        """Without those whose files have all been removed by former snapshots."""
        found: list[ManifestFile] = super()._existing_manifests()
        return [one for one in found if one.has_added_files() or one.has_existing_files()]

    def _deleted_entries(self) -> list[ManifestEntry]:
        """Not all versions of pyiceberg see that a file is missing, whose rows would be there twice then."""
        found: list[ManifestEntry] = super()._deleted_entries()
        if len(found) != len(self._deleted_data_files):
            raise CommitFailedException("files that are to be replaced are not in the table any more")
        return found


def replacement(transaction: "Transaction", summary: Mapping[str, str]) -> FileReplacement:
    """`summary`: of the snapshot."""
    return FileReplacement(
        operation=Operation.OVERWRITE,
        transaction=transaction,
        io=transaction._table.io,  # noqa: SLF001 - as `Transaction.update_snapshot` does
        snapshot_properties=dict(summary),
    )
