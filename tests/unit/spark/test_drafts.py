"""A draft holds what was read of one shard, and nothing is left of those that nobody wants."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import Row as SparkRow

from kcl_dagster.errors import BatchContentChanged, BatchError, SinkError
from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.spark.drafts import (
    FOLDER,
    LEFT_BEHIND_SECONDS,
    DraftedRanges,
    ReadDrafts,
    WriteDrafts,
    sweep,
    write_drafts,
)
from kcl_dagster.spark.failures import SINK_FAILED, Marks
from kcl_dagster.spark.fetch import Trailer
from kcl_dagster.spark.storage import LocalStore, _hidden_beside
from kcl_dagster.worker.batch import Range
from tests.unit.spark.fetches import A, B, Row, fetched

FAILED = msgspec.json.encode(Trailer(failure=("Throttled", "too fast"))).decode()


class Full(LocalStore):
    """A disk that has room for one file."""

    def put(self, path: str, content: memoryview | bytes) -> None:
        if next(self.files(hidden=True), None) is not None:
            raise OSError("no space left")
        super().put(path, content)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path))


def drafts(store: LocalStore) -> list[str]:
    return [file.path for file in store.files(hidden=True)]


def read(store: LocalStore, *paths: object) -> list[Row]:
    numbers = pa.RecordBatch.from_pydict({"id": list(range(len(paths)))})
    batches = ReadDrafts(store, tuple(map(str, paths)))(iter([numbers]))
    return [row for batch in batches for row in batch.to_pylist()]


def test_each_shard_has_a_file_of_its_records_in_order(store: LocalStore) -> None:
    rows = write_drafts(fetched("one", A[:4], B, A[4:]), store, "fetch")
    assert [(row["lease_key"], row["trailer"], row["rows"]) for row in rows] == [("s:a", "{}", 9), ("s:b", "{}", 3)]
    assert read(store, *(row["path"] for row in rows)) == A + B
    assert [row["bytes"] for row in rows] == [file.bytes for file in store.files(f"{FOLDER}/", hidden=True)]
    assert list(store.files()) == []


def test_two_attempts_at_a_range_are_two_files(store: LocalStore) -> None:
    paths = [
        row["path"] for attempt in ("one", "two") for row in write_drafts(fetched(attempt, A), store, "fetch")[:1]
    ]
    assert len(set(paths)) == 2
    assert read(store, *paths) == A + A


def test_a_shard_without_records_has_no_file(store: LocalStore) -> None:
    rows = write_drafts(fetched("one", B), store, "fetch")
    assert [row.get("path") is None for row in rows] == [True, False]


def test_what_was_read_of_a_shard_before_it_failed_is_not_stored(store: LocalStore) -> None:
    rows = write_drafts(fetched("one", A, B, a=FAILED), store, "fetch")
    assert [(row["trailer"], row.get("rows")) for row in rows] == [(FAILED, None), ("{}", 3)]
    assert len(drafts(store)) == 1


def test_a_file_that_cannot_be_stored_is_the_failure_of_its_shard(tmp_path: Path) -> None:
    store = Full(str(tmp_path))
    first, second = write_drafts(fetched("one", A, B), store, "fetch")
    assert read(store, first["path"]) == A
    failure = msgspec.json.decode(str(second["trailer"]), type=Trailer).failure
    assert failure is not None
    assert failure[0] == "SinkError"
    assert "no space left" in failure[1]
    assert str(tmp_path) in failure[1]


def test_a_file_that_cannot_be_read_is_the_stores_failure(store: LocalStore) -> None:
    whole = drafted(store, Job(), "s:a", "s:b")
    paths = [draft.path for draft in whole.form([LeaseKey("s:a"), LeaseKey("s:b")]).drafts.values()]
    store.delete(paths[:1])
    store.put(paths[1], b"no Parquet")
    for path, lease in zip(paths, ("s:a", "s:b"), strict=True):
        with pytest.raises(SinkError, match=f"^{Marks().of(SINK_FAILED)}: {path} could not be read"):
            read(store, path)  # in an executor, from where no more than the text arrives
        for look in (whole.midpoint, whole.records):
            with pytest.raises(SinkError, match=f"^{path} could not be read"):
                look(LeaseKey(lease))


def test_a_fetch_that_breaks_off_leaves_nothing(store: LocalStore) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from list(fetched("one", A, B))[:2]
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        write_drafts(broken(), store, "fetch")
    assert drafts(store) == []


def test_files_are_removed_when_the_last_cannot_be_made(store: LocalStore) -> None:
    with pytest.raises(msgspec.DecodeError):
        write_drafts(fetched("one", A, B, b="no JSON"), store, "fetch")
    assert drafts(store) == []


class Job:
    """A job of one task that fetches two leases. `fails` when the task is done, all the same."""

    sparkSession = None  # noqa: N815 - Spark's name

    def __init__(self, *, fails: bool = False) -> None:
        self._fails = fails

    def mapInArrow(self, task: WriteDrafts, _: str) -> "Job":  # noqa: N802 - Spark's name
        self._task = task
        return self

    def collect(self) -> list[SparkRow]:
        rows = write_drafts(fetched("one", A, B), self._task.store, self._task.name)
        if self._fails:
            raise OSError("the JVM is gone")
        return [SparkRow(**{"path": None, "rows": None, "bytes": None} | row) for row in rows]


def drafted(store: LocalStore, job: Job, *leases: str) -> DraftedRanges:
    plan: Any = None
    numbers: Any = job
    stream = StreamIdentifier("s")
    ranges = [Range(LeaseKey(lease), stream, lease, TRIM_HORIZON, 1) for lease in leases]
    return DraftedRanges(ranges, numbers, plan, store, "fetch")


def test_a_job_that_fails_leaves_no_file_of_the_tasks_that_were_done(store: LocalStore) -> None:
    store.put(f"{FOLDER}/other.parquet", b"another fetch's")
    with pytest.raises(BatchError, match="the JVM is gone"):
        drafted(store, Job(fails=True), "s:a", "s:b")
    assert drafts(store) == [f"{FOLDER}/other.parquet"]


def test_what_was_asked_for_is_what_was_read(store: LocalStore) -> None:
    read = drafted(store, Job(), "s:a", "s:b")
    assert set(read.outcome.progress) == {"s:a", "s:b"}
    assert set(read.form([LeaseKey("s:a")]).drafts) == {"s:a"}
    read.release()
    assert drafts(store) == []


@pytest.mark.parametrize("asked", [["s:a"], ["s:a", "s:b", "s:c"], ["s:a", "s:c"]])
def test_a_job_that_read_something_else_counts_for_nothing(store: LocalStore, asked: list[str]) -> None:
    with pytest.raises(BatchContentChanged):
        drafted(store, Job(), *asked)
    assert drafts(store) == []


def test_only_what_is_old_is_swept(store: LocalStore, tmp_path: Path) -> None:
    for name in (f"{FOLDER}/old", f"{FOLDER}/new", "old.parquet"):
        store.put(name, b"x")
    now = (tmp_path / FOLDER / "new").stat().st_mtime
    for name in (f"{FOLDER}/old", "old.parquet"):
        os.utime(tmp_path / name, (now - LEFT_BEHIND_SECONDS - 1,) * 2)
    assert sweep(store, now - LEFT_BEHIND_SECONDS) == 1
    assert sorted(drafts(store)) == [f"{FOLDER}/new", "old.parquet"]


def test_files_that_a_killed_writer_never_finished_are_swept(store: LocalStore, tmp_path: Path) -> None:
    for name in (f"{FOLDER}/x.draft", "day=1/x.parquet"):
        store.put(name, b"x")
        (tmp_path / name).rename(_hidden_beside(tmp_path / name))  # as it is before a put has finished
    now = max(file.modified for file in store.unfinished())
    assert sweep(store, now - 1, everywhere=True) == 0
    assert sweep(store, now) == 1
    assert [file.path.partition("/")[0] for file in store.unfinished()] == ["day=1"]
    assert sweep(store, now, everywhere=True) == 1
    assert list(store.unfinished()) == []
