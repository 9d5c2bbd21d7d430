"""Converts the columns of Arrow tables to types with which readers can read all files of a folder. Pure.

The types of a DataFrame follow from its plan. The types of an Arrow table can follow from its values: a column can
have integers in one table, floats in the next, and nulls in a third. So each column gets the type that it has in
the first table that contains it. The column must fit this type in later tables.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from kcl_dagster.errors import RecordRefused, SinkError, TransformError
from kcl_dagster.model.evolution import Evolve
from kcl_dagster.spark.schema import PROGRESS
from kcl_dagster.spark.sinks.table_columns import fits

Types = Mapping[str, pa.DataType]
"""The types of columns by their names. A column whose type is not known yet is absent."""

WIDEST_DECIMAL: Final = 38  # digits; the maximum of Spark and of most readers
# The types of list views are left out, because pyarrow's cast of a list view to a list makes an invalid array.
_ARE_LISTS: Final = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list)
_AS_THEY_ARE: Final = (
    kinds.is_boolean,
    kinds.is_integer,
    kinds.is_float32,
    kinds.is_float64,
    kinds.is_null,
    kinds.is_date32,
)


def plain(kind: pa.DataType) -> pa.DataType | None:
    """The type in which values of `kind` are stored. None if Spark and other readers have no type for them."""
    if any(is_kind(kind) for is_kind in _AS_THEY_ARE):
        return kind
    if isinstance(kind, pa.BaseExtensionType):
        return plain(kind.storage_type)
    if kinds.is_dictionary(kind):
        return plain(kind.value_type)
    if kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind):
        return pa.string()
    if kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_binary_view(kind):
        return pa.binary()
    if kinds.is_fixed_size_binary(kind):
        return pa.binary()
    if kinds.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if kinds.is_date64(kind):
        return pa.date32()
    if kinds.is_float16(kind):
        return pa.float32()
    if kinds.is_decimal(kind):
        is_known = kind.precision <= WIDEST_DECIMAL and 0 <= kind.scale <= kind.precision
        return pa.decimal128(kind.precision, kind.scale) if is_known else None
    return _plain_nested(kind)


def _plain_nested(kind: pa.DataType) -> pa.DataType | None:
    if kinds.is_map(kind):
        key, item = plain(kind.key_type), plain(kind.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if kinds.is_struct(kind):
        inner = [(one.name, plain(one.type)) for one in kind]
        return pa.struct(inner) if inner and all(one is not None for _, one in inner) else None
    if any(is_kind(kind) for is_kind in _ARE_LISTS):
        value = plain(kind.value_type)
        return None if value is None else pa.list_(value)
    return None


def has_null(kind: pa.DataType) -> bool:
    """Whether a type, or a type nested in it, is null. If so, the type of values in later tables is not known."""
    if kinds.is_map(kind):
        return has_null(kind.key_type) or has_null(kind.item_type)
    if kinds.is_struct(kind):
        return any(has_null(one.type) for one in kind)
    return has_null(kind.value_type) if kinds.is_list(kind) else bool(kinds.is_null(kind))


def refuse_open(columns: Iterable[pa.Field], table: str) -> None:
    """Raise SinkError for columns whose nested type is not fully known, as with `array(null)`."""
    found = [one.name for one in columns if has_null(one.type)]
    if found:
        raise SinkError(f"{table}: columns {found} leave open what is in them: cast them in the transform")


def _has_list_view(kind: pa.DataType) -> bool:
    is_one = kinds.is_list_view(kind) or kinds.is_large_list_view(kind)
    return is_one or any(_has_list_view(kind.field(place).type) for place in range(kind.num_fields))


@dataclass(slots=True)
class OutputColumns:
    """Converts all tables of one task to the same columns. A column that a later table lacks is filled with nulls.
    A column without values and without a known type is left out until it has values.

    `known`: the types of the columns in stored files. `partitions`: columns whose values become names of folders.
    These columns are in no file, so their types are not fixed. `evolve`: what happens to a new column if there are
    stored files.
    """

    known: Types
    partitions: frozenset[str] = frozenset()
    evolve: Evolve = "add"
    _found: dict[str, pa.DataType] = field(default_factory=dict)

    def conformed(self, output: pa.Table) -> pa.Table:
        """Return the table with the columns that all tables of the task get. Raises TransformError if a column
        cannot be stored or does not fit its type, and RecordRefused if a single value does not fit."""
        self._check_names(output.column_names)
        columns = {
            name: column
            for name, given in zip(output.column_names, output.columns, strict=True)
            if (column := self._conformed(name, given)) is not None
        }
        for name, kind in self._found.items():
            if name not in columns:
                columns[name] = pa.chunked_array([pa.nulls(output.num_rows, kind)])
        order = [*self._found, *(name for name in columns if name not in self._found)]
        fields = [pa.field(name, columns[name].type) for name in order]
        if not fields and output.num_rows:
            raise TransformError("an Arrow function returned rows without a column that has values")
        return pa.Table.from_arrays([columns[name] for name in order], schema=pa.schema(fields))

    def _check_names(self, names: list[str]) -> None:
        if PROGRESS in names:
            raise TransformError(f"a transform may not return a column named {PROGRESS}")
        spelled = {name.casefold(): name for name in (*self.known, *self._found)}
        seen = set[str]()
        for name in names:
            folded = name.casefold()
            if folded in seen or spelled.get(folded, name) != name:
                raise TransformError(
                    f"column {name} has the name of another one, apart from upper and lower case: most readers do "
                    "not tell them apart"
                )
            seen.add(folded)

    def _conformed(self, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray | None:
        """Convert the column to the type in which it is stored. Returns None for a column that is left out. This is
        a column without values and without a known type, or a new column that `evolve` ignores."""
        kind = plain(column.type)
        if kind is None:
            advice = "return lists instead of views" if _has_list_view(column.type) else "cast it"
            raise TransformError(
                f"column {name} is of type {column.type}, which Spark and other readers do not know: {advice}"
            )
        if name in self.partitions:
            return _cast(name, column, pa.string() if kinds.is_null(kind) else kind)
        wanted = self._found.get(name) or self.known.get(name)
        if wanted is None:
            if kinds.is_null(kind) or (self.known and self.evolve == "ignore"):
                return None
            if self.known and self.evolve == "refuse":
                raise TransformError(
                    f"no file has column {name} of the output. With evolve='add' it is stored, and with "
                    "evolve='ignore' it is left out"
                )
            if has_null(kind):
                raise TransformError(f"column {name} is of type {kind}, which leaves open what is in it: cast it")
            wanted = kind
        elif not fits(kind, wanted):
            raise TransformError(
                f"column {name} is of type {kind}, and what is stored is of type {wanted}: cast it in the "
                "function, so that its type does not depend on the values, or give it another name"
            )
        self._found[name] = wanted
        return _cast(name, column, wanted)


def _cast(name: str, column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    try:
        if isinstance(column.type, pa.BaseExtensionType):
            column = column.cast(column.type.storage_type)
        options = pc.CastOptions(kind, allow_time_truncate=True)
        if kinds.is_dictionary(column.type):  # Arrow cannot cast some of them, such as the categories of polars
            decoded = [chunk.dictionary.cast(options=options).take(chunk.indices) for chunk in column.chunks]
            return pa.chunked_array(decoded, kind)
        return column.cast(options=options)
    except pa.ArrowInvalid as error:
        raise RecordRefused(f"column {name} has a value that is none of type {kind}") from error
    except pa.ArrowNotImplementedError as error:
        raise TransformError(f"column {name} is of type {column.type}, not stored as {kind}: cast it") from error


def united(schemas: Iterable[pa.Schema], known: Types) -> dict[str, pa.DataType]:
    """Find one type for each column of the outputs of several tasks: the known type, otherwise the widest type of
    the outputs. Raises TransformError if the types of a column do not fit each other."""
    found: dict[str, pa.DataType] = {}
    for schema in schemas:
        for one in schema:
            former = known.get(one.name) or found.get(one.name, one.type)
            if fits(one.type, former):
                found[one.name] = former
            elif one.name not in known and fits(former, one.type):
                found[one.name] = one.type
            else:
                raise TransformError(
                    f"column {one.name} is of type {one.type} in one table and of type {former} in another: "
                    "cast it in the function, so that its type does not depend on the values"
                )
    return found
