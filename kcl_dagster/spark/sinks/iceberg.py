"""Iceberg tables whose batches are decided in chains of entries, see `table_sink`. The first batch makes the
table: by its partition spec files are written."""

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
from kcl_dagster.spark.partitioning import partitioned
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
from kcl_dagster.spark.sinks.layout import UNPARTITIONED, Layout, TableFolders
from kcl_dagster.spark.sinks.parquet import TARGET_BYTES
from kcl_dagster.spark.sinks.row_conditions import conditions_of_required, fulfilling
from kcl_dagster.spark.sinks.snapshot_expiry import AGE
from kcl_dagster.spark.sinks.table_files import TableFiles
from kcl_dagster.spark.sinks.table_sink import TableSink, WritingRules
from kcl_dagster.spark.sinks.target import Target
from kcl_dagster.spark.storage import S3Options, Store
from kcl_dagster.spark.transform import Transform, unchanged
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.table_committer import COMMIT_SECONDS, ChainedTable

if TYPE_CHECKING:
    from pyiceberg.table import Table

SNAPSHOTS_KEPT: Final = timedelta(hours=2)  # a commit takes longer with each
# Of a manifest, which names five thousand files then. Merges write the last one anew until it has this size: with
# the 8 MiB that are Iceberg's default, each takes some seconds in the end.
MANIFEST_BYTES: Final = 1 << 20
# Of a table that is made here. A commit every half minute would leave thousands of manifests, of snapshots and of
# versions of the metadata a day. Manifests are merged, snapshots are expired, and a hundred versions remain.
PROPERTIES: Final = {
    "format-version": str(NEWEST_VERSION),  # a server may have another default
    MERGES: "true",
    AGE: str(SNAPSHOTS_KEPT // timedelta(milliseconds=1)),
    "write.metadata.delete-after-commit.enabled": "true",
    "commit.manifest.target-size-bytes": str(MANIFEST_BYTES),
}


class IcebergSink(TableSink):
    """Stages batches for an Iceberg table, see `CatalogTable`. `chains_path`: see `ChainFolder`. `commit_seconds`:
    between two commits. `merge_on`, `delete_when`, `order_by`: the output is change rows, see `model.change_rules`.
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
        if changes is not None:
            transform = change_rows(transform, changes)
        table = CatalogTable(identifier, catalog, catalog_name=catalog_name, partition_by=partition_by, s3=s3)
        super().__init__(
            IcebergFormat(table, ChainFolder(table, chains_path), runtime or system(), changes),
            partitioned(transform, ())[0],
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
        """See `spark.sinks.contract.SparkSink`. The catalog says it."""
        return ()

    def version(self) -> dict[str, str]:
        """See `spark.sinks.contract.SparkSink`."""
        return self._catalog_table.version()


@dataclass(frozen=True, slots=True)
class IcebergFormat:
    """See `table_sink.TableFormat`."""

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
    """See `table_sink.WritingRules`. `loaded`: the table as it was then."""

    table: CatalogTable
    loaded: "Table"

    @property
    def store(self) -> Store | TableFiles:
        return self.table.store(self.loaded, data_root(self.loaded))

    @property
    def layout(self) -> Layout:
        """Executors need pyiceberg for a partitioned table only."""
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
    """See `change_files.ChangedTable`. `loaded`: the table as it was then."""

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
            if not hasattr(output, "columns"):
                return output  # no DataFrame, which is refused where all of them are
            conditions = conditions_of_required(required, output.columns)
            return fulfilling(output, self.target.table, conditions, unless=DELETES)

        return with_conditions

    def fulfilled(self, rows: pa.Schema) -> TableRules:
        self.target.check(rows)
        return self.target.fulfilled(rows, table=str(self.loaded.metadata.table_uuid))
