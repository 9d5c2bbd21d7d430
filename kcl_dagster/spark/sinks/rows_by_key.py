"""Splits the rows of a record batch by key.

Pure. Every row is in exactly one group. The rows of a group are selected by their index, and not by a comparison of
values: for null, NaN and zeros, a comparison would give other results than the grouping.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_BITS: Final = {pa.float16(): pa.int16(), pa.float32(): pa.int32(), pa.float64(): pa.int64()}


@dataclass(frozen=True, slots=True)
class Group:
    """The rows of one key, in order."""

    key: tuple[Any, ...]
    rows: pa.RecordBatch


def split(rows: pa.RecordBatch, keys: Sequence[pa.Array]) -> list[Group]:
    """Group `rows` by `keys`. Each array of `keys` has a value for each row. The groups are in the order of their
    first rows.

    All nulls are one key, and so are all NaNs, whatever their bits are. 0.0 and -0.0 are two keys, as in Spark.
    """
    if rows.num_rows == 0:
        return []
    codes = np.zeros(rows.num_rows, dtype=np.int64)
    for key in keys:
        encoded = _encoded(key)
        if len(encoded.dictionary) > 1:
            combined = codes * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
            _, codes = np.unique(combined, return_inverse=True)
    _, firsts, sizes = np.unique(codes, return_index=True, return_counts=True)
    if len(firsts) == 1:
        return [Group(_key(keys, 0), rows)]
    sorted_rows = rows.take(pa.array(np.argsort(codes, kind="stable")))
    starts = np.cumsum(sizes) - sizes
    return [
        Group(_key(keys, int(firsts[code])), sorted_rows.slice(int(starts[code]), int(sizes[code])))
        for code in np.argsort(firsts, kind="stable")
    ]


def distinct(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The distinct values, and for each element of `values` the index of its value among them. Values are equal if
    `split` puts them into one group."""
    encoded = _encoded(values)
    indices = encoded.indices
    _, firsts = np.unique(indices.to_numpy(zero_copy_only=False), return_index=True)
    return values.take(pa.array(firsts)), indices


def _encoded(values: pa.Array) -> pa.DictionaryArray:
    if isinstance(values, pa.DictionaryArray):
        values = values.dictionary_decode()
    if values.type in _BITS:
        one_nan = pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), values.type), values)
        values = one_nan.view(_BITS[values.type])
    return values.dictionary_encode(null_encoding="encode")


def _key(keys: Sequence[pa.Array], row: int) -> tuple[Any, ...]:
    return tuple(key[row].as_py() for key in keys)
