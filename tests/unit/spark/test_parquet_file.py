"""Columns of a Parquet file get a dictionary if, and only if, their values repeat."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kcl_dagster.spark.parquet_file import ROW_GROUP_BYTES, ParquetFile, read_footer

ROWS = 5_000


def written(columns: dict[str, Any], batches: int = 1) -> pq.FileMetaData:
    table = pa.table(columns)
    file = ParquetFile(table.schema)
    for _ in range(batches):
        for batch in table.to_batches():
            file.write(batch)
    assert pq.read_table(pa.BufferReader(file.finish())) == pa.concat_tables([table] * batches)
    return read_footer(file.footer)


def with_dictionary(footer: pq.FileMetaData) -> set[str]:
    columns = [footer.row_group(0).column(place) for place in range(footer.num_columns)]
    return {column.path_in_schema for column in columns if "RLE_DICTIONARY" in column.encodings}


@pytest.mark.parametrize(
    ("values", "repeats"),
    [
        ([f"id {row}" for row in range(ROWS)], False),
        ([f"user {row % 700}" for row in range(ROWS)], True),
        ([f"user {row * 7919 % (ROWS // 4)}" for row in range(ROWS)], True),
        (list(range(ROWS)), False),
        ([row // 100 for row in range(ROWS)], True),
        ([row / 7 for row in range(ROWS)], False),
        ([row if row % 2 else None for row in range(ROWS)], False),
        ([None] * ROWS, True),
        ([datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=row) for row in range(ROWS)], False),
    ],
)
def test_a_dictionary_is_for_values_that_repeat(values: list[Any], repeats: bool) -> None:
    column = pa.array(values) if any(value is not None for value in values) else pa.nulls(ROWS, pa.string())
    assert with_dictionary(written({"a column": column})) == ({"a column"} if repeats else set())


def test_values_that_repeat_between_batches_repeat() -> None:
    once = pa.array([f"key {number}" for number in range(100)])
    assert with_dictionary(written({"key": once}, batches=50)) == {"key"}


def test_columns_of_lists_maps_and_structs_keep_their_dictionaries() -> None:
    numbers = range(ROWS)
    columns = {
        "a": pa.array([[number] for number in numbers]),
        "a.b": pa.array(numbers),
        "c": pa.array([{"d": str(number), "e": [number]} for number in numbers]),
        "f": pa.array([[("key", number)] for number in numbers], pa.map_(pa.string(), pa.int64())),
    }
    assert with_dictionary(written(columns)) == {
        "a.list.element",
        "c.d",
        "c.e.list.element",
        "f.key_value.key",
        "f.key_value.value",
    }


def test_a_file_of_several_row_groups_has_all_rows() -> None:
    text = "x" * (ROW_GROUP_BYTES // 400)
    footer = written({"text": pa.array([text] * 100)}, batches=6)
    assert footer.num_rows == 600
    assert footer.num_row_groups > 1


def test_a_file_without_rows_has_its_columns() -> None:
    file = ParquetFile(pa.schema([("a", pa.int64()), ("b", pa.list_(pa.string()))]))
    assert pq.read_table(pa.BufferReader(file.finish())).schema == file.schema
    assert read_footer(file.footer).num_rows == 0
