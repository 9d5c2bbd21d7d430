"""Staging of batches of change rows, by which rows of a table are inserted, updated or deleted.

The files of such a batch are not added to the table. They are staged beside the chains, and the commit that applies
the changes removes them, see `delta_merges` and `iceberg_merges`. The column `DELETES` of a change row shows
whether the change row deletes the table's row with the same key. The sink computes this column from the condition
`delete_when` before the batch is decided. So an error in the condition fails the batch.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BooleanType, NullType, StructType

from kcl_dagster.chains.entry import StagedFile, TableRules
from kcl_dagster.errors import ConfigurationError, SinkError
from kcl_dagster.model.change_rules import DELETES, ChangeRules
from kcl_dagster.spark.failures import first_line
from kcl_dagster.spark.implicit_casts import first_implicit_cast
from kcl_dagster.spark.sinks.batch_files import BatchFile, ForTable, StagingStore, no_paths, staged_files
from kcl_dagster.spark.sinks.partition_folders import Layout, TableFolders
from kcl_dagster.spark.sinks.table_columns import Target
from kcl_dagster.spark.transform import Transform, is_frame

_MARK: Final = pa.field(DELETES, pa.bool_(), nullable=False)


def change_rows(transform: Transform, changes: ChangeRules, table: str) -> Transform:
    """Wrap the transform, so that it adds the column `DELETES`: whether a change row deletes a row of the table.

    `table`: the name of the table for messages. The wrapped transform raises ConfigurationError in three cases:

    - The output of the transform lacks a column that the rules name.
    - The output already has a column `DELETES`.
    - `delete_when` is not a condition, or cannot be evaluated on each row of an output with these columns.
    """
    judged: StructType | None = None  # the last schema for which `delete_when` was checked

    def with_deletes(records: DataFrame) -> DataFrame:
        nonlocal judged
        output = transform(records)
        if not is_frame(output):
            return output  # no DataFrame; `transform.checked` refuses it
        missing = changes.missing_in(output.columns)
        if missing:
            raise ConfigurationError(
                f"{table}: {missing}, which the function's output does not have: {output.columns}"
            )
        if DELETES in output.columns:
            raise ConfigurationError(
                f"{table}: the function's output has a column {DELETES}, which the sink adds: rename it"
            )
        if changes.delete_when is None:
            return output.withColumn(DELETES, F.lit(False))
        try:
            # Spark Connect analyses the condition only when the schema is read.
            condition = output.select(F.expr(changes.delete_when)).schema[0].dataType
        except AnalysisException as error:
            raise ConfigurationError(
                f"{table}: delete_when={changes.delete_when!r} cannot be evaluated on the function's output "
                f"{output.columns}: {first_line(error)}"
            ) from error
        if not isinstance(condition, (BooleanType, NullType)):
            raise ConfigurationError(
                f"{table}: delete_when={changes.delete_when!r} cannot be a condition, because it is of type "
                f"{condition.simpleString()}: write a comparison, such as op = 'd'"
            )
        if judged != output.schema:
            cast = first_implicit_cast(output, changes.delete_when)
            if cast is not None:
                raise ConfigurationError(
                    f"{table}: delete_when={changes.delete_when!r} cannot be evaluated on each row: {cast}"
                )
            judged = output.schema
        return output.withColumn(DELETES, F.coalesce(F.expr(changes.delete_when), F.lit(False)))

    return with_deletes


def without_mark(output: pa.Schema) -> pa.Schema:
    """The columns of change rows that are columns of the table."""
    return pa.schema([field for field in output if field.name != DELETES])


class ChangedTable(Protocol):
    """A table to which change rows are applied: the interface that the staging of a batch uses."""

    @property
    def target(self) -> Target | None:
        """The columns of the table; None if there is no table yet."""

    def applied(self, transform: Transform) -> Transform:
        """Like `WritingRules.applied`, but for change rows. A change row that deletes is allowed to violate the
        table's conditions."""

    def fulfilled(self, rows: pa.Schema) -> TableRules:
        """Return the rules of the table (see `TableRules`) that staged files with this schema follow. If there is
        no table, create it with these columns. Raises SinkError if the columns do not fit into the table."""


@dataclass(frozen=True, slots=True)
class ChangeFiles:
    """The rules by which files of change rows are written. Implements `table_sink.WritingRules`. `name`: the name
    of the table. `store`: the store in which the files are staged. `first`: the schema of the first change rows, if
    there is no table yet. `paths`: see `ForTable`."""

    name: str
    store: StagingStore
    changes: ChangeRules
    table: ChangedTable
    first: pa.Schema | None = None
    layout: Layout = field(default_factory=lambda: TableFolders(()))
    """Change rows are not divided by partition, so that the files of a task contain all changes of a key in
    order."""

    paths: Callable[[pa.RecordBatch], Iterable[str]] = no_paths

    @property
    def for_table(self) -> ForTable:
        return ForTable(self._accepted, is_staged=True, paths=self.paths)

    @property
    def target(self) -> Target | None:
        return None if self.table.target is None else self._accepted

    @property
    def _accepted(self) -> Target:
        """The columns that change rows can have. All columns but those of the key can have nulls, because a change
        row that deletes needs only the key."""
        known = self.first if self.table.target is None else self.table.target.schema
        assert known is not None
        fields = [field.with_nullable(field.name not in self.changes.merge_on) for field in without_mark(known)]
        hint = "" if self.table.target is None else self.table.target.hint
        more = {} if self.table.target is None else {"widening": self.table.target.widening}
        return Target(self.name, pa.schema([*fields, _MARK]), hint, required_by="merge_on", **more)

    def applied(self, transform: Transform) -> Transform:
        return self.table.applied(transform)

    def staged(self, files: Sequence[BatchFile], output: pa.Schema) -> tuple[tuple[StagedFile, ...], TableRules]:
        rows = without_mark(output)
        self._check_kinds(self._accepted.stored(rows))
        fulfilled = self.table.fulfilled(rows)
        return staged_files(files), msgspec.structs.replace(fulfilled, changes=self.changes)

    def _check_kinds(self, rows: pa.Schema) -> None:
        missing = self.changes.missing_in(rows.names)
        if missing:
            raise SinkError(f"{self.name}: {missing}, which has no type: cast it")
        for name in self.changes.needed:
            kind = rows.field(name).type
            is_key = name in self.changes.merge_on
            if pa.types.is_nested(kind) or (is_key and pa.types.is_floating(kind)):
                what = "merge_on" if is_key else "order_by"
                raise SinkError(f"{self.name}: {what} names {name} of type {kind}, which has no such order")
