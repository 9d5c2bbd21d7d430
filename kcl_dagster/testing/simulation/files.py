"""The files of a part, as the file sinks lay them out: one for each partition value, named by the package.

Each record gets a value that producers really send and that folders and comparisons treat badly.
"""

from collections.abc import Sequence
from functools import lru_cache
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
    hashes = [crc32(row.data) for row in rows]
    kind = hashes[0] // len(TEXTS) % len(KINDS)
    groups = _grouped(kind, tuple(number % len(TEXTS) for number in hashes))
    return [(f"{folder}/{name}", tuple(rows[at] for at in places)) for folder, places in groups]


@lru_cache(maxsize=65536)
def _grouped(kind: int, chosen: tuple[int, ...]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Folder and places of the rows of each file, as the package divides rows with these values. Most parts have
    few rows, so the same values come again and again."""
    values, type_ = KINDS[kind]
    column = pa.array([values[number] for number in chosen], type_)
    batch = pa.RecordBatch.from_arrays([column, pa.array(range(len(chosen)))], [COLUMN, ROW])
    groups = split(batch, LAYOUT.keys(batch))
    return tuple((LAYOUT.folder(group.key), tuple(group.rows.column(ROW).to_pylist())) for group in groups)
