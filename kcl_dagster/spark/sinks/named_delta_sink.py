"""Delta tables that are addressed by name, and whose batches are committed in chains (logs of committed batches).

The rows of a batch are staged beside the chains. The commit appends them to the table with Spark's own writer.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame

from kcl_dagster.chains.entry import StagedFile, TableRules
from kcl_dagster.errors import SinkError
from kcl_dagster.model.claim import ChainId
from kcl_dagster.model.evolution import Evolve
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.batch_records import Records
from kcl_dagster.spark.partition_columns import partitioned
from kcl_dagster.spark.sinks.batch_files import BatchFile, ForTable, staged_files
from kcl_dagster.spark.sinks.former_parts import NoParts
from kcl_dagster.spark.sinks.named_delta import NamedDelta
from kcl_dagster.spark.sinks.named_delta_commits import NamedDeltaCommits
from kcl_dagster.spark.sinks.named_delta_rules import NamedDeltaRules
from kcl_dagster.spark.sinks.parquet import TARGET_BYTES
from kcl_dagster.spark.sinks.partition_folders import Layout, TableFolders
from kcl_dagster.spark.sinks.staging_job import Staging
from kcl_dagster.spark.sinks.table_columns import Target, encoded_schema
from kcl_dagster.spark.sinks.table_sink import TableSink, WritingRules
from kcl_dagster.spark.storage import S3Options, Store, open_store
from kcl_dagster.spark.transform import Transform, unchanged
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.batch import Batch
from kcl_dagster.worker.staging import StagedBatch
from kcl_dagster.worker.table_committer import COMMIT_SECONDS


class NamedDeltaSink(TableSink):
    """Stages batches for the Delta table `identifier` of the worker's Spark session, `catalog.schema.table`.

    The table is created with the first batch, with the schema of the output and partitioned by `partition_by`.

    - `chains_path`: a shared local directory or `s3://bucket/prefix`, for the chains and the staged files.
    - `commit_seconds`: the time between two commits.
    """

    def __init__(
        self,
        identifier: str,
        chains_path: str,
        *,
        transform: Transform = unchanged,
        partition_by: Sequence[str] = (),
        s3: S3Options | None = None,
        commit_seconds: float = COMMIT_SECONDS,
        target_bytes: int = TARGET_BYTES,
        evolve: Evolve = "refuse",
        runtime: Runtime | None = None,
    ) -> None:
        transform, columns = partitioned(transform, partition_by)
        self._store = open_store(chains_path, s3)
        table = NamedDelta(identifier, columns)
        self._commits = NamedDeltaCommits(table, self._store)
        self._are_plans_checked = False
        super().__init__(
            NamedDeltaFormat(table, self._store, self._commits),
            transform,
            commit_seconds=commit_seconds,
            target_bytes=target_bytes,
            evolve=evolve,
            runtime=runtime,
        )

    @property
    def stores_into(self) -> tuple[Store]:
        """Implements `spark.sinks.contract.SparkSink.stores_into`."""
        return (self._store,)

    def version(self) -> dict[str, int]:
        """Return an empty dict, because the leader, which requests the version, has no Spark session."""
        return {}

    def staged(self, data: Records, batch: Batch, chain: ChainId, number: int) -> Staging[StagedBatch]:
        """Implements `spark.sinks.contract.SparkSink.staged`."""
        if not self._are_plans_checked:
            self._commits.check_plans(batch.application)
            self._are_plans_checked = True
        return (yield from super().staged(data, batch, chain, number))

    def _for_new_table(self, output: DataFrame, rules: WritingRules) -> DataFrame:
        """Return the output with a check of its rows, because partition values are limited in a new table, too."""
        return rules.applied(lambda _: output)(output)


@dataclass(frozen=True, slots=True)
class NamedDeltaFormat:
    """A Delta table that is addressed by name. Implements `table_sink.TableFormat`."""

    table: NamedDelta
    chains: Store
    commits: NamedDeltaCommits

    @property
    def stages(self) -> bool:
        return True

    @property
    def former_parts(self) -> NoParts:
        return NoParts()

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def place(self) -> str:
        return f"{self.table.identifier} by Spark, {self.chains.root}"

    def errors(self) -> AbstractContextManager[None]:
        return self.table.errors()

    def rules(self) -> WritingRules | None:
        self.commits.check_store()
        found = self.table.rules()
        return None if found is None else RowFiles(self.table, found, self.chains)

    def first_rules(self, output: pa.Schema) -> WritingRules:
        self.table.make(output)
        made = self.rules()
        if made is None:
            raise SinkError(f"{self.name} could not be made")
        return made

    def add(self, columns: pa.Schema) -> None:
        self.table.add(columns)

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        self.table.keep_complete(application, known, wanted)


@dataclass(frozen=True, slots=True)
class RowFiles:
    """The rules by which rows are staged. Implements `table_sink.WritingRules`. `store`: the store of the staged
    files."""

    table: NamedDelta
    rules: NamedDeltaRules
    store: Store
    layout: Layout = field(default_factory=lambda: TableFolders(()))
    """Staged files have no partitions. When Spark appends the rows, it divides them by the table's partitioning."""

    @property
    def for_table(self) -> ForTable:
        return ForTable(self.target, is_staged=True)

    @property
    def target(self) -> Target:
        return self.rules.target

    def applied(self, transform: Transform) -> Transform:
        return self.rules.applied(transform)

    def staged(self, files: Sequence[BatchFile], output: pa.Schema) -> tuple[tuple[StagedFile, ...], TableRules]:
        columns = self.target.stored(output)
        self.table.check_columns(columns)
        return staged_files(files), TableRules(encoded_schema(columns))
