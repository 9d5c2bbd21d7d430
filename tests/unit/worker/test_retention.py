"""Data loss is never silent: neither before nor after the fact."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError

from kcl_dagster.errors import SinkError, StreamRecreated, Throttled
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.worker.batch import Budget, Progress, Range
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.report import Outcome
from kcl_dagster.worker.retention import Loss, RetentionWatch, loss_in
from tests.doubles.clock import FakeClock
from tests.unit.worker.kit import MemoryEngine, MemoryFetched, Run, World

A = "shardId-000000000000"
DAY = 86_400.0
STREAM = StreamIdentifier.single("orders")


def read(after: Checkpoint = TRIM_HORIZON, **found: object) -> Progress:
    return Progress(Range(LeaseKey(A), STREAM, A, after, 1), **found)  # type: ignore[arg-type]


def test_every_step_towards_the_retention_is_said_once() -> None:
    watch = RetentionWatch(lambda _: DAY, FakeClock())
    used = [0.1, 0.5, 0.6, 0.7499, 0.75, 0.8, 0.95, 0.99, 0.4, 0.55]
    said = [watch.warning(read(millis_behind=round(share * DAY * 1000))) for share in used]
    assert said == [None, 0.5, None, None, 0.75, None, 0.9, None, None, 0.5]


def test_a_stream_is_not_described_for_every_batch() -> None:
    clock, asked = FakeClock(), 0

    def describe(_: StreamIdentifier) -> float:
        nonlocal asked
        asked += 1
        return DAY

    watch = RetentionWatch(describe, clock)
    for _ in range(100):
        watch.warning(read(millis_behind=1))
        clock.advance(10)
    assert asked == 2


def test_a_retention_that_cannot_be_found_out_warns_of_nothing() -> None:
    clock = FakeClock()
    answers: Iterator[Throttled | float] = iter([Throttled("slow"), DAY, Throttled("slow")])

    def describe(_: StreamIdentifier) -> float:
        answer = next(answers)
        if isinstance(answer, Throttled):
            raise answer
        return answer

    watch = RetentionWatch(describe, clock)
    assert watch.warning(read(millis_behind=86_000_000)) is None
    clock.advance(600)
    assert watch.warning(read(millis_behind=86_000_000)) == 0.9
    clock.advance(600)
    assert watch.retention(STREAM) == DAY  # what was known last


@pytest.mark.parametrize(
    ("progress", "loss"),
    [
        pytest.param(read(), None, id="nothing read from the start"),
        pytest.param(read(start_trimmed=True), None, id="no record was processed before"),
        pytest.param(read(Checkpoint("LATEST")), None, id="the start is not known"),
        pytest.param(read(Checkpoint("5")), None, id="the record at the checkpoint is there"),
        pytest.param(
            read(Checkpoint("5"), start_trimmed=True, first="9", first_arrival_ms=40_000),
            Loss("5", "9", 60.0),
            id="it is gone",
        ),
        pytest.param(read(Checkpoint("5"), gone=True, ended=True), Loss("5", None), id="the shard is gone"),
    ],
)
def test_what_was_lost(progress: Progress, loss: Loss | None) -> None:
    assert loss_in(progress, None, now=100.0) == loss


@pytest.mark.parametrize(
    ("age", "retention", "is_lost"),
    [
        pytest.param(DAY, DAY, True, id="over"),
        pytest.param(DAY - 599, DAY, True, id="clocks differ"),
        pytest.param(DAY - 601, DAY, False, id="in time"),
        pytest.param(3 * DAY, 7 * DAY, False, id="kept longer"),
        pytest.param(9 * DAY, None, False, id="nobody knows"),
    ],
)
@pytest.mark.parametrize("begins_at_latest", [True, False])
def test_the_first_records_of_a_shard_may_be_lost_before_anybody_has_read_it(
    age: float, retention: float | None, is_lost: bool, begins_at_latest: bool
) -> None:
    """From the moment on at which nothing lay in it, the stream's retention has to be over."""
    now = 2_000_000_000.0
    empty_at = int(now - age)
    if begins_at_latest:
        progress, stored_through = read(Checkpoint("LATEST"), first="9"), None
        progress = replace(progress, range=replace(progress.range, timestamp_ms=empty_at * 1000))
    else:
        progress, stored_through = read(first="9"), empty_at
    expected = Loss(str(progress.range.after), "9") if is_lost else None
    assert loss_in(progress, stored_through, now, lambda: retention) == expected


def test_a_batch_that_was_begun_at_the_start_of_a_shard_is_not_looked_at_again() -> None:
    begun = read(first="9")
    begun = replace(begun, range=replace(begun.range, through=Checkpoint("9")))
    assert loss_in(begun, 1.0, 2_000_000_000.0, lambda: DAY) is None


@pytest.mark.parametrize(
    ("age_of_the_tip", "is_lost"), [(0, False), (3600, False), (23.9 * 3600, True), (1e6, True)]
)
def test_a_quiet_shard_is_no_data_loss(age_of_the_tip: float, is_lost: bool) -> None:
    """The record at the checkpoint left the stream after days of silence, and the shard was read all the time."""
    trimmed = read(Checkpoint("5"), start_trimmed=True, first="9")
    now = 2_000_000_000.0
    assert (loss_in(trimmed, now - age_of_the_tip, now) is not None) is is_lost


def test_the_tip_that_was_seen_travels_to_the_next_owner() -> None:
    world = World()
    world.stream.put(A, *"abc")
    first = world.worker("w1")
    world.assign(first)
    first.until_idle()
    assert world.lease(A).stored_through is None
    for _ in range(1000):
        world.clock.advance(9)
        first.worker.step_renewal()
        first.worker.step_batch()
    seen = world.lease(A).stored_through
    assert seen is not None
    assert world.clock.now() - seen < 30

    world.stream.shards[A].trimmed_through = 102
    world.stream.put(A, "d")
    second = world.worker("w2")
    world.assign(second)
    second.until_idle()
    assert EventKind.DATA_LOST not in second.kinds()
    assert world.lease(A).checkpoint == Checkpoint("103")


def reader_whose_records_were_trimmed(policy: str) -> tuple[World, Run]:
    world = World(batch={"on_data_loss": policy})
    world.stream.put(A, *"abc")
    run = world.worker("w1")
    world.assign(run)
    run.until_idle()
    world.clock.advance(2 * DAY)  # nobody reads
    run = world.worker("w2")
    world.assign(run)
    world.stream.put(A, *"def")
    world.stream.shards[A].trimmed_through = 104  # e is gone, and so is everything before
    return world, run


def test_a_loss_stops_the_shard_and_says_from_where_to_where() -> None:
    world, run = reader_whose_records_were_trimmed("stop")
    for _ in range(30):
        run.round()
        world.clock.advance(1)
    [event] = [event for event in run.events if event.kind is EventKind.DATA_LOST]
    assert (event.facts["since"], event.facts["until"]) == ("102", "105")
    assert world.lease(A).checkpoint == Checkpoint("102")
    assert run.worker.step_batch().stopped == (A,)


def test_a_loss_may_be_gone_on_from() -> None:
    world, run = reader_whose_records_were_trimmed("continue")
    run.until_idle()
    assert run.kinds().count(EventKind.DATA_LOST) == 1
    assert world.lease(A).checkpoint == Checkpoint("105")
    assert world.store.everything()[-1] == (A, 105, "f")


@pytest.mark.parametrize("policy", ["stop", "continue"])
def test_a_shard_whose_unread_records_have_all_left_the_stream_has_lost_them(policy: str) -> None:
    """The first look finds an empty shard, which looks like one that was read to its end."""
    world = World(batch={"on_data_loss": policy})
    world.stream.put(A, *"abc")
    run = world.worker("w1")
    world.assign(run)
    run.until_idle()
    for _ in range(20):
        world.clock.advance(9)
        run.worker.step_renewal()
        run.worker.step_batch()
    world.stream.put(A, *"def")
    world.clock.advance(2 * DAY)
    world.stream.shards[A].trimmed_through = 105
    run = world.worker("w2")
    world.assign(run)
    run.round()
    [event] = [event for event in run.events if event.kind is EventKind.DATA_LOST]
    assert (event.facts["since"], event.facts["until"]) == ("102", "")
    world.stream.put(A, "g")
    for _ in range(30):
        run.round()
        world.clock.advance(3)
    assert world.lease(A).checkpoint == Checkpoint("102" if policy == "stop" else "106")
    assert run.kinds().count(EventKind.DATA_LOST) == 1


def paused_owner(policy: str) -> tuple[World, Run]:
    """It has read a, b and c and trusts its lease. Meanwhile the next owner has read d, e and f, and they have left
    the stream since then."""
    world = World(batch={"on_data_loss": policy})
    world.stream.put(A, *"abc")
    paused = world.worker("w1")
    world.assign(paused)
    paused.until_idle()
    successor = world.worker("w2")
    world.assign(successor)
    world.stream.put(A, *"def")
    successor.until_idle()
    world.stream.put(A, "g")
    world.stream.shards[A].trimmed_through = 105
    return world, paused


@pytest.mark.parametrize("policy", ["stop", "continue"])
def test_a_former_owner_does_not_report_as_lost_what_its_successor_has_read(policy: str) -> None:
    world, paused = paused_owner(policy)
    assert paused.worker.holdings.keys() == {A}
    report = paused.worker.step_batch()
    assert EventKind.DATA_LOST not in paused.kinds()
    assert EventKind.LEASE_LOST in paused.kinds()
    assert ([lease.outcome for lease in report.leases], report.stopped) == ([Outcome.DROPPED], ())
    assert world.lease(A).checkpoint == Checkpoint("105")


def test_a_loss_is_reported_when_the_lease_can_be_renewed_again() -> None:
    world, run = reader_whose_records_were_trimmed("stop")
    run.worker.step_discovery()

    def refuse(method: str, _: object) -> None:
        if method == "update_item":
            raise ReadTimeoutError(endpoint_url="dynamodb")

    run.client.before.append(refuse)
    assert [lease.outcome for lease in run.worker.step_batch().leases] == [Outcome.NOT_READ]
    assert EventKind.DATA_LOST not in run.kinds()
    run.client.before.clear()
    world.clock.advance(1)
    run.round()
    assert run.kinds().count(EventKind.DATA_LOST) == 1


def test_what_the_lost_answer_of_a_checkpoint_had_stored_is_not_reported_as_lost() -> None:
    world = World()
    run = world.worker("w1")
    world.assign(run)
    world.stream.put(A, *"abc")
    run.until_idle()
    world.stream.put(A, *"def")
    writes = 0

    def answer_one_write(method: str, request: Mapping[str, Any]) -> None:
        nonlocal writes
        writes += method == "update_item"
        if writes == 2 and method == "update_item":
            run.client.service.update_item(**request)
        if writes >= 2:
            raise ReadTimeoutError(endpoint_url="dynamodb")

    run.client.before.append(answer_one_write)
    assert [lease.outcome for lease in run.worker.step_batch().leases] == [Outcome.UNCOMMITTED]
    run.client.before.clear()
    assert world.lease(A).checkpoint == Checkpoint("105")
    world.stream.put(A, "g")
    world.stream.shards[A].trimmed_through = 104
    for _ in range(2):
        run.worker.step_batch()
        world.clock.advance(1)
    assert EventKind.DATA_LOST not in run.kinds()
    assert world.store.everything()[-1] == (A, 106, "g")


@pytest.mark.parametrize("policy", ["stop", "continue"])
def test_a_former_owner_does_not_report_a_batch_that_its_successor_has_finished(policy: str) -> None:
    world = World(batch={"on_data_loss": policy})
    world.stream.put(A, *"abc")
    paused = world.worker("w1")
    world.assign(paused)

    def refuse(_: object) -> None:
        raise SinkError("the sink is away")

    paused.sink.hooks.append(refuse)
    paused.round()
    successor = world.worker("w2")
    world.assign(successor)
    successor.until_idle()
    world.stream.shards[A].trimmed_through = 102
    world.clock.advance(1)
    paused.worker.step_batch()
    assert EventKind.DATA_LOST not in paused.kinds()
    assert EventKind.LEASE_LOST in paused.kinds()


def test_a_quiet_shard_of_a_java_kcl_is_no_data_loss() -> None:
    """Its rows do not say up to when the shard was read to its end."""
    trimmed = read(Checkpoint("5"), start_trimmed=True, millis_behind=0)
    assert loss_in(trimmed, None, 2_000_000_000.0) is None
    assert loss_in(replace(trimmed, ended=True), None, 2_000_000_000.0) is not None


def child_that_nobody_read_for(seconds: float, policy: str) -> tuple[World, Run, str]:
    """Its parent was read to the end while its records arrived; then the fleet was down."""
    world = World(batch={"on_data_loss": policy})
    world.stream.arrival_ms = round(world.clock.now() * 1000)
    world.stream.put(A, *"abc")
    child, _ = world.stream.split(A)
    run = world.worker("w1")
    world.assign(run)
    run.until_idle()
    world.stream.put(child, *"def")
    world.clock.advance(seconds)
    world.stream.shards[child].trimmed_through = 104  # d and e are gone
    return world, world.worker("w2", retention_of=lambda _: DAY), child


@pytest.mark.parametrize("policy", ["stop", "continue"])
def test_the_first_records_of_a_child_are_not_lost_in_silence(policy: str) -> None:
    world, run, child = child_that_nobody_read_for(1.2 * DAY, policy)
    world.assign(run, child)
    for _ in range(30):
        run.round()
        world.clock.advance(1)
    [event] = [event for event in run.events if event.kind is EventKind.DATA_LOST]
    assert (event.lease, event.facts["since"], event.facts["until"]) == (child, "TRIM_HORIZON", "105")
    stored = [row for row in world.store.everything() if row[0] == child]
    assert stored == ([] if policy == "stop" else [(child, 105, "f")])


def test_an_empty_child_that_nobody_read_for_days_is_told_of_once() -> None:
    world, run, child = child_that_nobody_read_for(1.2 * DAY, "continue")
    world.stream.shards[child].records.clear()
    world.assign(run, child)
    for _ in range(300):
        run.round()
        world.clock.advance(1)
    assert run.kinds().count(EventKind.DATA_LOST) == 1


def test_a_child_that_is_read_in_time_has_lost_nothing() -> None:
    world, run, child = child_that_nobody_read_for(0.9 * DAY, "stop")
    world.assign(run, child)
    run.until_idle()
    assert EventKind.DATA_LOST not in run.kinds()


def test_warnings_are_events() -> None:
    world = World()
    run = world.worker("w1", retention_of=lambda _: 10.0)
    world.stream.put(A, *"abcdefghijkl")
    world.assign(run)
    run.round()
    [event] = [event for event in run.events if event.kind is EventKind.RETENTION_NEAR]
    assert event.is_trouble
    assert "90%" in event.message


def begun_and_trimmed(policy: str) -> tuple[World, Run]:
    """A batch was begun, its worker died, and one of its records left the stream before it could be repeated."""
    world = World(batch={"on_data_loss": policy})
    world.stream.put(A, *"abc")
    first = world.worker("w1")
    world.assign(first)

    def die(_: object) -> None:
        raise SinkError("the process is gone")

    first.sink.hooks.append(die)
    first.round()
    assert world.lease(A).pending_checkpoint is not None
    world.stream.put(A, *"de")
    world.stream.shards[A].trimmed_through = 100
    second = world.worker("w2")
    world.assign(second)
    return world, second


def test_a_batch_that_can_not_be_repeated_stops_the_shard() -> None:
    world, run = begun_and_trimmed("stop")
    for _ in range(30):
        run.round()
        world.clock.advance(1)
    [event] = [event for event in run.events if event.kind is EventKind.DATA_LOST]
    assert (event.facts["since"], event.facts["until"]) == ("TRIM_HORIZON", "103")
    assert world.lease(A).checkpoint == TRIM_HORIZON
    assert world.lease(A).pending_checkpoint is not None


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_loss_is_told_of_a_shard_that_an_outage_had_stopped(is_begun: bool) -> None:
    world = World(batch={"on_data_loss": "stop", "failure": {"outage_attempts": 3}})
    world.stream.put(A, *"abc")
    run = world.worker("w1")
    world.assign(run)
    if not is_begun:
        run.until_idle()
        world.clock.advance(2 * DAY)
        world.stream.put(A, *"de")

    def refuse(*_: object) -> None:
        raise SinkError("down")

    hooks: list[Any] = run.sink.hooks if is_begun else run.engine.hooks
    hooks.append(refuse)
    for _ in range(80):
        run.round()
        world.clock.advance(1)
    assert run.kinds().count(EventKind.SHARD_STOPPED) == 1
    assert EventKind.DATA_LOST not in run.kinds()
    hooks.clear()
    world.stream.shards[A].trimmed_through = 100 if is_begun else 103
    for _ in range(80):
        run.round()
        world.clock.advance(1)
    assert run.kinds().count(EventKind.DATA_LOST) == 1


def test_a_batch_that_can_not_be_repeated_may_be_gone_on_behind() -> None:
    world, run = begun_and_trimmed("continue")
    run.until_idle()
    assert run.kinds().count(EventKind.DATA_LOST) == 1
    assert (world.lease(A).checkpoint, world.lease(A).pending_checkpoint) == (Checkpoint("104"), None)
    assert world.store.everything() == [(A, 103, "d"), (A, 104, "e")]


def refused(world: World) -> Run:
    """A worker on a stream that was made anew, and some rounds of it."""

    def confirm(_: StreamIdentifier) -> None:
        raise StreamRecreated("it has another creation time")

    run = world.worker("w1", confirm_stream=confirm)
    world.assign(run)
    for _ in range(10):
        run.round()
        world.clock.advance(60)
    return run


def test_a_stream_that_was_made_anew_is_not_read_under_the_old_ones_leases() -> None:
    world = World()
    world.stream.put(A, *"abc")
    run = refused(world)
    assert world.store.everything() == []
    assert world.lease(A).checkpoint == TRIM_HORIZON
    assert any("another creation time" in event.message for event in run.events)


def test_a_stream_is_checked_once_for_all_of_its_shards() -> None:
    """A check takes a request, and Kinesis answers twenty of them a second."""
    world, checks = World(shards=5), list[StreamIdentifier]()
    for shard in world.lease_keys():
        world.stream.put(shard, *"ab")
    run = world.worker("w1", confirm_stream=checks.append)
    world.assign(run)
    run.worker.step_discovery()
    report = run.worker.step_batch()
    assert [lease.records for lease in report.leases] == [2] * 5
    assert len(checks) == 1


def test_the_end_of_a_stream_that_was_made_anew_finishes_no_lease_of_the_old_one() -> None:
    """Its shard of the same name is closed and empty, so not a record tells."""
    world = World()
    world.stream.split(A)
    refused(world)
    assert world.lease_keys() == [A]
    assert world.lease(A).checkpoint == TRIM_HORIZON


def test_a_commit_says_through_when_the_shard_is_stored() -> None:
    """In the same write: a worker that ends right after it has said so."""
    world = World()
    world.stream.put(A, *"abc")
    arrived = world.clock.now() - 100
    world.stream.arrival_ms = int(arrived) * 1000 + 999
    run = world.worker("w1")
    world.assign(run)
    run.worker.step_discovery()
    run.worker.step_batch()
    assert world.lease(A).checkpoint == Checkpoint("102")
    assert world.lease(A).stored_through == int(arrived)


def test_a_closed_shard_is_not_stored_through_the_moment_at_which_its_end_was_read() -> None:
    """Its children have records from then on, and may have no lease yet."""
    world = World()
    world.stream.put(A, *"abc")
    run = world.worker("w1", list_shards=lambda _: [])
    world.assign(run)
    run.until_idle()
    world.stream.split(A)
    world.stream.shards[A].children = ()
    for _ in range(3):
        world.clock.advance(9)
        run.worker.step_batch()
        run.worker.step_renewal()
    assert EventKind.SHARD_END_WAITS in run.kinds()
    assert (world.lease(A).stored_through or 0) < world.clock.now() - 25


def test_a_worker_whose_clock_is_ahead_goes_by_the_clock_of_the_service() -> None:
    world = World()
    run = world.worker("w1", service_time=lambda: world.clock.now() - 300)
    world.assign(run)
    run.until_idle()
    run.worker.step_renewal()
    world.clock.advance(20)
    run.worker.step_renewal()
    assert world.lease(A).stored_through == int(world.clock.now() - 320)


class EarlyEngine(MemoryEngine):
    """Gives what it read 60 s before it was asked."""

    def fetch(self, ranges: Sequence[Range], budget: Budget) -> MemoryFetched:
        fetched = super().fetch(ranges, budget)
        now = self.clock.monotonic()
        fetched.progress = {
            key: replace(progress, read_since=now - 60) for key, progress in fetched.progress.items()
        }
        return fetched

    clock: FakeClock


def test_what_was_read_ahead_says_nothing_of_what_arrived_since() -> None:
    world = World()
    engine = EarlyEngine(world.stream)
    engine.clock = world.clock
    run = world.worker("w1", engine=engine)
    world.assign(run)
    run.until_idle()
    read = world.clock.now()
    world.clock.advance(20)
    run.worker.step_renewal()
    assert world.lease(A).stored_through == int(read - 60)
