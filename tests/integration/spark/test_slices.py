"""Records that take long to process are divided among tasks, and keep their order."""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster.emulator import Emulator
from kcl_dagster.spark import engine as engines
from kcl_dagster.spark import task_slices
from kcl_dagster.spark.arrow_transform import ArrowTransform
from kcl_dagster.spark.engine import EngineSettings, SparkEngine
from kcl_dagster.spark.fetch import Connection
from kcl_dagster.spark.fetched_batch import FetchedBatch
from kcl_dagster.spark.frozen import FrozenRanges
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.spark.storage import LocalStore
from kcl_dagster.spark.task_slices import BATCHES_KNOWN, Work, Workload
from kcl_dagster.spark.transform import Transform
from kcl_dagster.streams.pacing import ShardLimits
from tests.doubles.parts import Parts
from tests.integration.spark.conftest import GENEROUS, Stream, batch_of, new_stream
from tests.integration.spark.test_staged_fetches import Storing, is_staged

pytestmark = pytest.mark.spark

RECORDS = 1_000
PUT_SECONDS = 5.0
SLICES = 4


@pytest.fixture
def hot(aws: Emulator) -> Iterator[Stream]:
    """A stream of one shard, with records."""
    with new_stream(aws, shards=1) as stream:
        stream.produce(RECORDS)
        yield stream


class SlowStore(LocalStore):
    def put(self, path: str, content: memoryview | bytes) -> None:
        if path.endswith(".parquet"):
            time.sleep(PUT_SECONDS)
        super().put(path, content)


def in_slices(fetched: FetchedBatch, slices: int) -> DataFrame:
    for part in fetched._parts:
        assert isinstance(part, FrozenRanges)
        part.slices = lambda: slices
    return fetched.data(list(fetched.progress)).frame


def sizes_of(frame: DataFrame) -> list[int]:
    return [len(rows) for rows in frame.rdd.glom().collect()]


def numbers_of(file: Path) -> list[int]:
    return [int(number) for number in pq.read_table(file)["sequence_number"].to_pylist()]


def numbers(frame: DataFrame) -> list[int]:
    return [int(row.sequence_number) for row in frame.select("sequence_number").collect()]


def test_the_slices_of_a_shard_are_equal_and_in_order(hot: Stream, engine: SparkEngine) -> None:
    fetched = engine.fetch(hot.ranges(), GENEROUS)
    whole = numbers(fetched.data(list(fetched.progress)).frame)
    assert len(whole) == RECORDS
    divided = in_slices(fetched, SLICES)
    assert sizes_of(divided) == [RECORDS // SLICES] * SLICES
    assert numbers(divided) == whole == sorted(whole)


@pytest.mark.parametrize("slices", [2, 7, 16])
def test_every_record_is_in_one_slice(slices: int, aws: Emulator, engine: SparkEngine) -> None:
    with new_stream(aws, shards=3) as stream:
        stream.produce(10)
        fetched = engine.fetch(stream.ranges(), GENEROUS)
        records = in_slices(fetched, slices).collect()
        assert sorted(bytes(row.data) for row in records) == [
            f"{i:08d}".encode().ljust(20, b".") for i in range(10)
        ]
        for shard in stream.shards():
            found = [int(row.sequence_number) for row in records if row.shard_id == shard]
            assert found == sorted(found)


def test_slices_have_only_the_leases_of_the_batch(stream: Stream, engine: SparkEngine) -> None:
    stream.produce(90)
    fetched = engine.fetch(stream.ranges(), GENEROUS)
    in_slices(fetched, SLICES)
    kept = list(fetched.progress)[:2]
    records = fetched.data(kept).frame.collect()
    assert {row.lease_key for row in records} == set(kept)
    assert len(records) == sum(fetched.progress[lease].records for lease in kept)


def test_the_names_of_files_have_the_order_of_the_records(hot: Stream, engine: SparkEngine, tmp_path: Path) -> None:
    fetched = engine.fetch(hot.ranges(), GENEROUS)
    in_slices(fetched, SLICES)
    sink = Parts(ParquetSink(str(tmp_path), transform=lambda records: records.where("length(data) > 0")))
    sink.write(fetched.data(list(fetched.progress)), batch_of(list(fetched.progress.values())))
    files = sorted(tmp_path.glob("*.parquet"))
    assert len(files) == SLICES
    stored = [number for file in files for number in numbers_of(file)]
    assert len(stored) == RECORDS
    assert stored == sorted(stored)


def test_the_slots_of_a_session_are_not_its_default_parallelism(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert engines._slots(spark) == 1
    monkeypatch.setattr(engines, "local_slots", lambda _: None)  # as with a cluster
    assert spark.sparkContext.defaultParallelism == 2
    assert engines._slots(spark) == 4


def test_the_time_of_a_batch_is_that_of_the_leases_that_it_has(
    stream: Stream, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has lost the other leases after the fetch."""
    found: list[tuple[Work, int]] = []
    monkeypatch.setattr(Workload, "worked", lambda _, *one: found.append(one))
    stream.produce(90)
    fetched = engine.fetch(stream.ranges(), GENEROUS)
    lease = next(iter(fetched.progress))
    fetched.data([lease]).worked(Work(2.0))
    fetched.release()
    assert found == [(Work(2.0), fetched.progress[lease].bytes)]


def by_spark(records: DataFrame) -> DataFrame:
    return records.select("sequence_number", F.udf(len, "int")("data").alias("size"))


def by_arrow(records: pa.Table) -> pa.Table:
    return records.select(["sequence_number"])


@pytest.mark.parametrize("tasks_per_shard", [1, None])
@pytest.mark.parametrize("transform", [by_spark, ArrowTransform(by_arrow)], ids=["DataFrame", "Arrow"])
def test_a_function_that_takes_long_is_called_by_several_tasks(
    transform: Transform,
    tasks_per_shard: int | None,
    hot: Stream,
    spark: SparkSession,
    connection: Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here, any function takes long. A fetch that would call it leaves it to other tasks."""
    for limit in ("SLICE_SECONDS", "SHARE_OF_READING", "BUSY_SECONDS", "BUSY_SHARE"):
        monkeypatch.setattr(task_slices, limit, 1e-6)
    monkeypatch.setattr(engines, "_slots", lambda _: 2)
    sink = ParquetSink(str(tmp_path), transform=transform)
    settings = EngineSettings(limits=ShardLimits.unlimited(), tasks_per_shard=tasks_per_shard)
    engine = SparkEngine(spark, connection, settings, staging=sink.staging)
    batches = Storing(sink, engine, spark, hot.ranges())
    were_staged: list[bool] = []
    with closing(engine):
        for turn in range(BATCHES_KNOWN + 2):
            fetched = batches.fetch()
            were_staged.append(is_staged(fetched))
            done = batches.store(fetched)
            assert len(done.files) == (2 if turn >= BATCHES_KNOWN and tasks_per_shard is None else 1)
            stored = [number for file in done.files for number in numbers_of(tmp_path / file.path)]
            assert len(stored) == RECORDS
            assert stored == sorted(stored)
            hot.produce(RECORDS)
    if isinstance(transform, ArrowTransform):
        assert were_staged == [False, *[True] * (BATCHES_KNOWN - 1), *[tasks_per_shard == 1] * 2]
    else:
        assert not any(were_staged)


def test_waits_for_the_store_are_not_the_time_of_the_function(
    hot: Stream, engine: SparkEngine, tmp_path: Path
) -> None:
    """Each slice would have to wait as often: for a file of each partition value."""
    found: list[Work] = []
    sink = ParquetSink(str(tmp_path), transform=lambda records: records.where("length(data) > 0"))
    sink._store = SlowStore(str(tmp_path))
    fetched = engine.fetch(hot.ranges(), GENEROUS)
    records = replace(fetched.data(list(fetched.progress)), worked=found.append)
    began = time.monotonic()
    Parts(sink).write(records, batch_of(list(fetched.progress.values())))
    assert time.monotonic() - began > PUT_SECONDS
    (work,) = found
    assert 0 < work.tasks < work.job < PUT_SECONDS
