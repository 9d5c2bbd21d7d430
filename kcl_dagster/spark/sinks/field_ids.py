"""The ids of an Iceberg table's columns in the schemas of data files.

A file has the id of each column, also of nested ones. So a column keeps its values when an engine gives it another
name, and values of a dropped column do not return with a new column of the same name. Files of earlier versions of
this package have no ids. For them, a property of the table maps names to ids.
"""

from collections.abc import Collection
from typing import Final

import pyarrow as pa
from pyarrow import types as kinds

FIELD_ID: Final = b"PARQUET:field_id"  # the key by which pyarrow writes the id of a field into a Parquet file


def id_of(column: pa.Field) -> int | None:
    """The id of a column, if its metadata has one."""
    text = (column.metadata or {}).get(FIELD_ID)
    return None if text is None else int(text)


def has_ids(schema: pa.Schema) -> bool:
    return bool(len(schema)) and all(id_of(column) is not None for column in schema)


def with_id(column: pa.Field, of: pa.Field) -> pa.Field:
    """The column with the id of the column `of`, if that has one."""
    number = id_of(of)
    return column if number is None else column.with_metadata({FIELD_ID: str(number)})


def as_read(written: pa.Schema, table: pa.Schema) -> pa.Schema:
    """The columns of a file with the names that they have in the table now. Columns that were dropped are left out.
    Fields that were added to a struct since the file was written are included, because readers find nulls in them.
    Both schemas have ids."""
    by_id = {id_of(column): column for column in written}
    return pa.schema([_field(by_id[id_of(column)], column) for column in table if id_of(column) in by_id])


def names_now(names: Collection[str], written: pa.Schema, table: pa.Schema) -> set[str]:
    """The names that these columns of a file have in the table now."""
    ids = {id_of(column) for column in written if column.name in names}
    return {column.name for column in table if id_of(column) in ids}


def _field(written: pa.Field | None, known: pa.Field) -> pa.Field:
    if written is None:
        return known.with_nullable(nullable=True)
    return pa.field(known.name, _type(written.type, known.type), written.nullable, known.metadata)


def _type(written: pa.DataType, known: pa.DataType) -> pa.DataType:
    if kinds.is_struct(written) and kinds.is_struct(known):
        by_id = {id_of(column): column for column in written}
        return pa.struct([_field(by_id.get(id_of(column)), column) for column in known])
    if _is_list(written) and _is_list(known):
        return pa.large_list(_field(written.value_field, known.value_field))
    if kinds.is_map(written) and kinds.is_map(known):
        key = _field(written.key_field, known.key_field)
        return pa.map_(key, _field(written.item_field, known.item_field))
    return written


def _is_list(kind: pa.DataType) -> bool:
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind))
