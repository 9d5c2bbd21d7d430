"""The sort order of an Iceberg table, by which the rows of each file are sorted before they are written.

Rows are sorted within each task of Spark, so nothing is shuffled. The table's metadata has the id of the sort order
for a file only if the rows of the file follow the order exactly.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster.spark.sinks.column_names import quoted
from kcl_dagster.spark.sinks.iceberg_partitions import column_path
from kcl_dagster.spark.transform import Transform, is_frame

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.sorting import SortField

# Transforms whose values have the same order as the column. For them, rows are sorted by the column itself, and not
# by the value of the transform. Rows with the same value of the transform are then not sorted by the next field of
# the sort order. So rows follow the sort order exactly only if such a transform is in the last field.
_MONOTONIC: Final = ("year", "month", "day", "hour", "truncate")


@dataclass(frozen=True, slots=True)
class SortKey:
    """One field of a sort order. `path`: the path of the column, with one name for each level of structs."""

    path: tuple[str, ...]
    is_descending: bool
    has_nulls_first: bool

    @property
    def column(self) -> Column:
        found = F.col(".".join(quoted(name) for name in self.path))
        match self.is_descending, self.has_nulls_first:
            case True, True:
                return found.desc_nulls_first()
            case True, False:
                return found.desc_nulls_last()
            case False, True:
                return found.asc_nulls_first()
            case _:
                return found.asc_nulls_last()


@dataclass(frozen=True, slots=True)
class RowOrder:
    """The sort order of rows. `keys`: the first fields of the table's sort order, as far as rows can be sorted by
    them. `exact_id`: the id of the table's sort order, if rows that are sorted by `keys` follow it exactly."""

    keys: tuple[SortKey, ...] = ()
    exact_id: int | None = None

    @classmethod
    def of(cls, table: "Table") -> "RowOrder":
        """The sort order of the table. The rows of an output that lacks some columns can follow this order as well,
        because these columns are null in every row."""
        order = table.sort_order()
        keys: list[SortKey] = []
        for number, field in enumerate(order.fields):
            transform = str(field.transform).partition("[")[0]
            is_last = number == len(order.fields) - 1
            if transform == "void":
                continue
            if transform not in ("identity", *_MONOTONIC):
                return cls(tuple(keys))
            keys.append(_key(table, field))
            if transform != "identity" and not is_last:
                return cls(tuple(keys))
        is_exact = bool(keys) and not any(_is_floating(table, field) for field in order.fields)
        return cls(tuple(keys), order.order_id if is_exact else None)

    def applied(self, transform: Transform) -> Transform:
        """Wrap the transform, so that its output is sorted within each task."""
        if not self.keys:
            return transform

        def sorted_rows(records: DataFrame) -> DataFrame:
            output = transform(records)
            if not is_frame(output):
                return output  # no DataFrame; `transform.checked` refuses it
            keys = [key.column for key in self.keys if key.path[0] in output.columns]
            return output.sortWithinPartitions(*keys) if keys else output

        return sorted_rows

    def sorted(self, rows: pa.Table) -> pa.Table:
        """Sort rows. Rows with equal keys remain in the order that they have."""
        columns: list[pa.ChunkedArray] = []
        directions = []
        for number, key in enumerate(self.keys):
            values = rows.column(key.path[0])
            for name in key.path[1:]:
                values = pc.struct_field(values, name)
            if pa.types.is_boolean(values.type):
                values = values.cast(pa.int8())
            columns += [pc.is_null(values).cast(pa.int8()), values]
            directions += [
                (str(2 * number), "descending" if key.has_nulls_first else "ascending"),
                (str(2 * number + 1), "descending" if key.is_descending else "ascending"),
            ]
        named = pa.table(columns, names=[str(number) for number in range(len(columns))])
        return rows.take(pc.sort_indices(named, sort_keys=directions))


def _key(table: "Table", field: "SortField") -> SortKey:
    from pyiceberg.table.sorting import NullOrder, SortDirection

    path = column_path(table.schema(), field.source_id)  # the format keeps columns that a sort order names
    nulls_first = field.null_order == NullOrder.NULLS_FIRST
    return SortKey(path, field.direction == SortDirection.DESC, nulls_first)


def _is_floating(table: "Table", field: "SortField") -> bool:
    """Whether the field is a float. Rows that Spark has sorted by floats do not follow Iceberg's order exactly,
    because 0.0 and -0.0 are equal in Spark, but not in Iceberg."""
    from pyiceberg.types import DoubleType, FloatType

    return isinstance(table.schema().find_type(field.source_id), DoubleType | FloatType)
