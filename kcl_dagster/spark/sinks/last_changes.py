"""Finds the last change of each key in the change rows of batches. Pure."""

from collections.abc import Sequence
from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kcl_dagster.model.change_rules import ChangeRules

_IS_KNOWN, _PLACE, _RANK = "_kcl_is_known", "_kcl_place", "_kcl_rank"


def last_changes(contents: Sequence[bytes], changes: ChangeRules) -> pa.Table:
    """The last change of each key. `contents`: Parquet files, in the order of their changes. A change with a higher
    value of `order_by` is later. If the values are equal or there is no `order_by`, the order in the files
    decides."""
    files = [pq.ParquetFile(BytesIO(content)) for content in contents]
    read = [file.read(columns=list(changes.needed)) for file in files]
    keys = pa.concat_tables(read, promote_options="default")
    keys = keys.append_column(_PLACE, pa.array(np.arange(keys.num_rows)))
    if changes.order_by is not None:
        keys = keys.append_column(_IS_KNOWN, pc.is_valid(keys.column(changes.order_by)))
        order = [(name, "ascending") for name in (_IS_KNOWN, changes.order_by, _PLACE)]  # null is the least value
        keys = keys.take(pc.sort_indices(keys, sort_keys=order))
    keys = keys.append_column(_RANK, pa.array(np.arange(keys.num_rows)))
    ranks = keys.group_by(list(changes.merge_on)).aggregate([(_RANK, "max")]).column(f"{_RANK}_max")
    places = pc.take(keys.column(_PLACE), ranks).combine_chunks()
    places = pc.take(places, pc.sort_indices(places))
    found, first = [], 0
    for file in files:
        after = first + file.metadata.num_rows
        mine = pc.filter(places, pc.and_(pc.greater_equal(places, first), pc.less(places, after)))
        if len(mine):
            found.append(file.read().take(pc.subtract(mine, first)))
        first = after
    return pa.concat_tables(found, promote_options="default")
