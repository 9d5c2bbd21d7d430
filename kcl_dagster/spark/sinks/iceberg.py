"""Iceberg tables whose batches are decided in chains (logs of committed batches), see `table_sink`.

Files are written by the partition spec of the table, so the table is made before the first batch is staged.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from kcl_dagster.chains.entry import StagedFile, TableRules
from kcl_dagster.model.change_rules import DELETES, ChangeRules, change_rules
from kcl_dagster.model.evolution import Evolve
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.spark.sinks.batch_files import BatchFile, ForTable
from kcl_dagster.spark.sinks.catalog_table import DEFAULT_CATALOG, MERGES, CatalogTable
from kcl_dagster.spark.sinks.chain_folder import ChainFolder
from kcl_dagster.spark.sinks.change_files import ChangeFiles, change_rows, without_mark
from kcl_dagster.spark.sinks.former_parts import IcebergParts
from kcl_dagster.spark.sinks.iceberg_commits import IcebergCommits
from kcl_dagster.spark.sinks.iceberg_files import (
    NEWEST_VERSION,
    check_version,
    data_root,
    encoded_footer,
    staged_file,
    target_of,
)
from kcl_dagster.spark.sinks.iceberg_merges import refuse_changes
from kcl_dagster.spark.sinks.iceberg_partitions import IcebergPartitions, PartitionsOfChanges
from kcl_dagster.spark.sinks.iceberg_sorting import RowOrder
from kcl_dagster.spark.sinks.parquet import TARGET_BYTES
from kcl_dagster.spark.sinks.partition_folders import UNPARTITIONED, Layout, TableFolders
from kcl_dagster.spark.sinks.row_conditions import conditions_of_required, fulfilling
from kcl_dagster.spark.sinks.snapshot_expiry import AGE
from kcl_dagster.spark.sinks.table_columns import Target
from kcl_dagster.spark.sinks.table_files import TableFiles
from kcl_dagster.spark.sinks.table_sink import TableSink, WritingRules
from kcl_dagster.spark.storage import S3Options, Store
from kcl_dagster.spark.transform import Transform, guarded, is_frame, unchanged
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.table_committer import COMMIT_SECONDS, ChainedTable

if TYPE_CHECKING:
    from pyiceberg.table import Table

SNAPSHOTS_KEPT: Final = timedelta(hours=2)  # each snapshot makes commits slower
# The size of a manifest that lists five thousand files. A commit that merges manifests writes the last manifest
# again until it has this size. With Iceberg's default of 8 MiB, this takes some seconds for a manifest that is
# almost full.
MANIFEST_BYTES: Final = 1 << 20
# The properties of a new table. With a commit every half minute, thousands of manifests, snapshots and versions of
# the metadata would remain each day. With these properties, manifests are merged, snapshots are expired, and only a
# hundred versions of the metadata remain.
PROPERTIES: Final = {
    "format-version": str(NEWEST_VERSION),  # a catalog's server can have another default
    MERGES: "true",
    AGE: str(SNAPSHOTS_KEPT // timedelta(milliseconds=1)),
    "write.metadata.delete-after-commit.enabled": "true",
    "commit.manifest.target-size-bytes": str(MANIFEST_BYTES),
}


class IcebergSink(TableSink):
    """Stages batches for an Iceberg table, see `CatalogTable`.

    - `chains_path`: see `ChainFolder`.
    - `commit_seconds`: the time between two commits.
    - `merge_on`, `delete_when`, `order_by`: the output consists of change rows, see `model.change_rules`.
    """

    def __init__(
        self,
        identifier: str,
        catalog: Mapping[str, str] | None = None,
        *,
        catalog_name: str = DEFAULT_CATALOG,
        transform: Transform = unchanged,
        partition_by: Sequence[str] = (),
        s3: S3Options | None = None,
        chains_path: str | None = None,
        commit_seconds: float = COMMIT_SECONDS,
        target_bytes: int = TARGET_BYTES,
        evolve: Evolve = "refuse",
        merge_on: Sequence[str] = (),
        delete_when: str | None = None,
        order_by: str | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        changes = change_rules(merge_on, delete_when, order_by, "an IcebergSink")
        table = CatalogTable(identifier, catalog, catalog_name=catalog_name, partition_by=partition_by, s3=s3)
        transform = guarded(transform)
        if changes is not None:
            transform = change_rows(transform, changes, table.name)
        super().__init__(
            IcebergFormat(table, ChainFolder(table, chains_path), runtime or system(), changes),
            transform,
            commit_seconds=commit_seconds,
            target_bytes=target_bytes,
            evolve=evolve,
            runtime=runtime,
        )
        self._catalog_table = table

    @property
    def path(self) -> str:
        return self._catalog_table.identifier

    @property
    def stores_into(self) -> tuple[()]:
        """Return an empty tuple, because the catalog decides on the location."""
        return ()

    def version(self) -> dict[str, str]:
        """Implements `spark.sinks.contract.SparkSink.version`."""
        return self._catalog_table.version()


@dataclass(frozen=True, slots=True)
class IcebergFormat:
    """A table of the Iceberg format. Implements `table_sink.TableFormat`."""

    table: CatalogTable
    chains: ChainFolder
    runtime: Runtime
    changes: ChangeRules | None = None

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def place(self) -> str:
        return self.table.name

    @property
    def commits(self) -> ChainedTable:
        return IcebergCommits(self.table, self.chains, self.runtime)

    @property
    def stages(self) -> bool:
        return self.changes is not None

    @property
    def former_parts(self) -> IcebergParts:
        return IcebergParts(self.table, self.runtime)

    @contextmanager
    def errors(self) -> Iterator[None]:
        with self.table.errors():
            yield

    def rules(self) -> WritingRules | None:
        table = self.table.load()
        return None if table is None else self._of(table)

    def first_rules(self, output: pa.Schema) -> WritingRules:
        return self._of(self.table.create(without_mark(output), self.chains.location, PROPERTIES))

    def _of(self, table: "Table") -> WritingRules:
        check_version(table, self.name)
        self.chains.check(table.location())
        if self.changes is None:
            return IcebergWriting(self.table, table)
        refuse_changes(table, self.name, self.changes)
        partitions = IcebergPartitions.of(self.name, table.spec(), table.schema())
        layout = TableFolders(()) if partitions.is_flat else PartitionsOfChanges(partitions)
        return ChangeFiles(
            self.name, self.chains.store, self.changes, ChangedIceberg(self.table, table), layout=layout
        )

    def add(self, columns: pa.Schema) -> None:
        self.table.add(columns)

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        self.table.keep_complete(application, known, wanted)


@dataclass(frozen=True, slots=True)
class IcebergWriting:
    """The rules by which files of an Iceberg table are written. Implements `table_sink.WritingRules`. `loaded`: the
    table at the time when the rules were read."""

    table: CatalogTable
    loaded: "Table"

    @property
    def store(self) -> Store | TableFiles:
        return self.table.store(self.loaded, data_root(self.loaded))

    @property
    def layout(self) -> Layout:
        """The layout of the files. The layout of an unpartitioned table needs no pyiceberg in the executors."""
        return UNPARTITIONED if self._partitions.is_flat else self._partitions

    @property
    def _partitions(self) -> IcebergPartitions:
        return IcebergPartitions.of(self.table.name, self.loaded.spec(), self.loaded.schema())

    @property
    def for_table(self) -> ForTable:
        return ForTable(self.target, encoded_footer)

    @property
    def target(self) -> Target:
        return target_of(self.loaded, self.table.name)

    def applied(self, transform: Transform) -> Transform:
        return RowOrder.of(self.loaded).applied(self.table.transform_for(self.loaded, transform))

    def staged(self, files: Sequence[BatchFile], output: pa.Schema) -> tuple[tuple[StagedFile, ...], TableRules]:
        partitions = self._partitions
        order = RowOrder.of(self.loaded).exact_id
        staged = tuple(staged_file(self.loaded, file, partitions, order) for file in files)
        return staged, self.target.fulfilled(output, table=str(self.loaded.metadata.table_uuid))


@dataclass(frozen=True, slots=True)
class ChangedIceberg:
    """An Iceberg table to which change rows are applied. Implements `change_files.ChangedTable`. `loaded`: the
    table at the time when the rules were read."""

    table: CatalogTable
    loaded: "Table"

    @property
    def target(self) -> Target:
        return target_of(self.loaded, self.table.name)

    def applied(self, transform: Transform) -> Transform:
        transform = self.table.transform_for(self.loaded, transform)
        required = self.target.required
        if not required:
            return transform

        def with_conditions(records: DataFrame) -> DataFrame:
            output = transform(records)
            if not is_frame(output):
                return output  # no DataFrame; `transform.checked` refuses it
            conditions = conditions_of_required(required, output.columns)
            return fulfilling(output, self.target.table, conditions, unless=DELETES)

        return with_conditions

    def fulfilled(self, rows: pa.Schema) -> TableRules:
        self.target.check(rows)
        return self.target.fulfilled(rows, table=str(self.loaded.metadata.table_uuid))
