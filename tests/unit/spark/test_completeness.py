"""The file beside Parquet that says through when an application is complete."""

import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from kcl_dagster.emulator import Emulator
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.sinks.completeness import (
    completeness_key,
    completeness_record,
    file_of,
    is_in_table,
    write_file,
)
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.spark.sinks.parquet_compaction import compact
from kcl_dagster.spark.storage import LocalStore, Store, is_hidden
from kcl_dagster.tables.completeness_row import WrittenThrough
from tests.doubles.clock import FakeClock
from tests.unit.spark.buckets import Bucket
from tests.unit.spark.moments import readers

NOON = 1_769_860_800


def said(store: Store, application: str = "app") -> dict[str, object]:
    return json.loads(store.get(file_of(application)))  # type: ignore[no-any-return]


def test_the_file_says_through_when_and_in_which_epoch(tmp_path: Path) -> None:
    sink = ParquetSink(str(tmp_path))
    sink.keep_complete("app", WrittenThrough(NOON, 3), 0)
    assert said(sink.stores_into[0]) == {
        "application": "app",
        "epoch": 3,
        "through": "2026-01-31T12:00:00+00:00",
        "through_epoch": NOON,
        "format": 1,
    }


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_a_moment_goes_on_and_each_application_has_its_own(kind: str, tmp_path: Path, aws: Emulator) -> None:
    store: Store = LocalStore(str(tmp_path)) if kind == "local" else Bucket(aws).store
    for known, is_written in (
        (WrittenThrough(None), False),
        (WrittenThrough(NOON), True),
        (WrittenThrough(NOON), False),
        (WrittenThrough(NOON - 1), False),  # of a worker that was paused
        (WrittenThrough(NOON + 1), True),
        (WrittenThrough(5, epoch=1), True),  # after a reset
        (WrittenThrough(NOON + 2), False),  # of a worker that does not know of the reset
    ):
        assert write_file(store, "app", known) is is_written
    assert write_file(store, "other", WrittenThrough(9))
    assert (said(store)["epoch"], said(store)["through_epoch"]) == (1, 5)
    assert said(store, "other")["through_epoch"] == 9


def test_the_reader_of_the_page_finds_the_moment(tmp_path: Path) -> None:
    read = readers()["folder_complete_through"]
    assert read(str(tmp_path), "app") is None
    ParquetSink(str(tmp_path)).keep_complete("app", WrittenThrough(NOON), 0)
    assert read(str(tmp_path), "app") == "2026-01-31T12:00:00+00:00"


def test_a_file_with_another_content_is_replaced(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    for content in (b"", b"{}", b'{"format": "x"}'):
        store.put(file_of("app"), content)
        assert write_file(store, "app", WrittenThrough(NOON))


def test_it_is_no_data(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    assert write_file(store, "app", WrittenThrough(NOON))
    assert is_hidden(file_of("app"))
    assert not list(store.files())
    for number in (1, 2, 3):
        pq.write_table(pa.table({"n": [number]}), tmp_path / f"shard.{number}-0.{number}.parquet")
    assert ds.dataset(str(tmp_path)).to_table().sort_by("n").column("n").to_pylist() == [1, 2, 3]
    before = store.get(file_of("app"))
    late = FakeClock(4e9)
    assert compact(str(tmp_path), runtime=Runtime(clock=late, random=random.Random(1))).merged == 2
    assert store.get(file_of("app")) == before
    assert ds.dataset(str(tmp_path)).to_table().sort_by("n").column("n").to_pylist() == [1, 2, 3]


def test_an_entry_of_a_table_counts_by_its_epoch_and_then_by_its_moment() -> None:
    [entry] = completeness_record("app", WrittenThrough(NOON, 1)).values()
    assert list(completeness_record("app", WrittenThrough(NOON, 1))) == [completeness_key("app")]
    assert completeness_record("app", WrittenThrough()) == completeness_record("app", None) == {}
    assert is_in_table([None, "no JSON", "[]", entry], 1, NOON)
    assert is_in_table([entry], 0, NOON + 1)
    assert not is_in_table([entry], 1, NOON + 1)
    assert not is_in_table([entry], 2, 0)
    assert not is_in_table([None, "no JSON"], 0, 0)
