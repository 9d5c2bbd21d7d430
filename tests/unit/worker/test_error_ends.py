"""Every class of error has an end: the shard is stopped and shown, or the worker ends."""

import pytest

from kcl_dagster.errors import (
    AccessDenied,
    BatchError,
    ConfigurationError,
    ProcessLost,
    RecordRefused,
    SinkError,
    TransformError,
)
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.worker_row import SHARDS_TOLD
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.stop import StopReason
from tests.unit.worker.failing import A, B, stored, work, world_with
from tests.unit.worker.kit import Data, World


@pytest.mark.audit("B1")
@pytest.mark.parametrize(
    "error",
    [
        SinkError("no such bucket"),
        BatchError("Spark went away"),
        AccessDenied("s3:PutObject"),
        TransformError("no"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_error_is_retried_in_silence_for_ever(error: Exception) -> None:
    world, run = world_with({"action": "skip", "attempts": 3, "outage_attempts": 4}, shards=2)
    world.assign(run)
    world.stream.put(A, *"ab!")
    world.stream.put(B, *"cde")

    def refuse(data: Data) -> None:
        if any(shard == A for shard, _, _ in data):
            raise error

    run.sink.refuses = refuse
    work(world, run, 120)

    assert stored(world, B) == "cde"
    assert EventKind.RECORD_SKIPPED not in run.kinds()
    [event] = [event for event in run.events if event.kind is EventKind.SHARD_STOPPED]
    assert event.lease == A
    assert str(error) in event.message
    report = run.worker.step_batch()
    assert report.stopped == (A,)
    assert str(error) in report.why_stopped[LeaseKey(A)]

    run.sink.refuses = None  # the outage ends
    work(world, run, 61)
    world.check_exactly_once()
    assert run.worker.step_batch().stopped == ()


@pytest.mark.audit("B1")
def test_the_shard_that_the_sink_refuses_is_found_and_the_others_go_on() -> None:
    world, run = world_with({}, shards=9)
    world.assign(run)
    shards = sorted(world.stream.shards)
    for shard in shards:
        world.stream.put(shard, *"ab")
    writes: list[int] = []

    def refuse(data: Data) -> None:
        writes.append(len({shard for shard, _, _ in data}))
        if any(shard == shards[5] for shard, _, _ in data):
            raise SinkError("the table does not take it")

    run.sink.refuses = refuse
    work(world, run, 200)
    assert [shard for shard in shards if not stored(world, shard)] == [shards[5]]
    assert run.worker.step_batch().stopped == (shards[5],)
    for shard in shards:
        world.stream.put(shard, *"cd")
    writes.clear()
    run.round()
    run.round()
    assert max(writes) == 8  # the healthy ones are together again


def test_every_stopped_shard_is_in_the_row_of_its_worker() -> None:
    """`status`, the leader and the check know the stopped shards of a worker by its row."""
    world, run = world_with({}, shards=30)
    world.assign(run)
    shards = sorted(world.stream.shards)
    for shard in shards:
        world.stream.put(shard, "a")

    def refuse(_: Data) -> None:
        raise SinkError("the table does not take it")

    run.sink.refuses = refuse
    work(world, run, 600)
    run.worker.step_heartbeat()
    [row] = world.worker_table(world.service).list()
    assert row.stopped == tuple(shards)
    assert row.why_stopped is not None
    assert len(row.why_stopped) == SHARDS_TOLD


@pytest.mark.audit("B1")
def test_a_stopped_shard_is_tried_once_a_minute() -> None:
    world, run = world_with({"outage_attempts": 3})
    world.assign(run)
    world.stream.put(A, "a")
    tries: list[float] = []

    def refuse(_: Data) -> None:
        tries.append(world.clock.monotonic())
        raise SinkError("down")

    run.sink.refuses = refuse
    work(world, run, 900)
    last_hour = [at for at in tries if at > tries[0] + 300]
    assert 8 <= len(last_hour) <= 22


@pytest.mark.audit("B1")
def test_an_outage_stops_a_shard_after_max_age_however_old_its_records_are() -> None:
    world, run = world_with({"max_age": 60.0, "outage_attempts": 1000})
    world.assign(run)
    world.stream.put(A, "a")
    world.stream.arrival_ms = round((world.clock.now() - 100) * 1000)

    def refuse(_: Data) -> None:
        raise SinkError("down")

    run.sink.refuses = refuse
    work(world, run, 50)
    assert EventKind.SHARD_STOPPED not in run.kinds()
    work(world, run, 100)
    assert run.kinds().count(EventKind.SHARD_STOPPED) == 1


@pytest.mark.audit("B1")
@pytest.mark.parametrize(("action", "left"), [("dead_letter", "ab"), ("skip", "ab"), ("bisect", "a"), ("stop", "")])
def test_a_record_that_the_sink_cannot_store_meets_the_failure_policy(action: str, left: str) -> None:
    policy = {"action": action, "attempts": 1, "dead_letter_path": "/letters"}
    world, run = world_with(policy, shards=2)
    world.assign(run)
    world.stream.put(A, *"a!b")
    world.stream.put(B, *"c")

    def refuse(data: Data) -> None:
        if any(text == "!" for _, _, text in data):
            raise RecordRefused("column json has an invalid value")

    run.sink.refuses = refuse
    work(world, run)
    assert (stored(world, A), stored(world, B)) == (left, "c")
    assert len(run.letters.letters) == (action == "dead_letter")
    assert run.worker.step_batch().stopped == ((A,) if action in {"bisect", "stop"} else ())


@pytest.mark.audit("B1")
def test_an_error_of_the_configuration_ends_the_worker_with_its_message() -> None:
    world, run = world_with({"action": "skip", "attempts": 1})
    world.assign(run)
    world.stream.put(A, "a")

    def refuse(_: Data) -> None:
        raise ConfigurationError("partition_by names ['kind'], which the output does not have")

    run.sink.refuses = refuse
    run.worker.start()
    run.round()
    assert run.worker.stop.reason is StopReason.MISCONFIGURED
    with pytest.raises(ConfigurationError, match="partition_by names"):
        run.worker.run()
    assert world.lease(A).owner is None
    assert EventKind.RECORD_SKIPPED not in run.kinds()


@pytest.mark.audit("B16")
def test_a_record_that_crashes_python_is_found_and_meets_the_failure_policy() -> None:
    world, run = world_with({"action": "skip", "attempts": 2})
    world.assign(run)
    world.stream.put(A, *"abc!def")

    def crash(data: Data) -> None:
        if any(text == "!" for _, _, text in data):
            raise ProcessLost("Python worker exited unexpectedly (crashed)")

    run.sink.refuses = crash
    work(world, run, 200)
    assert stored(world) == "abcdef"
    assert run.kinds().count(EventKind.RECORD_SKIPPED) == 1


@pytest.mark.audit("B16")
def test_a_process_that_is_lost_once_in_a_while_narrows_nothing() -> None:
    world, run = world_with({"action": "skip", "attempts": 3})
    world.assign(run)
    world.stream.put(A, *"abc")
    errors = iter([ProcessLost("gone"), BatchError("no executor"), ProcessLost("gone"), BatchError("no"), None])

    def lose(_: Data) -> None:
        if (error := next(errors)) is not None:
            raise error

    run.sink.refuses = lose
    work(world, run, 60)
    assert {EventKind.RECORD_SKIPPED, EventKind.BATCH_NARROWED}.isdisjoint(run.kinds())
    world.check_exactly_once()


def test_a_child_whose_parents_row_cannot_be_read_is_shown_as_stopped_until_it_can() -> None:
    world = World()
    children = world.stream.split(A)
    for child in children:
        world.create(child)
    world.stream.put(children[0], "x")
    run = world.worker("w1")
    world.assign(run, *children)
    sound = world.service.get_item(TableName="clicks", Key={"leaseKey": {"S": A}})["Item"]
    world.service.put_item(TableName="clicks", Item={**sound, "checkpoint": {"N": "5"}})
    run.round()
    run.worker.step_heartbeat()
    work(world, run, 900)
    run.worker.step_heartbeat()
    row = run.worker.heartbeat
    assert set(row.stopped) == set(row.failing) == set(children)
    assert all(A in why for why in row.why_stopped.values())
    assert set(run.reports[-1].why_stopped) == set(children)
    assert run.kinds().count(EventKind.SHARD_STOPPED) == 2
    assert run.kinds().count(EventKind.FETCH_FAILED) < 100  # it pauses between its looks
    assert row.lag_ms is not None
    assert row.lag_ms >= 800_000
    world.service.put_item(TableName="clicks", Item=sound)
    work(world, run, 70)
    assert not row.stopped  # its parent is not finished, and can be read
    assert not run.reports[-1].stopped
    world.service.put_item(TableName="clicks", Item={**sound, "checkpoint": {"S": "SHARD_END"}})
    work(world, run, 70)
    assert stored(world, children[0]) == "x"
