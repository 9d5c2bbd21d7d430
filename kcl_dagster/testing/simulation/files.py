"""The files of a part, as the file sinks lay them out: one for each partition value, named by the package.

Each record gets a value that producers really send and that folders and comparisons treat badly.
"""

from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

import pyarrow as pa

from kcl_dagster.spark.sinks.layout import Folders
from kcl_dagster.spark.sinks.split import split
from kcl_dagster.spark.sinks.writing import file_stem
from kcl_dagster.testing.engine import Row
from kcl_dagster.worker.batch import Part

NOT_A_NUMBER: Final = float("nan")
TEXTS: Final = (None, "", "a", "__HIVE_DEFAULT_PARTITION__", "%5F_HIVE_DEFAULT_PARTITION__", "a/b", "a=b", "A")
FLOATS: Final = (None, NOT_A_NUMBER, 0.0, -0.0, 1.5, float("inf"), NOT_A_NUMBER, 1e300)
KINDS: Final[tuple[tuple[Sequence[Any], pa.DataType], ...]] = ((TEXTS, pa.string()), (FLOATS, pa.float64()))
COLUMN: Final = "kind"
ROW: Final = "row"
LAYOUT: Final = Folders((COLUMN,))


def files_of(part: Part, rows: Sequence[Row]) -> list[tuple[str, tuple[Row, ...]]]:
    """Path and rows of each file, in the order in which they are written."""
    name = file_stem(part)
    if not rows:
        return [(name, ())]
    values, kind = KINDS[crc32(rows[0].data) // len(TEXTS) % len(KINDS)]
    column = pa.array([values[crc32(row.data) % len(values)] for row in rows], kind)
    batch = pa.RecordBatch.from_arrays([column, pa.array(range(len(rows)))], [COLUMN, ROW])
    groups = split(batch, LAYOUT.keys(batch))
    return [
        (f"{LAYOUT.folder(group.key)}/{name}", tuple(rows[at] for at in group.rows.column(ROW).to_pylist()))
        for group in groups
    ]
