"""What the producer library packed into one record, on its way through a worker."""

from typing import Any

import pytest

from kcl_dagster.application import Application
from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.testing.local_processors import LocalProcessorHost
from kcl_dagster.worker.batch import Batch
from kcl_dagster.worker.events import EventKind, WorkerEvent
from kcl_dagster.worker.heartbeat import Identity
from kcl_dagster.worker.loop import Worker
from kcl_dagster.worker.opening import open_surroundings
from kcl_dagster.worker.processor import ProcessRecordsInput, RecordProcessorBase
from tests.doubles.aggregation import UserRecord, aggregate, sealed
from tests.doubles.engine import MemoryEngine
from tests.doubles.sink import RecordingSink
from tests.unit.worker.kit import in_nobodys_background
from tests.unit.worker.test_opening import ME, STREAM, Place

BROKEN = sealed(b"\xff\xff\xff")  # a good digest over what is no message


@pytest.mark.parametrize("to_processors", [False, True])
def test_a_broken_aggregate_is_counted_told_and_kept_as_it_came(to_processors: bool) -> None:
    place, seen, events = Place(), list[bytes](), list[WorkerEvent]()

    class Collector(RecordProcessorBase):
        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            seen.extend(record.binary_data for record in process_records_input.records)
            process_records_input.checkpointer.checkpoint()

    good = aggregate([UserRecord("a", b"one"), UserRecord("b", b"two")])
    for data in (good, BROKEN, b"plain"):
        place.kinesis.put_record(StreamName=STREAM, Data=data, PartitionKey="key")
    place.own(TRIM_HORIZON)
    engine: Any = MemoryEngine(place.kinesis, place.runtime)
    into: dict[str, Any] = {"engine": engine, "sink": place.sink}
    if to_processors:
        into = {"processors": LocalProcessorHost(Collector, engine)}
    around: Any = open_surroundings(
        place.application,
        dynamodb=place.dynamodb,
        kinesis=place.kinesis,
        runtime=place.runtime,
        on_event=events.append,
        **into,
    )
    worker = Worker(around, Identity(ME), place.runtime, in_nobodys_background)
    worker.step_discovery()
    report = worker.step_batch()

    assert (seen or [row.data for row in place.sink.rows()]) == [b"one", b"two", BROKEN, b"plain"]
    (told,) = [event for event in events if event.kind is EventKind.BROKEN_AGGREGATE]
    assert told.is_trouble
    assert told.facts == {"count": 1}
    assert report.broken_aggregates == 1
    assert place.leases.scan().leases[0].checkpoint != TRIM_HORIZON  # and the shard goes on


@pytest.mark.audit("B15")
def test_shards_that_had_no_room_in_a_batch_are_first_in_the_next_one() -> None:
    place = Place()
    place.kinesis.create_stream(StreamName="wide", ShardCount=4)
    batch: Any = {"max_records": 1, "prefetch": False}
    place.application = Application(name="app", streams=("wide",), batch=batch)
    shards = [f"shardId-{number:012d}" for number in range(4)]
    for number, shard in enumerate(shards):
        place.leases.create(Lease(LeaseKey(shard), shard, owner=ME, checkpoint=TRIM_HORIZON))
        for _ in range(3):
            key = str(number * 2**126)
            place.kinesis.put_record(StreamName="wide", Data=b"x", PartitionKey="k", ExplicitHashKey=key)
    around: Any = open_surroundings(
        place.application,
        dynamodb=place.dynamodb,
        kinesis=place.kinesis,
        engine=MemoryEngine(place.kinesis, place.runtime),
        sink=place.sink,
        runtime=place.runtime,
    )
    worker = Worker(around, Identity(ME), place.runtime, in_nobodys_background)
    worker.step_discovery()
    read = []
    for _ in range(12):
        (shard,) = [lease.shard_id for lease in worker.step_batch().leases if lease.records]
        read.append(shard)
        place.clock.advance(2)
    assert read == shards * 3


class FailingSink(RecordingSink):
    """Stores a batch with the third attempt."""

    def write(self, data: Any, batch: Batch) -> None:
        super().write(data, batch)
        if self.writes < 3:
            raise RuntimeError("not yet")


def test_a_batch_that_is_tried_again_counts_and_tells_of_its_broken_aggregates_once() -> None:
    place, events = Place(), list[WorkerEvent]()
    for data in (BROKEN, b"plain", BROKEN):
        place.kinesis.put_record(StreamName=STREAM, Data=data, PartitionKey="key")
    place.own(TRIM_HORIZON)
    sink = FailingSink()
    around: Any = open_surroundings(
        place.application,
        dynamodb=place.dynamodb,
        kinesis=place.kinesis,
        engine=MemoryEngine(place.kinesis, place.runtime),
        sink=sink,
        runtime=place.runtime,
        on_event=events.append,
    )
    worker = Worker(around, Identity(ME), place.runtime, in_nobodys_background)
    worker.step_discovery()
    counted = []
    for _ in range(3):
        counted.append(worker.step_batch().broken_aggregates)
        place.clock.advance(2)
    assert sink.writes == 3
    assert counted == [0, 0, 2]
    assert [event.facts for event in events if event.kind is EventKind.BROKEN_AGGREGATE] == [{"count": 2}]
