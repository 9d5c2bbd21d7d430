"""Taking back what a failed attempt may have left: done, or said not to be."""

from dataclasses import replace
from pathlib import Path

import pytest

from kcl_dagster.emulator import Emulator
from kcl_dagster.errors import AccessDenied, SinkError
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.spark.sinks.folder_layouts import mark
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.spark.sinks.writing import file_stem
from kcl_dagster.spark.storage import LocalStore
from kcl_dagster.worker.batch import Part
from tests.unit.spark.buckets import Bucket

PART = Part("app", LeaseKey("a"), StreamIdentifier("s"), "a", TRIM_HORIZON, Checkpoint("9"), 1, 1, 1)
NAME = f"{file_stem(PART)}.parquet"


def test_a_file_that_s3_keeps_is_not_withdrawn(aws: Emulator) -> None:
    bucket = Bucket(aws)
    sink = ParquetSink(bucket.url, s3=bucket.options)
    bucket.store.put(NAME, b"records")
    bucket.keep(NAME)
    with pytest.raises(AccessDenied, match=NAME):
        sink.withdraw(PART)
    bucket.let_go()
    sink.withdraw(PART)
    assert list(bucket.store.files()) == []


@pytest.mark.parametrize("folder", ["", "kind=a/"])
def test_a_part_that_version_0_1_stored_beside_this_version_is_withdrawn(tmp_path: Path, folder: str) -> None:
    """It names every file without the application, whatever the number."""
    part = replace(PART, number=1_798_761_600_001, instead_of=1_798_761_600_000)
    sink = ParquetSink(str(tmp_path), partition_by=["kind"] if folder else [])
    mine = [f"{folder}{app}a.TRIM_HORIZON-0.179876160000{n}.parquet" for app in ("app.", "") for n in (0, 1)]
    others = [
        f"{folder}other.a.TRIM_HORIZON-0.1798761600001.parquet",
        f"{folder}a.TRIM_HORIZON-0.1798761600002.parquet",
    ]
    for name in (*mine, *others):
        sink.stores_into.put(name, b"records")
    sink.withdraw(part)
    assert sorted(file.path for file in sink.stores_into.files()) == sorted(others)


def test_a_file_that_cannot_be_removed_is_the_fault_of_no_record(tmp_path: Path) -> None:
    mark(LocalStore(str(tmp_path)), has_folders=False)
    (tmp_path / NAME).mkdir()  # whatever made it: no file is removed there
    with pytest.raises(SinkError, match="could not be removed"):
        ParquetSink(str(tmp_path)).withdraw(PART)
