"""Whether a directory is everybody's, judged by what was written where and seen from where."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kcl_dagster.spark.sharing import SharingProbe, _WriteProbes, check_sharing, what_is_wrong
from kcl_dagster.spark.sinks.contract import SparkSink
from kcl_dagster.spark.sinks.delta import DeltaSink
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.spark.storage import LocalStore, S3Options, Store, open_store

HERE, THERE = SharingProbe("one", "_drafts/a.probe"), SharingProbe("two", "_drafts/b.probe")


def test_a_directory_that_all_see_is_fine() -> None:
    assert what_is_wrong("/lake", [HERE, THERE], lambda _: True) is None
    assert what_is_wrong("/lake", [], lambda _: False) is None


def test_one_executor_with_a_disk_of_its_own_is_enough() -> None:
    wrong = what_is_wrong("/lake", [HERE, THERE], lambda probe: probe is HERE)
    assert wrong is not None
    assert "executors on two store below /lake" in wrong
    assert "s3://bucket/prefix" in wrong


def test_not_all_of_many_hosts_are_named() -> None:
    wrong = what_is_wrong("/lake", [SharingProbe(f"host-{n}", "x") for n in range(8)], lambda _: False)
    assert wrong is not None
    assert "host-0, host-1, host-2, host-3, host-4 and 3 more store" in wrong


def test_an_executor_that_cannot_write_says_why() -> None:
    wrong = what_is_wrong("/lake", [HERE, SharingProbe("two", "x", "Read-only file system")], lambda _: True)
    assert wrong is not None
    assert "the executor on two cannot write below /lake: Read-only file system" in wrong


def test_a_probe_is_a_file_or_a_reason(tmp_path: Path) -> None:
    numbers = pa.RecordBatch.from_pydict({"id": [0, 1]})
    (batch,) = _WriteProbes(LocalStore(str(tmp_path)), "start")(iter([numbers]))
    for row in batch.to_pylist():
        assert (tmp_path / row["path"]).read_text() == row["path"]
        assert row["problem"] is None
    (tmp_path / "file").touch()
    (batch,) = _WriteProbes(LocalStore(str(tmp_path / "file")), "start")(iter([numbers]))
    assert all("file" in row["problem"] for row in batch.to_pylist())


@pytest.mark.parametrize("store", [None, open_store("s3://bucket/lake", S3Options())])
def test_nobody_is_asked_about_what_is_everybodys(store: Store | None) -> None:
    spark: Any = None  # nothing is asked of it
    check_sharing(spark, store, "start")


@pytest.mark.parametrize("kind", [ParquetSink, DeltaSink])
def test_sinks_that_are_trusted_with_files_tell_where(kind: Callable[[str], SparkSink], tmp_path: Path) -> None:
    assert kind(str(tmp_path)).stores_into[0] == LocalStore(str(tmp_path))
