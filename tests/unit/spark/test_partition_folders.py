"""Partition values: every row that comes in is stored, with the value that it had."""

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_dagster.errors import ConfigurationError, RecordRefused, SinkError
from kcl_dagster.spark.failures import write_failures
from kcl_dagster.spark.sinks import batch_files, staging_job
from kcl_dagster.spark.sinks.batch_files import ForTable
from kcl_dagster.spark.sinks.delta_statistics import DeltaStatistics
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.spark.sinks.partition_folders import (
    NULL_PARTITION,
    Folders,
    TableFolders,
    hive_folder,
    table_folder,
    texts,
)
from kcl_dagster.spark.sinks.rows_by_key import split
from kcl_dagster.spark.storage import LocalStore, S3Options, S3Store
from kcl_dagster.worker.error_class import ErrorClass, class_of
from tests.doubles.clock import FakeClock
from tests.unit.spark.outputs import (
    LEASES,
    VALUES,
    as_read,
    instant,
    numbers,
    outputs,
    partition_columns,
    rows_of,
    run_writer,
)

pytestmark = pytest.mark.slow

NAN = float("nan")


def kinds(values: list[Any], kind: pa.DataType) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "n": list(range(len(values))),
            "lease_key": [LEASES[0]] * len(values),
            "kind": pa.array(values, kind),
        }
    )


def stored(root: Path) -> Counter[int]:
    return Counter(ds.dataset(str(root), format="parquet").to_table()["n"].to_pylist())


def folders(root: Path) -> dict[str, list[int]]:
    return {
        path.parent.name: ds.dataset(str(path)).to_table()["n"].to_pylist()
        for path in sorted(root.rglob("*.parquet"))
    }


@pytest.mark.audit("A1")
def test_null_empty_and_the_word_for_null_are_all_stored(tmp_path: Path) -> None:
    batch = kinds([None, "", NULL_PARTITION, "a", None], pa.string())
    run_writer(LocalStore(str(tmp_path)), Folders(("kind",)), [batch])
    assert folders(tmp_path) == {
        f"kind={NULL_PARTITION}": [0, 1, 4],  # Spark reads an empty text back as null, too
        "kind=%5F_HIVE_DEFAULT_PARTITION__": [2],
        "kind=a": [3],
    }


@pytest.mark.audit("A2")
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_rows_with_nan_and_the_two_zeros_are_stored_once(tmp_path: Path, kind: pa.DataType) -> None:
    batch = kinds([NAN, 0.0, -0.0, NAN, None, 0.1], kind)
    run_writer(LocalStore(str(tmp_path)), Folders(("kind",)), [batch])
    assert folders(tmp_path) == {
        "kind=NaN": [0, 3],
        "kind=0.0": [1],
        "kind=-0.0": [2],
        f"kind={NULL_PARTITION}": [4],
        "kind=0.1": [5],
    }


@pytest.mark.audit("A1", "A2")
@settings(max_examples=150, deadline=None)
@given(outputs())
def test_rows_in_are_rows_out_of_a_folder(output: tuple[pa.Schema, list[pa.RecordBatch]]) -> None:
    schema, batches = output
    store = InMemory()
    try:
        files = run_writer(store, Folders(tuple(partition_columns(schema))), batches)
    except RecordRefused:  # a value that is too long for a folder's name
        assert not store.content
        return
    assert len({file.path for file in files}) == len(files) == len(store.content)
    assert sum(file.rows for file in files) == sum(numbers(batches).values())
    found: dict[int, dict[str, str | None]] = {}
    for path, content in store.content.items():
        values = {}
        for folder in path.split("/")[:-1]:
            name, _, value = folder.partition("=")
            values[name] = None if value == NULL_PARTITION else unquote(value)
        for n in content:
            assert n not in found
            found[n] = values
    for row in rows_of(batches):
        for name in partition_columns(schema):
            text = texts(pa.array([row[name]], schema.field(name).type), name)[0].as_py()
            assert found[row["n"]][name] == text


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(list(VALUES)).flatmap(lambda kind: st.tuples(st.just(kind), st.lists(VALUES[kind], max_size=8)))
)
def test_a_text_says_what_the_value_was(drawn: tuple[pa.DataType, list[Any]]) -> None:
    kind, values = drawn
    if kind in (pa.string(), pa.binary()) or not values:
        return
    back: dict[pa.DataType, Callable[[str], Any]] = {
        pa.bool_(): lambda text: text == "true",
        pa.date32(): date.fromisoformat,
        pa.timestamp("us", tz="UTC"): instant,
        pa.timestamp("us"): lambda text: instant(text).replace(tzinfo=None),
        pa.decimal128(12, 3): Decimal,
        pa.float32(): lambda text: pa.array([float(text)]).cast(kind)[0].as_py(),
        pa.float64(): float,
    }
    parse = back.get(kind, int)
    array = pa.array(values, kind)
    read = [parse(text) for text in texts(array, "p").to_pylist()]
    assert [as_read(value) for value in read] == [as_read(value) for value in array.to_pylist()]


@given(st.lists(st.sampled_from([None, *VALUES]).filter(bool), min_size=0, max_size=2), st.data())
def test_split_keeps_each_row_once_and_in_order(columns: list[pa.DataType], data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 12))
    keys = [pa.array([data.draw(st.none() | VALUES[kind]) for _ in range(size)], kind) for kind in columns]
    rows = pa.record_batch({"n": pa.array(range(size), pa.int64())})
    groups = [group.rows["n"].to_pylist() for group in split(rows, keys)]
    assert sorted(n for group in groups for n in group) == list(range(size))
    assert all(group == sorted(group) for group in groups)
    assert [group[0] for group in groups] == sorted(group[0] for group in groups)


class InMemory:
    """A store that keeps the numbers of the rows in each file."""

    root = "memory"

    def __init__(self) -> None:
        self.content: dict[str, list[int]] = {}

    def too_long(self, path: str) -> str | None:
        return LocalStore("/").too_long(path)

    def put(self, path: str, content: Any) -> None:
        import pyarrow.parquet as pq

        assert path not in self.content
        self.content[path] = pq.read_table(pa.BufferReader(content))["n"].to_pylist()

    def move(self, names: Mapping[str, str]) -> list[str]:
        self.content |= {to: self.content.pop(path) for path, to in names.items()}
        return []


@pytest.mark.audit("B3")
@pytest.mark.parametrize(
    ("store", "value"),
    [
        (LocalStore("/lake"), "x" * 300),
        (LocalStore("/lake"), "ü" * 130),
        (S3Store("lake", "clicks", S3Options()), "漢" * 350),
    ],
)
def test_a_value_too_long_for_a_folder_is_the_failure_of_its_record(store: Any, value: str) -> None:
    with pytest.raises(RecordRefused, match="would need") as caught, write_failures("parquet"):
        run_writer(store, Folders(("kind",)), [kinds(["a", value], pa.string())])
    assert class_of(caught.value) is ErrorClass.RECORD
    assert value[:20] not in str(caught.value)


@pytest.mark.audit("B3")
def test_a_value_may_be_of_any_length_in_a_table(tmp_path: Path) -> None:
    values = ["x" * 5000, "x" * 4999, "ü/:%", "~", NULL_PARTITION, None]
    table = ForTable(None, DeltaStatistics())
    files = run_writer(LocalStore(str(tmp_path)), TableFolders(("kind",)), [kinds(values, pa.string())], table)
    assert [file.partition for file in files] == [{"kind": value} for value in values]
    assert stored(tmp_path) == Counter(range(6))
    assert all(len(folder.name) < 50 for folder in tmp_path.iterdir())


def test_bytes_that_are_no_text_are_the_failure_of_their_record() -> None:
    with pytest.raises(RecordRefused, match="binary"):
        texts(pa.array([b"a", b"\xff"]), "kind")
    assert texts(pa.array([b"a", b"", None]), "kind").to_pylist() == ["a", None, None]


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ("a b", "k=a b"),
        ("x/y", "k=x%2Fy"),
        ("ü", "k=ü"),
        ("100%", "k=100%25"),
        ("", f"k={NULL_PARTITION}"),
        ("a=b:c\n", "k=a%3Db%3Ac%0A"),
        (None, f"k={NULL_PARTITION}"),
    ],
)
def test_folders_are_named_as_spark_names_them(text: str | None, folder: str) -> None:
    assert hive_folder("k", text) == folder


def test_folders_of_a_table_are_readable_where_the_value_is() -> None:
    assert table_folder("day", "2026-01-31") == "day=2026-01-31"
    assert table_folder("day", None) == f"day={NULL_PARTITION}"
    assert len({table_folder("k", text) for text in (None, "", "a", "a ", NULL_PARTITION, "~", "x/y")}) == 7


def test_columns_that_readers_pass_over_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="_kind"):
        ParquetSink(str(tmp_path), partition_by=["_kind"])


def test_nothing_is_stored_where_a_row_would_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def loses_one(rows: pa.RecordBatch, keys: Any) -> Any:
        return split(rows.slice(1), [key.slice(1) for key in keys])

    monkeypatch.setattr(batch_files, "split", loses_one)
    with pytest.raises(SinkError, match="was given 2 rows, and its files hold 1"):
        run_writer(LocalStore(str(tmp_path)), Folders(("kind",)), [kinds(["a", "b"], pa.string())])
    assert list(LocalStore(str(tmp_path)).files()) == []


def test_a_batch_of_very_many_partition_values_is_warned_of_once_an_hour(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr(staging_job, "_warned", staging_job._Warned(clock))
    staging_job.warn_of_large_batch("s3://lake", staging_job.MANY_FILES)
    assert not caplog.messages
    for _ in range(3):
        staging_job.warn_of_large_batch("s3://lake", staging_job.MANY_FILES + 1)
        clock.advance(1800)
    assert len(caplog.messages) == 2
    assert "wrote 101 files into s3://lake, one for each task and partition value" in caplog.messages[0]
