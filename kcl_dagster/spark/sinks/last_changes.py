"""Finds the last change of each key in the change rows of batches. Pure.

If a key was deleted before its last change, the last change inserts a new row. Columns that this change lacks are
null in the new row, and do not keep the values of the deleted row. So the result is the same whether the two
changes are in one commit or in two.
"""

from collections.abc import Sequence
from io import BytesIO
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kcl_dagster.model.change_rules import DELETES, ChangeRules

REPLACES: Final = "_kcl_replaces"
"""A column of the result. It is true if the last change of the key does not delete, but an earlier change of the
key does. The result lacks this column if it would be true for no key."""

DELETED_AT: Final = "_kcl_deleted_at"
"""A further column of the result if there is an `order_by`, and the result has the column `REPLACES`. It contains
the value of `order_by` in the earlier change that deletes. This change deletes the row of the table only if the row
is not newer than the change."""

ADDED: Final = frozenset({DELETES, REPLACES, DELETED_AT})
"""The columns of the result that are not columns of the table."""

_IS_KNOWN, _PLACE, _RANK, _DELETED = "_kcl_is_known", "_kcl_place", "_kcl_rank", "_kcl_deleted"


def last_changes(contents: Sequence[bytes], changes: ChangeRules) -> pa.Table:
    """The last change of each key. `contents`: Parquet files, in the order of their changes. A change with a higher
    value of `order_by` is later. If the values are equal or there is no `order_by`, the order in the files decides.
    The result can also have the columns `REPLACES` and `DELETED_AT`, see there."""
    files = [pq.ParquetFile(BytesIO(content)) for content in contents]
    read = [file.read(columns=[*changes.needed, DELETES]) for file in files]
    keys = pa.concat_tables(read, promote_options="default")
    keys = keys.append_column(_PLACE, pa.array(np.arange(keys.num_rows)))
    if changes.order_by is not None:
        keys = keys.append_column(_IS_KNOWN, pc.is_valid(keys.column(changes.order_by)))
        order = [(name, "ascending") for name in (_IS_KNOWN, changes.order_by, _PLACE)]  # null is the least value
        keys = keys.take(pc.sort_indices(keys, sort_keys=order))
    keys = keys.append_column(_RANK, pa.array(np.arange(keys.num_rows)))
    is_delete = keys.column(DELETES)
    keys = keys.append_column(_DELETED, pc.if_else(is_delete, keys.column(_RANK), pa.scalar(None, pa.int64())))
    last = keys.group_by(list(changes.merge_on)).aggregate([(_RANK, "max"), (_DELETED, "max")])
    last = last.append_column(_PLACE, pc.take(keys.column(_PLACE), last.column(f"{_RANK}_max")))
    last = last.sort_by(_PLACE).combine_chunks()
    places = last.column(_PLACE).combine_chunks()
    found, first = [], 0
    for file in files:
        after = first + file.metadata.num_rows
        mine = pc.filter(places, pc.and_(pc.greater_equal(places, first), pc.less(places, after)))
        if len(mine):
            found.append(file.read().take(pc.subtract(mine, first)))
        first = after
    rows = pa.concat_tables(found, promote_options="default")
    deleted = last.column(f"{_DELETED}_max")
    replaces = pc.fill_null(pc.less(deleted, last.column(f"{_RANK}_max")), fill_value=False)
    replaces = pc.and_not(replaces, rows.column(DELETES))
    if not pc.any(replaces).as_py():
        return rows
    rows = rows.append_column(REPLACES, replaces)
    if changes.order_by is None:
        return rows
    return rows.append_column(DELETED_AT, pc.take(keys.column(changes.order_by), deleted))
