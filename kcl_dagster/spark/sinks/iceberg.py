"""Iceberg tables by way of pyiceberg: executors write the files, the driver commits them.

All parts of a batch become visible at once. What the table holds of each shard stands in the table's properties,
written by the same commit as the files, so a part is never added twice.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from kcl_dagster.chains.store import Entries
from kcl_dagster.errors import SinkError
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.spark.failures import write_failures
from kcl_dagster.spark.partitioning import partitioned
from kcl_dagster.spark.sinks.catalog_table import DEFAULT_CATALOG, Addition, CatalogTable
from kcl_dagster.spark.sinks.chain_folder import ChainFolder
from kcl_dagster.spark.sinks.completeness import completeness_record
from kcl_dagster.spark.sinks.iceberg_commits import IcebergCommits
from kcl_dagster.spark.sinks.iceberg_files import data_file, data_root, file_statistics, target_of
from kcl_dagster.spark.sinks.iceberg_partitions import IcebergPartitions
from kcl_dagster.spark.sinks.record import (
    Comparison,
    StoredPart,
    compare,
    owner_key,
)
from kcl_dagster.spark.sinks.writing import (
    Written,
    WrittenFile,
    file_stem,
    has_own_times,
    output_schema,
    write_files,
    written_before,
)
from kcl_dagster.spark.storage import S3Options
from kcl_dagster.spark.transform import Transform, unchanged
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.batch import Batch, Part, PartCounts
from kcl_dagster.worker.table_committer import COMMIT_SECONDS, ChainedTable

if TYPE_CHECKING:
    from pyiceberg.table import Table


class IcebergSink:
    """Appends batches to the table `identifier` (`database.table`) of a pyiceberg catalog, see `CatalogTable`.

    The table is made with the first batch, with the schema of the transform's output. It must have one
    application's batches and nothing else writing to it but maintenance. `chains_path`: see `ChainFolder`.
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
        runtime: Runtime | None = None,
    ) -> None:
        self._table = CatalogTable(identifier, catalog, catalog_name=catalog_name, partition_by=partition_by, s3=s3)
        self._chains = ChainFolder(self._table, chains_path)
        self._transform, _ = partitioned(transform, ())
        self._runtime = runtime or system()
        self._is_unchanged = transform is unchanged
        self._written: Written | None = None

    @property
    def path(self) -> str:
        return self._table.identifier

    @property
    def entries(self) -> Entries:
        """See `worker.staging.BesideChains`."""
        return Entries(self._chains)

    @property
    def chained_table(self) -> ChainedTable:
        """See `worker.staging.TableBesideChains`."""
        return IcebergCommits(self._table, self._chains, self._runtime)

    @property
    def commit_seconds(self) -> float:
        """Of what chains have left; batches in leases make a commit each."""
        return COMMIT_SECONDS

    def write(self, data: DataFrame, batch: Batch) -> None:
        """See `worker.batch.Sink.write`."""
        self._written = None
        with self._table.errors():
            table = self._table.load()
            is_stored = table is not None and _compare(table, batch.parts).is_stored
            if is_stored and not has_own_times(batch.time_column):
                return
        if table is None:
            schema = output_schema(data, self._transform, [part.lease for part in batch.parts])
            with self._table.errors():
                table = self._table.create(schema)
        with self._table.errors():
            partitions = IcebergPartitions.of(self._table.name, table.spec(), table.schema())
            root = data_root(table)
            store = self._table.store(table, root)
            target = target_of(table, self._table.name)
        attempt = self._runtime.new_id()[:8]  # files of an attempt that was not committed are never mistaken
        names = {part.lease: f"{file_stem(part)}.{attempt}.parquet" for part in batch.parts}
        with write_failures(self._table.name):
            transform = self._table.transform_for(table, self._transform)
            if is_stored:
                self._written = written_before(data, transform, names, partitions, target, batch.time_column)
                return
            written = write_files(data, transform, store, names, partitions, target, batch.time_column)
        with self._table.errors():
            self._commit(batch, written.files, root, partitions)
        self._written = written

    def counted(self, part: Part) -> PartCounts | None:
        """See `worker.batch.Counting`. Of a batch that was stored by an earlier attempt, the records are known, and
        rows if they have times of their own."""
        if self._written is not None:
            return self._written.counts(part.lease)
        return PartCounts(None) if self._is_unchanged else None

    def version(self) -> dict[str, str]:
        """See `orchestration.table_versions.Versioned`."""
        return self._table.version()

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        """See `worker.batch.KeepingCompleteness`."""
        self._table.keep_complete(application, known, wanted)

    def holds(self, part: Part) -> bool:
        """See `worker.batch.Remembering`. Files without a commit do not count as stored."""
        with self._table.errors():
            table = self._table.load()
            return table is not None and _compare(table, [part]).is_stored

    def _commit(self, batch: Batch, files: Sequence[WrittenFile], root: str, partitions: IcebergPartitions) -> None:
        def missing(table: "Table") -> Addition | None:
            found = _compare(table, batch.parts)
            found.refuse_strange(self._table.name, files)
            leases = {part.lease for part in found.missing}
            if not leases:
                return None
            if table.spec().spec_id != partitions.spec.spec_id:
                raise SinkError(f"{self._table.name} was partitioned in another way while the batch was written")
            target = target_of(table, self._table.name)
            added = []
            for file in files:
                if file.lease_key in leases:
                    target.check_nulls(file.footer)
                    statistics = file_statistics(table, file.footer)
                    added.append(
                        data_file(f"{root}/{file.path}", file.bytes, file.partition, statistics, partitions)
                    )
            # Also without files: only a snapshot is refused where another one came in between, and a stalled
            # writer's record would take the place of a later one.
            record = {owner_key(part): str(StoredPart.of(part)) for part in found.missing}
            return Addition(added, record, record | completeness_record(batch.application, batch.complete))

        if not self._table.append(self._runtime, missing):
            raise SinkError(f"{self._table.name} was removed while the batch was written")


def _compare(table: "Table", parts: Sequence[Part]) -> Comparison:
    def newest(part: Part) -> int | None:
        text = table.properties.get(owner_key(part))
        return StoredPart.parse(text).number if text is not None else None

    def holds(part: Part) -> bool:
        key, wanted = owner_key(part), str(StoredPart.of(part))
        if table.properties.get(key) == wanted:
            return True
        return any(
            snapshot.summary is not None and snapshot.summary.get(key) == wanted for snapshot in table.snapshots()
        )

    return compare(parts, newest, holds)
