"""Partition values that differ in case only, in folders that are one. A link to a folder stands for its other
spelling: the file system of the test may tell the two apart."""

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kcl_dagster.spark.sinks.letter_case import plain_name
from kcl_dagster.spark.sinks.partition_folders import Folders, TableFolders, TextPartitions
from kcl_dagster.spark.storage import LocalStore
from tests.unit.spark.outputs import run_writer
from tests.unit.spark.test_partition_folders import kinds

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
    for attempts in (1, 2):
        files = run_writer(LocalStore(str(folded)), layout, [kinds(VALUES, pa.string())])
        assert rows(folded) == Counter(dict.fromkeys(range(4), attempts))
        assert len({file.path.rpartition("/")[2] for file in files}) == 4


def test_a_name_that_former_versions_told_apart_is_one_of_the_part() -> None:
    plain = "app.lease.1-0.7.parquet"
    assert plain_name(f"kind=DE/{plain}") == plain
    assert plain_name("kind=DE/app.lease.1-0.7~0123abcd.parquet") == plain
    application = "an~0123abcd.lease.1-0.7.parquet"
    assert plain_name(application) == application
