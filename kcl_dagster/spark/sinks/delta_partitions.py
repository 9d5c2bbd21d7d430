"""Partition values of a Delta table that delta-rs cannot write. It names the folder of a file after these values.

Appends are not affected: executors write their files, in folders whose names have a limited length.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from kcl_dagster.model.change_rules import DELETES
from kcl_dagster.spark.sinks.layout import NULL_PARTITION

# A name as delta-rs gives it to a file.
_FILE: Final = "part-00000-00000000-0000-0000-0000-000000000000-c000.zstd.parquet"


def changed_columns(schema: pa.Schema, columns: Sequence[str]) -> list[str]:
    """The partition columns whose values delta-rs changes, or cannot read back, such as negative decimals."""
    return [name for name in columns if name in schema.names and _is_changed(schema.field(name).type)]


def _is_changed(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_decimal(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


@dataclass(frozen=True, slots=True)
class MergedPaths:
    """The paths of the files that a merge of change rows can write, one for each combination of partition values.
    Can be sent to an executor. `columns`: the partition columns of the table."""

    columns: tuple[str, ...]

    def __call__(self, rows: pa.RecordBatch) -> Iterator[str]:
        given = [name for name in self.columns if name in rows.schema.names]
        if not given:
            return
        stored = pa.table(rows.filter(pc.invert(rows.column(DELETES))).select(given))
        for values in stored.group_by(given).aggregate([]).to_pylist():
            folders = [f"{name}={_folder(values.get(name))}" for name in self.columns]
            yield "/".join([*folders, _FILE])


def _folder(value: Any) -> str:
    if value is None:
        return NULL_PARTITION
    if isinstance(value, float):  # in full, without an exponent
        return format(Decimal(repr(value)), "f")
    return quote(str(value), safe="")
