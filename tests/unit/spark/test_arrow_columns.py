"""Columns of Arrow tables: one type each, that all readers of a folder know, whatever the values of a table are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kcl_dagster.errors import ConfigurationError, RecordRefused, TransformError, Unavailable
from kcl_dagster.spark.arrow_columns import OutputColumns, plain, united
from kcl_dagster.spark.arrow_transform import TABLE_ROWS, ApplyFunction, ArrowTransform, table_of, tables
from kcl_dagster.spark.sinks.batch_files import RequireColumns
from kcl_dagster.spark.sinks.column_types import FOLDER, ColumnTypes
from kcl_dagster.spark.storage import LocalStore

UTC = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        (pa.int16(), pa.int16()),
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.binary(16), pa.binary()),
        (pa.uuid(), pa.binary()),
        (pa.timestamp("ns", "Europe/Paris"), UTC),
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.date64(), pa.date32()),
        (pa.float16(), pa.float32()),
        (pa.decimal256(20, 2), pa.decimal128(20, 2)),
        (pa.large_list(pa.large_string()), pa.list_(pa.string())),
        (pa.list_(pa.int8(), 3), pa.list_(pa.int8())),
        (pa.struct([("a", pa.large_string())]), pa.struct([("a", pa.string())])),
        (pa.map_(pa.string(), pa.large_binary()), pa.map_(pa.string(), pa.binary())),
        (pa.time64("us"), None),
        (pa.duration("s"), None),
        (pa.decimal256(60, 2), None),
        (pa.struct([("a", pa.duration("s"))]), None),
        (pa.struct([]), None),
    ],
)
def test_each_type_is_stored_in_one_that_readers_know(kind: pa.DataType, stored: pa.DataType | None) -> None:
    assert plain(kind) == stored
    if stored is not None:
        column = pa.nulls(2, kind) if not isinstance(kind, pa.BaseExtensionType) else pa.array([None, None], kind)
        assert OutputColumns({}).conformed(pa.table({"x": column})).schema == pa.schema([("x", stored)])
    else:
        with pytest.raises(TransformError, match="column x is of type"):
            OutputColumns({}).conformed(pa.table({"x": pa.nulls(1, kind)}))


def test_later_tables_get_the_columns_of_former_ones() -> None:
    columns = OutputColumns({"known": pa.int64()})
    first = columns.conformed(pa.table({"a": pa.array([1], pa.int64()), "nothing": pa.nulls(1)}))
    assert first.column_names == ["a"], "a column without values and without a type"
    second = columns.conformed(pa.table({"nothing": ["x"], "known": pa.array([1], pa.int8())}))
    assert second.schema == pa.schema([("a", pa.int64()), ("nothing", pa.string()), ("known", pa.int64())])
    assert second.to_pylist() == [{"a": None, "nothing": "x", "known": 1}]
    third = columns.conformed(pa.table({"a": pa.nulls(1), "known": pa.array([2], pa.int16())}))
    assert third.schema == second.schema


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1.5]), "is of type double, and what is stored is of type int64"),
        (pa.array(["1"]), "is of type string"),
        (pa.array([[1]]), "is of type list"),
    ],
)
def test_a_type_that_does_not_fit_is_refused_and_no_record_is_blamed(column: pa.Array, message: str) -> None:
    with pytest.raises(TransformError, match=message):
        OutputColumns({"n": pa.int64()}).conformed(pa.table({"n": column}))


def test_a_value_that_has_no_place_in_its_type_is_that_of_a_record() -> None:
    late = pa.array([2**62], pa.int64()).cast(pa.timestamp("s"))
    with pytest.raises(RecordRefused, match="column at has a value"):
        OutputColumns({}).conformed(pa.table({"at": late}))


@pytest.mark.parametrize("table", [{"a": [1], "A": [2]}, {"B": [1]}, {"_progress": [1]}, {"c": [[None]]}])
def test_columns_that_readers_cannot_tell_apart_or_know_are_refused(table: Any) -> None:
    with pytest.raises(TransformError):
        OutputColumns({"b": pa.int64()}).conformed(pa.table(table))
    with pytest.raises(TransformError, match="without a column"):
        OutputColumns({}).conformed(pa.table({"x": pa.nulls(3)}))


def test_a_partition_column_may_be_null_and_of_any_type() -> None:
    columns = OutputColumns({}, frozenset({"kind"}))
    for values in (pa.nulls(2), pa.array([1, None]), pa.array(["a", None])):
        output = columns.conformed(pa.table({"n": [1, 2], "kind": values}))
        assert output["kind"].null_count == values.null_count


def test_types_of_several_tasks_are_united_if_one_fits_into_the_other() -> None:
    small, large, text = (pa.schema([("n", kind)]) for kind in (pa.int32(), pa.int64(), pa.string()))
    assert united([small, large, small], {}) == {"n": pa.int64()}
    assert united([small], {"n": pa.int64()}) == {"n": pa.int64()}
    for schemas, known in (([small, text], {}), ([large], {"n": pa.int32()})):
        with pytest.raises(TransformError, match="column n is of type"):
            united(schemas, known)


class Stream:
    """What polars and DuckDB give."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def test_a_function_may_return_anything_with_the_arrow_interface() -> None:
    table = pa.table({"n": [1, 2]})
    batch = table.to_batches()[0]
    reader = pa.RecordBatchReader.from_batches(table.schema, [batch])
    for output in (table, batch, Stream(table), reader):
        assert table_of(output) == table


@pytest.mark.parametrize(
    "rubbish", [None, 1, "text", {"n": [1]}, [1], Stream(pa.chunked_array([[1]])), pa.array([1])]
)
def test_a_function_that_returns_no_table_is_refused(rubbish: object) -> None:
    with pytest.raises(TransformError, match="an Arrow function"):
        table_of(rubbish)


def test_a_function_may_say_that_what_it_needs_is_away() -> None:
    def priced(records: pa.Table) -> pa.Table:
        raise Unavailable("the exchange rates cannot be read")

    with pytest.raises(Unavailable, match="exchange rates"):
        ArrowTransform(priced).table(pa.table({}))


def some(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(range(rows))})


def test_a_function_is_given_tables_of_bounded_size() -> None:
    given = [table.num_rows for table in tables(iter([some(10), some(20), some(TABLE_ROWS), some(5)]))]
    assert given == [30 + TABLE_ROWS, 5]
    assert list(tables(iter([some(0)]))) == []


def test_rows_may_be_left_out_and_added() -> None:
    def twice_or_not(records: pa.Table) -> pa.Table:
        return pa.concat_tables([records, records]) if records.num_rows > 1 else records.slice(0, 0)

    def applied(*batches: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        return ApplyFunction(ArrowTransform(twice_or_not), {})(iter(batches))

    assert sum(batch.num_rows for batch in applied(some(3))) == 6
    assert list(applied(some(1))) == []
    assert list(ApplyFunction(ArrowTransform(lambda _: pa.table({})), {})(iter([some(3)]))) == []


def test_an_output_without_a_partition_column_is_an_error_of_the_settings() -> None:
    for columns in (("kind",), ("n", "kind")):
        with pytest.raises(ConfigurationError, match=r"partitioned by \['kind'\]"):
            list(RequireColumns(columns)(iter([some(1)])))


def test_a_column_has_one_type_below_a_path_for_all_workers(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    one, other = ColumnTypes(store), ColumnTypes(store)
    assert one.known() == other.known() == {}
    one.add({"n": pa.int64(), "text": pa.string()})
    other.add({"n": pa.int64()})
    with pytest.raises(TransformError, match=f"of type int64 is stored at {tmp_path}"):
        ColumnTypes(store).add({"n": pa.int64(), "N": pa.int64()})
    late = ColumnTypes(store)
    with pytest.raises(TransformError):
        other.add({"text": pa.binary()})
    assert late.known() == {"n": pa.int64(), "text": pa.string()}
    assert list(store.files()) == []
    assert len(list(store.files(f"{FOLDER}/", hidden=True))) == 2


def test_evolve_says_what_becomes_of_columns_that_no_file_has() -> None:
    output = pa.table({"n": [1], "more": ["x"]})
    known = {"n": pa.int64()}
    assert OutputColumns(known, evolve="add").conformed(output).column_names == ["n", "more"]
    assert OutputColumns(known, evolve="ignore").conformed(output).column_names == ["n"]
    with pytest.raises(TransformError, match="no file has column more"):
        OutputColumns(known, evolve="refuse").conformed(output)
    for evolve in ("ignore", "refuse"):  # the first output decides which columns there are
        assert OutputColumns({}, evolve=evolve).conformed(output).column_names == ["n", "more"]
