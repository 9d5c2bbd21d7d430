"""The files of a batch, as the sinks lay them out: one for each task and partition value, with the package's names.

From each record, the consumer's code derives a value that producers really send and that folders and comparisons
treat badly, and the version of the schema that its producer used.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final
from zlib import crc32

import pyarrow as pa

from kcl_dagster.chains.publication import file_name
from kcl_dagster.errors import RecordRefused
from kcl_dagster.model.claim import ChainId
from kcl_dagster.spark.sinks.partition_folders import Folders
from kcl_dagster.spark.sinks.rows_by_key import split
from kcl_dagster.spark.storage import LONGEST_NAME
from tests.doubles.engine import Row
from tests.simulation.consumer import FIRST_VERSION, KIND, SCHEMA, CodeVersion

NOT_A_NUMBER: Final = float("nan")
LONG: Final = "x" * 200
TEXTS: Final = (None, "", "a", "__HIVE_DEFAULT_PARTITION__", "%5F_HIVE_DEFAULT_PARTITION__", "a/b=c", LONG, "A")
# Of NaN there are many, which differ in their bits.
FLOATS: Final = (None, NOT_A_NUMBER, 0.0, -0.0, 1.5, float("inf"), -NOT_A_NUMBER, 1e300)
KINDS: Final[tuple[tuple[Sequence[Any], pa.DataType], ...]] = ((TEXTS, pa.string()), (FLOATS, pa.float64()))
SCHEMAS: Final = 2
ROW: Final = "row"

Files = list[tuple[str, tuple[Row, ...]]]


def check_values(rows: Sequence[Row], code: CodeVersion = FIRST_VERSION) -> None:
    """Raises RecordRefused for a value that no folder can be named by."""
    if rows:
        _divided(rows, code)


def staged_files_of(
    rows: Sequence[Row], tasks: int, chain: ChainId, batch: int, code: CodeVersion = FIRST_VERSION
) -> Files:
    """Final path and rows of each file of a batch that is decided in a chain. Each of several tasks writes one file
    for each partition value. Raises RecordRefused as `check_values`."""
    return [
        (_path(folder, file_name(chain, batch, task, number)), found)
        for task in range(tasks)
        if rows[task::tasks]
        for number, (folder, found) in enumerate(_divided(rows[task::tasks], code))
    ]


def _path(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _divided(rows: Sequence[Row], code: CodeVersion) -> Files:
    """Folder and rows of each file."""
    hashes = [crc32(row.data) for row in rows]
    kind = hashes[0] // len(TEXTS) % len(KINDS)
    cases = len(TEXTS) * (SCHEMAS if SCHEMA in code.partition_by else 1)
    chosen = tuple(number % cases for number in hashes)
    groups = _grouped(kind, chosen, code.partition_by, code.shift % len(TEXTS), code.has_long_values)
    return [(folder, tuple(rows[at] for at in places)) for folder, places in groups]


@lru_cache(maxsize=65536)
def _grouped(
    kind: int, chosen: tuple[int, ...], partition_by: tuple[str, ...], shift: int, has_long_values: bool
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Folder and places of the rows of each file, as the package divides rows with these values. Most parts have
    few rows, so the same values come again and again."""
    values, type_ = KINDS[kind]
    if has_long_values:
        values = [value * 2 if value is LONG else value for value in values]
    kinds = pa.array([values[(number + shift) % len(values)] for number in chosen], type_)
    schemas = pa.array([f"v{number // len(TEXTS)}" for number in chosen])
    batch = pa.RecordBatch.from_arrays([kinds, schemas, pa.array(range(len(chosen)))], [KIND, SCHEMA, ROW])
    layout = Folders(partition_by)
    groups = split(batch, layout.keys(batch))
    found = tuple((layout.folder(group.key), tuple(group.rows.column(ROW).to_pylist())) for group in groups)
    if any(len(level) > LONGEST_NAME for folder, _ in found for level in folder.split("/")):
        raise RecordRefused(f"a value of the partition columns would need a name of more than {LONGEST_NAME} bytes")
    return found
