"""The engine and the sink that tests and simulations use in the place of Spark and a lake."""

import pytest

from kcl_dagster.emulator.kinesis import Limits
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.runtime import Runtime
from kcl_dagster.streams.pacing import ShardLimits
from kcl_dagster.worker.batch import Batch, Budget, Part, Progress, Range
from tests.doubles.clock import FakeClock
from tests.doubles.engine import MemoryEngine, Row
from tests.doubles.kinesis import FakeKinesis
from tests.doubles.sink import RecordingSink

STREAM = StreamIdentifier.single("clicks")
LEASE = LeaseKey("shardId-000000000000")
BUDGET = Budget(records=100, bytes=1 << 20, seconds=0.1)


@pytest.fixture
def kinesis() -> FakeKinesis:
    client = FakeKinesis(FakeClock(), limits=Limits.none())
    client.create_stream(StreamName="clicks", ShardCount=1)
    return client


@pytest.fixture
def engine(kinesis: FakeKinesis) -> MemoryEngine:
    runtime = Runtime(clock=kinesis.clock)
    return MemoryEngine(kinesis, runtime, limits=ShardLimits.unlimited())


def put(kinesis: FakeKinesis, *payloads: str) -> list[str]:
    return [
        kinesis.put_record(StreamName="clicks", Data=payload.encode(), PartitionKey="k")["SequenceNumber"]
        for payload in payloads
    ]


def open_range(after: Checkpoint = TRIM_HORIZON, number: int = 1) -> Range:
    return Range(LEASE, STREAM, LEASE, after, number)


def part(after: Checkpoint, through: Checkpoint, number: int) -> Part:
    return Part("app", LEASE, STREAM, LEASE, after, through, number, records=1, bytes=1)


def payloads(rows: list[Row]) -> list[bytes]:
    return [row.data for row in rows]


def progress_of(engine: MemoryEngine, range_: Range) -> Progress:
    return engine.fetch([range_], BUDGET).progress[LEASE]


def test_an_open_range_goes_to_the_tip_and_the_next_one_goes_on_there(
    kinesis: FakeKinesis, engine: MemoryEngine
) -> None:
    put(kinesis, "a", "b")
    first = engine.fetch([open_range()], BUDGET)
    assert payloads(first.data([LEASE])) == [b"a", b"b"]
    put(kinesis, "c")
    through = first.progress[LEASE].through
    assert through is not None
    assert payloads(engine.fetch([open_range(through, 2)], BUDGET).data([LEASE])) == [b"c"]


def test_a_pinned_range_reads_exactly_through_its_end(kinesis: FakeKinesis, engine: MemoryEngine) -> None:
    numbers = put(kinesis, "a", "b", "c")
    pinned = Range(LEASE, STREAM, LEASE, TRIM_HORIZON, 1, through=Checkpoint(numbers[1]), first=numbers[0])
    assert payloads(engine.fetch([pinned], BUDGET).data([LEASE])) == [b"a", b"b"]


def test_a_closed_shard_ends_and_names_its_children(kinesis: FakeKinesis, engine: MemoryEngine) -> None:
    put(kinesis, "a")
    kinesis.split_shard(StreamName="clicks", ShardToSplit=LEASE, NewStartingHashKey=str(2**127))
    progress = progress_of(engine, open_range())
    assert progress.ended
    assert [child.id for child in progress.children] == ["shardId-000000000001", "shardId-000000000002"]


def test_a_shard_that_cannot_be_read_is_a_failure_of_its_own(kinesis: FakeKinesis, engine: MemoryEngine) -> None:
    kinesis.delete_stream(StreamName="clicks")
    fetched = engine.fetch([open_range()], BUDGET)
    assert list(fetched.failures) == [LEASE]
    assert fetched.progress == {}


def test_halving_ends_with_a_single_record(kinesis: FakeKinesis, engine: MemoryEngine) -> None:
    numbers = put(kinesis, "a", "b", "c")
    assert engine.fetch([open_range()], BUDGET).midpoint(LEASE) == Checkpoint(numbers[0])
    only = Range(LEASE, STREAM, LEASE, Checkpoint(numbers[1]), 2)
    fetched = engine.fetch([only], BUDGET)
    assert fetched.midpoint(LEASE) is None
    assert [record.data for record in fetched.records(LEASE)] == [b"c"]


def test_a_released_fetch_is_not_used_again(kinesis: FakeKinesis, engine: MemoryEngine) -> None:
    fetched = engine.fetch([open_range()], BUDGET)
    fetched.release()
    with pytest.raises(AssertionError, match="after its release"):
        fetched.data([LEASE])
    with pytest.raises(AssertionError, match="released twice"):
        fetched.release()


def row(number: str, data: bytes = b"x") -> Row:
    return Row(LEASE, number, 0, "k", data)


def test_the_sink_stores_a_part_once() -> None:
    sink = RecordingSink()
    batch = Batch("app", WorkerId("w"), (part(TRIM_HORIZON, Checkpoint("5"), 1),))
    sink.write([row("5")], batch)
    sink.write([row("5")], batch)
    assert sink.rows() == [row("5")]
    assert (sink.writes, sink.conflicts) == (2, [])


@pytest.mark.parametrize(
    ("second", "rows", "problem"),
    [
        (part(TRIM_HORIZON, Checkpoint("5"), 1), (row("5", b"other"),), "other records"),
        (part(TRIM_HORIZON, Checkpoint("6"), 1), (row("6"),), "overlaps"),
        (part(Checkpoint("4"), Checkpoint("6"), 2), (row("6"),), "overlaps"),
    ],
)
def test_the_sink_tells_what_storing_once_would_not_repair(
    second: Part, rows: tuple[Row, ...], problem: str
) -> None:
    sink = RecordingSink()
    sink.store(part(TRIM_HORIZON, Checkpoint("5"), 1), (row("5"),))
    sink.store(second, rows)
    (conflict,) = sink.conflicts
    assert problem in conflict


def test_parts_that_touch_do_not_overlap() -> None:
    sink = RecordingSink()
    sink.store(part(TRIM_HORIZON, Checkpoint("5"), 1), (row("5"),))
    sink.store(part(Checkpoint("5"), Checkpoint("7"), 2), (row("7"),))
    assert sink.conflicts == []
