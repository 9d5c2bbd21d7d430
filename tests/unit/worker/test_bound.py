"""A bounded run reads what had arrived by a moment, and stops."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from kcl_dagster.application import BatchSettings, FailurePolicy
from kcl_dagster.model.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.shard import MAX_HASH_KEY, HashRange
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.tables.control import Control
from kcl_dagster.tables.places import TableLayout
from kcl_dagster.worker.bound import PATIENCE_SECONDS, Bound, remainder
from kcl_dagster.worker.leader_watch import LockWatch
from kcl_dagster.worker.stop import StopReason
from tests.unit.worker.kit import Data, Run, World
from tests.unit.worker.test_leaderless import A, B

NOW = 1_000.0
ARRIVAL_MARGIN = 10.0
REACHED = int(NOW + ARRIVAL_MARGIN)
BOUND = Bound(NOW, ARRIVAL_MARGIN)
Left = tuple[tuple[LeaseKey, ...], Mapping[LeaseKey, str]]


def a_lease(shard: str, **facts: Any) -> Lease:
    return Lease(LeaseKey(shard), shard, **{"checkpoint": TRIM_HORIZON, **facts})


def left_of(*leases: Lease, rows: tuple[WorkerRow, ...] = (), control: Control | None = None) -> Left:
    found = remainder(BOUND, leases, rows, control or Control(), {})
    return found.waiting, found.stuck


def test_a_lease_is_left_until_it_is_stored_through_the_moment_and_the_margin() -> None:
    assert remainder(BOUND, [a_lease(A, stored_through=REACHED)], (), Control(), {}).is_empty
    for tip in (None, 0, int(NOW), REACHED - 1):
        assert left_of(a_lease(A, stored_through=tip)) == ((A,), {})


def test_a_finished_lease_is_not_left() -> None:
    leases = [a_lease(A, checkpoint=SHARD_END), a_lease(B, stored_through=REACHED, parents=frozenset({A}))]
    assert remainder(BOUND, leases, (), Control(), {}).is_empty


def test_nothing_is_caught_up_while_a_shard_has_no_lease() -> None:
    """Such as the children of a finished shard that Kinesis did not name."""
    half = MAX_HASH_KEY // 2
    first = a_lease(A, stored_through=REACHED, hash_range=HashRange(0, half))
    second = a_lease(B, stored_through=REACHED, hash_range=HashRange(half + 1, MAX_HASH_KEY))
    left = remainder(BOUND, [first, replace(second, checkpoint=SHARD_END)], (), Control(), {})
    assert not left.is_empty
    assert not left.is_stuck
    assert str(left) == f"the shard with the hash keys {half + 1}..{MAX_HASH_KEY} has no lease yet"
    assert remainder(BOUND, [first, second], (), Control(), {}).is_empty
    unknown = replace(first, hash_range=None)
    assert remainder(BOUND, [unknown], (), Control(), {}).is_empty, "a lease of which no hash keys are known"


def test_leases_of_former_streams_are_not_waited_for() -> None:
    """The leader of an application with several streams keeps them for their checkpoints."""
    read, anew, left = (
        StreamIdentifier("orders", "123456789012", 100),
        StreamIdentifier("orders", "123456789012", 200),
        StreamIdentifier("clicks", "123456789012", 100),
    )
    leases = [
        Lease(LeaseKey(stream.lease_key(A)), A, checkpoint=Checkpoint("1"), stream=stream, stored_through=through)
        for stream, through in ((read, 0), (anew, REACHED), (left, 0))
    ]
    bound = replace(BOUND, streams=["orders"])
    assert remainder(bound, leases, (), Control(), {}).is_empty
    again = [replace(lease, stored_through=0) for lease in leases]
    assert remainder(bound, again, (), Control(), {}).waiting == (leases[1].key,)


def test_nothing_is_read_of_an_application_without_an_open_lease() -> None:
    for leases in ([], [a_lease(A, checkpoint=SHARD_END)]):
        left = remainder(BOUND, leases, (), Control(), {})
        assert not left.is_empty
        assert not left.is_stuck
        assert str(left) == "the application has no open lease yet"


@pytest.mark.parametrize(
    ("row", "control", "why"),
    [
        (WorkerRow(WorkerId("w"), 1, slot="w", stopped=(LeaseKey(A),)), Control(), "stopped: it keeps failing"),
        (
            WorkerRow(WorkerId("w"), 1, slot="w", stopped=(LeaseKey(A),), why_stopped={LeaseKey(A): "E: no"}),
            Control(),
            "stopped: E: no",
        ),
        (WorkerRow(WorkerId("w"), 1), Control(), "w, a Java worker, reads it and does not say through when"),
        (WorkerRow(WorkerId("w"), 1, slot="w"), Control(paused=True, changed_by="ann"), "paused by ann"),
        (WorkerRow(WorkerId("w"), 1, slot="w"), Control(leases=frozenset({LeaseKey(A)})), "paused by an operator"),
    ],
)
def test_a_lease_that_is_not_read_now_is_stuck(row: WorkerRow, control: Control, why: str) -> None:
    assert left_of(a_lease(A, owner=WorkerId("w")), rows=(row,), control=control) == ((), {A: why})


def test_the_descendants_of_a_stuck_lease_are_stuck() -> None:
    child, grandchild, other = "shardId-2", "shardId-3", "shardId-4"
    leases = (
        a_lease(A),
        a_lease(child, parents=frozenset({A})),
        a_lease(grandchild, parents=frozenset({child})),
        a_lease(other, parents=frozenset({B})),
    )
    waiting, stuck = left_of(*leases, control=Control(leases=frozenset({LeaseKey(A)})))
    assert waiting == (other,)
    assert stuck == {
        A: "paused by an operator",
        child: f"it waits for its parent {A}",
        grandchild: f"it waits for its parent {child}",
    }


def test_a_long_list_is_cut() -> None:
    left = remainder(BOUND, [a_lease(f"shardId-{n}") for n in range(9)], (), Control(), {})
    assert str(left).endswith("shardId-4: not read yet; and 4 more")


# A worker


def bounded(world: World, name: str = "bounded", **bound: Any) -> Run:
    run = world.worker(name, bound=Bound(world.clock.now(), ARRIVAL_MARGIN, **bound))
    run.worker.start()
    return run


def go_on(world: World, *runs: Run, seconds: int = 60) -> None:
    """Until the first of the runs wants to stop."""
    for _ in range(seconds):
        for run in runs:
            run.worker.step_renewal()
            run.worker.step_batch()
            run.worker.step_housekeeping()
        if runs[0].worker.stop.is_requested():
            return
        world.clock.advance(1)


def reason(run: Run) -> tuple[StopReason | None, str]:
    return run.worker.stop.reason, str(run.worker.stop)


def test_a_bounded_worker_reads_what_is_there_and_stops() -> None:
    world = World(shards=2)
    world.stream.put(A, *"abcdefgh")
    run = bounded(world)
    began = world.clock.now()
    world.assign(run)
    go_on(world, run)
    assert run.worker.stop.reason is StopReason.CAUGHT_UP
    assert world.clock.now() - began <= ARRIVAL_MARGIN + 5
    run.worker.shut_down()
    for key in (A, B):
        lease = world.lease(key)
        assert lease.owner is None
        assert lease.stored_through is not None
        assert lease.stored_through >= began + ARRIVAL_MARGIN  # the row says it, and not only the worker's memory
    world.check_exactly_once()


def test_a_bounded_worker_reads_in_short_batches() -> None:
    """What it is to read is there: with batches of minutes it would wait for what is not."""
    world = World(batch=BatchSettings(max_seconds=120))
    assert bounded(world).worker.settings.budget.seconds == 5
    assert world.worker("other").worker.settings.budget.seconds == 120


def test_children_of_a_shard_that_is_split_meanwhile_are_read_too() -> None:
    world = World()
    world.stream.put(A, *"abcdefgh")
    run = bounded(world)
    world.assign(run)
    run.round()
    for child in world.stream.split(A):
        world.stream.put(child, *"xy")
    go_on(world, run, seconds=20)
    assert not run.worker.stop.is_requested()  # no worker has the children
    world.assign(run, *(key for key in world.lease_keys() if not world.lease(key).is_finished))
    go_on(world, run)
    assert run.worker.stop.reason is StopReason.CAUGHT_UP
    world.check_exactly_once()


def test_a_bounded_worker_waits_for_shards_that_another_worker_reads() -> None:
    world = World(shards=2)
    run, other = bounded(world), world.worker("other")
    other.worker.start()
    world.assign(run, A)
    world.assign(other, B)
    world.stream.put(B, *"abc")
    go_on(world, run, seconds=40)
    assert not run.worker.stop.is_requested()
    go_on(world, run, other)
    assert run.worker.stop.reason is StopReason.CAUGHT_UP
    world.check_exactly_once()


def test_a_stream_that_never_pauses_does_not_keep_a_bounded_worker() -> None:
    world = World()
    run = bounded(world)
    world.assign(run)
    for _ in range(60):
        world.stream.arrival_ms = round(world.clock.now() * 1000)
        world.stream.put(A, *"abcdef")  # more than a batch takes
        run.round()
        run.worker.step_housekeeping()
        if run.worker.stop.is_requested():
            break
        world.clock.advance(1)
    assert run.worker.stop.reason is StopReason.CAUGHT_UP
    assert len(world.store.everything()) < len(world.stream.everything())


def test_a_bounded_worker_ends_when_only_a_stopped_shard_is_left() -> None:
    def refuses(data: Data) -> None:
        if any(row[0] == A for row in data):
            raise ValueError("it cannot be stored")

    world = World(shards=2, batch=BatchSettings(failure=FailurePolicy(attempts=2)))
    world.stream.put(A, "a")
    world.stream.put(B, "b")
    run = bounded(world)
    run.sink.refuses = refuses
    world.assign(run)
    go_on(world, run, seconds=200)
    why, text = reason(run)
    assert why is StopReason.STUCK
    assert f"{A}: stopped: " in text
    assert B not in text
    assert "b" in [row[2] for row in world.store.everything()]


def test_a_bounded_worker_ends_when_only_a_paused_shard_is_left() -> None:
    world = World(shards=2)

    class Paused(LockWatch):
        def control(self) -> Control:
            return Control(leases=frozenset({LeaseKey(A)}), changed_by="ann")

    watch = Paused(world.service, TableLayout.single(world.application), world.runtime)
    run = world.worker("bounded", bound=Bound(world.clock.now(), ARRIVAL_MARGIN), leader=watch)
    run.worker.start()
    world.assign(run, B)
    go_on(world, run)
    assert reason(run) == (StopReason.STUCK, f"{StopReason.STUCK}: {A}: paused by ann")


def test_a_shard_that_no_worker_reads_is_given_up_after_a_while() -> None:
    world = World(shards=2)
    run = bounded(world)
    began = world.clock.monotonic()
    world.assign(run, B)
    go_on(world, run, seconds=400)
    assert world.clock.monotonic() - began >= PATIENCE_SECONDS
    why, text = reason(run)
    assert why is StopReason.STUCK
    assert f"nothing has moved for 300 s: {A}: not read yet" in text


def test_code_that_works_for_long_is_not_given_up() -> None:
    world = World(shards=2)
    run = bounded(world)
    world.assign(run, B)
    with run.worker.processing.running([LeaseKey(B)]):
        for _ in range(400):
            run.worker.step_renewal()
            run.worker.is_ready()
            run.worker.step_housekeeping()
            world.clock.advance(1)
    assert not run.worker.stop.is_requested()


def test_a_worker_that_cannot_read_yet_does_not_look() -> None:
    world = World()
    world.leases.renew(replace(world.lease(A)), stored_through=int(world.clock.now()) + 100)
    run = world.worker("bounded", bound=Bound(world.clock.now(), ARRIVAL_MARGIN), is_ready=lambda: False)
    run.worker.start()
    go_on(world, run, seconds=10)
    assert not run.worker.stop.is_requested()


def test_a_table_that_does_not_answer_is_asked_again() -> None:
    world = World()
    run = bounded(world)
    world.assign(run)
    refused: list[str] = []

    def refuse(method: str, request: Mapping[str, Any]) -> None:
        if method == "scan" and "FilterExpression" not in request and len(refused) < 3:
            refused.append(method)
            raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "Scan")

    run.client.before.append(refuse)
    go_on(world, run)
    assert refused
    assert run.worker.stop.reason is StopReason.CAUGHT_UP


def test_a_worker_without_a_bound_goes_on() -> None:
    world = World()
    run = world.worker("endless")
    run.worker.start()
    world.assign(run)
    go_on(world, run, seconds=100)
    assert not run.worker.stop.is_requested()


def test_a_checkpoint_says_nothing_about_the_time() -> None:
    assert left_of(a_lease(A, checkpoint=Checkpoint("7"))) == ((A,), {})
