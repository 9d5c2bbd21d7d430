"""What a fetch stages while it reads belongs to a batch only if it is all of the batch and nothing else."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row as SparkRow

from kcl_dagster.chains.publication import staged_path
from kcl_dagster.errors import BatchContentChanged, BatchError
from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.claim import ChainId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.spark.fetch import Trailer
from kcl_dagster.spark.schema import LEASE_KEY, RECORDS
from kcl_dagster.spark.sinks.batch_files import StageFiles
from kcl_dagster.spark.sinks.partition_folders import Folders
from kcl_dagster.spark.staged_ranges import FetchStaging, Manifest, StagedRanges, StageFetched, stage_fetched
from kcl_dagster.spark.storage import LocalStore
from kcl_dagster.worker.batch import Range
from tests.unit.spark.fetches import A, B, Row, fetched

CHAIN = ChainId("app-1234~w1-1")
LEASE_A, LEASE_B = LeaseKey("s:a"), LeaseKey("s:b")


def said(records: int = 0, **more: Any) -> str:
    return msgspec.json.encode(Trailer(records=records, **more)).decode()


READ_A, READ_B = said(len(A)), said(len(B))


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path))


def staging(store: LocalStore, batch: int = 1, **more: Any) -> FetchStaging:
    columns, target = more.pop("columns", ()), more.pop("target", 1 << 20)
    files = StageFiles(store, Folders.of(columns), CHAIN, batch, target, is_as_read=True, **more)
    return FetchStaging(CHAIN, batch, store, files)


def left(store: LocalStore) -> list[str]:
    return [file.path for file in store.files(hidden=True)]


def stage(store: LocalStore, *batches: list[Row], a: str = READ_A, b: str = READ_B, **more: Any) -> Manifest | None:
    """The files, after a look at what is said of the leases."""
    *trailers, last = stage_fetched(fetched("one", *batches, a=a, b=b), staging(store, **more), 0, 7)
    assert {row["lease_key"]: row["trailer"] for row in trailers} == {"s:a": a, "s:b": b}
    return None if last["files"] is None else msgspec.json.decode(last["files"])


def content(store: LocalStore, files: Manifest) -> list[Row]:
    tables = [pq.read_table(pa.BufferReader(store.get(staged_path(CHAIN, file["path"])))) for file in files]
    assert all(table.schema.equals(RECORDS) for table in tables)
    return [row for table in tables for row in table.to_pylist()]


def test_records_of_all_shards_are_in_one_file_in_the_order_of_each(store: LocalStore) -> None:
    files = stage(store, A[:4], B, A[4:])
    assert files is not None
    assert len(files) == 1
    rows = content(store, files)
    assert [row for row in rows if row[LEASE_KEY] == "s:a"] == A
    assert [row for row in rows if row[LEASE_KEY] == "s:b"] == B
    assert len(rows) == files[0]["rows"] == len(A) + len(B)
    assert list(store.files()) == []


def test_a_file_that_is_large_enough_is_closed_in_a_fetch(store: LocalStore) -> None:
    files = stage(store, A[:4], A[4:], B, target=1)
    assert files is not None
    assert [file["rows"] for file in files] == [4, 5, 3]


def test_a_fetch_without_records_has_no_files(store: LocalStore) -> None:
    assert stage(store, a=said(), b=said()) == []
    assert left(store) == []


def test_records_of_a_shard_that_failed_later_make_the_files_useless(store: LocalStore) -> None:
    failed = said(failure=("Throttled", "too fast"))
    assert stage(store, A, B, a=failed) is None
    assert left(store) == []
    assert stage(store, B, a=failed) is not None, "no record of the shard was staged"


def test_files_that_hold_other_records_than_were_counted_are_useless(store: LocalStore) -> None:
    assert stage(store, A, B, a=said(len(A) - 1)) is None
    assert left(store) == []


class Refusing:
    """Code of the consumer that fails after some rows."""

    def __init__(self, error: BaseException, after: int = 0) -> None:
        self._error, self._after = error, after

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(rows):
            if number == self._after:
                raise self._error
            yield batch


@pytest.mark.parametrize("error", [ValueError("a record that cannot be processed"), SystemExit(1)])
@pytest.mark.parametrize("after", [0, 1])
def test_a_fetch_says_how_far_it_came_if_its_rows_cannot_be_staged(
    store: LocalStore, error: BaseException, after: int
) -> None:
    assert stage(store, A[:4], B, A[4:], target=1, steps=(Refusing(error, after),)) is None
    assert left(store) == []


class Job:
    """A job of one task that fetches two leases. `fails` when the task is done, all the same."""

    def __init__(self, *, fails: bool = False) -> None:
        self._fails = fails

    def map(self, task: StageFetched, _: str) -> "Job":
        self._task = task
        return self

    def collect(self) -> list[SparkRow]:
        rows = stage_fetched(fetched("one", A, B, a=READ_A, b=READ_B), self._task.staging, 0, 7)
        if self._fails:
            raise OSError("the JVM is gone")
        return [SparkRow(**{"lease_key": None, "trailer": None, "files": None} | row) for row in rows]


class Plan:
    tasks = ((),)


def ranges(*leases: str) -> list[Range]:
    return [Range(LeaseKey(lease), StreamIdentifier("s"), lease, TRIM_HORIZON, 1) for lease in leases]


def staged(store: LocalStore, *leases: str, job: Job | None = None, **more: Any) -> StagedRanges:
    plan: Any = Plan
    tasks: Any = job or Job()
    again: Any = None
    return StagedRanges(ranges(*leases), tasks, plan, staging(store, **more), again)


def test_files_are_of_a_batch_that_stores_all_their_records_in_their_chain(store: LocalStore) -> None:
    read = staged(store, "s:a", "s:b")
    whole, some = read.form([LEASE_A, LEASE_B]), read.form([LEASE_A])
    files = whole.files(CHAIN)
    assert files is not None
    assert len(content(store, files[0])) == len(A) + len(B)
    assert some.files(CHAIN) is None
    assert whole.files(ChainId("app-1234~w1-2")) is None


def test_files_of_several_fetches_are_of_one_batch(store: LocalStore) -> None:
    first, second = staged(store, "s:a", "s:b", batch=1), staged(store, "s:a", "s:b", batch=2)
    both = first.form([LEASE_A, LEASE_B]).union(second.form([LEASE_A, LEASE_B]))
    assert len(both.files(CHAIN) or ()) == 2
    assert first.form([LEASE_A, LEASE_B]).union(second.form([LEASE_B])).files(CHAIN) is None


def test_files_that_no_batch_has_taken_are_removed(store: LocalStore) -> None:
    read = staged(store, "s:a", "s:b")
    read.release()
    assert left(store) == []
    read = staged(store, "s:a", "s:b", batch=2)
    read.form([LEASE_A, LEASE_B]).take()
    read.release()
    assert len(left(store)) == 1, "whether its batch is decided may not be known"


@pytest.mark.parametrize("asked", [["s:a"], ["s:a", "s:b", "s:c"], ["s:a", "s:c"]])
def test_a_fetch_that_read_something_else_leaves_no_file(store: LocalStore, asked: list[str]) -> None:
    with pytest.raises(BatchContentChanged):
        staged(store, *asked)
    assert left(store) == []


def test_a_job_that_fails_leaves_no_staged_file_of_tasks_that_were_done(store: LocalStore) -> None:
    other = staged_path(CHAIN, f"{CHAIN}.2_1_0.parquet")
    store.put(other, b"another batch's")
    with pytest.raises(BatchError, match="the JVM is gone"):
        staged(store, "s:a", "s:b", job=Job(fails=True))
    assert left(store) == [other]
