"""Files of deletes as other writers of Iceberg tables commit them; pyiceberg reads some of them and writes none."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import EMPTY_DICT, Record


class _DeletesWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _AddsDeletes(_FastAppendFiles):
    deletes: DataFile

    def _manifests(self) -> list[ManifestFile]:
        metadata = self._transaction.table_metadata
        with _DeletesWriter(
            metadata.spec(), metadata.schema(), self.new_manifest_output(), self._snapshot_id, "deflate"
        ) as writer:
            writer.add(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=self._snapshot_id,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=self.deletes,
                )
            )
        return [writer.to_manifest_file(), *self._existing_manifests()]

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        self._added_data_files = [self.deletes]
        return super()._summary(snapshot_properties)


def add_deletes(table: Table, data_path: str, positions: Sequence[int], *, equality: bool = False) -> None:
    """Commit a file that deletes rows of a file by their positions; or one of equality deletes, of the key 1."""
    path = f"{table.location()}/data/deletes-{len(table.snapshots())}.parquet"
    if equality:
        rows = pa.table({"id": pa.array([1], pa.int64())})
    else:
        rows = pa.table({"file_path": [data_path] * len(positions), "pos": pa.array(positions, pa.int64())})
    pq.write_table(rows, path.removeprefix("file://"))
    about: dict[str, Any] = {
        "content": DataFileContent.EQUALITY_DELETES if equality else DataFileContent.POSITION_DELETES,
        "file_path": path,
        "file_format": FileFormat.PARQUET,
        "partition": Record(),
        "record_count": rows.num_rows,
        "file_size_in_bytes": 1,
        "equality_ids": [table.schema().find_field("id").field_id] if equality else None,
    }
    deletes = DataFile.from_args(**about)
    deletes.spec_id = table.spec().spec_id
    with table.transaction() as transaction:
        producer = _AddsDeletes(operation=Operation.OVERWRITE, transaction=transaction, io=table.io)
        producer.deletes = deletes
        producer.commit()
