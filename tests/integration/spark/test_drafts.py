"""Files written by the fetch itself: what they hold is stored once, and they are gone when nobody wants them."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster.errors import SinkError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.drafts import FOLDER, SUFFIX, DraftedRanges
from kcl_dagster.spark.engine import EngineSettings, SparkEngine
from kcl_dagster.spark.fetch import Connection
from kcl_dagster.spark.fetched import FetchedBatch
from kcl_dagster.spark.sinks.folder_layouts import MARKS
from kcl_dagster.spark.sinks.folder_owner import OWNER_FILE
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.streams.pacing import ShardLimits
from tests.acceptance.family import wait_for
from tests.integration.spark.conftest import GENEROUS, Stream, batch_of

pytestmark = pytest.mark.spark


@pytest.fixture
def sink(tmp_path: Path) -> ParquetSink:
    return ParquetSink(str(tmp_path))


@contextmanager
def engine_for(sink: ParquetSink, spark: SparkSession, connection: Connection) -> Iterator[SparkEngine]:
    engine = SparkEngine(spark, connection, EngineSettings(limits=ShardLimits.unlimited()), sink=sink)
    yield engine
    engine.close()


@pytest.fixture
def engine(sink: ParquetSink, spark: SparkSession, connection: Connection) -> Iterator[SparkEngine]:
    with engine_for(sink, spark, connection) as engine:
        yield engine


def store(sink: ParquetSink, fetched: FetchedBatch) -> None:
    batch = batch_of(list(fetched.progress.values()))
    frame = fetched.data([part.lease for part in batch.parts])
    sink.write(frame, batch)
    assert frame.count() == batch.records, "it can be evaluated when it is stored, too"
    fetched.release()


def is_drafted(fetched: FetchedBatch) -> bool:
    return all(isinstance(part, DraftedRanges) for part in fetched._parts)


def stored(spark: SparkSession, path: Path) -> Counter[int]:
    """Of all files below the path. Without the option Spark passes over files at the root beside folders."""
    files = spark.read.option("recursiveFileLookup", "true").parquet(str(path))
    return Counter(int(bytes(row.data)[:8]) for row in files.select("data").collect())


def files(path: Path) -> list[Path]:
    """All but what a sink notes about its folder."""
    found = (file for file in path.rglob("*") if file.is_file() and file.name != OWNER_FILE)
    return [file for file in found if MARKS.rstrip("/") not in file.parts]


def test_a_batch_is_stored_once_however_often_it_is_read(
    stream: Stream, engine: SparkEngine, sink: ParquetSink, spark: SparkSession, tmp_path: Path
) -> None:
    ranges = stream.ranges()
    for _ in range(2):
        stream.produce(150)
        fetched = engine.fetch(ranges, GENEROUS)
        assert is_drafted(fetched)
        store(sink, fetched)
        for progress in fetched.progress.values():
            again = replace(progress.range, through=progress.through, first=progress.first)
            store(sink, engine.fetch([again], GENEROUS))
        ranges = [replace(r, after=fetched.progress[r.lease].through or r.after) for r in ranges]
    assert stored(spark, tmp_path) == Counter(range(300))
    assert len(files(tmp_path)) == 6


def test_a_batch_that_is_given_up_leaves_no_file(stream: Stream, engine: SparkEngine, tmp_path: Path) -> None:
    stream.produce(30)
    fetched = engine.fetch(stream.ranges(), GENEROUS)
    assert len(files(tmp_path)) == 3
    assert not list(tmp_path.rglob("*.parquet"))
    assert not ds.dataset(str(tmp_path)).files
    fetched.release()
    assert files(tmp_path) == []


def test_what_was_read_ahead_for_nothing_leaves_no_file(
    stream: Stream, spark: SparkSession, connection: Connection, sink: ParquetSink, tmp_path: Path
) -> None:
    stream.produce(30)
    with engine_for(sink, spark, connection) as engine:
        engine.prefetch(stream.ranges(), GENEROUS)
        wait_for(lambda: len(files(tmp_path)) == 3, "it is read")
    assert files(tmp_path) == []


def as_it_came(records: DataFrame) -> DataFrame:
    return records


def changed(records: DataFrame) -> DataFrame:
    return records.withColumn("size", F.length("data"))


@pytest.mark.parametrize(("transform", "second_is_drafted"), [(as_it_came, True), (changed, False)])
def test_what_a_transform_does_is_learnt_from_the_first_batch(
    stream: Stream,
    spark: SparkSession,
    connection: Connection,
    tmp_path: Path,
    transform: Callable[[DataFrame], DataFrame],
    second_is_drafted: bool,
) -> None:
    sink = ParquetSink(str(tmp_path), transform=transform)
    ranges = stream.ranges()
    with engine_for(sink, spark, connection) as engine:
        for expected in (False, second_is_drafted):
            stream.produce(30)
            fetched = engine.fetch(ranges, GENEROUS)
            assert is_drafted(fetched) is expected
            ranges = [replace(r, after=fetched.progress[r.lease].through or r.after) for r in ranges]
            store(sink, fetched)
    assert stored(spark, tmp_path) == Counter(range(60))


def test_a_transform_that_changes_its_mind_gets_the_same_records(
    stream: Stream, spark: SparkSession, connection: Connection, tmp_path: Path
) -> None:
    mood: list[Callable[[DataFrame], DataFrame]] = [as_it_came]

    def moody(records: DataFrame) -> DataFrame:
        return mood[0](records)

    sink = ParquetSink(str(tmp_path), transform=moody)
    ranges = stream.ranges()
    with engine_for(sink, spark, connection) as engine:
        for next_mood in (as_it_came, changed, changed):
            mood[0] = next_mood
            stream.produce(30)
            fetched = engine.fetch(ranges, GENEROUS)
            ranges = [replace(r, after=fetched.progress[r.lease].through or r.after) for r in ranges]
            store(sink, fetched)
        assert sink.drafts_into is None
    assert stored(spark, tmp_path) == Counter(range(90))
    assert len(files(tmp_path)) == 9
    rows = spark.read.option("mergeSchema", "true").parquet(str(tmp_path))
    assert rows.where("size is not null").count() == 60


def test_drafts_can_be_evaluated_looked_into_and_halved(stream: Stream, engine: SparkEngine) -> None:
    stream.produce(40)
    fetched = engine.fetch(stream.ranges(), GENEROUS)
    frame = fetched.data(list(fetched.progress))
    numbers: dict[LeaseKey, list[Checkpoint]] = {lease: [] for lease in fetched.progress}
    for row in frame.collect():
        numbers[row.lease_key].append(Checkpoint(row.sequence_number, row.sub_sequence_number))
    assert frame.count() == 40
    for key, places in numbers.items():
        assert places == sorted(places)
        assert fetched.midpoint(key) == places[len(places) // 2 - 1]
        letters = fetched.records(key)
        assert [Checkpoint(one.sequence_number, one.sub_sequence_number) for one in letters] == places
        assert letters[0].arrival_ms == fetched.progress[key].first_arrival_ms
    fetched.release()


def test_drafts_of_one_sink_can_be_stored_by_another(
    stream: Stream, engine: SparkEngine, spark: SparkSession, tmp_path: Path
) -> None:
    stream.produce(30)
    other = ParquetSink(str(tmp_path / "elsewhere"))
    store(other, engine.fetch(stream.ranges(), GENEROUS))
    assert stored(spark, tmp_path / "elsewhere") == Counter(range(30))


def test_what_a_worker_left_when_it_died_is_swept(stream: Stream, engine: SparkEngine, tmp_path: Path) -> None:
    left = tmp_path / FOLDER / f"left{SUFFIX}"
    left.parent.mkdir()
    left.write_bytes(b"a worker died")
    os.utime(left, (1, 1))
    stream.produce(3)
    engine.fetch(stream.ranges(), GENEROUS).release()
    assert files(tmp_path) == []


def test_folders_take_another_way(tmp_path: Path) -> None:
    assert ParquetSink(str(tmp_path)).drafts_into is not None
    assert ParquetSink(str(tmp_path), partition_by=["partition_key"]).drafts_into is None


def test_a_draft_that_is_gone_is_the_sinks_failure(stream: Stream, engine: SparkEngine, sink: ParquetSink) -> None:
    stream.produce(30)
    fetched = engine.fetch(stream.ranges(), GENEROUS)
    batch = batch_of(list(fetched.progress.values()))
    frame = fetched.data([part.lease for part in batch.parts])
    fetched.release()
    with pytest.raises(SinkError, match="could not be published"):
        sink.write(frame, batch)


def test_a_draft_that_is_gone_is_no_failure_of_the_code_that_reads_it(
    stream: Stream, engine: SparkEngine, tmp_path: Path
) -> None:
    stream.produce(30)
    fetched = engine.fetch(stream.ranges(), GENEROUS)
    batch = batch_of(list(fetched.progress.values()))
    frame = fetched.data([part.lease for part in batch.parts])
    fetched.release()
    with pytest.raises(SinkError, match=f"{FOLDER}/.* could not be read from {tmp_path}"):
        ParquetSink(str(tmp_path), transform=changed).write(frame, batch)


def test_a_shard_whose_file_cannot_be_written_is_told(
    stream: Stream, spark: SparkSession, connection: Connection, tmp_path: Path
) -> None:
    stream.produce(30)
    (tmp_path / "lake").write_text("a file where the folder should be")
    with engine_for(ParquetSink(str(tmp_path / "lake")), spark, connection) as engine:
        fetched = engine.fetch(stream.ranges(), GENEROUS)
        assert fetched.progress == {}
        assert len(fetched.failures) == 3
        assert all(isinstance(error, SinkError) for error in fetched.failures.values())
        fetched.release()
