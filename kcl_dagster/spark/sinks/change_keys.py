"""Which rows of a table have the key of a change. Pure."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NONE = -1
"""Stands for no change."""


class ChangeKeys:
    """The keys of some changes, each of which has another one. `keys`: a column for each column of the key, without
    nulls. A change is known by its place."""

    def __init__(self, keys: pa.Table) -> None:
        self.keys = keys.combine_chunks()
        self._comparable = {name: comparable(keys.column(name)) for name in keys.column_names}

    def within(self, bounds: Mapping[str, tuple[Any, Any]]) -> np.ndarray:
        """The places of the keys whose values are within all of these bounds, by column. See `comparable`."""
        found = pa.scalar(value=True)
        for name, (lower, upper) in bounds.items():
            values = self._comparable[name]
            low, high = pa.scalar(lower, values.type), pa.scalar(upper, values.type)
            found = pc.and_(found, pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high)))
        if isinstance(found, pa.Scalar):
            return np.arange(self.keys.num_rows)
        return np.flatnonzero(found.to_numpy())

    def places(self, rows: pa.Table, among: np.ndarray) -> np.ndarray:
        """For each row the place of the change with its key, of those `among` which it may be; NONE if there is
        none. `rows`: the columns of the key, in the same types."""
        ours = self.keys.take(pa.array(among))
        of_changes, of_rows = None, None
        for name in self.keys.column_names:
            values = pc.unique(ours.column(name))
            more_of_changes = _codes(ours.column(name), values)
            more_of_rows = _codes(rows.column(name), values)
            if of_changes is None or of_rows is None:
                of_changes, of_rows = more_of_changes, more_of_rows
                continue
            # Two codes below the number of changes make one that fits into 64 bits, and are numbered anew.
            pairs = of_changes * len(values) + more_of_changes
            pairs_of_rows = np.where((of_rows < 0) | (more_of_rows < 0), NONE, of_rows * len(values) + more_of_rows)
            known = pa.array(np.unique(pairs))
            of_changes, of_rows = _codes(pa.array(pairs), known), _codes(pa.array(pairs_of_rows), known)
        assert of_changes is not None
        assert of_rows is not None
        found = np.full(len(of_changes) + 1, NONE, dtype=np.int64)  # the last one is that of NONE
        found[of_changes] = among
        placed: np.ndarray = found[of_rows]
        return placed


def comparable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values in a type with their order that Python holds whatever they are: times and dates as numbers."""
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.int64())
    return values.cast(pa.int32()) if pa.types.is_date32(values.type) else values


def _codes(values: pa.Array | pa.ChunkedArray, known: pa.Array) -> np.ndarray:
    """The place of each value among the known ones; NONE for null and for others."""
    found = pc.fill_null(pc.index_in(values, value_set=known), NONE)
    return np.asarray(found.to_numpy(), dtype=np.int64)
