"""Decodes payloads into columns, for the consumer's functions of Arrow tables. The payloads are JSON, or of any
format that has a decoder.

Each function returns a row for each record, in the same order. A malformed payload becomes null. With
`malformed="fail"`, it fails the batch instead, and the application's failure policy applies.
"""

from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, TypedDict

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import types as kinds

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.spark.decoded_columns import REFUSED, as_arrow
from kcl_dagster.spark.payload_compression import Compression, checked, opened
from kcl_dagster.spark.payload_decoding import Decode, Decoding, Malformed, fails
from kcl_dagster.spark.payload_fields import check_columns

KEPT_DECODERS: Final = 16
ROWS_AT_ONCE: Final = 1_000  # the decoded objects of so many rows fit into the cache of the CPU
# The errors of msgspec and of decompression for malformed payloads. UnicodeError is a ValueError. A TypeError: the
# payload is null.
_MALFORMED: Final = (msgspec.MsgspecError, ValueError, RecursionError, TypeError)


def decode_json(
    records: pa.Table,
    schema: pa.Schema,
    *,
    malformed: Malformed = "null",
    compression: Compression | None = None,
) -> pa.Table:
    """Parse `data` as JSON (UTF-8) into the columns of `schema`. A column is null if the payload lacks its field.
    Fields without a column are ignored. A payload with a value that does not have the type of its column is
    malformed: its row is null in every column.

    Types: integers, floats, decimals, texts, booleans, bytes (as base64), dates and timestamps (as in ISO 8601),
    lists and structs.

    With `compression`, payloads are decompressed first: `"gzip"`, `"zstd"`, or `"auto"`, which detects the
    compression by the first bytes. A payload that cannot be decompressed, or that contains more than 64 MiB, is
    malformed.
    """
    if not isinstance(schema, pa.Schema):
        raise ConfigurationError(
            "the schema of decode_json must be a pyarrow.Schema, as pa.schema makes it of names and types, and not "
            f"{type(schema).__name__}"
        )
    if not schema.names:
        raise ConfigurationError("the schema of decode_json has no columns")
    parse, empty = _json_decoder(schema)
    decode = parse if checked(compression) is None else lambda payload: parse(opened(payload, compression))
    is_strict = fails(malformed)
    payloads = records.column("data").to_pylist()
    columns: list[list[Any]] = [[] for _ in schema]
    fields = [attrgetter(name) for name in _names(schema)]
    for start in range(0, len(payloads), ROWS_AT_ONCE):
        some = payloads[start : start + ROWS_AT_ONCE]
        try:
            rows = list(map(decode, some))
        except _MALFORMED:
            if is_strict:
                raise
            rows = [_or(empty, decode, payload) for payload in some]
        for values, field in zip(columns, fields, strict=True):
            values.extend(map(field, rows))
    arrays = _arrays(columns, schema, is_strict=is_strict)
    misfits = {
        row
        for values, array in zip(columns, arrays, strict=True)
        if array.null_count > values.count(None)
        for row in np.flatnonzero(array.is_null())
        if values[row] is not None
    }
    if misfits:  # one value makes the whole payload malformed
        for values in columns:
            for row in misfits:
                values[row] = None
        arrays = _arrays(columns, schema, is_strict=is_strict)
    return pa.Table.from_arrays(arrays, schema=schema)


def _arrays(columns: Sequence[Sequence[Any]], schema: pa.Schema, *, is_strict: bool) -> list[pa.Array]:
    """Convert decoded values to the columns of `schema`. Without `is_strict`, a value that does not fit its column
    is null. With `is_strict`, such a value raises an error that names the column."""
    arrays = []
    for values, one in zip(columns, schema, strict=True):
        try:
            arrays.append(as_arrow(values, one.type, is_strict=is_strict))
        except REFUSED as error:
            raise ValueError(f"column {one.name}: {error}") from error
    return arrays


def decode_table(
    records: pa.Table | pa.RecordBatch,
    make_decoder: Callable[[], Decode],
    schema: pa.Schema,
    *,
    malformed: Malformed = "null",
    compression: Compression | None = None,
) -> pa.Table:
    """Decode `data` into the columns of `schema`, with `avro(...)`, `registered_avro(...)`, `protobuf(...)`, or
    your own function that makes a decoder. A column is null if the payload lacks its field. Fields without a column
    are ignored. A payload with a value that does not fit its column is malformed: its row is null in every column.

    Raises ConfigurationError if the payloads have no field with the name of a column. This is checked against the
    schema of `avro(...)`, the `reader` of `registered_avro(...)`, or the message of `protobuf(...)`. Other decoders
    are not checked.

    `compression`: see `decode_json`. Each process makes one decoder for each `make_decoder` object. So create
    `make_decoder` once, outside of your function of tables, and not for each table.
    """
    found = decode_column(
        records, make_decoder, pa.struct(list(schema)), malformed=malformed, compression=compression
    )
    return pa.Table.from_arrays(found.flatten(), schema=schema)


def decode_column(
    records: pa.Table | pa.RecordBatch,
    make_decoder: Callable[[], Decode],
    kind: pa.DataType,
    *,
    malformed: Malformed = "null",
    compression: Compression | None = None,
) -> pa.Array:
    """Decode `data` into one column, as `decode_table` does into several. `kind`: the type of the values, such
    as a struct."""
    is_strict = fails(malformed)
    check_columns(make_decoder, kind)
    decoding = _kept(make_decoder, is_strict, compression)
    payloads = records.column("data")
    given = payloads.chunks if isinstance(payloads, pa.ChunkedArray) else [payloads]
    return pa.concat_arrays([decoding.column(chunk, kind) for chunk in given] or [pa.nulls(0, kind)])


@lru_cache(KEPT_DECODERS)
def _kept(make_decoder: Callable[[], Decode], is_strict: bool, compression: Compression | None) -> Decoding:
    return Decoding(make_decoder, is_strict=is_strict, compression=compression)


def _names(schema: pa.Schema) -> list[str]:
    """Numbered names of Python attributes, one for each column of a schema. The names of the columns themselves are
    not used, because some of them can be invalid as names of attributes."""
    return [f"field_{place}" for place in range(len(schema))]


@lru_cache(KEPT_DECODERS)
def _json_decoder(schema: pa.Schema) -> tuple[Callable[[bytes], Any], Any]:
    """Make a function that decodes a payload into an object with the attributes of `_names`. Also returns the
    object whose attributes are all None."""
    fields = [(name, _python_type(one.type) | None, None) for name, one in zip(_names(schema), schema, strict=True)]
    names = dict(zip(_names(schema), schema.names, strict=True))
    try:
        kind = msgspec.defstruct("JsonRecord", fields, rename=names, gc=False)
    except ValueError as error:  # two columns have the same name, or a name has a character that JSON escapes
        raise ConfigurationError(f"decode_json cannot use the columns {schema.names}: {error}") from error
    return msgspec.json.Decoder(kind).decode, kind()


def _or(empty: Any, decode: Callable[[bytes], Any], payload: bytes) -> Any:
    try:
        return decode(payload)
    except _MALFORMED:
        return empty


_PYTHON: Final = (
    (kinds.is_boolean, bool),
    (kinds.is_integer, int),
    (kinds.is_floating, float),
    (kinds.is_decimal, Decimal),
    (kinds.is_timestamp, datetime),
    (kinds.is_date, date),
    (kinds.is_string, str),
    (kinds.is_large_string, str),
    (kinds.is_binary, bytes),
    (kinds.is_large_binary, bytes),
)


def _python_type(kind: pa.DataType) -> Any:
    for is_kind, of in _PYTHON:
        if is_kind(kind):
            return of
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        return list[_python_type(kind.value_type) | None]  # type: ignore[misc]
    if kinds.is_struct(kind):
        fields = {one.name: _python_type(one.type) | None for one in kind}
        return TypedDict("JsonObject", fields, total=False)  # type: ignore[operator]
    raise ConfigurationError(f"JSON cannot be decoded into columns of type {kind}")
