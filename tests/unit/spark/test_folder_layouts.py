"""What earlier attempts stored is looked for in folders if any sink may have stored into one."""

from pathlib import Path

import pytest

from kcl_dagster.errors import SinkError
from kcl_dagster.spark.sinks.folder_layouts import MARKS, UNKNOWN, is_always_flat, mark
from kcl_dagster.spark.storage import LocalStore


@pytest.fixture
def lake(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path))


def test_a_folder_of_flat_sinks_alone_need_not_be_listed(lake: LocalStore) -> None:
    mark(lake, has_folders=False)
    lake.put("a.parquet", b"")
    mark(lake, has_folders=False)
    assert is_always_flat(lake)


def test_one_sink_with_partitions_is_enough(lake: LocalStore) -> None:
    mark(lake, has_folders=True)
    mark(lake, has_folders=False)
    assert not is_always_flat(lake)


def test_files_from_before_there_were_marks_may_be_anywhere(lake: LocalStore) -> None:
    lake.put("kind=buy/a.parquet", b"")
    mark(lake, has_folders=False)
    assert not is_always_flat(lake)
    assert UNKNOWN in {file.path.removeprefix(MARKS) for file in lake.files(MARKS, hidden=True)}


def test_without_a_mark_nothing_is_known(lake: LocalStore) -> None:
    assert not is_always_flat(lake)


def test_a_folder_that_cannot_be_written_is_the_sinks_error(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("a file")
    with pytest.raises(SinkError, match="could not be written"):
        mark(LocalStore(str(tmp_path / "lake")), has_folders=False)
