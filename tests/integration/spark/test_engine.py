"""Fetching through Spark: what the driver is told is what the records are."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from kcl_dagster.application import BatchSettings
from kcl_dagster.emulator import Emulator, Limits
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.claim import ChainId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.engine import EngineSettings, SparkEngine
from kcl_dagster.spark.fetch import Connection
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.streams.pacing import ShardLimits
from kcl_dagster.worker.batch import Budget, Range
from tests.doubles.parts import Parts
from tests.integration.spark.conftest import GENEROUS, Stream, batch_of, new_engine, new_stream

pytestmark = pytest.mark.spark

CHAIN = ChainId("app-1234~w1-1")


def numbers(frame: DataFrame) -> list[int]:
    return [int(bytes(row.data)[:8]) for row in frame.select("data").collect()]


def test_a_fetch_reads_every_shard_in_order_and_says_how_far(stream: Stream, engine: SparkEngine) -> None:
    stream.produce(700)
    fetched = engine.fetch(stream.ranges(), GENEROUS)

    assert fetched.failures == {}
    assert sum(progress.records for progress in fetched.progress.values()) == 700
    for shard in stream.shards():
        rows = fetched.data([LeaseKey(shard)]).frame.collect()
        progress = fetched.progress[LeaseKey(shard)]
        assert len(rows) == progress.records > 0
        assert [row.sequence_number for row in rows] == sorted((row.sequence_number for row in rows), key=int)
        assert progress.through == Checkpoint(rows[-1].sequence_number)
        assert progress.first == rows[0].sequence_number
        assert progress.bytes == sum(len(row.data) for row in rows)
        assert progress.millis_behind == 0
        assert not progress.ended
        assert {(row.stream, row.shard_id, row.lease_key) for row in rows} == {(stream.name, shard, shard)}
    fetched.release()


def test_the_next_fetch_goes_on_where_the_last_one_ended(stream: Stream, engine: SparkEngine) -> None:
    seen: list[int] = []
    ranges = stream.ranges()
    for _ in range(3):
        stream.produce(100)
        fetched = engine.fetch(ranges, GENEROUS)
        seen += numbers(fetched.data([r.lease for r in ranges]).frame)
        ranges = [
            replace(r, after=fetched.progress[r.lease].through or r.after, number=r.number + 1) for r in ranges
        ]
        fetched.release()
    assert sorted(seen) == list(range(300))


def test_records_that_arrive_later_do_not_change_the_batch(stream: Stream, engine: SparkEngine) -> None:
    stream.produce(50)
    fetched = engine.fetch(stream.ranges(), GENEROUS)
    stream.produce(50)
    frame = fetched.data([LeaseKey(shard) for shard in stream.shards()]).frame
    assert sorted(numbers(frame)) == list(range(50))
    assert sorted(numbers(frame)) == list(range(50))


def test_a_pinned_range_is_read_exactly_through_its_end(stream: Stream, engine: SparkEngine) -> None:
    stream.produce(60)
    first = engine.fetch(stream.ranges(), GENEROUS)
    stream.produce(60)
    pinned = [replace(p.range, through=p.through, first=p.first) for p in first.progress.values()]
    second = engine.fetch(pinned, Budget(records=1, bytes=1, seconds=0.01))
    for lease, progress in second.progress.items():
        assert progress.through == first.progress[lease].through
        assert numbers(second.data([lease]).frame) == numbers(first.data([lease]).frame)


def test_little_is_read_by_one_task_and_much_by_all(
    stream: Stream, spark: SparkSession, connection: Connection, tmp_path: Path
) -> None:
    sink = ParquetSink(str(tmp_path), transform=lambda records: records)
    engine = SparkEngine(spark, connection, EngineSettings(limits=ShardLimits.unlimited()), staging=sink.staging)
    most = engine._most_tasks
    ranges, counts = stream.ranges(), []
    for size in (20, 20, 400_000, 400_000, 20, 20):
        stream.produce(9, size)
        fetched = engine.fetch(ranges, GENEROUS)
        batch = batch_of(list(fetched.progress.values()))
        counts.append(len(sink.stage(fetched.data([part.lease for part in batch.parts]), batch, CHAIN, 1).files))
        ranges = [replace(r, after=fetched.progress[r.lease].through or r.after) for r in ranges]
        fetched.release()
    engine.close()
    assert most == 2, "or nothing is shown"
    assert counts == [1, 1, 1, 2, 2, 1]


def test_a_budget_ends_the_fetch(stream: Stream, engine: SparkEngine) -> None:
    stream.produce(900)
    fetched = engine.fetch(stream.ranges(), replace(GENEROUS, records=90, seconds=60.0))
    # Shards of one task share its part: the first may use it up.
    assert 0 < sum(progress.records for progress in fetched.progress.values()) <= 90


def test_batches_of_the_largest_records_stay_within_their_bytes(spark: SparkSession) -> None:
    """The engine knows the size of the records only after it has read some of them. `make bench-scale` shows the
    same for 64 shards, and measures the memory."""
    budget = replace(GENEROUS, bytes=BatchSettings().max_bytes)
    with Emulator(limits=Limits.none()) as aws, new_stream(aws, shards=14) as stream:
        connection = Connection(
            endpoint_url=aws.endpoint_url, region="us-east-1", access_key="test", secret_key="test"
        )
        name, kinesis = stream.name, stream.kinesis
        summary = kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
        kinesis.update_max_record_size(StreamARN=summary["StreamARN"], MaxRecordSizeInKiB=10 * 1024)
        payload = b"." * (10 * 1024 * 1024 - 1)  # a byte less, because the key counts, too
        for shard in kinesis.list_shards(StreamName=name)["Shards"]:
            key = shard["HashKeyRange"]["StartingHashKey"]
            kinesis.put_record(StreamName=name, Data=payload, PartitionKey="k", ExplicitHashKey=key)
        ranges, unread, batches = stream.ranges(), set(stream.shards()), list[int]()
        with new_engine(spark, connection) as engine:
            while unread:
                fetched = engine.fetch(ranges, budget)
                found = {lease: one.records for lease, one in fetched.progress.items() if one.records}
                assert fetched.failures == {}
                assert set(found.values()) == {1}, "each shard has one record, and each batch has some"
                assert found.keys() <= unread, "no record is read again"
                assert sum(one.bytes for one in fetched.progress.values()) <= budget.bytes
                batches.append(len(found))
                unread -= found.keys()
                ranges = following(fetched, ranges)
                fetched.release()
    assert max(batches) == 6, "as many as fit"


def test_a_shard_that_cannot_be_read_does_not_stop_the_others(stream: Stream, engine: SparkEngine) -> None:
    stream.produce(30)
    missing = stream.range("shardId-000000000000", after=Checkpoint("99"))
    ranges = [missing, *[r for r in stream.ranges() if r.lease != missing.lease]]
    fetched = engine.fetch(ranges, GENEROUS)
    assert set(fetched.failures) == {missing.lease}
    assert len(fetched.progress) == 2
    assert sum(p.records for p in fetched.progress.values()) == fetched.data(list(fetched.progress)).frame.count()


# Reading ahead


def following(fetched: object, ranges: list[Range]) -> list[Range]:
    progress = fetched.progress  # type: ignore[attr-defined]  # any batch
    return [replace(r, after=progress[r.lease].through or r.after, number=r.number + 1) for r in ranges]


def test_what_was_read_ahead_is_the_next_batch(stream: Stream, engine: SparkEngine) -> None:
    ranges = stream.ranges()
    stream.produce(90)
    first = engine.fetch(ranges, GENEROUS)
    stream.produce(90)
    ahead = following(first, ranges)
    engine.prefetch(ahead, GENEROUS)
    second = engine.fetch(ahead, GENEROUS)
    assert sorted(numbers(second.data([r.lease for r in ahead]).frame)) == list(range(90, 180))


class Hold:
    """Passes rows on once a file is there; fails when it does not come. Runs in Spark's Python workers."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        deadline = time.monotonic() + 60
        while not self._file.exists():
            if time.monotonic() > deadline:
                raise TimeoutError("the next batch was not read while this one was written")
            time.sleep(0.02)
        for batch in batches:
            yield batch.select(["data"])


def test_the_next_batch_is_read_while_one_is_written(stream: Stream, engine: SparkEngine, tmp_path: Path) -> None:
    ranges = stream.ranges()
    stream.produce(90)
    first = engine.fetch(ranges, GENEROUS)
    stream.produce(60)
    ahead = following(first, ranges)
    engine.prefetch(ahead, GENEROUS)
    reading, was_read = engine._ahead._future, tmp_path / "was-read"
    assert reading is not None
    reading.add_done_callback(lambda _: was_read.touch())
    # Writing ends only after the other has been read.
    assert first.data([r.lease for r in ranges]).frame.mapInArrow(Hold(was_read), "data binary").count() == 90
    second = engine.fetch(ahead, GENEROUS)
    assert sorted(numbers(second.data([r.lease for r in ahead]).frame)) == list(range(90, 150))


def test_ranges_that_were_not_read_ahead_join_the_batch(
    stream: Stream, engine: SparkEngine, tmp_path: Path
) -> None:
    stream.produce(90)
    ranges = stream.ranges()
    engine.prefetch(ranges[:2], GENEROUS)
    fetched = engine.fetch(ranges, GENEROUS)
    assert set(fetched.progress) == {r.lease for r in ranges}
    assert sorted(numbers(fetched.data([r.lease for r in ranges]).frame)) == list(range(90))
    assert fetched.data([ranges[2].lease]).frame.count() == fetched.progress[ranges[2].lease].records
    found = list(fetched.progress.values())
    Parts(ParquetSink(str(tmp_path))).write(fetched.data([p.range.lease for p in found]), batch_of(found))
    stored = [pq.read_table(file)["data"].to_pylist() for file in tmp_path.rglob("*.parquet")]
    assert sorted(int(bytes(data)[:8]) for file in stored for data in file) == list(range(90))


def test_a_shard_that_was_lost_meanwhile_takes_no_part(stream: Stream, engine: SparkEngine) -> None:
    stream.produce(90)
    ranges = stream.ranges()
    engine.prefetch(ranges, GENEROUS)
    fetched = engine.fetch(ranges[:1], GENEROUS)
    assert set(fetched.progress) == {ranges[0].lease}
    assert fetched.data([ranges[0].lease]).frame.count() == fetched.progress[ranges[0].lease].records


def test_a_shard_whose_batch_has_to_be_repeated_is_not_read_from_what_was_read_ahead(
    stream: Stream, engine: SparkEngine
) -> None:
    ranges = stream.ranges()
    stream.produce(90)
    first = engine.fetch(ranges, GENEROUS)
    stream.produce(90)
    ahead = following(first, ranges)
    engine.prefetch(ahead, GENEROUS)
    done = first.progress[ranges[0].lease]
    repeated = replace(ranges[0], through=done.through, first=done.first)
    second = engine.fetch([repeated, *ahead[1:]], GENEROUS)
    assert second.progress[repeated.lease].through == done.through
    assert numbers(second.data([repeated.lease]).frame) == numbers(first.data([repeated.lease]).frame)
    whole = second.data([r.lease for r in ranges]).frame
    assert whole.count() == sum(progress.records for progress in second.progress.values())
    assert len(second.records(repeated.lease)) == done.records
    assert second.midpoint(repeated.lease) == first.midpoint(repeated.lease)


def test_a_read_ahead_that_nobody_wants_is_stopped(stream: Stream, engine: SparkEngine) -> None:
    stream.produce(30)
    began = time.monotonic()
    engine.prefetch(stream.ranges(number=7), Budget(10**6, 10**9, seconds=60.0))
    fetched = engine.fetch(stream.ranges(number=8), GENEROUS)
    assert sorted(numbers(fetched.data([LeaseKey(shard) for shard in stream.shards()]).frame)) == list(range(30))
    engine.close()
    assert time.monotonic() - began < 50


def test_shards_can_push_instead(stream: Stream, spark: SparkSession, connection: Connection) -> None:
    engine = SparkEngine(spark, connection, EngineSettings(consumer_name="app"))
    ranges = stream.ranges()
    stream.produce(90)
    first = engine.fetch(ranges, replace(GENEROUS, seconds=1.0))
    assert sorted(numbers(first.data([r.lease for r in ranges]).frame)) == list(range(90))
    stream.produce(90)
    # Longer than a subscription must be left alone before the next one.
    second = engine.fetch(following(first, ranges), replace(GENEROUS, seconds=8.0))
    assert sorted(numbers(second.data([r.lease for r in ranges]).frame)) == list(range(90, 180))
    engine.close()


def test_a_subscription_lasts_from_one_fetch_to_the_next(spark: SparkSession) -> None:
    """Kinesis refuses a second subscription within five seconds, which is longer than each of these fetches."""
    with Emulator(limits=replace(Limits.none(), takeover_seconds=5)) as aws, new_stream(aws, shards=4) as stream:
        connection = Connection(
            endpoint_url=aws.endpoint_url, region="us-east-1", access_key="test", secret_key="test"
        )
        engine = SparkEngine(spark, connection, EngineSettings(consumer_name="app"))
        ranges = stream.ranges()
        first = engine.fetch(ranges, replace(GENEROUS, seconds=3.0))
        ranges = following(first, ranges)
        for _ in range(8):
            stream.produce(1)
            fetched = engine.fetch(ranges, replace(GENEROUS, seconds=3.0, linger=0.05))
            assert sum(one.records for one in fetched.progress.values()) == 1
            ranges = following(fetched, ranges)
        engine.close()


# What a worker asks when a batch keeps failing


def test_a_lease_can_be_halved_down_to_one_record(stream: Stream, engine: SparkEngine) -> None:
    stream.produce(60)
    range_ = stream.ranges()[0]
    fetched = engine.fetch([range_], GENEROUS)
    count = fetched.progress[range_.lease].records
    while count > 1:
        middle = fetched.midpoint(range_.lease)
        assert middle is not None
        half = replace(range_, through=middle, first=fetched.progress[range_.lease].first)
        fetched = engine.fetch([half], GENEROUS)
        assert fetched.progress[range_.lease].records == count // 2
        count //= 2
    assert fetched.midpoint(range_.lease) is None
    (record,) = fetched.records(range_.lease)
    assert record.sequence_number == fetched.progress[range_.lease].first
    assert record.partition_key == f"key-{int(record.data[:8])}"
    assert record.arrival_ms == fetched.progress[range_.lease].first_arrival_ms
