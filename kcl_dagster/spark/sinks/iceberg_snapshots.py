"""Makes snapshots that add data files to an Iceberg table, or replace some. The classes extend those of
pyiceberg."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import ManifestEntry, ManifestFile, ManifestWriter, write_manifest
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _MergeAppendFiles, _OverwriteFiles

from kcl_dagster.spark.sinks.iceberg_partitions import with_sources

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table import Transaction
    from pyiceberg.table.metadata import TableMetadata


class FileAddition(_MergeAppendFiles):
    """An append that merges small manifests. This includes manifests of a former partition spec whose columns were
    dropped. Without this class, pyiceberg could not write a manifest for such a spec, because it would not know the
    types of the partition values."""

    def new_manifest_writer(self, spec: "PartitionSpec") -> ManifestWriter:
        metadata = self._transaction.table_metadata
        return write_manifest(
            format_version=metadata.format_version,
            spec=spec,
            schema=with_sources(metadata, spec),
            output_file=self.new_manifest_output(),
            snapshot_id=self._snapshot_id,
            avro_compression=self._compression,
        )

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """Merge manifests. A manifest remains unmerged if no schema of the table has the types of its partition
        values any more."""
        metadata = self._transaction.table_metadata  # pyiceberg copies it with each access
        known = {spec for spec in {one.partition_spec_id for one in manifests} if _knows_types(metadata, spec)}
        merged = [one for one in manifests if one.partition_spec_id in known]
        others = [one for one in manifests if one.partition_spec_id not in known]
        found: list[ManifestFile] = super()._process_manifests(merged)
        return [*found, *others]


class FileReplacement(_OverwriteFiles, FileAddition):
    """An overwrite that merges small manifests, as pyiceberg's appends do. pyiceberg's own overwrites add a
    manifest with each commit."""

    def _build_delete_files_partition_predicate(self) -> None:
        """Determine the partitions of the removed files, so that manifests of other partitions are not read."""
        try:
            super()._build_delete_files_partition_predicate()
        except ValueError:  # pyiceberg has no expression for NaN
            for spec in {file.spec_id for file in self._deleted_data_files}:
                self.partition_filters[spec] = AlwaysTrue()

    def _build_manifest_evaluator(self, spec_id: int) -> Callable[[ManifestFile], bool]:
        """The condition by which manifests are read. If columns of a spec were dropped, all manifests of the spec
        are read."""
        known = self.schema().field_ids
        if any(one.source_id not in known for one in self.spec(spec_id).fields):
            return lambda _: True
        found: Callable[[ManifestFile], bool] = super()._build_manifest_evaluator(spec_id)
        return found

    def _existing_manifests(self) -> list[ManifestFile]:
        """The manifests of the table, without manifests whose files were all removed by former snapshots."""
        found: list[ManifestFile] = super()._existing_manifests()
        return [one for one in found if one.has_added_files() or one.has_existing_files()]

    def _deleted_entries(self) -> list[ManifestEntry]:
        """The entries of the removed files. Raises CommitFailedException if one of these files is not in the table
        any more, because the rows of this file would then be in the table twice. Not all versions of pyiceberg
        detect this."""
        found: list[ManifestEntry] = super()._deleted_entries()
        if len(found) != len(self._deleted_data_files):
            raise CommitFailedException("files that are to be replaced are not in the table any more")
        return found


def addition(transaction: "Transaction", summary: Mapping[str, str]) -> FileAddition:
    """Begin an append in this transaction. `summary`: entries for the summary of the snapshot."""
    return FileAddition(operation=Operation.APPEND, **_begun(transaction, summary))


def replacement(transaction: "Transaction", summary: Mapping[str, str]) -> FileReplacement:
    """Begin a replacement in this transaction. `summary`: entries for the summary of the snapshot."""
    return FileReplacement(operation=Operation.OVERWRITE, **_begun(transaction, summary))


def _knows_types(metadata: "TableMetadata", spec_id: int) -> bool:
    spec = metadata.specs()[spec_id]
    known = with_sources(metadata, spec).field_ids
    return all(one.source_id in known for one in spec.fields)


def _begun(transaction: "Transaction", summary: Mapping[str, str]) -> dict[str, Any]:
    return {
        "transaction": transaction,
        "io": transaction._table.io,  # noqa: SLF001 - as `Transaction.update_snapshot` does
        "snapshot_properties": dict(summary),
    }
