"""The columns of a table, and whether an output with columns of other types can be stored in the table.

A type of the output can be narrower than the table's type: integers, floats and decimals are widened when the file
is written. A column is rejected if the table's type cannot represent all values of the output's type. A nested
column is also rejected if an inner field allows nulls in the output, but not in the table.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyarrow import types as kinds

from kcl_dagster.chains.entry import TableRules
from kcl_dagster.errors import RecordRefused, SinkError
from kcl_dagster.spark.parquet_file import Footer, null_counts, read_footer
from kcl_dagster.spark.schema import LEASE_KEY
from kcl_dagster.spark.sinks.field_ids import as_read, has_ids, names_now, with_id

_EXACT_IN_A_DOUBLE: Final = 32  # bits of the widest integer type that a double represents exactly


@dataclass(frozen=True, slots=True)
class Target:
    """The columns of a table. An object of this class never changes, and can be sent to an executor."""

    table: str
    schema: pa.Schema
    hint: str = ""
    """How a user adds columns to such a table, for messages."""

    widening: str = "widen the table if its format allows"
    """How a user widens the type of a column of such a table, for messages."""

    required_by: str = "the table"
    """The reason why some columns allow no nulls, for messages."""

    def check(self, output: pa.Schema) -> None:
        """Raise SinkError if an output of this schema does not fit into the table."""
        self._check(output, " With evolve='add' the sink adds them, and with evolve='ignore' it leaves them out.")

    def _check(self, output: pa.Schema, evolves: str = "") -> None:
        new, others = [], []
        for field in output:
            index = self.schema.get_field_index(field.name)
            if index < 0:
                new.append(f"{field.name} (not in the table)")
            elif not fits(field.type, self.schema.field(index).type):
                others.append(f"{field.name} ({field.type}, and {self.schema.field(index).type} in the table)")
        missing = [name for name in self.required if name not in output.names]
        if new or others:
            said = f"{self.table}: the output's columns do not fit: {', '.join([*new, *others])}."
            if new:
                said += (
                    f" Add new columns to the table first{self.hint}, or leave them out in the transform.{evolves}"
                )
            if others:
                said += f" Cast columns of another type in the transform, or {self.widening}."
            raise SinkError(said)
        if missing:
            added = f". Version 0.1 added {LEASE_KEY}: keep it in the function" if LEASE_KEY in missing else ""
            raise SinkError(f"{self.table}: the output lacks {missing}, which the table requires{added}")

    def strange(self, output: pa.Schema) -> pa.Schema:
        """The columns of an output that the table does not have, or whose type does not fit the table's type.
        Raises SinkError as `known` and `refuse_same_names` do."""
        self.known(output.names)
        refuse_same_names(self.table, output, self.schema)
        return pa.schema(field for field in output if not self._holds(field))

    def known(self, output: Sequence[str]) -> list[str]:
        """Select the columns that the table has. Raises SinkError if a name differs from the name of a table's
        column only in case, because most readers treat both as the same column."""
        names = {name.casefold(): name for name in self.schema.names}
        for name in sorted(set(output) - set(self.schema.names)):
            if name.casefold() in names:
                raise SinkError(
                    f"{self.table}: column {name} of the output differs from {names[name.casefold()]} of the table "
                    "in case only"
                )
        return [name for name in output if name in self.schema.names]

    def _holds(self, field: pa.Field) -> bool:
        index = self.schema.get_field_index(field.name)
        return index >= 0 and fits(field.type, self.schema.field(index).type)

    @property
    def required(self) -> tuple[str, ...]:
        """The columns that allow no nulls."""
        return tuple(field.name for field in self.schema if not field.nullable)

    def fulfilled(
        self, output: pa.Schema, conditions: Mapping[str, str] | None = None, table: str | None = None
    ) -> TableRules:
        """The rules that files satisfy if they contain an output of this schema and were written for this target.
        Parameters: see `TableRules`."""
        return TableRules(encoded_schema(self.stored(output)), self.required, dict(conditions or {}), table)

    def check_rules(self, rules: TableRules, conditions: Mapping[str, str] | None = None) -> None:
        """Raise SinkError if files that were written by these rules do not fit into the table, because the table
        was altered since then. Columns with ids are compared by their ids, see `field_ids`, and others by their
        names. `conditions`: the conditions that every row of the table has to satisfy."""
        written, required = decoded_schema(rules.schema), set(rules.required)
        if has_ids(written):
            required = names_now(required, written, self.schema)
            written = as_read(written, self.schema)
        self._check(written)
        nulls = set(self.required) - required
        others = {name for name, sql in (conditions or {}).items() if rules.conditions.get(name) != sql}
        if nulls or others:
            broken = sorted(nulls | others)
            raise SinkError(f"{self.table} was altered: rows that were decided before may not fulfil {broken}")

    def check_nulls(self, footer: Footer, partition: Mapping[str, object] | None = None) -> None:
        """Raise RecordRefused if a file has nulls in a column that allows none."""
        if not self.required:
            return
        counts = null_counts(read_footer(footer))
        wrong = [name for name in self.required if counts.get(name, 0) or (partition or {}).get(name, "") is None]
        if wrong:
            raise RecordRefused(f"{self.table}: a row has null in {wrong}, which {self.required_by} does not allow")

    def stored(self, output: pa.Schema) -> pa.Schema:
        """The schema in which an output is stored. If the table's columns have ids, the schema has them as well."""
        fields = []
        for field in output:
            index = self.schema.get_field_index(field.name)
            if index < 0:
                fields.append(field)
                continue
            known = self.schema.field(index)
            same = any(is_kind(field.type) and is_kind(known.type) for is_kind in (_is_text, _is_bytes))
            fields.append(with_id(field if same else field.with_type(known.type), known))
        return pa.schema(fields)

    def cast(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        schema = self.stored(rows.schema)
        if schema != rows.schema:
            return rows.cast(schema)
        return pa.RecordBatch.from_arrays(rows.columns, schema=schema) if has_ids(schema) else rows


def encoded_schema(schema: pa.Schema) -> str:
    """The schema as text, for `decoded_schema`."""
    return b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()


def decoded_schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.BufferReader(b64decode(text)))


def fits(output: pa.DataType, table: pa.DataType) -> bool:
    """Whether the table's type can represent every value of the output's type."""
    if output == table or kinds.is_null(output):
        return True
    if kinds.is_signed_integer(output) and kinds.is_signed_integer(table):
        return bool(output.bit_width <= table.bit_width)
    if kinds.is_signed_integer(output) and kinds.is_float64(table):
        return bool(output.bit_width <= _EXACT_IN_A_DOUBLE)
    if kinds.is_floating(output) and kinds.is_floating(table):
        return bool(output.bit_width <= table.bit_width)
    if kinds.is_decimal(output) and kinds.is_decimal(table):
        whole_digits = table.precision - table.scale >= output.precision - output.scale
        return bool(whole_digits and table.scale >= output.scale)
    if kinds.is_timestamp(output) and kinds.is_timestamp(table):
        return output.unit == table.unit and (output.tz is None) == (table.tz is None)
    if kinds.is_map(output) and kinds.is_map(table):
        return fits(output.key_type, table.key_type) and _field_fits(output.item_field, table.item_field)
    if is_list(output) and is_list(table):
        return _field_fits(output.value_field, table.value_field)
    if kinds.is_struct(output) and kinds.is_struct(table):
        same_names = [field.name for field in output] == [field.name for field in table]
        return same_names and all(map(_field_fits, output, table))
    return any(is_kind(output) and is_kind(table) for is_kind in (_is_text, _is_bytes))


def _field_fits(output: pa.Field, table: pa.Field) -> bool:
    return fits(output.type, table.type) and (table.nullable or not output.nullable)


def refuse_same_names(table: str, output: pa.Schema, known: pa.Schema) -> None:
    """Raise SinkError if the name of a new column differs from another name only in case, also within structs.
    Spark cannot read a table with two such columns. `known`: the columns that the table has."""
    for new, other in _same_names(pa.struct(list(output)), pa.struct(list(known)), ""):
        raise SinkError(
            f"{table}: column {new} of the output differs from {other} in case only. Most engines treat the two as "
            "one: give one of them another name, or leave it out in the transform"
        )


def _same_names(output: pa.DataType, known: pa.DataType | None, path: str) -> Iterator[tuple[str, str]]:
    """Pairs of names that differ only in case, of which the table has at most one. `path`: the path of the type."""
    if kinds.is_struct(output):
        columns = {} if known is None or not kinds.is_struct(known) else {one.name: one.type for one in known}
        spelled = {name.casefold(): name for name in columns}
        for one in output:
            other = spelled.setdefault(one.name.casefold(), one.name)
            if one.name not in columns and other != one.name:
                yield path + one.name, path + other
            yield from _same_names(one.type, columns.get(one.name), f"{path}{one.name}.")
    elif is_list(output):
        inside = known.value_type if known is not None and is_list(known) else None
        yield from _same_names(output.value_type, inside, f"{path}element.")
    elif kinds.is_map(output):
        key = value = None
        if known is not None and kinds.is_map(known):
            key, value = known.key_type, known.item_type
        yield from _same_names(output.key_type, key, f"{path}key.")
        yield from _same_names(output.item_type, value, f"{path}value.")


def nullable(schema: pa.Schema) -> pa.Schema:
    """The schema with nullable columns, for a table that is created from an output. A column of one output can be
    non-nullable, although the next output has nulls in this column. For example, Spark makes a column of literals
    non-nullable."""
    return pa.schema([pa.field(field.name, _nullable(field.type)) for field in schema])


def _nullable(kind: pa.DataType) -> pa.DataType:
    if kinds.is_map(kind):
        return pa.map_(_nullable(kind.key_type), pa.field(kind.item_field.name, _nullable(kind.item_type)))
    if is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _nullable(kind.value_type)))
    if kinds.is_struct(kind):
        return pa.struct([pa.field(field.name, _nullable(field.type)) for field in kind])
    return kind


def _any(*questions: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda kind: any(question(kind) for question in questions)


is_list: Final = _any(kinds.is_list, kinds.is_large_list)
_is_text: Final = _any(kinds.is_string, kinds.is_large_string)
_is_bytes: Final = _any(kinds.is_binary, kinds.is_large_binary)
