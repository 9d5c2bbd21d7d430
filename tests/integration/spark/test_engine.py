"""Fetching through Spark: what the driver is told is what the records are."""

from dataclasses import replace

import pytest
from pyspark.sql import DataFrame

from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.engine import SparkEngine
from kcl_dagster.worker.batch import Budget
from tests.integration.spark.conftest import GENEROUS, Stream

pytestmark = pytest.mark.spark


def numbers(frame: DataFrame) -> list[int]:
    return [int(bytes(row.data)[:8]) for row in frame.select("data").collect()]


def test_a_fetch_reads_every_shard_in_order_and_says_how_far(stream: Stream, engine: SparkEngine) -> None:
    stream.produce(700)
    fetched = engine.fetch(stream.ranges(), GENEROUS)

    assert fetched.failures == {}
    assert sum(progress.records for progress in fetched.progress.values()) == 700
    for shard in stream.shards():
        rows = fetched.data([LeaseKey(shard)]).collect()
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
        seen += numbers(fetched.data([r.lease for r in ranges]))
        ranges = [
            replace(r, after=fetched.progress[r.lease].through or r.after, number=r.number + 1) for r in ranges
        ]
        fetched.release()
    assert sorted(seen) == list(range(300))


def test_records_that_arrive_later_do_not_change_the_batch(stream: Stream, engine: SparkEngine) -> None:
    stream.produce(50)
    fetched = engine.fetch(stream.ranges(), GENEROUS)
    stream.produce(50)
    frame = fetched.data([LeaseKey(shard) for shard in stream.shards()])
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
        assert numbers(second.data([lease])) == numbers(first.data([lease]))


def test_a_budget_ends_the_fetch(stream: Stream, engine: SparkEngine) -> None:
    stream.produce(900)
    fetched = engine.fetch(stream.ranges(), replace(GENEROUS, records=90))
    assert all(0 < progress.records <= 60 for progress in fetched.progress.values())


def test_a_shard_that_cannot_be_read_does_not_stop_the_others(stream: Stream, engine: SparkEngine) -> None:
    stream.produce(30)
    missing = stream.range("shardId-000000000000", after=Checkpoint("99"))
    ranges = [missing, *[r for r in stream.ranges() if r.lease != missing.lease]]
    fetched = engine.fetch(ranges, GENEROUS)
    assert set(fetched.failures) == {missing.lease}
    assert len(fetched.progress) == 2
    assert sum(p.records for p in fetched.progress.values()) == fetched.data(list(fetched.progress)).count()
