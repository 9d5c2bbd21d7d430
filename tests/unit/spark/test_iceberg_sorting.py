"""The sort order of an Iceberg table, as the sink sorts rows by it."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import parse_transform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, StructType, TimestampType

from kcl_dagster.spark.sinks.iceberg_sorting import RowOrder, SortKey

SCHEMA = Schema(
    NestedField(1, "n", LongType()),
    NestedField(2, "at", TimestampType()),
    NestedField(3, "ratio", DoubleType()),
    NestedField(4, "of", StructType(NestedField(5, "user", StringType()))),
)
N, AT, RATIO, USER = 1, 2, 3, 5


def table(folder: Path, *fields: tuple[int, str]) -> Any:
    catalog = SqlCatalog("c", uri=f"sqlite:///{folder}/catalog.db", warehouse=str(folder))
    catalog.create_namespace("lake")
    order = SortOrder(*(SortField(source_id=column, transform=parse_transform(name)) for column, name in fields))
    return catalog.create_table("lake.t", SCHEMA, sort_order=order)


def ascending(*path: str) -> SortKey:
    return SortKey(path, is_descending=False, has_nulls_first=True)


@pytest.mark.parametrize(
    ("fields", "keys", "is_exact"),
    [
        ([], [], False),
        ([(N, "identity")], [ascending("n")], True),
        ([(USER, "identity"), (AT, "day")], [ascending("of", "user"), ascending("at")], True),
        # Rows of one day would be in the order of their times, and not of their numbers.
        ([(AT, "day"), (N, "identity")], [ascending("at")], False),
        ([(USER, "truncate[2]")], [ascending("of", "user")], True),
        ([(N, "identity"), (USER, "bucket[16]"), (AT, "identity")], [ascending("n")], False),
        ([(RATIO, "identity")], [ascending("ratio")], False),
    ],
)
def test_rows_are_sorted_as_far_as_columns_can_say_it_and_files_name_an_order_that_they_follow(
    tmp_path: Path, fields: list[tuple[int, str]], keys: list[SortKey], is_exact: bool
) -> None:
    there = table(tmp_path, *fields)
    order = RowOrder.of(there)
    assert list(order.keys) == keys
    assert order.exact_id == (there.sort_order().order_id if is_exact else None)


def test_a_name_with_a_dot_is_no_path(tmp_path: Path) -> None:
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=str(tmp_path))
    catalog.create_namespace("lake")
    inner = StructType(NestedField(3, "c.d", StringType()))
    schema = Schema(NestedField(1, "a.b", LongType()), NestedField(2, "of", inner))
    fields = [SortField(source_id=number, transform=parse_transform("identity")) for number in (1, 3)]
    order = RowOrder.of(catalog.create_table("lake.t", schema, sort_order=SortOrder(*fields)))
    assert order.keys == (ascending("a.b"), ascending("of", "c.d"))
    rows = pa.table({"a.b": [2, 1], "of": [{"c.d": "x"}, {"c.d": "y"}]})
    assert order.sorted(rows)["a.b"].to_pylist() == [1, 2]


def test_directions_and_nulls_are_those_of_the_table(tmp_path: Path) -> None:
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=str(tmp_path))
    catalog.create_namespace("lake")
    field = SortField(
        source_id=N,
        transform=parse_transform("identity"),
        direction=SortDirection.DESC,
        null_order=NullOrder.NULLS_FIRST,
    )
    there = catalog.create_table("lake.t", SCHEMA, sort_order=SortOrder(field))
    assert RowOrder.of(there).keys == (SortKey(("n",), is_descending=True, has_nulls_first=True),)


def test_what_is_no_frame_is_left_to_the_check_of_all_outputs(tmp_path: Path) -> None:
    order = RowOrder.of(table(tmp_path, (N, "identity")))
    rows = pa.array([1])
    assert order.applied(lambda _: rows)(None) is rows  # type: ignore[arg-type]
