"""The rules of a Delta table that Spark's own writer fills. Rows are checked against them before a batch is
decided.

After a batch was decided, its commit is repeated until Delta accepts it, and no failure policy applies. So a
row that Delta would refuse has to fail earlier. These rules are conditions on the output, in SQL.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, types
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster.errors import SinkError
from kcl_dagster.spark.sinks.column_names import quoted
from kcl_dagster.spark.sinks.partition_folders import hive_folder
from kcl_dagster.spark.sinks.row_conditions import conditions_of_required, fulfilling
from kcl_dagster.spark.sinks.table_columns import Target
from kcl_dagster.spark.storage import LONGEST_NAME
from kcl_dagster.spark.transform import Transform, is_frame

_CONSTRAINT: Final = "delta.constraints."
_WIDENS: Final = "delta.enableTypeWidening"
_GENERATES: Final = "delta.feature.generatedColumns"
_WRITER: Final = "delta.minWriterVersion"
_GENERATING_WRITERS: Final = frozenset(
    {"4", "5", "6"}
)  # versions of Delta's protocol that include generated columns without naming this feature

# Keys of the metadata of a column.
_TEXT_TYPE: Final = "__CHAR_VARCHAR_TYPE_STRING"
_DEFAULT: Final = "CURRENT_DEFAULT"
_GENERATION: Final = "delta.generationExpression"
_INVARIANTS: Final = "delta.invariants"
_IDENTITY: Final = "delta.identity."

_LIMITED_TEXT: Final = re.compile(r"(?:var)?char\((\d+)\)", re.IGNORECASE)
# A regular expression in SQL for the characters that Spark escapes in the name of a folder by three bytes.
_ESCAPED: Final = r"r'[\x01-\x1f\x22#%\x27*/:=?\\\x7f{\[\]^]'"


@dataclass(frozen=True, slots=True)
class NamedDeltaRules:
    """The rules of a table, as the session showed them when they were read."""

    table: str
    schema: pa.Schema
    """All columns of the table, including columns that the table computes itself."""

    properties: Mapping[str, str]
    partition_columns: tuple[str, ...] = ()
    columns: types.StructType = field(default_factory=types.StructType)
    """The columns with their metadata."""

    is_described: bool = False
    """Whether the metadata of columns is complete. If not, the metadata lacks the expressions of generated columns
    and the invariants, and does not show which columns are identity columns."""

    @property
    def target(self) -> Target:
        """The columns of the table. All of them allow nulls here, because a session does not show which of the
        required columns the table computes itself."""
        fields = [one.with_nullable(True) for one in self.schema]
        return Target(self.table, pa.schema(fields), " (ALTER TABLE ... ADD COLUMNS)")

    def widens(self) -> bool:
        return self.properties.get(_WIDENS, "false").lower() == "true"

    def applied(self, transform: Transform) -> Transform:
        """Wrap the transform, so that it fails for rows that the table does not allow. The wrapped transform leaves
        out columns that have no type and are not in the table."""

        def with_rules(records: DataFrame) -> DataFrame:
            output = transform(records)
            if not is_frame(output):
                return output  # no DataFrame; `transform.checked` refuses it
            return self._checked(self._without_void(output))

        return with_rules

    def conditions(self, output: Collection[str]) -> dict[str, str]:
        """The conditions that each row of an output with these columns has to fulfil: the SQL of each, by the name
        of the condition."""
        required = [one.name for one in self.schema if not one.nullable]
        present = {*output, *self._generated()}
        return {
            **conditions_of_required(required, present),
            **self._text_conditions(output),
            **self._partition_conditions(present, required),
        }

    def expressions(self, output: Collection[str]) -> dict[str, str]:
        """Further conditions that each row has to fulfil, by name: those whose SQL the table's owner has written.
        This SQL can need columns that the output lacks."""
        found = {
            name.removeprefix(_CONSTRAINT): sql
            for name, sql in self.properties.items()
            if name.startswith(_CONSTRAINT)
        }
        for one in self.columns:
            if _INVARIANTS in one.metadata:
                found[one.name] = json.loads(one.metadata[_INVARIANTS])["expression"]["expression"]
        for name, sql in self._generated().items():
            # This condition is for a column that the output lacks. It is true for every value, because every hash
            # is in this range. To compute the hash, Spark has to evaluate the expression of the column, and a row
            # for which this fails is refused.
            is_computed = f"hash({quoted(name)}) >= -2147483648"
            found[f"generated {name}"] = f"{quoted(name)} <=> ({sql})" if name in output else is_computed
        return found

    def refuse_hidden(self, output: Collection[str]) -> None:
        """Raise SinkError if the table possibly computes columns that the output lacks, and the session does not
        show by which expressions. Columns of int64 count as identity columns, which need no expression."""
        if self.is_described or not (
            _GENERATES in self.properties or self.properties.get(_WRITER) in _GENERATING_WRITERS
        ):
            return
        hidden = [
            one.name
            for one in self.columns
            if one.name not in output
            and _DEFAULT not in one.metadata
            and not isinstance(one.dataType, types.LongType)
        ]
        if hidden:
            raise SinkError(
                f"{self.table} may compute {hidden} from other columns, and this session (Spark Connect, or "
                "Databricks) does not show how, so rows cannot be checked before they are decided: add these "
                "columns to the output, or write to a table without generated columns"
            )

    def _checked(self, output: DataFrame) -> DataFrame:
        """Return the output with a check of each row. Returns the output itself if there is nothing to check."""
        self.refuse_hidden(output.columns)
        conditions, expressions = self.conditions(output.columns), self.expressions(output.columns)
        if not conditions and not expressions:
            return output
        complete = self._complete(output) if expressions or self._generated() else output
        known = {name: sql for name, sql in expressions.items() if _is_about(complete, sql)}
        checked = fulfilling(complete, self.table, {**conditions, **known})
        return checked.select(*map(quoted, output.columns))

    def _complete(self, output: DataFrame) -> DataFrame:
        """The output with the columns that the table adds to it, as far as their values are known."""
        generated = self._generated()
        missing = [one for one in self.columns if one.name not in output.columns]
        for one in missing:
            if one.name not in generated and not self._may_be_identity(one):
                value = F.expr(one.metadata.get(_DEFAULT, "NULL"))
                output = output.withColumn(one.name, value.cast(one.dataType))
        for one in missing:
            if one.name in generated:
                output = output.withColumn(one.name, F.expr(generated[one.name]).cast(one.dataType))
        return output

    def _may_be_identity(self, column: types.StructField) -> bool:
        if self.is_described:
            return any(key.startswith(_IDENTITY) for key in column.metadata)
        return isinstance(column.dataType, types.LongType) and _DEFAULT not in column.metadata

    def _generated(self) -> dict[str, str]:
        return {one.name: one.metadata[_GENERATION] for one in self.columns if _GENERATION in one.metadata}

    def _without_void(self, output: DataFrame) -> DataFrame:
        known = self.schema.names
        void = {one.name for one in output.schema if isinstance(one.dataType, types.NullType)} - set(known)
        if not void:
            return output
        kept = [name for name in output.columns if name not in void]
        if not kept:
            raise SinkError(f"{self.table}: no column of the output has a type: {output.columns}")
        return output.select(*map(quoted, kept))

    def _text_conditions(self, output: Collection[str]) -> dict[str, str]:
        """The conditions for columns of type varchar and char."""
        found = {}
        for one in self.columns:
            declared = one.metadata.get(_TEXT_TYPE)
            if declared is None or one.name not in output:
                continue
            limited = _LIMITED_TEXT.fullmatch(declared)
            kind = types.VarcharType(int(limited[1])) if limited else types.DataType.fromDDL(declared)
            sql = within_lengths(quoted(one.name), kind)
            if sql is not None:
                found[f"{one.name} {declared}"] = sql
        return found

    def _partition_conditions(self, present: Collection[str], required: Collection[str]) -> dict[str, str]:
        """The conditions for partition values, which Delta writes into names of folders."""
        found = {}
        for name in self.partition_columns:
            kind = self.columns[name].dataType
            if name not in present or not isinstance(kind, types.StringType | types.BinaryType):
                continue
            text, conditions = quoted(name), []
            if isinstance(kind, types.BinaryType):
                text = f"cast({text} AS string)"
                conditions.append(f"is_valid_utf8({text})")
            most = LONGEST_NAME - (len(hive_folder(name, "x").encode()) - 1)
            conditions.append(f"octet_length(regexp_replace({text}, {_ESCAPED}, '%00')) <= {most}")
            conditions.append(f"locate(char(0), {text}) = 0")
            if name in required:
                conditions.append(f"{text} <> ''")
            limits = f"at most {most} bytes when escaped, without NUL"
            found[f"partition value of {name} ({limits})"] = f"({text} IS NULL OR ({' AND '.join(conditions)}))"
        return found


def within_lengths(sql: str, kind: types.DataType, depth: int = 0) -> str | None:
    """The SQL condition that no text in the value `sql` is longer than its type varchar or char allows. None if the
    type `kind` contains no varchar or char. Delta counts spaces at the end, too."""
    match kind:
        case types.VarcharType() | types.CharType():
            return f"({sql} IS NULL OR char_length({sql}) <= {kind.length})"
        case types.StructType():
            parts = [within_lengths(f"{sql}.{quoted(one.name)}", one.dataType, depth) for one in kind]
        case types.ArrayType():
            parts = [_of_all(sql, kind.elementType, depth)]
        case types.MapType():
            parts = [
                _of_all(f"map_keys({sql})", kind.keyType, depth),
                _of_all(f"map_values({sql})", kind.valueType, depth),
            ]
        case _:
            return None
    return " AND ".join(part for part in parts if part) or None


def _of_all(sql: str, kind: types.DataType, depth: int) -> str | None:
    inner = within_lengths(f"x{depth}", kind, depth + 1)
    return None if inner is None else f"coalesce(forall({sql}, x{depth} -> {inner}), true)"


def _is_about(output: DataFrame, sql: str) -> bool:
    """Whether the output has all columns of the expression."""
    try:
        _ = output.limit(0).select(F.expr(sql)).schema
    except AnalysisException:
        return False
    return True


def sql_type(kind: types.DataType) -> str:
    """A type in the SQL of Spark. `simpleString` does not quote the names of nested fields."""
    if isinstance(kind, types.StructType):
        return f"struct<{', '.join(f'{quoted(one.name)}: {sql_type(one.dataType)}' for one in kind.fields)}>"
    if isinstance(kind, types.ArrayType):
        return f"array<{sql_type(kind.elementType)}>"
    if isinstance(kind, types.MapType):
        return f"map<{sql_type(kind.keyType)}, {sql_type(kind.valueType)}>"
    return kind.simpleString()
