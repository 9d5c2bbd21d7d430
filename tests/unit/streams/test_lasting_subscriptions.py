"""A subscription goes on from one reader of a shard to the next, and readers wake when their batch is closed."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Final

import pytest

from kcl_dagster.errors import Throttled
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.streams.fanout import KEPT_SECONDS, QUEUED_EVENTS, FanoutReader, Subscriptions, _Events
from kcl_dagster.streams.pacing import Allowance, ReadDeadline
from kcl_dagster.streams.polling import Bookmark
from kcl_dagster.streams.position import Bounds
from tests.doubles.clock import FakeClock
from tests.unit.streams.conftest import SHARD, STREAM, WHOLE, after, payloads
from tests.unit.streams.test_polling import refused

pytestmark = pytest.mark.slow

ARN: Final = "arn:aws:kinesis:us-east-1:1:stream/clicks/consumer/app:1"
PATIENCE: Final = 60.0
SOON: Final = 20.0  # well below the deadlines, on a busy machine


@dataclass
class Feed:
    """The events of one subscription, as they are pushed."""

    pushed: "queue.Queue[dict[str, Any] | None]" = field(default_factory=queue.Queue)
    closed: threading.Event = field(default_factory=threading.Event)

    def push(self, number: int, *data: bytes) -> None:
        """One event with these records, numbered from `number` on."""
        records = [
            {"SequenceNumber": str(place), "Data": one, "PartitionKey": "k", "ApproximateArrivalTimestamp": 1.0}
            for place, one in enumerate(data, number)
        ]
        last = str(number + max(0, len(data) - 1))
        event = {"Records": records, "ContinuationSequenceNumber": last, "MillisBehindLatest": 0}
        self.pushed.put({"SubscribeToShardEvent": event})

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while (event := self.pushed.get()) is not None:
            yield event

    def close(self) -> None:
        self.closed.set()


@dataclass
class Service:
    feeds: list[Feed] = field(default_factory=list)
    meta: Any = field(default_factory=lambda: SimpleNamespace(region_name="us-east-1"))
    is_silent: bool = False
    """Subscriptions send nothing by themselves."""

    def subscribe_to_shard(self, **_: Any) -> dict[str, Any]:
        self.feeds.append(Feed())
        if not self.is_silent:
            self.feeds[-1].push(10, b"first" if len(self.feeds) == 1 else b"again")
        return {"EventStream": self.feeds[-1]}


@pytest.fixture
def service() -> Service:
    return Service()


def reader(
    service: Service,
    subscriptions: Subscriptions | None,
    bounds: Bounds = WHOLE,
    bookmark: Bookmark | None = None,
    runtime: Runtime | None = None,
) -> FanoutReader:
    return FanoutReader(
        service,
        ARN,
        STREAM,
        SHARD,
        bounds,
        runtime=runtime or system(),
        bookmark=bookmark,
        subscriptions=subscriptions,
    )


def read(one: FanoutReader, seconds: float = PATIENCE) -> list[bytes]:
    """Until the first records have come, or for so long."""
    deadline = ReadDeadline(time.monotonic() + seconds, system().clock, linger=0.0)
    found = []
    for page in one.pages(Allowance(1000, 1 << 30, 1), deadline):
        deadline.records_came()
        found += payloads(page)
    return found


def test_the_next_reader_goes_on_with_the_subscription(service: Service) -> None:
    subscriptions = Subscriptions()
    first = reader(service, subscriptions)
    assert read(first) == [b"first"]
    service.feeds[0].push(11, b"b", b"c")
    began = time.monotonic()
    second = reader(service, subscriptions, Bounds(Checkpoint("10", 0)), first.bookmark)
    assert read(second) == [b"b", b"c"]
    assert len(service.feeds) == 1
    assert time.monotonic() - began < 5, "it did not wait until it may subscribe again"


def test_a_reader_that_leaves_nothing_behind_closes_its_subscription(service: Service) -> None:
    read(reader(service, None))
    service.feeds[0].pushed.put(None)
    assert service.feeds[0].closed.wait(PATIENCE)


def test_a_subscription_at_another_place_is_not_used(service: Service) -> None:
    subscriptions = Subscriptions()
    first = reader(service, subscriptions)
    read(first)
    bookmark = Bookmark("7", wait_seconds=0.0, millis_behind=0)
    assert read(reader(service, subscriptions, Bounds(Checkpoint("7", 0)), bookmark)) == [b"again"]
    service.feeds[0].push(11, b"b")
    assert service.feeds[0].closed.wait(PATIENCE)


def test_a_subscription_of_which_a_part_was_read_is_not_used(service: Service) -> None:
    subscriptions = Subscriptions()
    first = reader(service, subscriptions)
    read(first)
    service.feeds[0].push(11, b"b", b"c")
    second = reader(service, subscriptions, Bounds(Checkpoint("10", 0)), first.bookmark)
    pages = second.pages(Allowance(1, 1 << 30, 1), ReadDeadline(time.monotonic() + PATIENCE, system().clock))
    assert [payloads(page) for page in pages] == [[b"b"]]
    service.feeds[0].push(13, b"d")
    assert service.feeds[0].closed.wait(PATIENCE)


def test_a_shard_that_had_no_record_yet_keeps_its_subscription(service: Service) -> None:
    """Its next range begins at the initial position again, although an empty event has moved the place."""
    service.is_silent = True
    subscriptions = Subscriptions()
    first = reader(service, subscriptions)
    threading.Timer(0.2, lambda: service.feeds[0].push(9)).start()
    deadline = ReadDeadline(time.monotonic() + 1.0, system().clock)
    assert list(first.pages(Allowance(1000, 1 << 30, 1), deadline)) == []
    bookmark = first.bookmark
    assert bookmark is not None
    assert bookmark.iterator == "9"
    service.feeds[0].push(10, b"a")
    assert read(reader(service, subscriptions, bookmark=replace(bookmark, iterator=None))) == [b"a"]
    assert len(service.feeds) == 1


def test_a_subscription_that_nobody_reads_any_more_ends(service: Service) -> None:
    clock = FakeClock()
    subscriptions = Subscriptions()
    deadline = ReadDeadline(clock.monotonic() + PATIENCE, clock, linger=0.0)
    one = reader(service, subscriptions, runtime=Runtime(clock=clock))
    for _ in one.pages(Allowance(1000, 1 << 30, 1), deadline):
        deadline.records_came()
    for number in range(QUEUED_EVENTS + 2):
        service.feeds[0].push(11 + number)
    assert not service.feeds[0].closed.wait(0.5)
    clock.advance(KEPT_SECONDS + 1)
    assert service.feeds[0].closed.wait(PATIENCE)


def test_a_reader_that_waits_for_an_event_ends_when_its_deadline_is_brought_forward(service: Service) -> None:
    subscriptions = Subscriptions()
    first = reader(service, subscriptions)
    read(first)
    deadline = ReadDeadline(time.monotonic() + PATIENCE, system().clock, linger=0.1)
    second = reader(service, subscriptions, Bounds(Checkpoint("10", 0)), first.bookmark)
    threading.Timer(0.3, deadline.bring_forward).start()
    began = time.monotonic()
    assert list(second.pages(Allowance(1000, 1 << 30, 1), deadline)) == []
    assert time.monotonic() - began < SOON
    service.feeds[0].push(11, b"b")
    assert read(reader(service, subscriptions, Bounds(Checkpoint("10", 0)), second.bookmark)) == [b"b"]
    assert len(service.feeds) == 1


def test_a_sleep_ends_when_the_deadline_is_brought_forward() -> None:
    deadline = ReadDeadline(time.monotonic() + PATIENCE, system().clock, linger=0.05)
    threading.Timer(0.2, deadline.records_came).start()
    began = time.monotonic()
    deadline.sleep(PATIENCE)
    assert time.monotonic() - began < SOON
    assert time.monotonic() >= deadline.at


def early(one: FanoutReader, linger: float = 0.05) -> list[bytes]:
    """Read in a batch that another shard closes so soon after its begin."""
    deadline = ReadDeadline(time.monotonic() + PATIENCE, system().clock, linger=linger)
    deadline.records_came()
    return [data for page in one.pages(Allowance(1000, 1 << 30, 1), deadline) for data in payloads(page)]


def test_a_shard_that_answers_slowly_is_read_although_others_close_each_batch_soon(service: Service) -> None:
    """Its subscription has sent nothing when the batch ends. A new one in each batch would never send anything."""
    service.is_silent = True
    subscriptions = Subscriptions()
    first = reader(service, subscriptions)
    assert early(first) == []
    service.feeds[0].push(10, b"a")
    second = reader(service, subscriptions, bookmark=first.bookmark)
    assert early(second, linger=2.0) == [b"a"]
    assert len(service.feeds) == 1


def test_a_shard_that_was_not_read_does_not_count_as_read_to_its_tip(service: Service) -> None:
    """Neither while it waits until it may subscribe, nor with a subscription that has sent nothing."""
    for wait in (4.0, 0.0):
        service.is_silent = True
        one = reader(service, Subscriptions(), after("10"), Bookmark("10", wait_seconds=wait, millis_behind=0))
        assert early(one) == []
        assert one.millis_behind != 0


def test_a_subscription_that_is_silent_for_a_batch_neither_fails_nor_delays_it(service: Service) -> None:
    """A stream without records pushes an event every five seconds, more or less."""
    subscriptions = Subscriptions()
    first = reader(service, subscriptions)
    read(first)
    second = reader(service, subscriptions, Bounds(Checkpoint("10", 0)), first.bookmark)
    began = time.monotonic()
    assert list(second.pages(Allowance(1000, 1 << 30, 1), ReadDeadline(began + 0.5, system().clock))) == []
    assert time.monotonic() - began < 4
    service.feeds[0].push(11, b"b")
    assert read(reader(service, subscriptions, Bounds(Checkpoint("10", 0)), second.bookmark)) == [b"b"]
    assert len(service.feeds) == 1


def test_a_shard_that_refuses_each_subscription_fails_although_others_close_each_batch_soon(
    service: Service,
) -> None:
    def refuse(**_: Any) -> Any:
        raise refused("LimitExceededException")

    service.subscribe_to_shard = refuse  # type: ignore[method-assign]

    def read_on(clock: FakeClock) -> None:
        bookmark = None
        for _ in range(40):
            deadline = ReadDeadline(clock.monotonic() + 5, clock, linger=0.0)
            one = reader(service, Subscriptions(), bookmark=bookmark, runtime=Runtime(clock=clock))
            pages = one.pages(Allowance(1000, 1 << 30, 1), deadline)
            threading.Timer(0.05, deadline.records_came).start()
            assert not list(pages)
            clock.advance(1)
            bookmark = one.bookmark
            if bookmark is not None:
                left = max(0.0, bookmark.wait_seconds - 1)
                bookmark = replace(bookmark, wait_seconds=left, failing_seconds=bookmark.failing_seconds + 1)

    with pytest.raises(Throttled):
        read_on(FakeClock())


def test_a_subscription_that_nobody_reads_any_more_keeps_no_records() -> None:
    clock, feed, client = FakeClock(), Feed(), Service()
    events = _Events(client, {"ShardId": SHARD}, feed, Runtime(clock=clock), threaded=True)
    assert events.waits()
    for number in range(QUEUED_EVENTS + 2):
        feed.push(number, b"x" * 1000)
    waits = events._queue
    assert waits is not None
    assert wait_until(waits.full)
    clock.advance(KEPT_SECONDS + 1)
    assert wait_until(waits.empty)


def wait_until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()
