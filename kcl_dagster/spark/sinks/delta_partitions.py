"""Finds partition values that delta-rs cannot write into a Delta table. delta-rs names the folder of a file after
these values, so a long value can make the name too long.

Appends are not affected: executors write the appended files, in folders whose names have a limited length.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Self
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from kcl_dagster.errors import SinkError
from kcl_dagster.model.change_rules import DELETES
from kcl_dagster.spark.sinks.partition_folders import NULL_PARTITION

_SHOWN: Final = 20  # characters of a value in a message
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
    Can be sent to an executor.

    - `columns`: the partition columns of the table.
    - `of_deletes`: the partition columns whose values are in the paths for deleting change rows. A deleting change
      row needs a path, because the merge writes the remaining rows of its partition again. Empty if every path of
      the table's partitions is short enough.
    """

    columns: tuple[str, ...]
    of_deletes: tuple[str, ...] = ()

    @classmethod
    def into(
        cls,
        table: str,
        partitions: pa.Table,
        columns: tuple[str, ...],
        keys: Sequence[str],
        too_long: Callable[[str], str | None],
    ) -> Self:
        """Make the paths for a table. `partitions`: the partitions that the table has. Other writers can have given
        the folders of these partitions short names. The longer names that delta-rs would give to them can be too
        long. `keys`: the columns of the key. `too_long`: see `Store`.

        Raises SinkError if the path of a partition is too long, unless the values of the key's columns alone make
        it too long. In that case, only changes with these values concern the partition, and they are refused one
        by one.
        """
        of_key = tuple(name for name in columns if name in keys)
        of_deletes: tuple[str, ...] = ()
        for values in partitions.to_pylist():
            reason = too_long(_path(columns, values))
            if reason is None:
                continue
            if not of_key or too_long(_path(of_key, values)) is None:
                raise _unwritable(table, columns, values, reason)
            of_deletes = of_key
        return cls(columns, of_deletes)

    def __call__(self, rows: pa.RecordBatch) -> Iterator[str]:
        deletes = rows.column(DELETES)
        yield from _paths(rows.filter(pc.invert(deletes)), self.columns)
        if self.of_deletes:
            yield from _paths(rows.filter(deletes), self.of_deletes)


def _unwritable(table: str, columns: Sequence[str], values: Mapping[str, Any], reason: str) -> SinkError:
    name = max(columns, key=lambda column: len(_folder(values.get(column))))
    value = values.get(name)
    text = format(Decimal(repr(value)), "f") if isinstance(value, float) else str(value)
    return SinkError(
        f"{table}: the table has a value of {name} that begins with {text[:_SHOWN]!r}... For its partition, "
        f"delta-rs needs {reason}, so no row of it can be changed. Delete these rows, or give them a shorter "
        "value, with another engine; or leave merge_on out"
    )


def _paths(rows: pa.RecordBatch, columns: Sequence[str]) -> Iterator[str]:
    given = [name for name in columns if name in rows.schema.names]
    if given:
        for values in distinct_rows(pa.table(rows.select(given))).to_pylist():
            yield _path(columns, values)


def distinct_rows(rows: pa.Table) -> pa.Table:
    return rows.group_by(rows.column_names).aggregate([])


def _path(columns: Sequence[str], values: Mapping[str, Any]) -> str:
    return "/".join([*(f"{name}={_folder(values.get(name))}" for name in columns), _FILE])


def _folder(value: Any) -> str:
    if value is None:
        return NULL_PARTITION
    if isinstance(value, float):  # in full, without an exponent
        return format(Decimal(repr(value)), "f")
    return quote(str(value), safe="")
