"""The rules that an existing Delta table sets for all writers: its partitioning, its columns and its constraints.

delta-rs adds files to a table without reading them. So the sink itself follows all rules, or refuses the table.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, StructField, StructType

from kcl_dagster.chains.entry import PublishingEntry, TableRules
from kcl_dagster.errors import SinkError
from kcl_dagster.model.change_rules import DELETES, ChangeRules
from kcl_dagster.spark.sinks.batch_files import ForTable
from kcl_dagster.spark.sinks.column_names import quoted
from kcl_dagster.spark.sinks.delta_partitions import distinct_rows
from kcl_dagster.spark.sinks.delta_statistics import INDEXED_COLUMNS, DeltaStatistics
from kcl_dagster.spark.sinks.partition_folders import Layout, TableFolders
from kcl_dagster.spark.sinks.row_conditions import conditions_of_required, fulfilling
from kcl_dagster.spark.sinks.table_columns import Target
from kcl_dagster.spark.transform import Transform, is_frame

if TYPE_CHECKING:
    from deltalake import DeltaTable

# A table to which rows are appended can have these features. Each of them is satisfied by appended files with
# statistics, or by `DeltaRules`. delta-rs commits to tables with these features. delta-rs refuses tables with other
# features, but only at a commit, when batches are already decided. So the sink refuses such tables earlier.
_HONOURED: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",  # if it is switched on, `_refuse` refuses the table
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
    }
)
# A table into which change rows are merged can have these features. delta-rs also merges into tables with deletion
# vectors, but it was not verified that a merge leaves out the rows that deletion vectors delete.
_MERGED: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "generatedColumns",
        "invariants",
        "timestampNtz",
    }
)
_CONSTRAINT: Final = "delta.constraints."
_STATISTICS: Final = "delta.dataSkippingNumIndexedCols"
_FORGETS: Final = "delta.setTransactionRetentionDuration"


@dataclass(frozen=True, slots=True)
class DeltaRules:
    """The rules of a table at the time when it was loaded."""

    table: str
    schema: pa.Schema
    partition_columns: tuple[str, ...]
    conditions: Mapping[str, str]
    """SQL that must be true of every row, by the name of the constraint."""
    expressions: Mapping[str, tuple[str, DataType]]
    """Generated columns: their SQL expressions and types. A column is computed if the output does not have it."""
    indexed_columns: int

    @classmethod
    def of(cls, table: "DeltaTable", name: str, changes: ChangeRules | None = None) -> "DeltaRules":
        """Read the rules of a table. `changes`: set if change rows will be merged into the table. Raises SinkError
        if the table has rules that the sink does not support."""
        metadata = table.metadata()
        described = StructType.fromJson(json.loads(table.schema().to_json()))
        configuration: Mapping[str, str] = metadata.configuration
        _refuse(table, described, configuration, name, _HONOURED if changes is None else _MERGED)
        if changes is not None:
            _refuse_changes(described, configuration, changes, name)
        conditions = {
            key.removeprefix(_CONSTRAINT): text
            for key, text in configuration.items()
            if key.startswith(_CONSTRAINT)
        }
        expressions = {}
        for field in described:
            about: Mapping[str, Any] = field.metadata
            if "delta.invariants" in about:
                conditions[field.name] = json.loads(about["delta.invariants"])["expression"]["expression"]
            if "delta.generationExpression" in about:
                sql = about["delta.generationExpression"]
                expressions[field.name] = sql, field.dataType
                conditions[field.name] = f"{quoted(field.name)} <=> ({sql})"
        return cls(
            name,
            pa.schema(table.schema().to_arrow()),
            tuple(metadata.partition_columns),
            conditions,
            expressions,
            int(configuration.get(_STATISTICS, INDEXED_COLUMNS)),
        )

    @property
    def layout(self) -> Layout:
        return TableFolders(self.partition_columns)

    @property
    def for_table(self) -> ForTable:
        return ForTable(self.target, DeltaStatistics(self.indexed_columns))

    @property
    def target(self) -> Target:
        return Target(self.table, self.schema, " (DeltaTable.alter.add_columns)")

    def applied(self, transform: Transform, *, to_changes: bool = False) -> Transform:
        """Wrap the transform. The wrapped transform adds the columns that the table computes, and fails for rows
        that violate the table's constraints. `to_changes`: the rows are change rows; those that delete a row of the
        table are allowed to violate the constraints."""
        if not self.conditions and not self.expressions and not (to_changes and self.target.required):
            return transform

        def with_rules(records: DataFrame) -> DataFrame:
            output = transform(records)
            if not is_frame(output):
                return output  # no DataFrame; `transform.checked` refuses it
            for name, (sql, kind) in self.expressions.items():
                if name not in output.columns:
                    output = output.withColumn(name, _computed(output, sql, kind))
            required = self.target.required if to_changes else ()
            conditions = {**self.conditions, **conditions_of_required(required, output.columns)}
            return fulfilling(output, self.table, conditions, unless=DELETES if to_changes else None)

        return with_rules

    def fulfilled(self, output: pa.Schema) -> TableRules:
        """The rules that the files of an output with this schema satisfy, if they were written by these rules."""
        return self.target.fulfilled(output, self.conditions)

    def check_entry(self, entry: PublishingEntry) -> None:
        """Raise SinkError if the files of an entry do not fit into the table, because the table was altered since
        the files were written."""
        if not entry.files or entry.rules is None:
            return
        self.target.check_rules(entry.rules, self.conditions)
        if entry.rules.changes is not None:
            return
        for file in entry.files:
            if set(file.partition or {}) != set(self.partition_columns):
                raise SinkError(
                    f"{self.table} is partitioned by {list(self.partition_columns)}, and {file.path} by "
                    f"{list(file.partition or {})}"
                )


def _computed(output: DataFrame, sql: str, kind: DataType) -> Column:
    """Return the expression of a generated column, cast to the type of the column. If a field inside the type is
    NOT NULL, Spark refuses to cast an expression that can have nulls. The expression is then cast to the same type
    with nulls allowed. Later, `Target.check` raises an error with the name of the column."""
    nullable = StructType([StructField("", kind)]).toNullable()[0].dataType
    if kind != nullable:
        try:
            # Spark Connect analyses the expression only when the schema is read.
            _ = output.select(F.expr(sql).cast(kind)).schema
        except AnalysisException:
            kind = nullable
    return F.expr(sql).cast(kind)


def partitions_of(table: "DeltaTable", columns: Sequence[str]) -> pa.Table:
    """The partitions of the files of a table: a row for each combination of values of the partition columns."""
    if not columns:
        return pa.table({})
    actions = pa.table(table.get_add_actions(flatten=False))
    values = actions["partition"].combine_chunks()
    return distinct_rows(pa.table({name: values.field(name) for name in columns}))


def refuse_forgetting(table: "DeltaTable", name: str) -> None:
    """Raise SinkError if the log of the table forgets the numbers of commits, so that a commit could be made again.
    Called before a batch is decided; batches that were decided before are still committed."""
    kept = table.metadata().configuration.get(_FORGETS)
    if kept is not None:
        raise SinkError(
            f"{name} says {_FORGETS}={kept!r}, so its log forgets which commits it contains, and batches could be "
            f"stored twice. Remove this property (ALTER TABLE ... UNSET TBLPROPERTIES ('{_FORGETS}')), or let "
            'Spark write to the table: writer="spark"'
        )


def _refuse(
    table: "DeltaTable", schema: StructType, configuration: Mapping[str, str], name: str, honoured: frozenset[str]
) -> None:
    wanted = set(table.protocol().writer_features or ()) - honoured
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        wanted.add("columnMapping")
    if any(key.startswith("delta.identity.") for field in schema for key in field.metadata):
        wanted.add("identityColumns")
    if wanted:
        raise SinkError(
            f"{name} demands of writers what delta-rs does not do: {', '.join(sorted(wanted))}. Write to another "
            'table, or let Spark write to this one: writer="spark"'
        )


def _refuse_changes(schema: StructType, configuration: Mapping[str, str], changes: ChangeRules, name: str) -> None:
    if configuration.get("delta.appendOnly", "false").lower() == "true":
        raise SinkError(f"{name} says delta.appendOnly, so no row of it can be changed: leave merge_on out")
    missing = changes.missing_in(schema.names)
    if missing:
        raise SinkError(f"{name}: {missing}, which the table lacks: add it to the table first")
