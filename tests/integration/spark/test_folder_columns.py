"""A folder of Parquet stays readable: each column has one type, and `evolve` says what becomes of new columns."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster.errors import SinkError, TransformError
from kcl_dagster.model.evolution import Evolve
from kcl_dagster.spark.sinks.folder_columns import FolderColumns
from kcl_dagster.spark.sinks.parquet import ParquetSink
from tests.doubles.parts import Parts
from tests.integration.spark.test_sinks import part, write

pytestmark = pytest.mark.spark

NUMBER = "cast(sequence_number as int) as n"


class Folder:
    """A path that workers with different functions store to, one record each time."""

    def __init__(self, path: Path, spark: SparkSession) -> None:
        self.path, self.spark = path, spark
        self._next = 1

    def sink(self, *columns: str, evolve: Evolve = "add", partition_by: tuple[str, ...] = ()) -> Parts:
        def transform(records: DataFrame) -> DataFrame:
            return records.selectExpr(*columns)

        return Parts(ParquetSink(str(self.path), transform=transform, evolve=evolve, partition_by=partition_by))

    def store(self, *columns: str, **more: Any) -> None:
        self.store_into(self.sink(*columns, **more))

    def store_into(self, sink: Parts) -> None:
        number, self._next = self._next, self._next + 1
        write(sink, self.spark, part(1, 1000 + number, 1000 + number, number))

    def rows(self) -> list[dict[str, Any]]:
        """As Spark reads all files together."""
        read = self.spark.read.option("mergeSchema", "true").parquet(str(self.path))
        return [row.asDict() for row in read.orderBy("n").collect()]

    def files(self) -> int:
        return len(list(self.path.rglob("*.parquet")))


@pytest.fixture
def folder(tmp_path: Path, spark: SparkSession) -> Folder:
    return Folder(tmp_path / "lake", spark)


def test_a_column_keeps_the_type_of_its_first_file(folder: Folder) -> None:
    folder.store("cast(sequence_number as long) as n")
    folder.store(NUMBER)
    assert [row["n"] for row in folder.rows()] == [1001, 1002]
    with pytest.raises(SinkError, match=r"n \(string, and int64 in the files\)"):
        folder.store("sequence_number as n")
    assert folder.files() == 2, "what does not fit is not stored"


def test_a_wider_type_is_refused(folder: Folder) -> None:
    """Readers cannot read files of both types together, and files that are there are not written again."""
    folder.store(NUMBER)
    with pytest.raises(SinkError, match=r"n \(int64, and int32 in the files\)"):
        folder.store("cast(sequence_number as long) as n")


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ("struct(1 as a) as s", "struct('x' as a) as s"),
        ("array(1) as s", "array(1.5D) as s"),
        ("cast(1 as decimal(5,2)) as s", "cast(1 as decimal(6,2)) as s"),
        ("current_timestamp() as s", "current_date() as s"),
        ("'1' as s", "cast('1' as binary) as s"),
        ("map('a', 1) as s", "map('a', 'b') as s"),
    ],
)
def test_types_that_readers_cannot_read_together_are_refused(folder: Folder, first: str, later: str) -> None:
    folder.store(NUMBER, first)
    with pytest.raises(SinkError, match="s "):
        folder.store(NUMBER, later)
    folder.store(NUMBER, first)
    assert len(folder.rows()) == 2


def test_a_struct_may_hold_nulls_where_the_first_one_did_not(folder: Folder) -> None:
    folder.store(NUMBER, "named_struct('a', 1, 'b', array(1)) as s")
    folder.store(NUMBER, "named_struct('a', cast(null as int), 'b', array(cast(null as int))) as s")
    assert [row["s"]["a"] for row in folder.rows()] == [1, None]


def test_new_columns_are_stored_by_default(folder: Folder) -> None:
    folder.store(NUMBER)
    folder.store(NUMBER, "'x' as more")
    assert [row["more"] for row in folder.rows()] == [None, "x"]


def test_new_columns_may_be_refused(folder: Folder) -> None:
    folder.store(NUMBER, evolve="refuse")
    with pytest.raises(SinkError, match=r"no file has the columns \['more'\]"):
        folder.store(NUMBER, "'x' as more", evolve="refuse")
    folder.store(NUMBER, evolve="refuse")
    assert [row["n"] for row in folder.rows()] == [1001, 1003]


def test_new_columns_may_be_left_out(folder: Folder) -> None:
    folder.store(NUMBER, evolve="ignore")
    folder.store(NUMBER, "'x' as more", evolve="ignore")
    assert folder.rows() == [{"n": 1001}, {"n": 1002}]
    with pytest.raises(SinkError, match="no column of the output is stored"):
        folder.store("'x' as more", evolve="ignore")


def test_names_that_differ_in_case_only_are_refused(folder: Folder) -> None:
    folder.store(NUMBER)
    with pytest.raises(SinkError, match="in case only"):
        folder.store("1 as N")


def test_a_column_without_values_is_left_out_until_it_has_a_type(folder: Folder) -> None:
    folder.store(NUMBER, "null as later")
    folder.store(NUMBER, "'x' as later")
    folder.store(NUMBER, "null as later")
    assert [row["later"] for row in folder.rows()] == [None, "x", None]


@pytest.mark.parametrize("column", ["array(null) as s", "named_struct('a', null) as s", "map('a', null) as s"])
def test_a_column_that_is_partly_without_a_type_is_refused(folder: Folder, column: str) -> None:
    """If it were stored, no later value would fit."""
    with pytest.raises(SinkError, match=r"columns \['s'\] leave open what is in them"):
        folder.store(NUMBER, column)
    folder.store(NUMBER, "array(1) as s")
    assert [row["s"] for row in folder.rows()] == [[1]]


def test_the_types_of_partition_columns_are_in_no_file(folder: Folder) -> None:
    folder.store(NUMBER, "1 as kind", partition_by=("kind",))
    folder.store(NUMBER, "'x' as kind", partition_by=("kind",))
    assert sorted(row["kind"] for row in folder.rows()) == ["1", "x"]


def test_of_two_workers_that_store_a_column_first_at_once_one_stops(folder: Folder) -> None:
    first, second = folder.sink(NUMBER), folder.sink("sequence_number as n")
    for sink in (first, second):
        assert isinstance(sink.sink, ParquetSink)
        sink.sink._columns.types.known()  # both begin before there is a file
    folder.store_into(first)
    with pytest.raises((SinkError, TransformError), match=r"n.*(string|int32)"):
        folder.store_into(second)
    assert folder.files() == 1
    with pytest.raises(SinkError, match=r"n \(string, and int32 in the files\)"):
        folder.store_into(second)


@pytest.mark.parametrize(
    ("evolve", "of_the_first", "of_the_second"),
    [
        ("add", ("cast(sequence_number as double) as n",), (NUMBER,)),
        ("ignore", (NUMBER,), (NUMBER, "'x' as more")),
        ("refuse", (NUMBER,), (NUMBER, "'x' as more")),
    ],
)
def test_a_batch_is_tried_again_if_another_worker_stores_the_first_columns_while_it_is_written(
    folder: Folder,
    monkeypatch: pytest.MonkeyPatch,
    evolve: Evolve,
    of_the_first: tuple[str, ...],
    of_the_second: tuple[str, ...],
) -> None:
    second = folder.sink(*of_the_second, evolve=evolve)
    fitted = FolderColumns.fitted

    def meanwhile(columns: FolderColumns, output: DataFrame) -> Any:
        found = fitted(columns, output)
        monkeypatch.undo()
        folder.store(*of_the_first)
        return found

    monkeypatch.setattr(FolderColumns, "fitted", meanwhile)
    refusal = r"no file has the columns \['more'\]"
    with pytest.raises(SinkError, match=refusal if evolve == "refuse" else "The batch is tried again"):
        folder.store_into(second)
    assert folder.files() == 1
    if evolve == "refuse":
        with pytest.raises(SinkError, match=refusal):
            folder.store_into(second)
        return
    folder.store_into(second)
    assert [list(row) for row in folder.rows()] == [["n"], ["n"]]
    assert sorted(row["n"] for row in folder.rows()) == [1002, 1003]


def as_read(folder: Folder, evolve: Evolve = "add") -> Parts:
    return Parts(ParquetSink(str(folder.path), evolve=evolve))


@pytest.mark.parametrize("is_first", [True, False])
def test_records_as_they_were_read_meet_the_same_rules(folder: Folder, is_first: bool) -> None:
    sinks: list[Callable[[], Parts]] = [
        lambda: as_read(folder),
        lambda: folder.sink("cast(data as string) as data"),
    ]
    first, second = sinks if is_first else reversed(sinks)
    folder.store_into(first())
    with pytest.raises(SinkError, match=r"data \((string|binary), and (string|binary) in the files\)"):
        folder.store_into(second())
    assert folder.files() == 1


def test_of_records_as_they_were_read_only_known_columns_are_stored(folder: Folder) -> None:
    folder.store(NUMBER, "partition_key")
    with pytest.raises(SinkError, match="no file has the columns"):
        folder.store_into(as_read(folder, "refuse"))
    folder.store_into(as_read(folder, "ignore"))
    read = folder.spark.read.option("mergeSchema", "true").parquet(str(folder.path))
    assert sorted(read.columns) == ["n", "partition_key"]
    assert read.where(F.col("n").isNull() & F.col("partition_key").isNotNull()).count() == 1
