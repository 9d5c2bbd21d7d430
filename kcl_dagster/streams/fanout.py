"""Reads one shard with SubscribeToShard (enhanced fan-out): the service pushes the records.

`FanoutReader` has the interface of `polling.ShardReader`: it reads one range once, on one thread, and reports how
far it has read. A subscription lasts for five minutes. If a reader ends earlier, it leaves its subscription to the
next reader of the same process. That reader uses the subscription if its range begins where the subscription
continues. Otherwise it makes a new subscription, at the continuation sequence number of the last event. The service
allows a new subscription five seconds after the last one at the earliest.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from botocore.eventstream import ParserError
from urllib3.exceptions import HTTPError as TransportError

from kcl_dagster.aws import Client, RequestRefused, ResourceBusy, ResourceMissing, Unanswered, call, mapped_errors
from kcl_dagster.errors import (
    ConsumerNotFound,
    EndpointUnreachable,
    KclError,
    ServiceError,
    StreamNotFound,
    Throttled,
)
from kcl_dagster.model.shard import ChildShard
from kcl_dagster.runtime import Runtime
from kcl_dagster.streams.cutting import RangeCut
from kcl_dagster.streams.pacing import Allowance, ReadDeadline
from kcl_dagster.streams.polling import OPEN_PATIENCE_SECONDS, PINNED_PATIENCE_SECONDS, Bookmark, is_far_behind
from kcl_dagster.streams.position import Bounds
from kcl_dagster.streams.presence import Gaps, Presence
from kcl_dagster.streams.records import StreamRecord, arrival_millis, child_shards

# Five seconds after its last subscription to a shard, a consumer can subscribe again. The new subscription replaces
# the last one.
RESUBSCRIBE_SECONDS: Final = 5.1
RETRY_SECONDS: Final = 1.0
# How long a subscription waits for its next reader. After that, another process probably reads the lease, or no
# process does.
KEPT_SECONDS: Final = 30.0
# The most events in the queue. With the event that is processed and the event that waits for a place in the queue,
# a shard has at most four events of about a megabyte in memory. Further events remain in the connection, because
# the service respects its flow-control window.
QUEUED_EVENTS: Final = 2

Event = Mapping[str, Any]
Place = str | Bounds
"""The place at which a subscription continues: after the continuation sequence number of its last event, or at the
start of a range."""


class FanoutReader:
    def __init__(
        self,
        client: Client,
        consumer_arn: str,
        stream: str,
        shard_id: str,
        bounds: Bounds,
        *,
        runtime: Runtime,
        bookmark: Bookmark | None = None,
        in_background: bool = True,
        subscriptions: "Subscriptions | None" = None,
    ) -> None:
        """`subscriptions`: the subscriptions that readers of this process leave to their successors.
        `in_background`: receive events on a separate thread, so that the deadline is met even if a shard has no
        records. Use False for clients that return at once and must be used on one thread only."""
        self._client = client
        self._consumer_arn = consumer_arn
        self._stream = stream
        self._shard_id = shard_id
        self._bounds = bounds
        self._runtime = runtime
        self._in_background = in_background
        self._subscriptions = subscriptions
        self._continuation = bookmark.iterator if bookmark else None
        self._not_before = self._now() + (bookmark.wait_seconds if bookmark else 0.0)
        failing = bookmark.failing_seconds if bookmark else 0.0
        self._failing_since = self._now() - failing if failing else None
        self._name = f"{shard_id} of stream {stream}"
        self._was_answered = False
        self._cut = RangeCut(bounds, self._name, goes_on=self._continuation is not None)
        self._gaps = Gaps(Presence(client, stream, shard_id, runtime))

        self._said_before = bookmark.millis_behind if bookmark else None
        self.millis_behind: int | None = self._said_before
        self.is_ended = False
        self.is_gone = False
        self.children: tuple[ChildShard, ...] = ()

    @property
    def is_start_trimmed(self) -> bool:
        """Whether the record at which the range begins is no longer in the stream."""
        return self._cut.is_start_trimmed

    @property
    def bookmark(self) -> Bookmark | None:
        """The position for the next reader, and facts about the shard. None if there is nothing that the next
        reader could use."""
        wait = max(0.0, self._not_before - self._now())
        failing = 0.0 if self._failing_since is None else self._now() - self._failing_since
        if self.is_ended or (self._continuation is None and not wait and not failing):
            return None
        millis_behind = self._said_before if self.millis_behind is None else self.millis_behind
        place = None if is_far_behind(millis_behind) else self._continuation
        return Bookmark(place, wait_seconds=wait, millis_behind=millis_behind, failing_seconds=failing)

    def pages(
        self, allowance: Allowance, deadline: ReadDeadline, is_stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[list[StreamRecord]]:
        """Yield the records of the range, as `ShardReader.pages` does.

        A new subscription may have to wait: the service allows it a few seconds after the last one
        (RESUBSCRIBE_SECONDS), and a pause follows each failed attempt. If an open range (one whose end is not known
        yet) begins with such a wait, reading differs in two points:

        - If the wait would not end before `deadline`, nothing is yielded.
        - If the wait ends before `deadline`, the range is read for some time after the wait, even beyond
          `deadline`. This time is at least the shorter of RESUBSCRIBE_SECONDS and the time that remained until
          `deadline` when the call began.
        """
        pinned = self._cut.is_pinned
        patience = PINNED_PATIENCE_SECONDS if pinned else OPEN_PATIENCE_SECONDS
        began = self._now()
        kept = self._kept()
        least = began
        if kept is None and not pinned and self._not_before > began:
            if self._not_before >= deadline.at:
                deadline.sleep(max(0.0, deadline.at - began))
                if self.millis_behind is not None:  # while a shard is not read, its lag grows with the clock
                    self.millis_behind += max(1, round((self._now() - began) * 1000))
                return
            # After the wait, the range is read for nearly as long as without a wait. Otherwise each batch would
            # start its subscription as late as the previous batch, and would read only for the remaining time. If
            # that was once half a second of five, it would be half a second in all later batches.
            least = self._not_before + min(deadline.at - began, RESUBSCRIBE_SECONDS)
        # When to give up if no subscription succeeds. If the former reader has subscribed just before, the first
        # attempt has to wait.
        first_wait = max(began, self._not_before) + max(patience, RESUBSCRIBE_SECONDS + RETRY_SECONDS)
        give_up = max(deadline.at, least, first_wait)
        # The time since the first failure counts, even if that was in an earlier batch. Otherwise, the failure
        # would never be reported if the first records of other shards end each batch early (see `Budget.linger`).
        if self._failing_since is not None:
            give_up -= began - self._failing_since
        stood = answered = False
        # A reader of a kept subscription can end without an event. A missing event does not mean that the
        # subscription has failed, because a shard without records sends an event only every five seconds. If the
        # subscription breaks off, its connection reports an error.
        is_old = kept is not None

        def until() -> float:
            return deadline.at if deadline.is_early else max(deadline.at, least)

        def is_over() -> bool:
            if self.is_ended or self._cut.is_over or is_stopped():
                return True
            if pinned or not (answered or is_old or deadline.is_early):
                return False
            return allowance.is_spent or self._now() >= until()

        while not is_over():
            wait = self._not_before - self._now()
            if wait > 0 and kept is None:
                if answered and not pinned and self._not_before >= until():
                    return
                if pinned:
                    self._runtime.clock.sleep(wait)
                else:
                    deadline.sleep(wait)
                continue  # check again: a task that was stopped must not replace its successor's subscription
            try:
                is_old = kept is not None
                events, kept, is_whole = kept or self._subscribe(), None, False
                if not pinned:
                    deadline.wakes(events.wake)
                if not stood:
                    stood, give_up = True, max(until(), self._now() + patience)
                try:
                    while not is_over():
                        is_patient = pinned or not (answered or is_old or deadline.is_early)
                        event = events.next(give_up if is_patient else until())
                        if isinstance(event, Woken):
                            continue
                        if event is None:
                            break  # the subscription or the time until the deadline is over
                        if pinned:
                            give_up = self._now() + patience
                        accepted = self._accept(event)
                        if accepted is None:
                            return
                        answered = answered or not (self._cut.is_before_the_first(accepted) and self.millis_behind)
                        records = self._cut.claim(accepted, allowance)
                        if self._cut.rest_is_left:
                            self.leave_rest(arrival_millis(records[-1]) if records else None)
                        if records:
                            yield records
                        if self._cut.rest_is_left:
                            return
                    is_whole = not (self._cut.has_more or self.is_ended or events.is_over)
                finally:
                    if not (is_whole and self._leave(events)):
                        events.close()
                if self._now() >= give_up and not is_over():
                    raise EndpointUnreachable(f"{self._name} sent no event for {patience:.0f} s")
            except ServiceError as error:
                if isinstance(error, ResourceBusy) and answered and not pinned:
                    return  # another reader replaced this subscription: the lease has moved, or is about to
                self._recover(error, give_up)
        if not self._was_answered:
            # No event was received, so the lag is unknown: records may have arrived since the former reader ended.
            self.millis_behind = None
        if pinned and not self._cut.is_complete and not is_stopped():
            raise self._cut.lost_the_end()

    def opened(self, rows: int, bytes_: int, records: int) -> None:
        """Does nothing, because the service decides how much it pushes."""

    def leave_rest(self, last_arrival_ms: int | None) -> None:
        """See `ShardReader.leave_rest`."""
        self.millis_behind = self._cut.leave_rest(self.millis_behind, last_arrival_ms)
        self._continuation = None
        self.is_ended, self.children = False, ()

    def _now(self) -> float:
        return self._runtime.clock.monotonic()

    @property
    def _place(self) -> Place | None:
        """The place at which the next event begins. None if it is not known, because the last event had no
        continuation."""
        if self._continuation is not None or self._was_answered:
            return self._continuation
        return self._bounds

    @property
    def _places_of_next(self) -> tuple[Place, ...]:
        """The places at which the next reader can begin to use the subscription. If the range begins at an initial
        position and had no records, the next range begins there as well, and its reader has no continuation."""
        place = self._place
        if place is None:
            return ()
        is_unread = self._bounds.after.is_initial_position and self._cut.last_sequence is None
        return (place, self._bounds) if is_unread else (place,)

    def _kept(self) -> "_Events | None":
        registry, place = self._subscriptions, self._place
        if registry is None or place is None:
            return None
        return registry.take(self._consumer_arn, self._shard_id, place)

    def _leave(self, events: "_Events") -> bool:
        """Keep the subscription open for the next reader of the shard. Returns False if this is not possible; the
        caller then closes the subscription.

        A subscription is kept even if it has sent no event yet. If a shard has no records, its first event can take
        five seconds. The first records of other shards can end each batch earlier (see `Budget.linger`). If each
        batch made a new subscription, no event of this shard would ever arrive.
        """
        places = self._places_of_next
        if self._subscriptions is None or not places or not events.waits():
            return False
        self._subscriptions.leave(self._consumer_arn, self._shard_id, places, events)
        return True

    def _subscribe(self) -> "_Events":
        if self._continuation is not None:
            start: dict[str, Any] = {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": self._continuation}
        else:
            self._cut.start_over()
            start = _starting_position(self._bounds)
        request = {"ConsumerARN": self._consumer_arn, "ShardId": self._shard_id, "StartingPosition": start}
        answer = call(self._client, "subscribe_to_shard", **request)
        self._not_before = self._now() + RESUBSCRIBE_SECONDS
        return _Events(self._client, request, answer["EventStream"], self._runtime, threaded=self._in_background)

    def _accept(self, event: Event) -> list[StreamRecord] | None:
        """See `ShardReader._accept`."""
        continuation = event.get("ContinuationSequenceNumber")
        millis_behind = event.get("MillisBehindLatest", self.millis_behind)
        is_far, has_records = is_far_behind(millis_behind), bool(event["Records"])
        if self._cut.ends_before(self._gaps.before(is_far=is_far, has_records=has_records)):
            self._continuation = None
            return None
        self.millis_behind = millis_behind
        self._was_answered, self._failing_since = True, None
        mine = self._cut.keep(event["Records"])
        self.millis_behind = self._cut.lag_at_end(millis_behind, mine)
        self._gaps.went_on(self._cut.last_sequence, is_far=is_far, has_records=has_records)
        self._continuation = continuation if not self._cut.has_more else self._cut.last_sequence
        if self.millis_behind == 0 and not event["Records"]:
            self._cut.reached_end()
        if continuation is None and not self._cut.has_more:
            self.is_ended = True
            self._cut.reached_end()
            self.children = child_shards(event)
        return mine

    def _recover(self, error: ServiceError, give_up: float) -> None:
        if self._failing_since is None:
            self._failing_since = self._now()
        match error:
            case ResourceMissing():
                self._confirm_shard()
                self.is_gone = self.is_ended = True
            case RequestRefused(code="InvalidArgumentException") if self._continuation is not None:
                # The service does not know this position: find it again
                self._continuation = self._cut.last_sequence
            case ResourceBusy() | Throttled() | EndpointUnreachable() | Unanswered() | RequestRefused():
                pause = RETRY_SECONDS * self._runtime.random.uniform(0.5, 1.0)
                self._not_before = max(self._not_before, self._now() + pause)
                if self._not_before > give_up:
                    raise error
            case _:
                raise error

    def _confirm_shard(self) -> None:
        """Raise an error if the stream or the consumer is missing. If both exist, the shard itself has expired."""
        try:
            call(self._client, "describe_stream_summary", StreamName=self._stream)
        except ResourceMissing as missing:
            raise StreamNotFound(f"stream {self._stream} does not exist any more") from missing
        try:
            call(self._client, "describe_stream_consumer", ConsumerARN=self._consumer_arn)
        except ResourceMissing as missing:
            raise ConsumerNotFound(f"{self._consumer_arn} was deregistered while shards were read") from missing


class Subscriptions:
    """The subscriptions of one process that wait for their next readers. Thread-safe."""

    def __init__(self) -> None:
        self._left: dict[tuple[str, str], tuple[tuple[Place, ...], _Events]] = {}
        self._lock = threading.Lock()

    def take(self, consumer_arn: str, shard_id: str, place: Place) -> "_Events | None":
        """Take the subscription of a shard if it continues at `place`; otherwise close it and return None."""
        with self._lock:
            found = self._left.pop((consumer_arn, shard_id), None)
        if found is None:
            return None
        places, events = found
        if place in places and events.goes_on():
            return events
        events.close()
        return None

    def leave(self, consumer_arn: str, shard_id: str, places: tuple[Place, ...], events: "_Events") -> None:
        """Keep a subscription open for the next reader of its shard. `places`: the places at which this reader can
        begin without missing or repeating a record."""
        with self._lock:
            former = self._left.pop((consumer_arn, shard_id), None)
            self._left[consumer_arn, shard_id] = places, events
        if former is not None:
            former[1].close()


class Woken:
    """Returned to a waiting reader in place of an event, after its deadline was brought forward."""


WOKEN: Final = Woken()


class _Events:
    def __init__(
        self, client: Client, request: Mapping[str, Any], stream: Any, runtime: Runtime, *, threaded: bool
    ) -> None:
        self._client = client
        self._request = request
        self._stream = stream
        self._iterator = iter(stream)
        self._runtime = runtime
        self._closed = threading.Event()
        self._waits_since: float | None = None
        self._waiting = threading.Lock()
        self.is_over = False
        """Whether the subscription has ended or failed."""

        self._queue: queue.Queue[Event | KclError | Woken | None] | None = None
        if threaded:
            self._queue = queue.Queue(QUEUED_EVENTS)
            threading.Thread(target=self._pump, name="kcl-subscription", daemon=True).start()

    def next(self, until: float) -> Event | Woken | None:
        """The next event. None if the subscription has ended, or if no event came before `until`. WOKEN after
        `wake`."""
        if self._queue is None:
            event = self._draw()
            self.is_over = event is None
            return event
        try:
            found = self._queue.get(timeout=max(0.0, until - self._runtime.clock.monotonic()))
        except queue.Empty:
            return None
        if isinstance(found, KclError):
            self.is_over = True
            raise found
        self.is_over = found is None
        return found

    def wake(self) -> None:
        """End a reader's wait for the next event. Has no effect on a reader that does not wait."""
        if self._queue is not None:
            with suppress(queue.Full):
                self._queue.put_nowait(WOKEN)

    def waits(self) -> bool:
        """Record that the subscription has no reader from now on. Returns False if it cannot wait without a
        reader."""
        with self._waiting:
            self._waits_since = self._runtime.clock.monotonic()
        return self._queue is not None

    def goes_on(self) -> bool:
        """Record that the subscription has a reader again. Returns False if it has been closed meanwhile."""
        with self._waiting:
            self._waits_since = None
            return not self._closed.is_set()

    def close(self) -> None:
        self._closed.set()
        if self._queue is None:
            self._stream.close()

    def _draw(self) -> Event | None:
        try:
            with mapped_errors(self._client, "subscribe_to_shard", self._request):
                found = next(self._iterator, None)
        # Botocore does not translate these errors within a stream
        except (TransportError, ParserError, OSError) as error:
            raise Unanswered(f"the subscription to {self._request['ShardId']} broke off: {error}") from error
        if found is None:
            return None
        event: Event | None = found.get("SubscribeToShardEvent")
        if event is None or "Records" not in event:
            raise Unanswered(
                f"the subscription to {self._request['ShardId']} sent an event that is not known: {found}"
            )
        return event

    def _pump(self) -> None:
        """The body of the thread. Only this thread uses the connection, because closing it on another thread during
        a read would block."""
        try:
            while not self._closed.is_set():
                try:
                    event: Event | KclError | None = self._draw()
                except KclError as error:
                    event = error
                self._put(event)
                if event is None or isinstance(event, KclError):
                    return
        finally:
            with suppress(Exception):  # the connection may be broken already
                self._stream.close()
            if self._closed.is_set():
                self._discard_events()

    def _discard_events(self) -> None:
        """Drop queued events, which can be megabytes. `Subscriptions` keeps a closed subscription until this
        process reads its shard again, which may never happen."""
        assert self._queue is not None
        with suppress(queue.Empty):
            while True:
                self._queue.get_nowait()

    def _put(self, event: Event | KclError | None) -> None:
        """Add an event to the queue. If the subscription has no reader, the queue is soon full, because an event
        comes at least every five seconds. After KEPT_SECONDS without a reader, the subscription is closed."""
        assert self._queue is not None
        while not self._closed.is_set():
            with suppress(queue.Full):
                self._queue.put(event, timeout=0.2)
                return
            with self._waiting:
                since = self._waits_since
                if since is not None and self._runtime.clock.monotonic() - since >= KEPT_SECONDS:
                    self._closed.set()


def _starting_position(bounds: Bounds) -> dict[str, Any]:
    names = {"ShardIteratorType": "Type", "StartingSequenceNumber": "SequenceNumber", "Timestamp": "Timestamp"}
    return {names[name]: value for name, value in bounds.starting_point().items()}
