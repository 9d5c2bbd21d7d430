"""Snapshots of an Iceberg table in which data files replace other data files, made from classes of pyiceberg."""

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
    """An overwrite that merges small manifests, as pyiceberg's appends do. pyiceberg's own overwrites add a
    manifest with each commit."""

    def _build_delete_files_partition_predicate(self) -> None:
        """Determine the partitions of the removed files, so that manifests of other partitions are not read."""
        try:
            super()._build_delete_files_partition_predicate()
        except ValueError:  # pyiceberg has no expression for NaN
            for spec in {file.spec_id for file in self._deleted_data_files}:
                self.partition_filters[spec] = AlwaysTrue()

    def _existing_manifests(self) -> list[ManifestFile]:
        """The manifests of the table, without manifests whose files were all removed by former snapshots."""
        found: list[ManifestFile] = super()._existing_manifests()
        return [one for one in found if one.has_added_files() or one.has_existing_files()]

    def _deleted_entries(self) -> list[ManifestEntry]:
        """The entries of the removed files. Raises CommitFailedException if the table does not have one of these
        files any more: its rows would then be in the table twice. Not all versions of pyiceberg detect this."""
        found: list[ManifestEntry] = super()._deleted_entries()
        if len(found) != len(self._deleted_data_files):
            raise CommitFailedException("files that are to be replaced are not in the table any more")
        return found


def replacement(transaction: "Transaction", summary: Mapping[str, str]) -> FileReplacement:
    """Begin a replacement in this transaction. `summary`: entries for the summary of the snapshot."""
    return FileReplacement(
        operation=Operation.OVERWRITE,
        transaction=transaction,
        io=transaction._table.io,  # noqa: SLF001 - as `Transaction.update_snapshot` does
        snapshot_properties=dict(summary),
    )
