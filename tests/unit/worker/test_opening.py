"""A worker on clients: the tables' layout, where streams start, what they keep."""

import random
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest

from kcl_dagster.application import Application, Position
from kcl_dagster.errors import BatchError, ConfigurationError, OtherStream, SinkError
from kcl_dagster.model.checkpoint import AT_TIMESTAMP, LATEST, TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.model.worker_row import CPU, WorkerState
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.starts import StartPosition, StartTable
from kcl_dagster.tables.table_layout import create_tables, detect_layout
from kcl_dagster.tables.workers import WorkerTable
from kcl_dagster.testing.local_processors import LocalProcessorHost
from kcl_dagster.worker.batch import Batch, Budget
from kcl_dagster.worker.heartbeat import Heartbeat, Identity
from kcl_dagster.worker.loop import Worker
from kcl_dagster.worker.opening import (
    VERIFY_SECONDS,
    StreamLookup,
    open_surroundings,
)
from kcl_dagster.worker.processor import ProcessRecordsInput, RecordProcessorBase
from tests.doubles.clock import FakeClock
from tests.doubles.dynamodb import FakeDynamoDB
from tests.doubles.engine import MemoryEngine
from tests.doubles.kinesis import FakeKinesis
from tests.doubles.sink import RecordingSink
from tests.unit.worker.kit import World, in_nobodys_background

STREAM, SHARD = "clicks", "shardId-000000000000"
ME = WorkerId("w1")


class Place:
    """One stream, one table, one worker on fake clients."""

    def __init__(self, start: dict[str, Any] | None = None, *, multi_stream: bool = False) -> None:
        self.clock = FakeClock()
        self.runtime = Runtime(clock=self.clock, random=random.Random(1))
        self.dynamodb = FakeDynamoDB(self.clock)
        self.kinesis = FakeKinesis(self.clock)
        self.kinesis.create_stream(StreamName=STREAM, ShardCount=1)
        settings = {"name": STREAM, "start": start or {}}
        self.application = Application(name="app", streams=(settings,), multi_stream=multi_stream)
        self.layout = detect_layout(self.dynamodb, self.application, self.runtime)
        create_tables(self.dynamodb, self.application, self.layout, self.runtime)
        self.leases = LeaseTable(self.dynamodb, self.application, self.layout, self.runtime)
        self.starts = StartTable(self.dynamodb, self.application, self.layout, self.runtime)
        self.sink = RecordingSink()

    def put(self, *texts: str) -> None:
        for text in texts:
            self.kinesis.put_record(StreamName=STREAM, Data=text.encode(), PartitionKey="k")
        self.clock.advance(2)

    def own(self, checkpoint: Checkpoint, stream: StreamIdentifier | None = None) -> None:
        key = LeaseKey(stream.lease_key(SHARD) if stream else SHARD)
        assert self.leases.create(Lease(key, SHARD, owner=ME, checkpoint=checkpoint, stream=stream))

    def work(self, rounds: int = 3) -> list[str]:
        around = open_surroundings(
            self.application,
            dynamodb=self.dynamodb,
            kinesis=self.kinesis,
            engine=MemoryEngine(self.kinesis, self.runtime),
            sink=self.sink,
            runtime=self.runtime,
        )
        worker = Worker(around, Identity(ME), self.runtime, in_nobodys_background)
        worker.start()
        for _ in range(rounds):
            worker.step_housekeeping()
            worker.step_renewal()
            worker.step_batch()
            self.clock.advance(2)
        worker.shut_down()
        return [row.data.decode() for row in self.sink.rows()]

    def decide(self, position: Position, timestamp_ms: int, stream: str = STREAM) -> None:
        self.starts.record(StartPosition(stream, position, timestamp_ms, 1))


def test_latest_means_the_moment_the_application_began_and_not_each_start() -> None:
    place = Place({"position": "LATEST"})
    place.put("before")
    place.decide(Position.LATEST, round(place.clock.now() * 1000))
    place.own(LATEST)
    place.put("between")  # nobody reads yet
    assert place.work() == ["between"]


def test_in_an_application_that_a_java_leader_started_the_configured_timestamp_counts() -> None:
    place = Place()
    place.put("before")
    moment = datetime.fromtimestamp(int(place.clock.now()), UTC)
    settings = {"name": STREAM, "start": {"position": "AT_TIMESTAMP", "timestamp": moment}}
    place.application = Application(name="app", streams=(settings,))
    place.put("after")
    place.own(AT_TIMESTAMP)
    assert place.work() == ["after"]


def test_latest_of_a_java_leader_is_the_tip() -> None:
    place = Place({"position": "LATEST"})
    place.put("before")
    place.own(LATEST)
    assert place.work() == []


def test_leases_of_several_streams_name_their_own() -> None:
    place = Place({"position": "LATEST"}, multi_stream=True)
    described = place.kinesis.describe_stream_summary(StreamName=STREAM)["StreamDescriptionSummary"]
    created = int(described["StreamCreationTimestamp"].timestamp())
    stream = StreamIdentifier(STREAM, "123456789012", created)
    place.decide(Position.LATEST, round(place.clock.now() * 1000) - 1000, str(stream))
    place.put("a", "b")
    place.own(LATEST, stream)
    assert place.work() == ["a", "b"]
    [part] = place.sink.parts.values()
    assert part.part.stream == stream


@pytest.mark.parametrize("hours", [24, 168])
def test_a_worker_knows_what_its_stream_keeps(hours: int) -> None:
    place = Place()
    if hours > 24:
        place.kinesis.increase_stream_retention_period(StreamName=STREAM, RetentionPeriodHours=hours)
    around = open_surroundings(
        place.application,
        dynamodb=place.dynamodb,
        kinesis=place.kinesis,
        engine=MemoryEngine(place.kinesis, place.runtime),
        sink=place.sink,
        runtime=place.runtime,
    )
    assert around.retention_of(StreamIdentifier.single(STREAM)) == hours * 3600
    assert [shard.id for shard in around.list_shards(StreamIdentifier.single(STREAM))] == [SHARD]
    assert around.leader is not None
    assert around.leader.silent_for() == 0


def test_a_worker_has_a_sink_or_processors() -> None:
    place = Place()
    common: dict[str, Any] = {"dynamodb": place.dynamodb, "kinesis": place.kinesis, "runtime": place.runtime}
    engine = MemoryEngine(place.kinesis, place.runtime)
    hosts = LocalProcessorHost(Collector, engine)
    for wrong in (
        {},
        {"engine": engine},
        {"sink": place.sink},
        {"sink": place.sink, "processors": hosts},
        {"engine": engine, "processors": hosts},
    ):
        with pytest.raises(ConfigurationError, match="a sink or record processors"):
            open_surroundings(place.application, **wrong, **common)
    around = open_surroundings(place.application, processors=hosts, **common)
    place.own(TRIM_HORIZON)
    place.put("a", "b")
    worker = Worker(around, Identity(ME), place.runtime, in_nobodys_background)
    worker.step_discovery()
    worker.step_batch()
    assert Collector.seen == [b"a", b"b"]
    with pytest.raises(SinkError):
        around.sink.write([], Batch("app", ME, ()))
    around.engine.prefetch([], Budget(1, 1, 1.0))
    with pytest.raises(BatchError):
        around.engine.fetch([], Budget(1, 1, 1.0))


class Collector(RecordProcessorBase):
    seen: ClassVar[list[bytes]] = []

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        self.seen.extend(record.binary_data for record in process_records_input.records)


class Busy:
    def __init__(self) -> None:
        self.steps = 0

    def step(self) -> None:
        self.steps += 1

    def averages(self) -> dict[str, tuple[float, ...]]:
        return {CPU: (10.0, 20.5)} if self.steps > 1 else {}

    def operating_range(self) -> dict[str, tuple[int, ...]]:
        return {CPU: (100,)}


def test_a_row_says_how_busy_how_far_behind_and_in_which_run() -> None:
    place = Place()
    table = WorkerTable(place.dynamodb, place.application, place.layout, place.runtime)
    heartbeat = Heartbeat(table, Identity(ME, "worker-000", "run", "zone-a"), place.clock, Busy())
    heartbeat.write()
    [row] = table.list()
    assert (row.averages, row.operating_range) == ({}, {})  # consistent: both or neither
    heartbeat.measure()
    heartbeat.measure()
    heartbeat.lag_ms = 1500
    heartbeat.state = WorkerState.RUNNING
    place.clock.advance(5)
    assert heartbeat.step()
    [row] = table.list()
    assert row.averages == {CPU: (10.0, 20.5)}
    assert row.operating_range == {CPU: (100,)}
    assert (row.lag_ms, row.slot, row.run_id, row.zone, row.beat) == (1500, "worker-000", "run", "zone-a", 2)
    assert row.last_update == int(place.clock.now())
    heartbeat.stop()
    assert table.list() == []


def test_a_heartbeat_that_was_never_written_leaves_nothing_to_remove() -> None:
    place = Place()
    table = WorkerTable(place.dynamodb, place.application, place.layout, place.runtime)
    Heartbeat(table, Identity(ME), place.clock).stop()
    assert table.list() == []


# --- a fleet that changes under a worker that runs ---


@pytest.mark.audit("B13")
def test_a_worker_stops_when_its_fleet_is_switched_back_to_2x() -> None:
    place = Place()
    around = open_surroundings(
        place.application,
        dynamodb=place.dynamodb,
        kinesis=place.kinesis,
        engine=MemoryEngine(place.kinesis, place.runtime),
        sink=place.sink,
        runtime=place.runtime,
    )
    [watch] = around.watches
    assert watch() is None
    place.dynamodb.update_item(
        TableName="app",
        Key={"leaseKey": {"S": "Migration3.0"}},
        UpdateExpression="SET cv = :version",
        ExpressionAttributeValues={":version": {"S": "CLIENT_VERSION_2X"}},
    )
    assert watch() is None, "it looks once a minute"
    place.clock.advance(VERIFY_SECONDS)
    assert "changed its protocol" in (watch() or "")


class Slow:
    """A clock whose wall time is an hour behind."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    def now(self) -> float:
        return self._clock.now() - 3600


@pytest.mark.audit("A3")
def test_batches_of_a_lease_that_is_made_again_are_numbered_by_the_clock_of_the_service() -> None:
    """By its own clock, a worker that is an hour behind would begin below the numbers that the former lease had."""
    place = Place()
    place.put("a")
    place.own(TRIM_HORIZON)
    place.work()
    [former] = place.sink.parts.values()
    lease = place.leases.get(LeaseKey(SHARD))
    assert lease is not None
    assert place.leases.delete(lease, forced=True)
    place.own(TRIM_HORIZON)
    place.put("b")
    place.runtime = Runtime(clock=Slow(place.clock), random=random.Random(1))
    place.work()
    later = [stored.part.number for stored in place.sink.parts.values() if stored is not former]
    assert later
    assert min(later) > former.part.number


def test_a_new_lease_is_not_read_before_the_time_is_known() -> None:
    world = World()
    time: list[float | None] = [None]
    run = world.worker("w1", service_time=lambda: time[0])
    world.assign(run)
    world.stream.put("shardId-000000000000", "a")
    run.round()
    assert not world.store.everything()
    time[0] = world.clock.now()
    world.clock.advance(2)
    run.until_idle()
    world.check_exactly_once()


def test_a_worker_refuses_a_stream_other_than_the_recorded_one() -> None:
    place = Place()
    stream = StreamIdentifier.single(STREAM)
    lookup = StreamLookup(place.kinesis, place.application, place.starts, place.runtime)
    lookup.confirm(stream)
    place.starts.record(StartPosition("orders", Position.TRIM_HORIZON, None, 1))
    with pytest.raises(OtherStream, match="belong to stream orders, and it is to read clicks"):
        lookup.confirm(stream)
    place.starts.record(StartPosition(STREAM, Position.TRIM_HORIZON, None, 1))
    lookup.confirm(stream)
