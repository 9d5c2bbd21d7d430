"""A team stops its Java application, starts ours on the same tables, and goes back."""

from collections import Counter

import pytest

from kcl_dagster.application import Application
from kcl_dagster.emulator import Emulator
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.worker.events import EventKind
from tests.interop.conftest import JavaFleet, Stream, Tables, until
from tests.interop.java_kcl import JavaWorker, Kcl
from tests.interop.ours import OurWorker, leading, working

PATIENCE = 120.0  # a JVM on a busy machine, then the KCL's own waits before its first lease


def texts(*consumers: JavaWorker | OurWorker) -> list[str]:
    found = []
    for consumer in consumers:
        if isinstance(consumer, JavaWorker):
            found += [record.data for record in consumer.records]
        else:
            found += [row.data.decode() for row in consumer.rows()]
    return found


def assert_in_order(worker: JavaWorker) -> None:
    for shard in {record.shard_id for record in worker.records}:
        places = [(int(r.sequence), r.sub_sequence) for r in worker.records if r.shard_id == shard]
        assert places == sorted(places)


def test_each_goes_on_exactly_where_the_other_stopped(
    kcl: Kcl, aws: Emulator, application: Application, stream: Stream, tables: Tables, java: JavaFleet
) -> None:
    stream.create(2)
    stream.put(100)
    for _ in range(6):
        stream.put_aggregate(20)

    # Java consumes a part and stops in the middle of its batches, perhaps inside an aggregate.
    with java.worker("java-1", records=90, batch=500) as first:
        first.wait(lambda worker: bool(worker.said("LIMIT")), PATIENCE, "stops in the middle of a batch")
        first.stop()
    assert len(first.records) == 90
    assert tables.leader() is None
    stopped_at = {key: item["checkpoint"]["S"] for key, item in tables.leases().items()}
    assert (f"{application.name}-CoordinatorState" in tables.names()) == (kcl.layout == "legacy")

    # We go on after its checkpoints, and leave a batch that was announced and never written.
    with leading(aws, application) as leader, working(aws, application) as ours:
        until(lambda: tables.counts()[ours.id] == 2, 120.0, "Java's leases expire and are ours", leader, ours)
        until(lambda: len(ours.rows()) >= 60, 60.0, "we consume", leader, ours)
        ours.sink.refuses.set()
        stream.put(30)
        until(ours.sink.refused.is_set, 30.0, "a batch is announced", leader, ours)
        leader.resign()
        ours.stop()
    assert not leader.errors()
    assert not ours.processing.conflicts()
    begun = {row.lease: row for row in reversed(ours.rows())}
    for shard, row in begun.items():
        assert Checkpoint(row.sequence_number) >= Checkpoint(stopped_at[shard])
    assert set(tables.owners().values()) == {None}, f"released at once, not left to expire; {leader.tail()}"
    pinned = {key for key, item in tables.leases().items() if "pendingCheckpoint" in item}
    assert pinned

    # Java takes over, is told of what we announced, reads a shard to its end and goes on with its children.
    left_at = {key: item["checkpoint"]["S"] for key, item in tables.leases().items()}
    stream.split("shardId-000000000000")
    stream.put(60)
    with java.worker("java-2") as second:
        second.wait(
            lambda worker: set(texts(first, ours, worker)) >= set(stream.produced), PATIENCE, "reads the rest"
        )
        second.wait(lambda worker: len(worker.begun()) == 4, PATIENCE, "starts the children")
        second.stop()
    told = second.begun()
    assert {shard: told[shard][1] for shard in left_at} == left_at
    assert {shard for shard in left_at if told[shard][3] != "-"} == pinned
    assert [event.fields[0] for event in second.said("SHARD_ENDED")] == ["shardId-000000000000"]
    assert not any("pendingCheckpoint" in item for item in tables.leases().values())

    counts = Counter(texts(first, ours, second))
    assert counts == Counter(stream.produced), "every record once: none lost, none repeated"
    assert_in_order(first)
    assert_in_order(second)

    # And back again: nothing is left to do but to clean up after the finished shard.
    with leading(aws, application), working(aws, application, "worker-000:again") as again:
        until(lambda: tables.counts()[again.id] == 3, 120.0, "we hold what is left", again)
        until(lambda: "shardId-000000000000" not in tables.leases(), 60.0, "the finished lease is deleted", again)
        stream.put(5)
        until(lambda: len(again.rows()) >= 5, 30.0, "we read what came since", again)
        again.stop()
    assert sorted(texts(again)) == sorted(stream.produced[-5:])


def test_java_joins_an_application_that_we_began(
    kcl: Kcl, aws: Emulator, application: Application, stream: Stream, tables: Tables, java: JavaFleet
) -> None:
    if kcl.layout == "legacy":
        pytest.skip("a new application has one table, which KCL 3.0-3.4 cannot read")
    stream.create(2)
    stream.put(40)
    with leading(aws, application), working(aws, application) as ours:
        until(lambda: len(ours.rows()) >= 40, 60.0, "we consume")
        ours.stop()
    assert not ours.told(EventKind.LEASE_LOST)
    stream.put(40)
    with java.worker("java-1") as worker:
        worker.wait(lambda java: len(java.records) >= 40, PATIENCE, "goes on")
        worker.stop()
    assert Counter(texts(ours, worker)) == Counter(stream.produced)
