"""What a fetch task yields: a header before any record, a trailer that says what the records are."""

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from kcl_dagster.emulator import Limits
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.shard import HashRange
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.runtime import system
from kcl_dagster.spark import fetch as module
from kcl_dagster.spark.fetch import Connection, FetchPlan, ShardPlan, Trailer, fetch
from kcl_dagster.spark.schema import ARROW_SCHEMA, COLUMNS
from kcl_dagster.streams.pacing import ShardLimits
from kcl_dagster.worker.batch import Budget, Range
from tests.doubles.aggregation import UserRecord, aggregate, sealed
from tests.doubles.kinesis import FakeKinesis

STREAM = StreamIdentifier("clicks")


@pytest.fixture
def kinesis() -> FakeKinesis:
    client = FakeKinesis(limits=Limits.none())
    client.create_stream(StreamName="clicks", ShardCount=2)
    return client


def put(kinesis: FakeKinesis, *payloads: bytes, shard: int = 0) -> list[str]:
    hash_key = str(shard * 2**127)
    return [
        kinesis.put_record(StreamName="clicks", PartitionKey="outer", ExplicitHashKey=hash_key, Data=data)[
            "SequenceNumber"
        ]
        for data in payloads
    ]


def shard(index: int) -> str:
    return f"shardId-{index:012d}"


def range_(index: int = 0, after: Checkpoint = TRIM_HORIZON, **more: Any) -> Range:
    return Range(LeaseKey(shard(index)), STREAM, shard(index), after, 1, **more)


def run(
    kinesis: Any, *ranges: Range, budget: Budget | None = None, opens_aggregates: bool = True
) -> tuple[list[pa.RecordBatch], dict[str, Trailer]]:
    plan = FetchPlan(
        Connection(),
        (tuple(ShardPlan(found) for found in ranges),),
        budget or Budget(10**6, 10**9, 0.05),
        ShardLimits.unlimited(0.01),
        opens_aggregates,
    )
    batches = list(fetch(plan, 0, kinesis, system()))
    last = batches[-1].column("_progress").to_pylist()
    return batches, {proof["lease_key"]: msgspec.json.decode(proof["trailer"], type=Trailer) for proof in last}


def rows(batches: Sequence[pa.RecordBatch]) -> dict[str, list[dict[str, Any]]]:
    found = defaultdict(list)
    for batch in batches:
        for row in batch.to_pylist():
            if row["_progress"] is None:
                found[row["lease_key"]].append(row)
    return found


def test_header_records_and_trailer_come_in_this_order(kinesis: FakeKinesis) -> None:
    put(kinesis, b"a", b"b")
    put(kinesis, b"c", shard=1)
    batches, trailers = run(kinesis, range_(0), range_(1))
    assert all(batch.schema == ARROW_SCHEMA for batch in batches)
    first, *middle, last = (batch.column("_progress").to_pylist() for batch in batches)
    assert [proof["trailer"] for proof in first] == [None, None]
    assert {proof["lease_key"] for proof in first} == {proof["lease_key"] for proof in last} == {shard(0), shard(1)}
    assert len({proof["attempt"] for proof in (*first, *last)}) == 1
    assert all(proof is None for batch in middle for proof in batch)
    assert {lease: trailer.records for lease, trailer in trailers.items()} == {shard(0): 2, shard(1): 1}


def test_every_attempt_has_a_name_of_its_own(kinesis: FakeKinesis) -> None:
    attempts = {run(kinesis, range_())[0][0].column("_progress")[0].as_py()["attempt"] for _ in range(3)}
    assert len(attempts) == 3


def test_a_row_says_everything_about_its_record(kinesis: FakeKinesis) -> None:
    (sequence,) = put(kinesis, b"hello")
    ((row,),) = rows(run(kinesis, range_())[0]).values()
    assert tuple(name for name in row if name != "_progress") == COLUMNS
    assert (row["data"], row["partition_key"], row["explicit_hash_key"]) == (b"hello", "outer", None)
    assert (row["sequence_number"], row["sub_sequence_number"]) == (sequence, 0)
    assert (row["stream"], row["shard_id"], row["lease_key"]) == ("clicks", shard(0), shard(0))
    assert abs(row["arrival_timestamp"].timestamp() - kinesis.clock.now()) < 60
    assert row["aggregate_problem"] is None


def test_aggregates_are_opened_and_broken_ones_kept_and_counted(kinesis: FakeKinesis) -> None:
    mine = [UserRecord("in", b"1"), UserRecord("in", b"2", "5"), UserRecord("far", b"3", str(2**127))]
    broken = sealed(b"\x0a\x05abc")
    sequences = put(kinesis, aggregate(mine), broken, b"plain")
    batches, trailers = run(kinesis, range_(hash_range=HashRange(0, 10**38)))
    found = rows(batches)[shard(0)]
    key_in = [row for row in found if row["data"] in (b"1", b"2")]
    assert {row["partition_key"] for row in key_in} <= {"in"}
    assert (b"2", "5", 1) in [(r["data"], r["explicit_hash_key"], r["sub_sequence_number"]) for r in found]
    assert b"3" not in [row["data"] for row in found]
    assert [row["data"] for row in found if row["aggregate_problem"]] == [broken]
    trailer = trailers[shard(0)]
    assert (trailer.broken_aggregates, trailer.records) == (1, len(found))
    assert trailer.misplaced >= 1
    assert trailer.through == (sequences[-1], 0)


def test_an_aggregate_in_which_a_batch_ended_is_opened_to_its_end_when_others_are_left_closed(
    kinesis: FakeKinesis,
) -> None:
    packed = aggregate([UserRecord("in", b"r%d" % i) for i in range(10)])
    put(kinesis, packed, b"plain", packed)
    batches, trailers = run(kinesis, range_(), budget=Budget(6, 10**9, 0.05))
    read = rows(batches)[shard(0)]
    assert 0 < len(read) < 10
    sequence, sub_sequence = trailers[shard(0)].through or ("", 0)
    batches, trailers = run(kinesis, range_(after=Checkpoint(sequence, sub_sequence)), opens_aggregates=False)
    read += rows(batches)[shard(0)]
    assert [row["data"] for row in read] == [*(b"r%d" % i for i in range(10)), b"plain", packed]
    # What was left closed is processed to its end, so it is not opened when aggregates are opened again.
    sequence, sub_sequence = trailers[shard(0)].through or ("", 0)
    assert not rows(run(kinesis, range_(after=Checkpoint(sequence, sub_sequence)))[0])


def test_large_batches_are_cut_small(kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_ROWS", 7)
    put(kinesis, *[b"%03d" % i for i in range(50)])
    batches, trailers = run(kinesis, range_())
    assert max(batch.num_rows for batch in batches) == 7
    assert [row["data"] for row in rows(batches)[shard(0)]] == [b"%03d" % i for i in range(50)]
    assert trailers[shard(0)].records == 50


def test_one_shard_that_fails_does_not_take_the_others_with_it(kinesis: FakeKinesis) -> None:
    put(kinesis, b"a", shard=1)
    missing = range_(0, after=Checkpoint("5"), through=Checkpoint("6"))
    _, trailers = run(kinesis, missing, range_(1))
    assert trailers[shard(1)].records == 1
    failure = trailers[shard(0)].failure
    assert failure is not None
    assert failure[0] == "RequestRefused"


def test_all_shards_of_a_task_are_asked_at_once(kinesis: FakeKinesis) -> None:
    """A shard may be asked a few times a second: one that waits for another would lose its turns."""
    together = threading.Barrier(2)

    class Together:
        def get_shard_iterator(self, **request: Any) -> Any:
            return kinesis.get_shard_iterator(**request)

        def get_records(self, **request: Any) -> Any:
            together.wait(30)  # until the other shard is asked, or it breaks and fails the fetch
            return kinesis.get_records(**request)

    put(kinesis, b"a", shard=0)
    put(kinesis, b"b", shard=1)
    _, trailers = run(Together(), range_(0), range_(1), budget=Budget(2, 10**9, 0.0))
    assert [trailers[shard(index)].records for index in (0, 1)] == [1, 1]


def test_a_fault_of_ours_is_the_failure_of_its_shard_alone(
    kinesis: FakeKinesis, caplog: pytest.LogCaptureFixture
) -> None:
    class Wrong:
        def get_shard_iterator(self, **request: Any) -> Any:
            return (
                {"ShardIterator": "i"} if request["ShardId"] == shard(0) else kinesis.get_shard_iterator(**request)
            )

        def get_records(self, **request: Any) -> Any:
            if request["ShardIterator"] == "i":
                return {"Records": [{"Data": 5}], "NextShardIterator": "i"}
            return kinesis.get_records(**request)

    put(kinesis, b"a", shard=1)
    _, trailers = run(Wrong(), range_(0), range_(1))
    failure = trailers[shard(0)].failure
    assert failure is not None
    assert failure[0] == "BatchError"
    assert "TypeError" in failure[1]
    assert any(record.exc_info for record in caplog.records)
    assert trailers[shard(1)].records == 1


def test_a_shard_whose_page_does_not_arrive_fails_and_the_others_go_on(
    kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LATE_SECONDS", 0.2)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)
    may_return = threading.Event()

    class Dripping:
        def get_shard_iterator(self, **request: Any) -> Any:
            return (
                {"ShardIterator": "i"} if request["ShardId"] == shard(0) else kinesis.get_shard_iterator(**request)
            )

        def get_records(self, **request: Any) -> Any:
            if request["ShardIterator"] == "i":
                assert may_return.wait(30), "the fetch waits for a page that does not arrive"
                return {"Records": [], "MillisBehindLatest": 0}
            return kinesis.get_records(**request)

    put(kinesis, b"a", shard=1)
    try:
        batches, trailers = run(Dripping(), range_(0), range_(1))
    finally:
        may_return.set()
    failure = trailers[shard(0)].failure
    assert failure is not None
    assert failure[0] == "EndpointUnreachable"
    assert trailers[shard(1)].records == 1
    assert [row["data"] for row in rows(batches)[shard(1)]] == [b"a"]


def test_a_task_that_is_abandoned_stops_its_readers(kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_ROWS", 1)
    put(kinesis, *[b"x"] * 100)
    plan = FetchPlan(
        Connection(), ((ShardPlan(range_()),),), Budget(10**6, 10**9, 60.0), ShardLimits.unlimited(0.01), True
    )
    batches = fetch(plan, 0, kinesis, system())
    next(batches)
    next(batches)
    batches.close()  # type: ignore[attr-defined]  # it is a generator

    for thread in threading.enumerate():
        if thread.name.startswith("kcl-read"):
            thread.join(5)
            assert not thread.is_alive()


MEGABYTE = 1024 * 1024


class LargeRecords:
    """Shards that are full of records of one size, in pages of ten megabytes as the service gives them."""

    def __init__(self, size: int) -> None:
        self.payload = b"x" * size
        self.given = 0
        self._lock = threading.Lock()

    def get_shard_iterator(self, **request: Any) -> Any:
        return {"ShardIterator": "1"}

    def get_records(self, **request: Any) -> Any:
        begin = int(request["ShardIterator"])
        count = max(1, min(request["Limit"], 10 * MEGABYTE // len(self.payload)))
        with self._lock:
            self.given += count * len(self.payload)
        records = [
            {"SequenceNumber": str(number), "Data": self.payload, "PartitionKey": "k"}
            for number in range(begin, begin + count)
        ]
        return {"Records": records, "NextShardIterator": str(begin + count), "MillisBehindLatest": 1000}


@pytest.mark.audit("B15")
@pytest.mark.parametrize(
    ("size", "budget", "kept"), [(1, 64, 63), (10, 64, 6), (10, 25, 2), (10, 1, 1), (3, 20, 6)]
)
def test_the_bytes_of_a_batch_bound_what_is_read_of_all_its_shards(size: int, budget: int, kept: int) -> None:
    """Sizes in megabytes; each of 64 shards has any number of records, whose size is known to none of them."""
    kinesis = LargeRecords(size * MEGABYTE)
    _, trailers = run(
        kinesis, *[range_(index) for index in range(64)], budget=Budget(10**6, budget * MEGABYTE, 30.0)
    )
    assert [trailer.failure for trailer in trailers.values()] == [None] * 64
    # With its key a record is a byte larger than a whole number of megabytes.
    assert sum(trailer.records for trailer in trailers.values()) == kept
    assert kinesis.given <= (max(budget, size) + 10) * MEGABYTE
    assert all(trailer.millis_behind != 0 for trailer in trailers.values())


@pytest.mark.audit("B15")
def test_a_batch_cut_by_its_bytes_goes_on_where_it_was_cut() -> None:
    kinesis, found = LargeRecords(MEGABYTE), list[str]()
    after = TRIM_HORIZON
    for _ in range(3):
        batches, trailers = run(kinesis, range_(0, after), budget=Budget(10**6, 5 * MEGABYTE, 30.0))
        found += [row["sequence_number"] for row in rows(batches)[shard(0)]]
        through = trailers[shard(0)].through
        assert through is not None
        after = Checkpoint(*through)
        kinesis.get_shard_iterator = lambda **request: {  # type: ignore[method-assign]
            "ShardIterator": request["StartingSequenceNumber"]
        }
    assert found == [str(number) for number in range(1, 1 + len(found))]
    assert len(found) == 12


@pytest.mark.audit("B4")
def test_arrow_batches_stay_small_although_many_records_share_a_long_key(kinesis: FakeKinesis) -> None:
    put(kinesis, aggregate([UserRecord("k" * 100_000, b"%d" % number) for number in range(300)]))
    batches, trailers = run(kinesis, range_(), budget=Budget(10**6, 20 * 10**6, 0.05))
    assert trailers[shard(0)].records == 199
    assert max(batch.nbytes for batch in batches) < 2 * module.BATCH_BYTES


def test_the_budget_is_shared_out_by_shards() -> None:
    ranges = [ShardPlan(range_(index)) for index in range(3)]
    plan = FetchPlan(
        Connection(), ((ranges[0], ranges[1]), (ranges[2],)), Budget(300, 3000, 1.0), ShardLimits(), True
    )
    assert plan.allowance(0).page_limit(1, 10_000) == 100
    assert plan.allowance(1).page_limit(1, 10_000) == 100
    assert plan.allowance(1).page_limit(100, 10_000) == 10


def test_a_batch_near_the_tip_is_closed_soon_after_its_first_records(kinesis: FakeKinesis) -> None:
    """Also for the shards that have none, and wait until they may be asked again."""
    put(kinesis, b"a")
    began = time.monotonic()
    found, trailers = run(kinesis, range_(0), range_(1), budget=Budget(10**6, 10**9, 60.0, linger=0.05))
    assert time.monotonic() - began < 20
    assert [row["data"] for row in rows(found)[shard(0)]] == [b"a"]
    assert trailers[shard(1)].records == 0


def test_a_backlog_is_read_until_the_batch_is_full(kinesis: FakeKinesis) -> None:
    put(kinesis, *[b"x"] * 50)

    class Behind:
        def get_records(self, **request: Any) -> Any:
            answer = kinesis.get_records(**request)
            return answer | {"MillisBehindLatest": 5000 if answer["Records"] else 0}

        def __getattr__(self, name: str) -> Any:
            return getattr(kinesis, name)

    _, trailers = run(Behind(), range_(0), budget=Budget(45, 10**9, 1.0, linger=0.0))
    assert trailers[shard(0)].records == 45
