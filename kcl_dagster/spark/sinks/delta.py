"""Delta tables whose batches are committed in chains (logs of committed batches), see `table_sink`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from kcl_dagster.chains.entry import StagedFile, TableRules
from kcl_dagster.errors import SinkError
from kcl_dagster.model.change_rules import ChangeRules, change_rules
from kcl_dagster.model.evolution import Evolve
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.spark.partition_columns import partitioned
from kcl_dagster.spark.sinks.batch_files import BatchFile, ForTable
from kcl_dagster.spark.sinks.change_files import ChangeFiles, change_rows, without_mark
from kcl_dagster.spark.sinks.delta_commits import DeltaCommits
from kcl_dagster.spark.sinks.delta_log import DeltaLog, check_settings, delta_options
from kcl_dagster.spark.sinks.delta_partitions import MergedPaths, changed_columns
from kcl_dagster.spark.sinks.delta_rules import DeltaRules, partitions_of, refuse_forgetting
from kcl_dagster.spark.sinks.delta_statistics import DeltaStatistics
from kcl_dagster.spark.sinks.former_parts import DeltaParts
from kcl_dagster.spark.sinks.parquet import TARGET_BYTES
from kcl_dagster.spark.sinks.partition_folders import Layout, TableFolders
from kcl_dagster.spark.sinks.table_columns import Target, refuse_same_names
from kcl_dagster.spark.sinks.table_errors import table_errors
from kcl_dagster.spark.sinks.table_sink import TableSink, WritingRules
from kcl_dagster.spark.storage import S3Options, Store, open_store
from kcl_dagster.spark.transform import Transform, unchanged
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.table_committer import COMMIT_SECONDS, ChainedTable


class DeltaSink(TableSink):
    """Stages batches for the Delta table at `path`, a shared local directory or `s3://bucket/prefix`.

    The table is created with the first batch, with the schema of the output and partitioned by `partition_by`. An
    existing table is written to according to its own rules, see `delta_rules`.

    - `commit_seconds`: the time between two commits.
    - `merge_on`, `delete_when`, `order_by`: the output consists of change rows, see `model.change_rules`.
    """

    def __init__(
        self,
        path: str,
        *,
        transform: Transform = unchanged,
        partition_by: Sequence[str] = (),
        s3: S3Options | None = None,
        storage_options: Mapping[str, str] | None = None,
        commit_seconds: float = COMMIT_SECONDS,
        target_bytes: int = TARGET_BYTES,
        evolve: Evolve = "refuse",
        merge_on: Sequence[str] = (),
        delete_when: str | None = None,
        order_by: str | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        check_settings(partition_by)
        changes = change_rules(merge_on, delete_when, order_by, "a DeltaSink")
        self._store = open_store(path, s3)
        transform, columns = partitioned(transform, partition_by)
        log = DeltaLog(self._store, dict(storage_options or delta_options(s3 or S3Options())), columns)
        if changes is not None:
            transform = change_rows(transform, changes, log.name)
        self._log = log
        super().__init__(
            DeltaFormat(log, runtime or system(), changes),
            transform,
            commit_seconds=commit_seconds,
            target_bytes=target_bytes,
            evolve=evolve,
            runtime=runtime,
        )

    @property
    def path(self) -> str:
        return self._store.root

    @property
    def stores_into(self) -> tuple[Store]:
        """Implements `spark.sinks.contract.SparkSink.stores_into`."""
        return (self._store,)

    def version(self) -> dict[str, int]:
        """Implements `spark.sinks.contract.SparkSink.version`."""
        from deltalake import DeltaTable

        with table_errors(self._log.name):
            options = dict(self._log.options)
            if not DeltaTable.is_deltatable(self._log.url, options):
                return {}
            return {"table_version": DeltaTable(self._log.url, storage_options=options).version()}


@dataclass(frozen=True, slots=True)
class DeltaFormat:
    """A table of the Delta format. Implements `table_sink.TableFormat`."""

    log: DeltaLog
    runtime: Runtime
    changes: ChangeRules | None = None

    @property
    def name(self) -> str:
        return self.log.name

    @property
    def place(self) -> str:
        return self.log.store.root

    @property
    def chains(self) -> Store:
        return self.log.store

    @property
    def commits(self) -> ChainedTable:
        return DeltaCommits(self.log, self.runtime)

    @property
    def stages(self) -> bool:
        return self.changes is not None

    @property
    def former_parts(self) -> DeltaParts:
        return DeltaParts(self.log)

    @contextmanager
    def errors(self) -> Iterator[None]:
        with self.log.errors():
            yield

    def rules(self) -> WritingRules | None:
        table = self.log.refreshed()
        if table is None:
            return None
        refuse_forgetting(table, self.log.name)
        rules = DeltaRules.of(table, self.log.name, self.changes)
        if self.changes is None:
            return DeltaWriting(self.log, rules)
        return self._of_changes(rules, self.changes, partitions_of(table, rules.partition_columns))

    def first_rules(self, output: pa.Schema) -> WritingRules:
        """The rules for a new table. The table is made when the first rows are staged. Raises SinkError if engines
        could not read a table with these names of columns."""
        refuse_same_names(self.name, output, pa.schema([]))
        if self.changes is None:
            return DeltaWriting(self.log, None)
        return self._of_changes(None, self.changes, pa.table({}), without_mark(output))

    def _of_changes(
        self, rules: DeltaRules | None, changes: ChangeRules, partitions: pa.Table, first: pa.Schema | None = None
    ) -> ChangeFiles:
        columns = tuple(self.log.columns if rules is None else rules.partition_columns)
        table = ChangedDelta(self.log, rules, changes)
        paths = MergedPaths.into(self.name, partitions, columns, changes.merge_on, self.log.store.too_long)
        return ChangeFiles(self.log.name, self.log.store, changes, table, first, paths=paths)

    def add(self, columns: pa.Schema) -> None:
        self.log.add(columns)

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        self.log.keep_complete(application, known, wanted)


@dataclass(frozen=True, slots=True)
class DeltaWriting:
    """How files of a Delta table are written. Implements `table_sink.WritingRules`.

    `rules`: what an existing table requires of its files. None if there is no table yet."""

    log: DeltaLog
    rules: DeltaRules | None

    @property
    def store(self) -> Store:
        return self.log.store

    @property
    def layout(self) -> Layout:
        return TableFolders(tuple(self.log.columns)) if self.rules is None else self.rules.layout

    @property
    def for_table(self) -> ForTable:
        return ForTable(None, DeltaStatistics()) if self.rules is None else self.rules.for_table

    @property
    def target(self) -> Target | None:
        return None if self.rules is None else self.rules.target

    def applied(self, transform: Transform) -> Transform:
        return transform if self.rules is None else self.rules.applied(transform)

    def staged(self, files: Sequence[BatchFile], output: pa.Schema) -> tuple[tuple[StagedFile, ...], TableRules]:
        rules = self.rules or self.log.rules_of_new_table(output)
        staged = (StagedFile(file.path, file.rows, file.bytes, file.partition, file.statistics) for file in files)
        return tuple(staged), rules.fulfilled(output)


@dataclass(frozen=True, slots=True)
class ChangedDelta:
    """A Delta table to which change rows are applied. Implements `change_files.ChangedTable`. `rules`: None if
    there is no table yet."""

    log: DeltaLog
    rules: DeltaRules | None
    changes: ChangeRules

    @property
    def target(self) -> Target | None:
        return None if self.rules is None else self.rules.target

    def applied(self, transform: Transform) -> Transform:
        return transform if self.rules is None else self.rules.applied(transform, to_changes=True)

    def fulfilled(self, rows: pa.Schema) -> TableRules:
        if self.rules is None:
            self._refuse_partitions(rows, self.log.columns)  # before the table is made
        rules = self.rules or self.log.rules_of_new_table(rows, self.changes)
        self._refuse_partitions(rules.schema, rules.partition_columns)
        rules.target.check(rows)
        return rules.fulfilled(rows)

    def _refuse_partitions(self, schema: pa.Schema, columns: Sequence[str]) -> None:
        changed = changed_columns(schema, columns)
        if changed:
            raise SinkError(
                f"{self.log.name}: no rows can be merged into a table that is partitioned by {changed} of type "
                f"{', '.join(str(schema.field(name).type) for name in changed)}, because delta-rs changes such "
                "values: use another table, partitioned by columns of other types, or leave merge_on out"
            )
