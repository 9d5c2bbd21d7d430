"""Partition values that differ in case only, in folders that are one. A link to a folder stands for its other
spelling: the file system of the test may tell the two apart."""

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kcl_dagster.spark.sinks.layout import Folders, TableFolders, TextPartitions
from kcl_dagster.spark.sinks.letter_case import plain_name, told_apart
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.spark.storage import LocalStore
from tests.unit.spark.outputs import LEASES, run_writer
from tests.unit.spark.test_layout import kinds

VALUES = ["de", "DE", "De", "fr"]


@pytest.fixture
def folded(tmp_path: Path) -> Path:
    """A folder of a file system that does not tell kind=de, kind=DE and kind=De apart."""
    (tmp_path / "kind=de").mkdir()
    for other in ("kind=DE", "kind=De"):
        (tmp_path / other).symlink_to("kind=de", target_is_directory=True)
    return tmp_path


def rows(root: Path) -> Counter[int]:
    files = (root / file.path for file in LocalStore(str(root)).files())
    return Counter(n for file in files for n in pq.read_table(file)["n"].to_pylist())


@pytest.mark.parametrize("layout", [Folders(("kind",)), TableFolders(("kind",))])
def test_no_file_of_a_batch_replaces_another_one(folded: Path, layout: TextPartitions) -> None:
    for _ in range(2):  # a replay replaces each file by itself
        files = run_writer(LocalStore(str(folded)), layout, [kinds(VALUES, pa.string())])
        assert rows(folded) == Counter(range(4))
    assert [file.partition["kind"] for file in files] == VALUES
    assert len({file.path for file in files}) == 4


def test_where_case_tells_folders_apart_no_name_changes(tmp_path: Path) -> None:
    files = run_writer(LocalStore(str(tmp_path)), Folders(("kind",)), [kinds(VALUES, pa.string())])
    assert [file.path for file in files] == [f"kind={value}/{LEASES[0]}.1.parquet" for value in VALUES]


def test_a_repeated_batch_keeps_what_it_has_just_stored_and_removes_what_former_attempts_left(folded: Path) -> None:
    store, stem = LocalStore(str(folded)), f"{LEASES[0]}.1"
    run_writer(store, Folders(("kind",)), [kinds(VALUES, pa.string())])
    files = run_writer(store, Folders(("kind",)), [kinds(["DE", "fr"], pa.string())])
    ParquetSink(str(folded), partition_by=["kind"])._remove([stem], {file.path for file in files})
    assert sorted(file.path for file in store.files()) == [f"kind=de/{stem}.parquet", f"kind=fr/{stem}.parquet"]
    assert rows(folded) == Counter(range(2))


def test_a_name_that_is_told_apart_is_one_of_the_part() -> None:
    path = "kind=DE/app.lease.1-0.7.parquet"
    assert plain_name(told_apart(path)) == plain_name(path) == "app.lease.1-0.7.parquet"
    assert told_apart(path) == told_apart(path) != told_apart(path.replace("DE", "De"))
    application = "an~0123abcd.lease.1-0.7.parquet"
    assert plain_name(application) == application
