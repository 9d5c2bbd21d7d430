"""Tables whose batches are decided in chains (logs of committed batches). Each record is stored once, whatever the
transform does.

The executors write the files of a batch once, under their final names. The next commit adds them to the table. One
worker makes this commit for all workers, see `worker.table_committer`. Until then, no reader sees the files.

Files of void batches, such as those of a worker that was killed, are in no commit. A vacuum (Delta) or the removal
of orphan files (Iceberg) deletes them. These two operations must not delete files that are younger than the longest
time between two commits, because the next commit can still add such files.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from kcl_dagster.chains.entry import FIRST, StagedFile, TableRules
from kcl_dagster.chains.store import Entries, FileStore, check_store
from kcl_dagster.errors import ConfigurationError, SinkError
from kcl_dagster.model.claim import ChainId
from kcl_dagster.model.evolution import Evolve
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.spark.arrow_columns import refuse_open
from kcl_dagster.spark.batch_records import Records
from kcl_dagster.spark.failures import write_failures
from kcl_dagster.spark.sharing import why_not_shared
from kcl_dagster.spark.sinks.batch_files import BatchFile, ForTable, StagingStore
from kcl_dagster.spark.sinks.column_names import quoted
from kcl_dagster.spark.sinks.parquet import TARGET_BYTES
from kcl_dagster.spark.sinks.partition_folders import Layout
from kcl_dagster.spark.sinks.staging_job import Staging, StagingJob, schema_of, stage
from kcl_dagster.spark.sinks.table_columns import Target, nullable
from kcl_dagster.spark.storage import LocalStore
from kcl_dagster.spark.transform import Transform, checked
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.batch import Batch
from kcl_dagster.worker.staging import Destination, FormerParts, PublishedByCommits, StagedBatch
from kcl_dagster.worker.table_committer import COMMIT_SECONDS, ChainedTable

ADDING_ATTEMPTS: Final = 3  # attempts at adding columns, because another worker can add the same columns


class WritingRules(Protocol):
    """The rules of a table by which the files of one batch are written."""

    @property
    def store(self) -> StagingStore:
        """The store in which the files are written."""

    @property
    def layout(self) -> Layout: ...

    @property
    def for_table(self) -> ForTable: ...

    @property
    def target(self) -> Target | None:
        """The columns of the table; None if there is no table yet."""

    def applied(self, transform: Transform) -> Transform:
        """Wrap the transform. The wrapped transform adds columns that the table computes, and fails for rows that
        the table does not allow."""

    def staged(self, files: Sequence[BatchFile], output: pa.Schema) -> tuple[tuple[StagedFile, ...], TableRules]:
        """The files, as an entry of a chain names them, and the rules that the files satisfy. `output`: the schema
        of the output. Raises SinkError if the files do not fit into the table."""


class TableFormat(Protocol):
    """A table of one format: the interface that the staging of batches uses. Methods raise the errors of the
    format's library."""

    @property
    def name(self) -> str:
        """The name of the table in messages."""

    @property
    def place(self) -> str:
        """A text that identifies the table, see `worker.staging.Destination`. Sends no request."""

    @property
    def chains(self) -> FileStore:
        """The store of the chains."""

    @property
    def commits(self) -> ChainedTable: ...

    @property
    def stages(self) -> bool:
        """Whether files are first written to the staging folder of the chain, instead of under their final names.
        See `worker.staging.PublishedByCommits`."""

    @property
    def former_parts(self) -> FormerParts: ...

    def errors(self) -> AbstractContextManager[None]:
        """A context for work with the table: maps errors of the format's library to SinkError."""

    def rules(self) -> WritingRules | None:
        """Read the current rules of the table; None if there is no table."""

    def first_rules(self, output: pa.Schema) -> WritingRules:
        """Return the rules for an output of this schema. Called if `rules` has found no table. In some formats,
        this makes the table."""

    def add(self, columns: pa.Schema) -> None:
        """Add these columns to the table, and widen columns that the table has with another type. All `columns`
        allow nulls. If a column cannot be added or widened, it remains unchanged, or SinkError is raised."""

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        """Implements `worker.staging.StagingSink.keep_complete`."""


class TableSink:
    """Stages batches for a table. `commit_seconds`: the time between two commits. `evolve`: what happens to columns
    that the table does not have. A column is added by a separate commit before the batch is staged, so that every
    decided batch fits into the table. Readers see the column some seconds before its values."""

    def __init__(
        self,
        table: TableFormat,
        transform: Transform,
        *,
        commit_seconds: float = COMMIT_SECONDS,
        target_bytes: int = TARGET_BYTES,
        evolve: Evolve = "refuse",
        runtime: Runtime | None = None,
    ) -> None:
        self._evolve = evolve
        self._table = table
        self._transform = transform
        self._target_bytes = target_bytes
        self._runtime = runtime or system()
        self._is_checked = False
        self._shared_root: str | None = None
        self._commit_seconds = commit_seconds

    @property
    def entries(self) -> Entries:
        """Implements `worker.staging.StagingSink.entries`."""
        return Entries(self._table.chains)

    @property
    def destinations(self) -> dict[str, Destination]:
        """Implements `worker.staging.StagingSink.destinations`."""
        commits = PublishedByCommits(self._table.commits, self._commit_seconds, self._table.stages)
        return {FIRST: Destination(self._table.chains, commits, self._table.place)}

    @property
    def former_parts(self) -> FormerParts:
        """Implements `worker.staging.StagingSink.former_parts`."""
        return self._table.former_parts

    def staging(self) -> None:
        """Return None: fetches stage nothing, because the rules of the table are read for each batch after its
        fetch."""

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        """Implements `worker.staging.StagingSink.keep_complete`."""
        self._table.keep_complete(application, known, wanted)

    def begin_reading(self, chain: ChainId, time_column: str | None) -> None:
        """Do nothing, because fetches stage nothing for a table."""

    def stage(self, data: Records, batch: Batch, chain: ChainId, number: int) -> StagedBatch:
        """Implements `worker.staging.StagingSink.stage`."""
        return stage(self.staged(data, batch, chain, number))

    def staged(self, data: Records, batch: Batch, chain: ChainId, number: int) -> Staging[StagedBatch]:
        """Implements `spark.sinks.contract.SparkSink.staged`."""
        with self._table.errors():
            self._check_store()
            rules = self._table.rules()
        transform = self._transform if rules is None else rules.applied(self._transform)
        with write_failures(self._table.name):
            output = checked(transform(data.frame))
            schema = schema_of(output)
            typed = self._typed(output, schema, None if rules is None else rules.target)
            if typed is not output:
                output, schema = typed, schema_of(typed)
            if rules is None:
                refuse_open(schema, self._table.name)
                with self._table.errors():
                    rules = self._table.first_rules(schema)
                fitted = self._for_new_table(output, rules)
                if fitted is not output:
                    output, schema = fitted, schema_of(fitted)
            if self._evolve == "ignore":
                output = self._known(output, rules)
                schema = schema_of(output)
            elif self._evolve == "add":
                rules = self._evolved(schema, rules)
            self._check_sharing(output.sparkSession, rules.store)
            is_as_read = output is data.frame
            job = StagingJob(
                self._table.name, rules.store, rules.layout, self._target_bytes, rules.for_table, schema
            )
            files, counts = yield from job.run(
                output, batch, chain, number, is_as_read=is_as_read, worked=data.worked
            )
        if not files:
            return StagedBatch((), counts)
        try:
            with self._table.errors():
                staged, fulfilled = rules.staged(files, schema)
        except SinkError:
            job.discard(files)
            raise
        return StagedBatch(staged, counts, fulfilled)

    def _for_new_table(self, output: DataFrame, rules: WritingRules) -> DataFrame:  # noqa: ARG002 - for subclasses
        """Return the first output of a new table as it is written. Subclasses can adapt it to the rules."""
        return output

    def _typed(self, output: DataFrame, schema: pa.Schema, target: Target | None) -> DataFrame:
        """Return the output without the columns that have no type, such as `lit(None)`, unless the table has them.
        If such a column were made in the table, the table would refuse all later values of the column. Raises
        SinkError if no column remains."""
        known = () if target is None else target.schema.names
        kept = [one.name for one in schema if one.name in known or not pa.types.is_null(one.type)]
        if not kept:
            raise SinkError(f"{self._table.name}: no column of the output has a type: {output.columns}")
        return output if len(kept) == len(schema) else output.select(*map(quoted, kept))

    def _known(self, output: DataFrame, rules: WritingRules) -> DataFrame:
        """Return the output without the columns that the table does not have. Raises SinkError if no column
        remains, or if a name differs from a column of the table only in case."""
        if rules.target is None:
            return output
        kept = rules.target.known(output.columns)
        if not kept:
            raise SinkError(f"{self._table.name} has none of the columns of the output: {output.columns}")
        return output if len(kept) == len(output.columns) else output.select(*map(quoted, kept))

    def _evolved(self, output: pa.Schema, rules: WritingRules) -> WritingRules:
        """Add the columns of the output to the table, and return its new rules. Other workers can add the same
        columns at the same time. If a column could not be added, the batch is refused when it is staged."""
        before: pa.Schema | None = None
        for attempt in range(1, ADDING_ATTEMPTS + 1):
            strange = pa.schema([]) if rules.target is None else rules.target.strange(output)
            if not strange.names or strange == before:
                break
            before = strange
            refuse_open(strange, self._table.name)
            try:
                with self._table.errors():
                    self._table.add(nullable(strange))
            except SinkError:
                if attempt == ADDING_ATTEMPTS:
                    raise
                before = None
            with self._table.errors():
                known = self._table.rules()
            if known is None:
                raise SinkError(f"{self._table.name} was removed while columns were added")
            rules = known
        return rules

    def _check_sharing(self, spark: SparkSession, store: StagingStore) -> None:
        """Raise ConfigurationError if the driver does not find files that executors write into the store. Without
        this check, a batch could be decided although its files are on the local disk of an executor. Called before
        the first batch below each root, because the root is not known earlier if a catalog decides on it."""
        if not isinstance(store, LocalStore) or store.root == self._shared_root:
            return
        wrong = why_not_shared(spark, store, self._runtime.new_id())
        if wrong is not None:
            raise ConfigurationError(wrong)
        self._shared_root = store.root

    def _check_store(self) -> None:
        """Before the first batch of this process, check that the store of the chains supports chains. Raises
        ConfigurationError if it does not, and SinkError if the check could not be made."""
        if not self._is_checked:
            try:
                check_store(self._table.chains, self._runtime.new_id())
            except OSError as error:
                raise SinkError(f"{self._table.name}: chains of entries cannot be kept: {error}") from error
            self._is_checked = True
