"""Makes Arrow columns of decoded values without changing a value.

Arrow alone would cut off the fraction of a number to make an integer, turn a float that is too large for the column
into infinity, and split a text into a list of its characters. In this module, such a value does not fit the column.
The module converts a whole column at once, and then checks the whole column. It checks each value alone only if
this check finds something.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import chain
from numbers import Real
from operator import itemgetter
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
from pyarrow import types as kinds

REFUSED: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)  # by which Arrow refuses a value
# The types of values that Arrow does not change, for each kind of column. If Arrow accepts a value of exactly such
# a type, the column has the same value. If a column also gets values of other types, each value is checked alone.
_WHOLE: Final[frozenset[type]] = frozenset({int, type(None)})
_MOMENTS: Final[frozenset[type]] = frozenset({int, date, datetime, time, timedelta, type(None)})
_ITEMS: Final[frozenset[type]] = frozenset({list, tuple, type(None)})
_NUMBERS: Final[tuple[Any, ...]] = (Real, Decimal, UUID)  # Arrow makes integers of them with `int`
_FIELDS: Final[frozenset[type]] = frozenset({dict, type(None)})

DecodedRows = tuple[np.ndarray[Any, Any], pa.Array]
"""Some rows of a column: the places of the rows in the column, in ascending order, and the values of the rows."""


def in_order(parts: Sequence[DecodedRows]) -> pa.Array:
    """The values of all rows in the order of the rows. Each row is in one part."""
    if len(parts) == 1:
        return parts[0][1]
    return pa.concat_arrays([values for _, values in parts]).take(
        pa.array(np.argsort(np.concatenate([rows for rows, _ in parts])))
    )


def as_arrow(values: Sequence[Any], kind: pa.DataType, *, is_strict: bool) -> pa.Array:
    """Convert decoded values to a column of type `kind`. A value that does not fit the type becomes null; with
    `is_strict`, such a value raises an error. A value fits if the column can hold it unchanged. Floats can be
    rounded, and moments can be cut to the unit of the column."""
    try:
        found = pa.array(values, kind)
    except REFUSED:
        values = [_spelled(value, kind) for value in values]
        try:
            found = pa.array(values, kind)
        except REFUSED:
            if is_strict:
                raise
            return pa.concat_arrays([_one(value, kind) for value in values])
    if _is_unchanged(values, kind) and not (_has_narrow_floats(kind) and _has_infinity(found)):
        return found
    if is_strict:
        for problem in chain.from_iterable(_misfits(value, kind, "the value") for value in values):
            raise ValueError(problem)
        return found
    return pa.array([value if _fits(value, kind) else None for value in values], kind)


def _one(value: Any, kind: pa.DataType) -> pa.Array:
    try:
        found = pa.array([value], kind)
        return found if _fits(value, kind) else pa.nulls(1, kind)
    except REFUSED:
        return pa.nulls(1, kind)


def _spelled(value: Any, kind: pa.DataType) -> Any:
    """Convert the UUIDs and times of day in a decoded value to text. For a column of dates or times, they remain
    unchanged."""
    kind = _stored(kind)
    if isinstance(value, (UUID, time)):
        return value if kinds.is_temporal(kind) else str(value)
    if isinstance(value, dict) and kinds.is_struct(kind):
        return {field.name: _spelled(value.get(field.name), field.type) for field in kind}
    if isinstance(value, dict) and kinds.is_map(kind):
        return {name: _spelled(item, kind.item_type) for name, item in value.items()}
    if isinstance(value, list) and hasattr(kind, "value_type"):
        return [_spelled(item, kind.value_type) for item in value]
    return value


def _is_unchanged(values: Sequence[Any], kind: pa.DataType) -> bool:
    """Whether the types of the values show that Arrow has stored the values unchanged. Floats that are too large
    are not detected here, but by `_has_infinity`. Called for values that Arrow has accepted. Considers types only,
    because a check of each value in Python would take longer."""
    kind = _stored(kind)
    known = _known_types(kind)
    if known is None:
        return True
    if not known.issuperset(map(type, values)):
        return False
    rows = [value for value in values if value is not None] if kind.num_fields else []
    if kinds.is_struct(kind):
        return _are_fields_unchanged(rows, kind)
    if kinds.is_map(kind):
        return _are_items_unchanged(rows, kind.key_type) and _are_items_unchanged(
            [list(row.values()) for row in rows], kind.item_type
        )
    return not kind.num_fields or _are_items_unchanged(rows, kind.value_type)


def _are_items_unchanged(rows: list[Any], kind: pa.DataType) -> bool:
    return _known_types(_stored(kind)) is None or _is_unchanged(list(chain.from_iterable(rows)), kind)


def _are_fields_unchanged(rows: list[dict[str, Any]], kind: pa.StructType) -> bool:
    plain: dict[frozenset[type], list[str]] = {}
    for field in kind:
        stored = _stored(field.type)
        known = _known_types(stored)
        if stored.num_fields:
            if not _is_unchanged(list(_fields(rows, [field.name])), stored):
                return False
        elif known is not None:
            plain.setdefault(known, []).append(field.name)
    return all(known.issuperset(map(type, _fields(rows, names))) for known, names in plain.items())


def _fields(rows: list[dict[str, Any]], names: list[str]) -> Iterable[Any]:
    """The values of these fields in all rows. A missing field is None."""
    if not rows:
        return ()
    usual = [name for name in names if name in rows[0]]
    try:
        found = list(map(itemgetter(*usual), rows)) if usual else []
    except KeyError:
        usual, found = [], []
    others = [row.get(name) for name in names if name not in usual for row in rows]
    return chain(chain.from_iterable(found) if len(usual) > 1 else found, others)


def _known_types(kind: pa.DataType) -> frozenset[type] | None:
    """The Python types whose values Arrow stores unchanged in a column of this type. None if Arrow stores every
    value unchanged or refuses it."""
    if kinds.is_integer(kind):
        return _WHOLE
    if kinds.is_temporal(kind):
        return _MOMENTS
    if kinds.is_struct(kind) or kinds.is_map(kind):
        return _FIELDS
    return _ITEMS if kind.num_fields else None


def _stored(kind: pa.DataType) -> pa.DataType:
    """The type of the values that a column of type `kind` stores. It differs from `kind` for extension types,
    dictionaries and run-end encoding."""
    if isinstance(kind, pa.BaseExtensionType):
        return _stored(kind.storage_type)
    is_encoded = kinds.is_dictionary(kind) or kinds.is_run_end_encoded(kind)
    return _stored(kind.value_type) if is_encoded else kind


@lru_cache
def _has_narrow_floats(kind: pa.DataType) -> bool:
    kind = _stored(kind)
    inner = [kind.field(place).type for place in range(kind.num_fields)]
    return kinds.is_float16(kind) or kinds.is_float32(kind) or any(map(_has_narrow_floats, inner))


def _has_infinity(column: pa.Array | pa.ChunkedArray) -> bool:
    """Whether a float of 16 or 32 bits in the column is infinite. Arrow stores a float that is too large as an
    infinite one."""
    if isinstance(column, pa.ChunkedArray):
        return any(map(_has_infinity, column.chunks))
    kind = column.type
    if not _has_narrow_floats(kind):
        return False
    if isinstance(kind, pa.BaseExtensionType):
        return _has_infinity(column.storage)
    if kinds.is_struct(kind):
        return any(_has_infinity(column.field(place)) for place in range(kind.num_fields))
    if kinds.is_map(kind):
        return _has_infinity(column.keys) or _has_infinity(column.items)
    if kind.num_fields:
        return _has_infinity(column.values)
    if kinds.is_dictionary(kind):
        column = column.dictionary
    return bool(np.isinf(column.to_numpy(zero_copy_only=False)).any())


def _fits(value: Any, kind: pa.DataType) -> bool:
    return next(_misfits(value, kind, ""), None) is None


def _misfits(value: Any, kind: pa.DataType, place: str) -> Iterator[str]:
    """Yield a text about each part of a value that the column would change. Called for a value that Arrow has
    accepted. `place`: the name of the value in the texts."""
    kind = _stored(kind)
    if value is None:
        return
    if kinds.is_struct(kind):
        for name, item, inner in _named(value, kind):
            yield from _misfits(item, inner, f"{place}.{name}")
    elif kinds.is_map(kind):
        for key, item in value.items() if isinstance(value, dict) else value:
            yield from _misfits(key, kind.key_type, f"a key of {place}")
            yield from _misfits(item, kind.item_type, f"an item of {place}")
    elif kind.num_fields and not isinstance(value, (str, bytes, bytearray, memoryview)):
        for item in value:
            yield from _misfits(item, kind.value_type, f"an item of {place}")
    elif kind.num_fields or not _is_same(value, kind):
        yield f"{place} does not fit {kind}: it is of type {type(value).__name__} and would be changed"


def _named(value: Any, kind: pa.StructType) -> Iterator[tuple[str, Any, pa.DataType]]:
    """The name, value and type of each field of a struct. Besides a dict, Arrow accepts a tuple with the values in
    the order of the fields, and a list of pairs of a name and a value."""
    if isinstance(value, tuple):
        return ((field.name, item, field.type) for field, item in zip(kind, value, strict=True))
    given = value if isinstance(value, dict) else dict(value)
    return ((field.name, given.get(field.name), field.type) for field in kind)


def _is_same(value: Any, kind: pa.DataType) -> bool:
    if kinds.is_integer(kind) or kinds.is_temporal(kind):
        return not isinstance(value, _NUMBERS) or bool(value == int(value))
    if kinds.is_float16(kind) or kinds.is_float32(kind):
        return math.isinf(value) or not math.isinf(pa.scalar(value, kind).as_py())
    return True
