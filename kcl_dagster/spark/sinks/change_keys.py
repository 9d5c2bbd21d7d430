"""Finds the rows of a table that have the key of a change. Pure."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NONE = -1
"""The place in a result that means: no change has this key."""


class ChangeKeys:
    """The keys of changes, in which no key occurs twice. `keys`: a row for each change, with the columns of the
    key, without nulls. The place of a change is the index of its row."""

    def __init__(self, keys: pa.Table) -> None:
        self.keys = keys.combine_chunks()
        self._comparable = {name: comparable(keys.column(name)) for name in keys.column_names}

    def within(self, bounds: Mapping[str, tuple[Any, Any]]) -> np.ndarray:
        """The places of the changes whose key is within these bounds. `bounds`: the lowest and the highest value of
        a column, in the form of `comparable`. A column without bounds matches every key."""
        found = pa.scalar(value=True)
        for name, (lower, upper) in bounds.items():
            values = self._comparable[name]
            low, high = pa.scalar(lower, values.type), pa.scalar(upper, values.type)
            found = pc.and_(found, pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high)))
        if isinstance(found, pa.Scalar):
            return np.arange(self.keys.num_rows)
        return np.flatnonzero(found.to_numpy())

    def places(self, rows: pa.Table, among: np.ndarray) -> np.ndarray:
        """For each row, the place of the change with the same key; NONE if there is no such change. Only the
        changes at the places `among` are compared. `rows`: the columns of the key, in the same types."""
        ours = self.keys.take(pa.array(among))
        of_changes, of_rows = None, None
        for name in self.keys.column_names:
            values = pc.unique(ours.column(name))
            more_of_changes = _codes(ours.column(name), values)
            more_of_rows = _codes(rows.column(name), values)
            if of_changes is None or of_rows is None:
                of_changes, of_rows = more_of_changes, more_of_rows
                continue
            # Both codes are below the number of changes, so their combination fits into 64 bits. The combinations
            # get new codes, which are again below the number of changes.
            pairs = of_changes * len(values) + more_of_changes
            pairs_of_rows = np.where((of_rows < 0) | (more_of_rows < 0), NONE, of_rows * len(values) + more_of_rows)
            known = pa.array(np.unique(pairs))
            of_changes, of_rows = _codes(pa.array(pairs), known), _codes(pa.array(pairs_of_rows), known)
        assert of_changes is not None
        assert of_rows is not None
        found = np.full(len(of_changes) + 1, NONE, dtype=np.int64)  # the code NONE selects the last element
        found[of_changes] = among
        placed: np.ndarray = found[of_rows]
        return placed


def comparable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert times and dates to numbers with the same order, because Python cannot represent all times and dates.
    Other values remain unchanged."""
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.int64())
    return values.cast(pa.int32()) if pa.types.is_date32(values.type) else values


def _codes(values: pa.Array | pa.ChunkedArray, known: pa.Array) -> np.ndarray:
    """The index of each value among the known values; NONE for null and for values that are not known."""
    found = pc.fill_null(pc.index_in(values, value_set=known), NONE)
    return np.asarray(found.to_numpy(), dtype=np.int64)
