"""The columns that are added to an Iceberg table, and the types to which its columns are widened.

This module makes only changes that the format allows. Without this module, pyiceberg would also make changes that
the format forbids. For example, it would change the scale of a decimal, and other engines would then read wrong
numbers from the existing files.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyarrow import types as kinds

from kcl_dagster.errors import SinkError
from kcl_dagster.spark.sinks.table_columns import fits, is_list, nullable

_MOST_DIGITS: Final = 38  # of a decimal
# Columns that Spark adds to each Iceberg table. Spark cannot read a table that has a column with such a name.
_RESERVED: Final = frozenset(
    ("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number")
)


def added_columns(columns: pa.Schema, table: pa.Schema, name: str) -> pa.Schema:
    """Return the columns with the types that they will have in the table. A column that the table already has gets
    a wider type than its present one if this is necessary, and allows nulls only if it does so now. New columns
    allow nulls.

    `table`: the columns of the table `name`. Raises SinkError if the format does not allow to widen a column,
    or if the name of a new column is reserved.
    """
    refuse_reserved([one for one in columns.names if one not in table.names], name)
    return pa.schema([_column(column, _of(table, column.name), name, column.name) for column in columns])


def refuse_reserved(names: Iterable[str], table: str) -> None:
    """Raise SinkError if one of these names of new columns is the name of a column that engines add."""
    reserved = [name for name in names if name.casefold() in _RESERVED]
    if reserved:
        raise SinkError(
            f"{table}: engines have columns of their own with the names {reserved}, and could not read the table: "
            "give these columns other names in the transform"
        )


def _of(fields: pa.Schema | pa.StructType, name: str) -> pa.Field | None:
    index = fields.get_field_index(name)
    return None if index < 0 else fields.field(index)


def _column(column: pa.Field, known: pa.Field | None, table: str, path: str) -> pa.Field:
    if known is None:
        return nullable(pa.schema([column])).field(0)
    return pa.field(column.name, _type(column.type, known.type, table, path), nullable=known.nullable)


def _type(kind: pa.DataType, known: pa.DataType, table: str, path: str) -> pa.DataType:
    if kinds.is_struct(kind) and kinds.is_struct(known):
        return pa.struct([_column(one, _of(known, one.name), table, f"{path}.{one.name}") for one in kind])
    if is_list(kind) and is_list(known):
        return pa.list_(_column(kind.value_field, known.value_field, table, f"{path}.element"))
    if kinds.is_map(kind) and kinds.is_map(known):
        key = _type(kind.key_type, known.key_type, table, f"{path}.key")
        return pa.map_(key, _column(kind.item_field, known.item_field, table, f"{path}.value"))
    if fits(kind, known):
        return known
    for wider in _wider(known, kind):
        if fits(kind, wider):
            return wider
    raise SinkError(
        f"{table}: column {path} is of type {kind} in the output, and of type {known} in the table. Iceberg widens "
        "int to bigint, float to double, and a decimal to one with more digits and the same scale: cast the column "
        "in the transform, or give it another name"
    )


def _wider(known: pa.DataType, kind: pa.DataType) -> Iterator[pa.DataType]:
    """The types to which the format allows to widen the type `known` of a column. `kind`: the type of the column in
    the output, which determines how many digits a decimal needs."""
    if kinds.is_int32(known):
        yield pa.int64()
    if kinds.is_float32(known):
        yield pa.float64()
    if kinds.is_decimal(known) and kinds.is_decimal(kind):
        digits = kind.precision - kind.scale + known.scale
        if digits <= _MOST_DIGITS:
            yield pa.decimal128(max(digits, known.precision), known.scale)
