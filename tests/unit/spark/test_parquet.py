"""The files of a batch that is decided in a chain: by partition value and size, not by shard."""

from base64 import b64encode
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kcl_dagster.chains.publication import file_name, staged, staged_of_batch, staged_path
from kcl_dagster.chains.store import Entries, check_store
from kcl_dagster.errors import ConfigurationError, RecordRefused, SinkError
from kcl_dagster.model.claim import ChainId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.sinks.batch_files import BatchFile, StageFiles, batch_files
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.spark.sinks.partition_folders import Folders
from kcl_dagster.spark.sinks.staging_job import counts_of
from kcl_dagster.spark.storage import LocalStore, Store
from kcl_dagster.worker.batch import FileCounts, MinuteRows, PartCounts
from tests.unit.chains.memory import MemoryFiles
from tests.unit.spark.buckets import Bucket
from tests.unit.spark.outputs import LEASES, whole

CHAIN = ChainId("app-1234~w1-1")
NOON = int(datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp())
A, B = LEASES


def rows(first: int, count: int, leases: tuple[str | None, ...] = (A, B), kind: str = "x") -> pa.RecordBatch:
    numbers = range(first, first + count)
    times = pa.array([(NOON + 30 * n) * 1_000_000 for n in numbers], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    return pa.RecordBatch.from_pydict(
        {
            "n": pa.array(numbers, pa.int64()),
            "kind": pa.array([kind] * count),
            "lease_key": pa.array([leases[n % len(leases)] for n in numbers], pa.string()),
            "arrival_timestamp": times,
        }
    )


def stage(
    store: Store, *batches: pa.RecordBatch, columns: tuple[str, ...] = (), target: int = 1 << 20, **more: Any
) -> list[BatchFile]:
    task = StageFiles(store, Folders.of(columns), CHAIN, more.pop("batch", 1), target, **more)
    return batch_files([row for manifest in task(iter(batches)) for row in manifest.to_pylist()])


def content(store: Store, files: list[BatchFile]) -> list[int]:
    found: list[int] = []
    for file in files:
        table = pq.read_table(pa.BufferReader(store.get(staged_path(CHAIN, file.path))))
        assert table.num_rows == file.rows
        found += table["n"].to_pylist()
    return found


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path))


def test_rows_of_all_shards_are_in_one_file_that_readers_do_not_see(store: LocalStore) -> None:
    files = stage(store, rows(0, 10), rows(10, 5))
    assert len(files) == 1
    assert sorted(content(store, files)) == list(range(15))
    assert list(store.files()) == []


def test_a_file_for_each_partition_value(store: LocalStore) -> None:
    files = stage(store, rows(0, 4, kind="a"), rows(4, 4, kind="b"), rows(8, 4, kind="a"), columns=("kind",))
    assert Counter(file.path.split("/")[0] for file in files) == Counter(["kind=a", "kind=b"])
    assert {file.path.split("/")[0]: file.rows for file in files} == {"kind=a": 8, "kind=b": 4}


def test_a_file_that_is_large_enough_is_closed(store: LocalStore) -> None:
    batches = [rows(100 * n, 100) for n in range(6)]
    files = stage(store, *batches, target=2 * batches[0].nbytes)
    assert [file.rows for file in files] == [200, 200, 200]
    assert len({file.path for file in files}) == 3
    assert sorted(content(store, files)) == list(range(600))


def test_an_output_without_rows_has_no_files(store: LocalStore) -> None:
    assert stage(store) == []
    assert stage(store, rows(0, 0)) == []


def test_a_value_that_no_file_can_hold_refuses_the_batch(store: LocalStore) -> None:
    invalid = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]
    )
    with pytest.raises(RecordRefused):
        stage(store, pa.RecordBatch.from_arrays([invalid], ["text"]))
    with pytest.raises(RecordRefused, match="255 bytes"):
        stage(store, rows(0, 1, kind="k" * 300), columns=("kind",))


class Losing(LocalStore):
    def put(self, path: str, content: memoryview | bytes) -> None:
        raise OSError("no room is left")


def test_a_file_that_cannot_be_staged_fails_the_batch_and_blames_no_record(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="no room is left"):
        stage(Losing(str(tmp_path)), rows(0, 1))


def test_two_attempts_of_a_task_are_not_in_one_batch() -> None:
    row: dict[str, Any] = {"task": 1, "attempt": 7, "path": "a.parquet", "rows": 1, "bytes": 10}
    row |= dict.fromkeys(["parts", "partition", "statistics"])
    row["columns"] = b64encode(pa.schema([]).serialize().to_pybytes()).decode()
    assert len(batch_files([row, row | {"path": "b.parquet"}, row | {"task": 2, "attempt": 8}])) == 3
    with pytest.raises(SinkError, match="two attempts of task 1"):
        batch_files([row, row | {"attempt": 8}])


def counted(store: Store, *batches: pa.RecordBatch, **more: Any) -> dict[LeaseKey, PartCounts]:
    found = stage(store, *batches, time_column=more.pop("time_column", "arrival_timestamp"), **more)
    return counts_of(found, whole())


def test_rows_are_counted_for_the_leases_that_they_name(store: LocalStore) -> None:
    counts = counted(store, rows(0, 6), lease_column="lease_key")
    [of_a], [of_b] = counts[A].files or (), counts[B].files or ()
    # Rows 0, 2 and 4 are of one lease, at half minutes.
    assert of_a.minutes == tuple(MinuteRows(NOON + 60 * minute, None, 1) for minute in range(3))
    assert of_b.minutes == of_a.minutes
    assert (of_a.files, of_b.files) == (1, 0), "the file counts once"
    assert of_a.bytes == of_b.bytes > 0


def test_a_lease_without_rows_is_known_to_have_none(store: LocalStore) -> None:
    assert counted(store, rows(0, 3, leases=(A,)), lease_column="lease_key")[B] == PartCounts(())
    assert counted(store, lease_column="lease_key") == {A: PartCounts(()), B: PartCounts(())}


@pytest.mark.parametrize("named", ["elsewhere", None])
def test_rows_that_name_no_lease_of_the_batch_are_not_counted(store: LocalStore, named: str | None) -> None:
    assert counted(store, rows(0, 4, leases=(A, named)), lease_column="lease_key") == {}
    assert counted(store, rows(0, 4)) == {}


def test_rows_of_a_batch_with_one_lease_are_counted_for_it(store: LocalStore) -> None:
    found = stage(store, rows(0, 4, leases=(None,)), time_column="arrival_timestamp", only_lease=A)
    batch = whole()
    [of_a] = counts_of(found, replace(batch, parts=batch.parts[:1]))[A].files or ()
    assert sum(one.rows for one in of_a.minutes) == 4


def test_rows_without_a_column_of_times_are_counted_as_a_whole(store: LocalStore) -> None:
    counts = counted(store, rows(0, 6), lease_column="lease_key", time_column="elsewhere")
    assert (counts[A].files, counts[A].rows, counts[A].number, counts[B].number) == (None, 3, 1, 0)


def test_rows_without_a_time_are_counted_as_such(store: LocalStore) -> None:
    batch = rows(0, 1, leases=(A,))
    nothing = pa.nulls(1, batch.schema.field("arrival_timestamp").type)
    timeless = batch.set_column(3, "arrival_timestamp", nothing)
    [file] = counted(store, timeless, lease_column="lease_key")[A].files or ()
    assert file == FileCounts(file.bytes, (), timeless=1)


def test_what_a_batch_has_staged_is_found_by_its_number(store: LocalStore) -> None:
    first, other = (
        stage(store, rows(0, 2), batch=1),
        stage(store, rows(0, 2, kind="b"), batch=11, columns=("kind",)),
    )
    unfinished = staged_path(CHAIN, f"kind=b/.{file_name(CHAIN, 1, 5, 0)}.17.0123abcd")
    Path(store.root, unfinished).parent.mkdir(parents=True, exist_ok=True)
    Path(store.root, unfinished).write_bytes(b"")
    found = staged_of_batch(store, CHAIN, 1)
    assert sorted(found) == sorted([staged_path(CHAIN, first[0].path), unfinished])
    store.delete(found)
    assert staged(store, CHAIN) == [staged_path(CHAIN, other[0].path)]


class Careless(MemoryFiles):
    """Ignores the condition of a put, as some stores do that imitate S3."""

    def create(self, path: str, content: bytes) -> bool:
        super().create(path, content)
        return True


def test_a_store_that_replaces_what_must_be_new_is_refused(store: LocalStore, aws: Any) -> None:
    careless = Careless()
    with pytest.raises(ConfigurationError, match="If-None-Match"):
        check_store(careless, "1")
    assert careless.content == {}
    bucket = Bucket(aws).store
    for sound in (store, bucket, MemoryFiles()):
        check_store(sound, "1")
        assert list(sound.files("_chains/", hidden=True)) == []
        assert Entries(sound).chains("") == {}


def test_the_rules_of_the_former_sink_hold(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="readers pass over"):
        ParquetSink(str(tmp_path), partition_by=["_kind"])
    with pytest.raises(ConfigurationError, match="list of columns"):
        ParquetSink(str(tmp_path), partition_by="kind")
