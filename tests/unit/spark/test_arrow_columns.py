"""Columns of Arrow tables: one type each, that all readers of a folder know, whatever the values of a table are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kcl_dagster.emulator import Emulator
from kcl_dagster.errors import ConfigurationError, RecordRefused, SinkError, TransformError, Unavailable
from kcl_dagster.model.evolution import Evolve
from kcl_dagster.spark.arrow_columns import OutputColumns, plain, united
from kcl_dagster.spark.arrow_transform import TABLE_ROWS, ApplyFunction, ArrowTransform, as_read, table_of, tables
from kcl_dagster.spark.schema import RECORDS
from kcl_dagster.spark.sinks.batch_files import BatchFile, RequireColumns
from kcl_dagster.spark.sinks.column_types import FIRST_OUTPUT, FOLDER, ColumnTypes, path_of
from kcl_dagster.spark.sinks.folder_columns import FolderColumns
from kcl_dagster.spark.storage import LocalStore
from tests.unit.spark.buckets import Bucket

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


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_view(pa.int64()),
        pa.large_list_view(pa.string()),
        pa.struct([("a", pa.map_(pa.string(), pa.list_view(pa.int8())))]),
        pa.list_(pa.list_view(pa.int8())),
    ],
)
def test_views_of_lists_are_refused_because_arrow_does_not_cast_them(kind: pa.DataType) -> None:
    assert plain(kind) is None
    with pytest.raises(TransformError, match=r"column x is of type .*view.*: return lists instead of views"):
        OutputColumns({"x": pa.list_(pa.int64())}).conformed(pa.table({"x": pa.array([None], kind)}))


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


@pytest.mark.parametrize("error", [pa.ArrowInvalid("no such price"), KeyError("price"), Unavailable("no rates")])
def test_an_error_in_rows_that_are_made_later_is_the_error_of_the_function(error: Exception) -> None:
    def priced(records: pa.Table) -> pa.RecordBatchReader:
        def batches() -> Any:
            yield from records.to_batches()
            raise error

        return pa.RecordBatchReader.from_batches(records.schema, batches())

    with pytest.raises(type(error), match=str(error.args[0])) as raised:
        ArrowTransform(priced).table(pa.table({"n": [1]}))
    assert not isinstance(raised.value, TransformError)


def test_categories_are_stored_as_their_values() -> None:
    """Categories of polars are views of texts, which Arrow cannot cast."""
    indices = pa.array([0, None, 1, 0], pa.uint32())
    views = pa.array(["/", "/cart"], pa.string_view())
    given = pa.table({"page": pa.DictionaryArray.from_arrays(indices, views)})
    stored = OutputColumns({}).conformed(given)
    assert stored.schema == pa.schema([("page", pa.string())])
    assert stored.column("page").to_pylist() == ["/", None, "/cart", "/"]


def test_records_from_spark_have_times_in_utc() -> None:
    elsewhere = pa.timestamp("us", "America/New_York")
    columns = [pa.nulls(1, elsewhere if pa.types.is_timestamp(one.type) else one.type) for one in RECORDS]
    [batch] = as_read(iter([pa.RecordBatch.from_arrays(columns, names=RECORDS.names)]))
    assert batch.schema == RECORDS


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
    one.add({"more": pa.int8()})
    assert len(list(store.files(f"{FOLDER}/", hidden=True))) == 2
    assert ColumnTypes(store).known() == {"n": pa.int64(), "text": pa.string(), "more": pa.int8()}
    with pytest.raises(TransformError, match="column N is of type string, and column n of type string is stored"):
        ColumnTypes(LocalStore(str(tmp_path / "other"))).add({"n": pa.string(), "N": pa.string()})


def test_a_narrower_type_than_another_worker_has_stored_meanwhile_is_no_error(tmp_path: Path) -> None:
    one, other = (ColumnTypes(LocalStore(str(tmp_path))) for _ in range(2))
    one.add({"n": pa.float64()})
    assert other.known() == {"n": pa.float64()}
    one.add({"m": pa.int64()})
    other.add({"n": pa.float64(), "m": pa.int32()})
    assert other.known() == {"n": pa.float64(), "m": pa.int64()}
    one.add({"k": pa.int32()})
    with pytest.raises(TransformError, match="column k is of type int64, and column k of type int32 is stored"):
        other.add({"k": pa.int64()})


def test_the_columns_of_the_first_output_are_known_together(tmp_path: Path) -> None:
    """A worker that found only some of them would leave out or refuse the other ones."""
    found = []

    class LookedInto(LocalStore):
        def create(self, path: str, content: bytes) -> bool:
            found.append(ColumnTypes(LocalStore(self.root)).known())
            return super().create(path, content)

    types = {f"column {number}": pa.int64() for number in range(20)}
    ColumnTypes(LookedInto(str(tmp_path))).add(types)
    found.append(ColumnTypes(LocalStore(str(tmp_path))).known())
    assert [list(known) for known in found] == [[], list(types)]


@pytest.mark.parametrize("is_new", [True, False])
def test_a_worker_whose_response_was_lost_finds_its_own_output(tmp_path: Path, is_new: bool) -> None:
    class Unanswered(LocalStore):
        def create(self, path: str, content: bytes) -> bool:
            super().create(path, content)
            return False

    store = Unanswered(str(tmp_path))
    types = ColumnTypes(store)
    if not is_new:
        ColumnTypes(LocalStore(str(tmp_path))).add({"m": pa.int8()})
    types.add({"n": pa.int64()})
    assert types.known()["n"] == pa.int64()


def test_other_files_beside_the_columns_are_ignored(aws: Emulator) -> None:
    """The S3 console and copy tools create an empty object for a folder."""
    store = Bucket(aws).store
    ColumnTypes(store).add({"n": pa.int64()})
    ColumnTypes(store).add({"m": pa.int64()})
    for name in ("", "first~", "copy/first", "0123"):
        store.put(f"{FOLDER}/{name}", b"")
    assert ColumnTypes(store).known() == {"n": pa.int64(), "m": pa.int64()}


@pytest.mark.parametrize("path", [FIRST_OUTPUT, path_of("n")])
def test_a_file_of_a_column_that_cannot_be_read_is_named(tmp_path: Path, path: str) -> None:
    store = LocalStore(str(tmp_path))
    schema = pa.schema([("n", pa.int64())]).serialize().to_pybytes()
    for content in (b"", b"{}", schema[:40], bytes(100), b"\xff" * 100):
        store.put(path, content)
        with pytest.raises(SinkError, match=f"{tmp_path}: {path} has no types of columns"):
            ColumnTypes(store).known()
    store.put(path, schema)
    assert ColumnTypes(store).known() == {"n": pa.int64()}
    store.put(path_of("m"), schema)
    with pytest.raises(SinkError, match=f"{path_of('m')} has the types of other columns"):
        ColumnTypes(store).known()


def folder_columns(path: Path, evolve: Evolve) -> FolderColumns:
    return FolderColumns(f"parquet at {path}", ColumnTypes(LocalStore(str(path))), frozenset(), evolve)


def batch_file(**types: pa.DataType) -> BatchFile:
    return BatchFile(0, 0, "path", 1, 1, None, columns=pa.schema(list(types.items())))


@pytest.mark.parametrize("evolve", ["ignore", "refuse"])
def test_evolve_is_kept_by_a_worker_that_looked_before_the_first_output_and_stores_later(
    tmp_path: Path, evolve: Evolve
) -> None:
    """Its first batches had no rows, or its first batch was written while the other worker stored the first one."""
    first, late, written = (folder_columns(tmp_path, evolve) for _ in range(3))
    assert late.types.known() == written.types.known() == {}
    assert first.stored([batch_file(n=pa.int64())])
    assert late.types.known() == {"n": pa.int64()}
    if evolve == "refuse":
        with pytest.raises(SinkError, match=r"no file has the columns \['more'\]"):
            written.stored([batch_file(n=pa.int64(), more=pa.string())])
    else:
        assert not written.stored([batch_file(n=pa.int64(), more=pa.string())])
    assert not written.add({"n": pa.int64(), "more": pa.string()})
    assert written.agreed({"n": pa.int64(), "more": pa.string()}) == {"n": pa.int64()}
    assert ColumnTypes(LocalStore(str(tmp_path))).known() == {"n": pa.int64()}


@pytest.mark.parametrize("evolve", ["ignore", "refuse"])
def test_of_two_workers_that_store_their_first_output_at_once_one_decides_the_columns(
    tmp_path: Path, evolve: Evolve
) -> None:
    first, second = (folder_columns(tmp_path, evolve) for _ in range(2))

    class Overtaken(LocalStore):
        def create(self, path: str, content: bytes) -> bool:
            first.add({"n": pa.int64()})
            return super().create(path, content)

    second.types.store = Overtaken(str(tmp_path))
    assert not second.add({"n": pa.int64(), "more": pa.string()})
    assert second.types.known() == {"n": pa.int64()}


@pytest.mark.parametrize("is_known", [True, False])
def test_files_of_a_narrower_type_than_the_folder_are_written_again(tmp_path: Path, is_known: bool) -> None:
    """Readers could not read them together."""
    one, other = (folder_columns(tmp_path, "add") for _ in range(2))
    assert one.stored([batch_file(m=pa.int64())])
    if not is_known:
        assert other.types.known() == {"m": pa.int64()}
    assert one.stored([batch_file(m=pa.int64(), n=pa.float64(), text=pa.large_string())])
    assert not other.stored([batch_file(n=pa.int32())])
    assert other.stored([batch_file(text=pa.string())])
    assert other.agreed({"n": pa.int32(), "k": pa.int8()}) == {
        "m": pa.int64(),
        "n": pa.float64(),
        "k": pa.int8(),
        "text": pa.large_string(),
    }
    assert other.stored([batch_file(n=pa.float64(), text=pa.string())])


def test_records_are_stored_as_they_were_read_only_without_a_conversion(tmp_path: Path) -> None:
    one, other = (folder_columns(tmp_path, "add") for _ in range(2))
    assert one.take_records()
    assert one.stored([batch_file(arrival_timestamp=pa.timestamp("us", "Europe/Paris"))])
    assert not other.take_records()
    assert not other.stored([batch_file(**{one.name: one.type for one in RECORDS})])


def test_evolve_says_what_becomes_of_columns_that_no_file_has() -> None:
    output = pa.table({"n": [1], "more": ["x"]})
    known = {"n": pa.int64()}
    assert OutputColumns(known, evolve="add").conformed(output).column_names == ["n", "more"]
    assert OutputColumns(known, evolve="ignore").conformed(output).column_names == ["n"]
    with pytest.raises(TransformError, match="no file has column more"):
        OutputColumns(known, evolve="refuse").conformed(output)
    for evolve in ("ignore", "refuse"):  # the first output decides which columns there are
        assert OutputColumns({}, evolve=evolve).conformed(output).column_names == ["n", "more"]
