"""Tables whose batches are decided in chains of entries: each record once, whatever the transform does.

The executors write the files of a batch once, under their final names. The table gets them with the next commit,
which one worker makes for all, see `worker.table_committer`. Until then no reader sees them. Files of batches that
came to nothing, such as those of a worker that was killed, are in no commit. A vacuum (Delta) or the removal of
orphan files (Iceberg) deletes them; it must not delete files that are younger than the longest time for which the
table may take no commit.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame

from kcl_dagster.chains.entry import StagedFile, TableRules
from kcl_dagster.chains.store import Entries, FileStore, check_store
from kcl_dagster.errors import SinkError
from kcl_dagster.model.claim import ChainId
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.spark.failures import write_failures
from kcl_dagster.spark.origins import made, origin_of
from kcl_dagster.spark.sinks.batch_files import BatchFile, ForTable, StagingStore
from kcl_dagster.spark.sinks.layout import Layout
from kcl_dagster.spark.sinks.staged_parquet import TARGET_BYTES
from kcl_dagster.spark.sinks.staging_job import StagingJob
from kcl_dagster.spark.sinks.writing import schema_of
from kcl_dagster.spark.transform import Transform, checked
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.batch import Batch
from kcl_dagster.worker.staging import StagedBatch
from kcl_dagster.worker.table_committer import COMMIT_SECONDS, ChainedTable


class WritingRules(Protocol):
    """By what rules of a table the files of one batch are written."""

    @property
    def store(self) -> StagingStore:
        """Below which the files are written."""

    @property
    def layout(self) -> Layout: ...

    @property
    def for_table(self) -> ForTable: ...

    def applied(self, transform: Transform) -> Transform:
        """The transform, with what the table computes, and failing for rows that it does not allow."""

    def staged(self, files: Sequence[BatchFile], output: pa.Schema) -> tuple[tuple[StagedFile, ...], TableRules]:
        """The files as an entry has them. `output`: its schema. Raises SinkError if they do not fit."""


class TableFormat(Protocol):
    """A table of one format, as batches are staged for it. Raises what the format's library raises."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def chains(self) -> FileStore:
        """Where the chains are."""

    @property
    def commits(self) -> ChainedTable: ...

    def errors(self) -> AbstractContextManager[None]:
        """For what is done with the table: maps what the format's library raises to SinkError."""

    def rules(self) -> WritingRules | None:
        """As the table is now; None if there is none."""

    def first_rules(self, output: pa.Schema) -> WritingRules:
        """Where there was no table: for an output of this schema."""

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        """See `worker.batch.KeepingCompleteness`."""


class StagedTableSink:
    """Stages batches for a table. `commit_seconds`: between two commits."""

    def __init__(
        self,
        table: TableFormat,
        transform: Transform,
        *,
        commit_seconds: float = COMMIT_SECONDS,
        target_bytes: int = TARGET_BYTES,
        runtime: Runtime | None = None,
    ) -> None:
        self._table = table
        self._transform = transform
        self._target_bytes = target_bytes
        self._runtime = runtime or system()
        self._is_checked = False
        self.commit_seconds = commit_seconds

    @property
    def entries(self) -> Entries:
        """See `worker.staging.StagingSink`."""
        return Entries(self._table.chains)

    @property
    def chained_table(self) -> ChainedTable:
        """See `worker.staging.TableBesideChains`."""
        return self._table.commits

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        """See `worker.batch.KeepingCompleteness`."""
        self._table.keep_complete(application, known, wanted)

    def stage(self, data: DataFrame, batch: Batch, chain: ChainId, number: int) -> StagedBatch:
        """See `worker.staging.StagingSink.stage`."""
        with self._table.errors():
            self._check_store()
            rules = self._table.rules()
        transform = self._transform if rules is None else rules.applied(self._transform)
        with write_failures(self._table.name):
            origin, data = origin_of(data), made(data)
            output = checked(transform(data))
            schema = schema_of(output)
            if rules is None:
                with self._table.errors():
                    rules = self._table.first_rules(schema)
            is_as_read = output is data
            job = StagingJob(
                self._table.name, rules.store, rules.layout, self._target_bytes, rules.for_table, schema
            )
            files, counts = job.run(
                output, origin if is_as_read else None, batch, chain, number, is_as_read=is_as_read
            )
        if not files:
            return StagedBatch((), counts)
        with self._table.errors():
            staged, fulfilled = rules.staged(files, schema)
        return StagedBatch(staged, counts, fulfilled)

    def _check_store(self) -> None:
        """Before the first batch of this process."""
        if not self._is_checked:
            try:
                check_store(self._table.chains, self._runtime.new_id())
            except OSError as error:
                raise SinkError(f"{self._table.name}: chains of entries cannot be kept: {error}") from error
            self._is_checked = True
