"""Enhanced fan-out: the same promises as polling, kept over subscriptions that end, break and are taken over."""

import random
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from botocore.exceptions import EventStreamError

from kcl_dagster.aws import ResourceBusy
from kcl_dagster.errors import ConsumerNotFound, DataLoss, EndpointUnreachable, ServiceError, StreamNotFound
from kcl_dagster.model.checkpoint import LATEST, TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.runtime import Runtime
from kcl_dagster.streams.consumers import ensure_consumer, remove_consumer
from kcl_dagster.streams.fanout import QUEUED_EVENTS, FanoutReader, Woken, _Events
from kcl_dagster.streams.pacing import Allowance, ReadDeadline
from kcl_dagster.streams.polling import Bookmark, is_far_behind
from kcl_dagster.streams.position import Bounds
from kcl_dagster.streams.presence import CHECK_SECONDS
from kcl_dagster.streams.records import StreamRecord, arrival_millis
from kcl_dagster.worker.batch import Progress, Range
from kcl_dagster.worker.retention import Loss, loss_in
from tests.unit.streams.conftest import SHARD, STREAM, WHOLE, World, after, payloads
from tests.unit.streams.test_polling import DAY, MEGABYTE, closed_and_emptied, refused

CLICKS = StreamIdentifier(STREAM)


class Fanout:
    """A world with a registered consumer."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.arn = ensure_consumer(world.kinesis, STREAM, "app", world.runtime)

    def reader(
        self, bounds: Bounds = WHOLE, bookmark: Bookmark | None = None, shard: str = SHARD, client: Any = None
    ) -> FanoutReader:
        return FanoutReader(
            client or self.world,
            self.arn,
            STREAM,
            shard,
            bounds,
            runtime=self.world.runtime,
            bookmark=bookmark,
            in_background=False,
        )

    def read(self, reader: FanoutReader, seconds: float = 12.0, records: int = 10**6) -> list[StreamRecord]:
        pages = reader.pages(
            Allowance(records, 1 << 30, 1), ReadDeadline(self.world.clock.monotonic() + seconds, self.world.clock)
        )
        return [record for page in pages for record in page]


@pytest.fixture
def fanout(world: World) -> Fanout:
    return Fanout(world)


def test_records_are_pushed_as_they_come(world: World, fanout: Fanout) -> None:
    world.put(b"a", b"b")
    world.clock.call_in(3, lambda: world.produce(b"c"))
    reader = fanout.reader()
    assert payloads(fanout.read(reader)) == [b"a", b"b", b"c"]
    assert reader.millis_behind == 0
    assert world.calls.count("get_records") == 0


def test_a_range_begins_after_its_checkpoint(world: World, fanout: Fanout) -> None:
    sequences = world.put(b"a", b"b", b"c")
    assert payloads(fanout.read(fanout.reader(after(sequences[0])))) == [b"a", b"b", b"c"]
    world.clock.advance(6)
    assert payloads(fanout.read(fanout.reader(Bounds(LATEST)))) == []


def test_a_subscription_that_ends_after_five_minutes_is_renewed(world: World, fanout: Fanout) -> None:
    world.put(b"a")
    for minute in range(1, 11):
        world.clock.call_in(60 * minute, lambda: world.produce(b"x"))
    read = fanout.read(fanout.reader(), seconds=660)
    assert len(read) == 11
    assert world.calls.count("subscribe_to_shard") == 3


def test_the_next_range_goes_on_from_the_bookmark(world: World, fanout: Fanout) -> None:
    sequences = world.put(b"a")
    first = fanout.reader()
    fanout.read(first)
    world.put(b"b")
    assert payloads(fanout.read(fanout.reader(after(sequences[0]), first.bookmark))) == [b"b"]


@pytest.mark.parametrize("records", range(1, 8))
def test_a_range_that_was_cut_says_it_is_behind(world: World, fanout: Fanout, records: int) -> None:
    sequences = []
    for _ in range(6):
        sequences += world.put(b"x" * (MEGABYTE - 100), pause=1.0)  # more than one fits no event
    reader = fanout.reader()
    read = fanout.read(reader, records=records)
    assert 0 < len(read) <= len(sequences)
    assert (reader.millis_behind == 0) == (read[-1]["SequenceNumber"] == sequences[-1])


def test_a_reader_that_is_far_behind_leaves_no_place(world: World, fanout: Fanout) -> None:
    """The record at which the next range begins may leave the stream, so the next reader has to ask for it."""
    for _ in range(3):
        world.put(b"x" * (MEGABYTE - 100), pause=1.0)  # more than one fits no event
    world.clock.advance(DAY - 60)
    reader = fanout.reader()
    assert len(fanout.read(reader, records=1)) == 1
    assert is_far_behind(reader.millis_behind)
    assert reader.bookmark is not None
    assert reader.bookmark.iterator is None


def test_a_consumer_does_not_subscribe_twice_within_five_seconds(world: World, fanout: Fanout) -> None:
    sequences = world.put(b"a")
    first = fanout.reader()
    fanout.read(first, seconds=0.0)
    world.put(b"b")
    second = fanout.reader(after(sequences[0]), first.bookmark)
    assert payloads(fanout.read(second, seconds=6.0)) == [b"b"]
    assert world.calls.count("subscribe_to_shard") == 2
    assert world.clock.slept[0] == pytest.approx(5.1)


def test_a_batch_that_is_over_before_it_may_subscribe_has_read_nothing(world: World, fanout: Fanout) -> None:
    """And is no error, nor does it take the shard for read to its end, nor forget when it may subscribe."""
    sequences = world.put(b"x" * (MEGABYTE - 100), b"x" * (MEGABYTE - 100), b"last", pause=1.0)
    first = fanout.reader()
    assert len(fanout.read(first, records=1)) == 1
    assert first.millis_behind
    began, second = world.clock.monotonic(), fanout.reader(after(sequences[0]), first.bookmark)
    assert fanout.read(second, seconds=3.0) == []
    assert world.clock.monotonic() == pytest.approx(began + 3.0)
    assert second.millis_behind == (first.millis_behind or 0) + 3000  # which nobody has looked at
    third = fanout.reader(after(sequences[0]), second.bookmark)
    assert payloads(fanout.read(third, seconds=3.0))[-1] == b"last"
    assert world.calls.count("subscribe_to_shard") == 2


def test_the_wait_for_a_subscription_is_no_time_in_which_it_is_silent(world: World) -> None:
    fanout = Fanout(world)
    sequences = world.put(b"a")
    first = fanout.reader(client=Slow(world, 0.15))
    assert len(fanout.read(first, records=1)) == 1
    world.put(b"b")
    second = fanout.reader(after(sequences[0]), first.bookmark, client=Slow(world, 0.15))
    assert payloads(fanout.read(second, seconds=5.0)) == [b"b"]


def test_nor_is_the_time_for_which_another_subscription_was_in_the_way(world: World, fanout: Fanout) -> None:
    world.put(b"a")
    world.kinesis.subscribe_to_shard(
        ConsumerARN=fanout.arn, ShardId=SHARD, StartingPosition={"Type": "TRIM_HORIZON"}
    )
    ends_early = [3.0]

    class Ending:
        """The first subscription that stands ends after three seconds without a word."""

        def subscribe_to_shard(self, **request: Any) -> Any:
            answer = world.subscribe_to_shard(**request)
            return {"EventStream": _Nothing(world, ends_early.pop())} if ends_early else answer

        def __getattr__(self, method: str) -> Any:
            return getattr(world, method)

    assert payloads(fanout.read(fanout.reader(client=Ending()), seconds=0.5)) == [b"a"]


class Slow:
    """Some seconds pass before the first event of a subscription."""

    def __init__(self, world: World, seconds: float) -> None:
        self._world = world
        self._seconds = seconds

    def subscribe_to_shard(self, **request: Any) -> Any:
        events = self._world.subscribe_to_shard(**request)["EventStream"]
        return {"EventStream": _Late(self._world, events, self._seconds)}

    def __getattr__(self, method: str) -> Any:
        return getattr(self._world, method)


class _Late:
    def __init__(self, world: World, events: Any, seconds: float) -> None:
        self._world = world
        self._events = events
        self._seconds = seconds

    def __iter__(self) -> Any:
        self._world.clock.advance(self._seconds)
        yield from self._events

    def close(self) -> None:
        self._events.close()


def test_a_range_that_subscribed_late_is_read_for_as_long_as_any(world: World, fanout: Fanout) -> None:
    """Or the one after it would subscribe as late, and so would all that follow."""
    sequences = world.put(b"a")
    for half_seconds in range(1, 30):  # so that each batch ends in time
        world.clock.call_in(half_seconds / 2, lambda: sequences.extend(world.put(b"b")))
    first = fanout.reader()
    assert payloads(fanout.read(first, seconds=0.5)) == [b"a", b"b"]
    assert first.bookmark is not None
    assert first.bookmark.wait_seconds > 4
    second = fanout.reader(after(sequences[1]), first.bookmark)
    fanout.read(second, seconds=5.0)
    assert second.bookmark is not None
    assert second.bookmark.wait_seconds < 0.2


def test_whoever_follows_an_owner_that_has_just_subscribed_waits_for_it(world: World, fanout: Fanout) -> None:
    """The first batch of a lease is short, and the shard belongs to the subscription of its former owner."""
    sequences = world.put(b"a")
    for tenth in range(11):
        world.kinesis.subscribe_to_shard(
            ConsumerARN=fanout.arn, ShardId=SHARD, StartingPosition={"Type": "TRIM_HORIZON"}
        )
        world.clock.advance(tenth / 10)
        assert payloads(fanout.read(fanout.reader(after(sequences[0])), seconds=0.5)) == [b"a"]
        world.clock.advance(6)


def test_without_a_bookmark_the_refusal_is_waited_out(world: World, fanout: Fanout) -> None:
    sequences = world.put(b"a")
    world.kinesis.subscribe_to_shard(
        ConsumerARN=fanout.arn, ShardId=SHARD, StartingPosition={"Type": "TRIM_HORIZON"}
    )
    assert payloads(fanout.read(fanout.reader(after(sequences[0])), seconds=9.0)) == [b"a"]


def test_the_end_of_a_closed_shard_names_its_children(world: World, fanout: Fanout) -> None:
    world.put(b"a", b"b")
    world.kinesis.split_shard(StreamName=STREAM, ShardToSplit=SHARD, NewStartingHashKey=str(2**127))
    world.clock.advance(1)
    reader = fanout.reader()
    assert payloads(fanout.read(reader)) == [b"a", b"b"]
    assert reader.is_ended
    assert [child.id for child in reader.children] == ["shardId-000000000001", "shardId-000000000002"]
    assert reader.bookmark is None


def test_a_pinned_range_is_read_exactly_through_its_end(world: World, fanout: Fanout) -> None:
    sequences = world.put(*[b"%d" % i for i in range(50)])
    bounds = Bounds(TRIM_HORIZON, through=Checkpoint(sequences[39]), first=sequences[10])
    reader = fanout.reader(bounds)
    assert payloads(fanout.read(reader, seconds=0.0, records=1)) == [b"%d" % i for i in range(10, 40)]
    assert reader.millis_behind, "ten records follow"


def test_a_pinned_range_that_left_the_stream_is_data_loss(world: World, fanout: Fanout) -> None:
    sequences = world.put(b"a", b"b")
    world.clock.advance(30 * 3600)
    world.put(b"c")
    with pytest.raises(DataLoss):
        fanout.read(fanout.reader(Bounds(TRIM_HORIZON, through=Checkpoint(sequences[1]), first=sequences[0])))


@pytest.mark.timeout(10)
def test_a_pinned_range_of_which_a_quiet_shard_has_nothing_left_is_data_loss(world: World, fanout: Fanout) -> None:
    sequences = world.put(b"a", b"b")
    world.clock.advance(30 * 3600)
    with pytest.raises(DataLoss, match="has none of its records"):
        fanout.read(fanout.reader(Bounds(TRIM_HORIZON, through=Checkpoint(sequences[1]), first=sequences[0])))


class Breaking:
    """Subscriptions that break off with an error after some events."""

    def __init__(self, world: World, errors: list[Exception]) -> None:
        self._world = world
        self._errors = errors
        self.subscriptions = 0

    def subscribe_to_shard(self, **request: Any) -> Any:
        self.subscriptions += 1
        answer = self._world.kinesis.subscribe_to_shard(**request)
        error = self._errors.pop(0) if self._errors else None
        return answer if error is None else {"EventStream": _BrokenEvents(answer["EventStream"], error)}

    def __getattr__(self, method: str) -> Any:
        return getattr(self._world.kinesis, method)


class _BrokenEvents:
    def __init__(self, events: Any, error: Exception) -> None:
        self._events = events
        self._error = error

    def __iter__(self) -> Any:
        yield next(iter(self._events))
        raise self._error

    def close(self) -> None:
        self._events.close()


def in_stream(code: str) -> EventStreamError:
    return EventStreamError({"Error": {"Code": code, "Message": "no"}}, "SubscribeToShard")


@pytest.mark.parametrize(
    "error",
    [in_stream("InternalFailureException"), in_stream("KMSThrottlingException"), OSError("connection reset")],
)
def test_a_subscription_that_breaks_off_is_resumed_where_it_was(world: World, error: Exception) -> None:
    fanout = Fanout(world)
    world.put(b"a")
    world.clock.call_in(4, lambda: world.produce(b"b"))
    breaking = Breaking(world, [error, error])
    reader = FanoutReader(breaking, fanout.arn, STREAM, SHARD, WHOLE, runtime=world.runtime, in_background=False)
    assert payloads(fanout.read(reader, seconds=30)) == [b"a", b"b"]
    assert breaking.subscriptions == 3


@pytest.mark.parametrize("event", [{}, {"SDK_UNKNOWN_MEMBER": {"name": "Pause"}}, {"SubscribeToShardEvent": {}}])
def test_an_event_of_a_kind_that_nobody_knows_ends_a_subscription(
    world: World, fanout: Fanout, event: dict[str, Any]
) -> None:
    """And is not taken for the shard's end, which would lose what follows."""
    world.put(b"a")
    answers = [{"EventStream": _Given([event])}]

    class Strange:
        def subscribe_to_shard(self, **request: Any) -> Any:
            return answers.pop() if answers else world.kinesis.subscribe_to_shard(**request)

        def __getattr__(self, method: str) -> Any:
            return getattr(world, method)

    reader = FanoutReader(Strange(), fanout.arn, STREAM, SHARD, WHOLE, runtime=world.runtime, in_background=False)
    assert payloads(fanout.read(reader, seconds=30)) == [b"a"]
    assert not reader.is_ended


class _Given:
    def __init__(self, events: list[dict[str, Any]]) -> None:
        self._events = events

    def __iter__(self) -> Any:
        return iter(self._events)

    def close(self) -> None:
        """Nothing is open."""


def test_a_reader_that_is_taken_over_ends_with_what_it_has(world: World) -> None:
    fanout = Fanout(world)
    world.put(b"a")
    breaking = Breaking(world, [in_stream("ResourceInUseException")])
    reader = FanoutReader(breaking, fanout.arn, STREAM, SHARD, WHOLE, runtime=world.runtime, in_background=False)
    assert payloads(fanout.read(reader, seconds=60)) == [b"a"]
    assert breaking.subscriptions == 1


def test_a_shard_that_always_belongs_to_another_is_an_error(world: World, fanout: Fanout) -> None:
    class Refusing:
        def subscribe_to_shard(self, **_request: Any) -> Any:
            raise refused("ResourceInUseException")

    reader = FanoutReader(Refusing(), fanout.arn, STREAM, SHARD, WHOLE, runtime=world.runtime, in_background=False)
    with pytest.raises(ResourceBusy):
        fanout.read(reader, seconds=10)


def test_a_missing_shard_is_gone_a_missing_consumer_or_stream_is_an_error(world: World, fanout: Fanout) -> None:
    gone = fanout.reader(shard="shardId-000000000099")
    assert fanout.read(gone) == []
    assert gone.is_gone
    assert remove_consumer(world.kinesis, STREAM, "app", world.runtime)
    with pytest.raises(ConsumerNotFound, match="deregistered"):
        fanout.read(fanout.reader())
    world.kinesis.delete_stream(StreamName=STREAM)
    with pytest.raises(StreamNotFound):
        fanout.read(fanout.reader())


def all_records(world: World) -> list[StreamRecord]:
    place = world.kinesis.get_shard_iterator(StreamName=STREAM, ShardId=SHARD, ShardIteratorType="TRIM_HORIZON")
    records: list[StreamRecord] = world.kinesis.get_records(ShardIterator=place["ShardIterator"])["Records"]
    return records


class _Late24Hours:
    """Events that were sent a day after their records arrived; time passes before the second one."""

    def __init__(self, world: World, pause: float, *pages: list[StreamRecord]) -> None:
        self._world, self._pause, self._pages = world, pause, pages

    def __iter__(self) -> Iterator[Any]:
        for number, records in enumerate(self._pages):
            if number == 1:
                self._world.clock.advance(self._pause)
            last = records[-1]["SequenceNumber"]
            behind = DAY * 1000 - 60_000
            event = {"Records": records, "ContinuationSequenceNumber": last, "MillisBehindLatest": behind}
            yield {"SubscribeToShardEvent": event}

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("leaves", [False, True])
def test_a_record_that_leaves_the_stream_between_two_events_is_noticed(
    world: World, fanout: Fanout, leaves: bool
) -> None:
    sequences = world.put(*[b"%d" % number for number in range(4)], pause=10.0)
    records = all_records(world)
    world.clock.advance(DAY - 90)
    pages = ([records[0]], records[2:]) if leaves else ([records[0]], records[1:])
    events = _Late24Hours(world, 65.0 if leaves else 5.0, *pages)

    class Far:
        def subscribe_to_shard(self, **_request: Any) -> Any:
            return {"EventStream": events}

        def __getattr__(self, method: str) -> Any:
            return getattr(world, method)

    reader = fanout.reader(after(sequences[0]), client=Far())
    found = payloads(fanout.read(reader, records=3))
    assert found == ([b"0", b"2", b"3"] if leaves else [b"0", b"1", b"2", b"3"])
    assert reader.is_start_trimmed is leaves


def test_records_of_an_event_are_not_left_out_if_it_is_not_known_what_left_the_stream_before_them(
    world: World, fanout: Fanout
) -> None:
    """The check is throttled throughout. A batch that was begun has to be read to its end."""
    sequences = world.put(*[b"%d" % number for number in range(4)], pause=10.0)
    records = all_records(world)
    world.clock.advance(DAY - 3600)
    world.answers = [refused("ProvisionedThroughputExceededException")] * 35
    client = _Far(world, lambda _: _Late24Hours(world, 1.0, records[:1], records[1:]))
    bounds = Bounds(TRIM_HORIZON, Checkpoint(sequences[3]), sequences[0])
    reader = fanout.reader(bounds, client=client)
    assert payloads(fanout.read(reader)) == [b"0", b"1", b"2", b"3"]


class _Far:
    """A client whose subscriptions send other events than the world's."""

    def __init__(self, world: World, events_from: Callable[[str | None], _Late24Hours]) -> None:
        """`events_from` is called with the record at which a subscription begins, or None."""
        self._world, self._events_from = world, events_from

    def subscribe_to_shard(self, **request: Any) -> Any:
        return {"EventStream": self._events_from(request["StartingPosition"].get("SequenceNumber"))}

    def __getattr__(self, method: str) -> Any:
        return getattr(self._world, method)


@pytest.mark.parametrize("begins_at_record", [False, True])
def test_a_range_ends_before_a_gap_and_the_next_one_reports_it(
    world: World, fanout: Fanout, begins_at_record: bool
) -> None:
    """What lies before the gap is stored by then, also where nothing of the shard was processed before."""
    sequences = world.put(*[b"%d" % number for number in range(5)], pause=20.0)
    records = all_records(world)
    world.clock.advance(DAY - 145)
    events = _Late24Hours(world, 92.0, records[:2], records[3:])
    bounds = after(sequences[0]) if begins_at_record else Bounds(TRIM_HORIZON)
    first = fanout.reader(bounds, client=_Far(world, lambda _: events))
    assert payloads(fanout.read(first, records=5)) == [b"0", b"1"]
    assert (first.is_start_trimmed, first.is_ended) == (False, False)
    assert is_far_behind(first.millis_behind)
    second = fanout.reader(after(sequences[1]), first.bookmark)
    assert payloads(fanout.read(second)) == [b"3", b"4"]
    stored_through = (arrival_millis(records[1]) or 0) // 1000
    planned = Range(LeaseKey(SHARD), CLICKS, SHARD, Checkpoint(sequences[1]), 2)
    progress = Progress(planned, start_trimmed=second.is_start_trimmed, first=sequences[3])
    assert loss_in(progress, stored_through, world.clock.now()) == Loss(sequences[1], sequences[3])


def test_a_shard_that_is_far_behind_is_read_although_others_use_up_its_requests(
    world: World, fanout: Fanout
) -> None:
    """What is read before the check is given. The record at which the range begins is not enough."""
    sequences = world.put(*[b"%d" % number for number in range(6)], pause=10.0)
    records = all_records(world)
    world.clock.advance(DAY - 3600)
    world.answers = [refused("ProvisionedThroughputExceededException")] * 5000

    def events_from(sequence: str | None) -> _Late24Hours:
        return _Late24Hours(world, 1.0, *[[record] for record in records[sequences.index(sequence or "") :]])

    for at in range(4):
        began = world.clock.monotonic()
        reader = fanout.reader(after(sequences[at]), client=_Far(world, events_from))
        found = payloads(fanout.read(reader, records=6))
        assert found == [b"%d" % at, b"%d" % (at + 1)]
        assert not reader.is_start_trimmed
        assert world.clock.monotonic() - began < 1 + 2 * CHECK_SECONDS


def test_a_silent_subscription_is_given_up(world: World, fanout: Fanout) -> None:
    class Silent:
        def subscribe_to_shard(self, **_request: Any) -> Any:
            return {"EventStream": _Nothing(world, 20.0)}

    reader = FanoutReader(Silent(), fanout.arn, STREAM, SHARD, WHOLE, runtime=world.runtime, in_background=False)
    with pytest.raises(EndpointUnreachable, match="no event"):
        fanout.read(reader, seconds=10)


class _Nothing:
    def __init__(self, world: World, seconds: float) -> None:
        self._world = world
        self._seconds = seconds

    def __iter__(self) -> Any:
        self._world.clock.sleep(self._seconds)
        return iter(())

    def close(self) -> None:
        """Nothing is open."""


# Registration


def test_a_consumer_is_registered_once_by_many_workers(world: World) -> None:
    arns = {ensure_consumer(world.kinesis, STREAM, "app", world.runtime) for _ in range(3)}
    assert len(arns) == 1
    consumers = world.kinesis.list_stream_consumers(
        StreamARN=world.kinesis.describe_stream_summary(StreamName=STREAM)["StreamDescriptionSummary"]["StreamARN"]
    )["Consumers"]
    assert [consumer["ConsumerName"] for consumer in consumers] == ["app"]


def test_a_worker_that_loses_the_race_to_register_uses_the_winners(world: World) -> None:
    class Racing:
        def register_stream_consumer(self, **request: Any) -> Any:
            world.kinesis.register_stream_consumer(**request)
            raise refused("ResourceInUseException")

        def __getattr__(self, method: str) -> Any:
            return getattr(world.kinesis, method)

    assert ensure_consumer(Racing(), STREAM, "app", world.runtime).split("/")[-1].startswith("app:")


def test_a_consumer_that_does_not_become_active_is_an_error(world: World) -> None:
    class Creating:
        def describe_stream_consumer(self, **_request: Any) -> Any:
            return {"ConsumerDescription": {"ConsumerStatus": "CREATING"}}

        def __getattr__(self, method: str) -> Any:
            return getattr(world.kinesis, method)

    with pytest.raises(ServiceError, match="still CREATING"):
        ensure_consumer(Creating(), STREAM, "app", world.runtime)


def test_a_stream_with_too_many_consumers_says_so(world: World) -> None:
    class Full:
        def register_stream_consumer(self, **_request: Any) -> Any:
            raise refused("LimitExceededException")

        def __getattr__(self, method: str) -> Any:
            return getattr(world.kinesis, method)

    began = world.clock.monotonic()
    with pytest.raises(ServiceError, match="could not be registered"):
        ensure_consumer(Full(), STREAM, "app", world.runtime)
    assert world.clock.monotonic() == began  # nobody gives one back because somebody waits


def test_removing_what_is_not_there_is_no_error(world: World) -> None:
    assert not remove_consumer(world.kinesis, STREAM, "nobody", Runtime(clock=world.clock, random=random.Random(1)))


def test_errors_before_the_first_event_are_told_apart(world: World, fanout: Fanout) -> None:
    class Denied:
        def subscribe_to_shard(self, **_request: Any) -> Any:
            raise refused("AccessDeniedException")

    reader = FanoutReader(Denied(), fanout.arn, STREAM, SHARD, WHOLE, runtime=world.runtime, in_background=False)
    with pytest.raises(ServiceError, match="lack"):
        fanout.read(reader)


def test_a_closed_shard_whose_last_records_left_the_stream_is_noticed(world: World, fanout: Fanout) -> None:
    reader = fanout.reader(after(closed_and_emptied(world)))
    assert fanout.read(reader) == []
    assert (reader.is_ended, reader.is_start_trimmed) == (True, True)


def _has(drawn: list[int], count: int) -> bool:
    return len(drawn) >= count


def test_a_subscription_holds_a_bounded_number_of_events_however_slowly_they_are_read(world: World) -> None:
    """The shard pushes on; what is not read waits in the connection, whose windows the service respects."""
    drawn: list[int] = []
    looked = threading.Condition()

    class Pushed:
        def __iter__(self) -> Iterator[dict[str, Any]]:
            for number in range(60):
                with looked:
                    drawn.append(number)
                    looked.notify()
                yield {"SubscribeToShardEvent": {"Records": [], "number": number}}

        def close(self) -> None:
            pass

    events = _Events(world.kinesis, {"ShardId": SHARD}, Pushed(), world.runtime, threaded=True)
    ahead = QUEUED_EVENTS + 1  # and one that waits for a place
    for read in range(60):
        with looked:
            assert looked.wait_for(partial(_has, drawn, min(60, read + ahead)), timeout=60)
            assert len(drawn) <= read + ahead
        event = events.next(world.clock.monotonic() + 60)
        assert event is not None
        assert not isinstance(event, Woken)
        assert event["number"] == read
    assert events.next(world.clock.monotonic() + 60) is None
    events.close()
