"""Reads one shard with GetRecords.

`ShardReader.pages` yields the records of a range page by page. The reader's attributes show how far it has read. A
reader reads one range once, on one thread. It waits on the runtime's clock and starts no thread. A range is
*pinned* if its end is known, because a batch with this range was begun before. Otherwise the range is *open*.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kcl_dagster.aws import Client, RequestRefused, ResourceMissing, Unanswered, call, stream_arn
from kcl_dagster.errors import EndpointUnreachable, ServiceError, StreamNotFound, Throttled
from kcl_dagster.model.shard import ChildShard
from kcl_dagster.runtime import Runtime
from kcl_dagster.streams.cutting import RangeCut
from kcl_dagster.streams.pacing import Allowance, ReadDeadline, ShardLimits
from kcl_dagster.streams.position import Bounds
from kcl_dagster.streams.presence import Gaps, Presence
from kcl_dagster.streams.records import StreamRecord, arrival_millis, child_shards, size_of

MAX_PAGE_RECORDS: Final = 10_000  # GetRecords refuses a larger limit

# The time limit for each response of a shard whose range is pinned. The budget of a batch does not limit such a
# range.
PINNED_PATIENCE_SECONDS: Final = 120.0
# The time limit for the first response of a shard. It applies even if the batch is shorter. Throttling usually ends
# within a second.
OPEN_PATIENCE_SECONDS: Final = 5.0
# How often a reader that waits checks whether its range should end.
LONGEST_NAP_SECONDS: Final = 1.0
# The largest part of a batch over which the last reads of many shards are spread.
LAST_READS_SHARE: Final = 0.5
FIRST_BACKOFF_SECONDS: Final = 0.25
LONGEST_BACKOFF_SECONDS: Final = 5.0


# The minimum retention of a stream is a day. This limit is ten minutes shorter, because a bookmark can be used some
# minutes after its range has ended.
FAR_BEHIND_MILLIS: Final = (24 * 3600 - 600) * 1000


def is_far_behind(millis_behind: int | None) -> bool:
    """Whether the lag is so large that records may leave the stream before they are read. An iterator would skip
    these records silently. A bookmark at such a lag therefore has no iterator: the next reader begins at the last
    record that was read, and its first response shows whether this record is still there."""
    return millis_behind is not None and millis_behind > FAR_BEHIND_MILLIS


@dataclass(frozen=True, slots=True)
class Bookmark:
    """The position at which a range ended, for the next reader, and facts about the shard.

    Kinesis forgets iterators after five minutes. If the iterator is forgotten or missing, the next reader starts at
    the beginning of its range.
    """

    iterator: str | None
    record_bytes: float | None = None
    """The average size of a Kinesis record, including all user records in it; None if not known."""

    record_rows: float = 1.0
    """The average number of user records per Kinesis record."""

    wait_seconds: float = 0.0  # how long the shard should not be read yet
    quiet_seconds: float = 0.0  # for how long the shard need not be read, unless the batch ends
    millis_behind: int | None = None  # the last known lag, for a range that ends before a response
    # For how long the shard has not answered. Without this, short batches would hide a failure for ever.
    failing_seconds: float = 0.0


class ShardReader:
    def __init__(
        self,
        client: Client,
        stream: str,
        shard_id: str,
        bounds: Bounds,
        *,
        runtime: Runtime,
        limits: ShardLimits,
        bookmark: Bookmark | None = None,
        reads_on: bool = False,
    ) -> None:
        """`reads_on`: by default, a range that is far behind the tip ends after its first page with records. With
        `reads_on`, it continues, and the reader checks for a gap before each further page. These checks cost
        requests."""
        self._client = client
        self._stream = stream
        self._shard_id = shard_id
        self._bounds = bounds
        self._runtime = runtime
        self._limits = limits
        self._reads_on = reads_on
        self._iterator = bookmark.iterator if bookmark else None
        self._record_bytes = bookmark.record_bytes if bookmark else None
        self._record_rows = bookmark.record_rows if bookmark else 1.0
        self._not_before = runtime.clock.monotonic() + (bookmark.wait_seconds if bookmark else 0.0)
        self._quiet_until = runtime.clock.monotonic() + (bookmark.quiet_seconds if bookmark else 0.0)
        self._page_bytes = 0
        self._last_read = 0.0
        self._failures = 0  # since the last response
        failing = bookmark.failing_seconds if bookmark else 0.0
        self._failing_since = runtime.clock.monotonic() - failing if failing else None
        self._cut = RangeCut(bounds, f"{shard_id} of stream {stream}", goes_on=self._iterator is not None)

        self.millis_behind: int | None = None
        self.is_ended = False
        self.is_gone = False
        self.children: tuple[ChildShard, ...] = ()
        self._arn = stream_arn(client, stream)
        self._gaps = Gaps(Presence(client, stream, shard_id, runtime))

    @property
    def bookmark(self) -> Bookmark | None:
        """The position for the next reader. None if the next reader has to find the position itself."""
        if self._iterator is None and not self._cut.rest_is_left and self._failing_since is None:
            return None
        now = self._now()
        wait = max(0.0, self._not_before - now)
        failing = 0.0 if self._failing_since is None else now - self._failing_since
        place = None if is_far_behind(self.millis_behind) else self._iterator
        quiet = max(0.0, self._quiet_until - now)
        return Bookmark(place, self._record_bytes, self._record_rows, wait, quiet, failing_seconds=failing)

    def pages(
        self, allowance: Allowance, deadline: ReadDeadline, is_stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[list[StreamRecord]]:
        """Yield the records of the range, in order, in non-empty pages.

        Ends when the range is complete, the shard ends, `allowance` or the time until `deadline` is used up, or
        `is_stopped` returns True. An open range gets at least one response, unless other ranges have used up the
        allowance or brought the deadline forward. A pinned range is not limited by allowance or deadline. The pages
        contain whole Kinesis records: the caller has to cut aggregates in which the range begins or ends. Raises
        DataLoss if records of a pinned range are gone, and Throttled, EndpointUnreachable or OutcomeUnknown if the
        shard did not answer for too long.
        """
        pinned = self._cut.is_pinned
        patience = PINNED_PATIENCE_SECONDS if pinned else OPEN_PATIENCE_SECONDS
        began = self._now()
        longest = max(patience, deadline.at - began)
        give_up = longest + (began if self._failing_since is None else self._failing_since)
        answered = False
        last_seconds = allowance.last_read_seconds(self._runtime.random.random())
        self._last_read = deadline.at - min(last_seconds, LAST_READS_SHARE * (deadline.at - began))
        while not (self.is_ended or self._cut.is_over or is_stopped()):
            next_read = self._not_before if pinned else self._next_read(deadline)
            if not pinned and (allowance.is_spent or (answered and next_read >= deadline.at)):
                return
            wait = next_read - self._now()
            if wait > 0 and pinned:
                self._runtime.clock.sleep(wait)
            elif wait > 0:
                # The reader sleeps in pieces. If other ranges use up the allowance, the batch need not wait for
                # this range.
                nap = min(wait, LONGEST_NAP_SECONDS)
                deadline.sleep(nap)
                if deadline.is_early and self._not_before > self._now():
                    return
                if nap < wait:
                    continue
            with allowance.page_permit(is_stopped, pinned=pinned) as granted:
                if not granted:
                    break
                if not answered and self._failing_since is None:  # even a late first request gets the full patience
                    give_up = max(give_up, self._now() + patience)
                answer = self._ask(self._limit(allowance), give_up)
                if answer is None:
                    continue
                give_up = self._now() + patience if pinned else began + longest
                accepted = self._accept(answer)
                if accepted is None:
                    return
                records = self._cut.claim(accepted, allowance)
                if self._cut.rest_is_left:
                    self.leave_rest(arrival_millis(records[-1]) if records else None)
                # A page that ends before the first record to be processed does not count as a response, unless it
                # reaches the tip. Otherwise a small budget would end the range at this page each time.
                answered = answered or not (self._cut.is_before_the_first(records) and self.millis_behind)
                if records:
                    yield records
            if self._cut.rest_is_left:
                return
            if (
                not (pinned or self._reads_on)
                and records
                and is_far_behind(self.millis_behind)
                and not self._cut.is_only_anchor(records)
            ):
                return
        if pinned and not self._cut.is_complete and not is_stopped():
            raise self._cut.lost_the_end()

    @property
    def is_start_trimmed(self) -> bool:
        """Whether the record at which the range begins is no longer in the stream."""
        return self._cut.is_start_trimmed

    @property
    def has_gap(self) -> bool:
        """Whether the range ended because records after it have left the stream."""
        return self._cut.has_gap

    def opened(self, rows: int, bytes_: int, records: int) -> None:
        """Called after each page. `records`: the number of Kinesis records in the page. `rows` and `bytes_`: the
        number and the size of the user records in them. These numbers determine how many records the next requests
        ask for."""
        self._record_rows = max(rows / records, 1.0)
        self._record_bytes = max(bytes_ / records, self._record_bytes or 1.0)

    def leave_rest(self, last_arrival_ms: int | None) -> None:
        """Called if only part of the last page was used, up to a record that arrived at `last_arrival_ms`. The next
        range begins with the rest. Its reader gets no iterator, and finds the position itself."""
        self.millis_behind = self._cut.leave_rest(self.millis_behind, last_arrival_ms)
        self._iterator = None
        self.is_ended, self.children = False, ()

    def _limit(self, allowance: Allowance) -> int:
        """How many records to request. The first request of a range also returns the record before the range, so it
        asks for one record more. If it returned only that record, the first record of the range could leave the
        stream before the second request."""
        if self._cut.is_pinned:
            return MAX_PAGE_RECORDS
        if self._record_bytes is None:
            limit = allowance.first_page_limit()
        else:
            limit = allowance.page_limit(self._record_bytes, MAX_PAGE_RECORDS - 1, self._record_rows)
        begins = self._iterator is None and self._cut.last_sequence is None
        return limit + (begins and self._bounds.begins_at_record is not None)

    def _now(self) -> float:
        return self._runtime.clock.monotonic()

    def _next_read(self, deadline: ReadDeadline) -> float:
        """When to read an open range again. If the shard had no records, this is at the end of the batch; in a long
        batch, it is after some seconds. If the first records can end the batch early (see `ReadDeadline`), the
        shard is read more often."""
        now = self._now()
        if deadline.may_be_early or self._quiet_until <= now:
            return self._not_before
        last_read = self._last_read if self._last_read > now else deadline.at
        is_next_the_last = self._quiet_until > last_read - self._limits.idle_seconds
        return max(self._not_before, last_read if is_next_the_last else self._quiet_until)

    def _ask(self, limit: int, give_up: float) -> Mapping[str, Any] | None:
        """Send one GetRecords request. Returns the response; None if the request has to be repeated, or if the
        shard is gone."""
        began = self._now()
        try:
            if self._iterator is None:
                self._iterator = self._find_place()
            answer = call(self._client, "get_records", ShardIterator=self._iterator, Limit=limit, **self._arn)
        except ServiceError as error:
            self._recover(error, give_up)
            return None
        self._failures, self._failing_since = 0, None
        size = self._page_bytes = size_of(answer["Records"])
        # A page can be empty far from the tip. Only at the tip should the next read wait.
        is_at_tip = size == 0 and not answer.get("MillisBehindLatest")
        left = self._last_read - began
        self._not_before = began + self._limits.wait_after(size, is_at_tip=is_at_tip, left=left)
        self._quiet_until = began + (self._limits.quiet_seconds if is_at_tip else 0.0)
        return answer

    def _find_place(self) -> str:
        if self._cut.last_sequence is not None:
            place: dict[str, Any] = {
                "ShardIteratorType": "AFTER_SEQUENCE_NUMBER",
                "StartingSequenceNumber": self._cut.last_sequence,
            }
        else:
            self._cut.start_over()
            place = self._bounds.starting_point()
        answer = call(self._client, "get_shard_iterator", StreamName=self._stream, ShardId=self._shard_id, **place)
        iterator: str = answer["ShardIterator"]
        return iterator

    def _recover(self, error: ServiceError, give_up: float) -> None:
        """React to a failed call: find the position again, wait, record that the shard is gone, or raise the
        error."""
        match error:
            case RequestRefused(code="ExpiredIteratorException") if not self._failures:
                self._iterator, self._failures = None, 1  # if a new iterator is refused, too, the reader waits
            case RequestRefused(code="InvalidArgumentException") if (
                self._iterator is not None and not self._failures
            ):
                # Another endpoint made this iterator. Find the position again, but only once.
                self._iterator, self._failures = None, 1
            case ResourceMissing():
                self._confirm_stream()
                self.is_gone = self.is_ended = True
            case RequestRefused(code="ExpiredIteratorException"):
                self._iterator = None
                self._back_off(error, give_up)
            case Throttled() | EndpointUnreachable() | Unanswered():
                self._back_off(error, give_up)
            case _:
                raise error

    def _back_off(self, error: ServiceError, give_up: float) -> None:
        backoff = min(FIRST_BACKOFF_SECONDS * 2**self._failures, LONGEST_BACKOFF_SECONDS)
        self._failures += 1
        if self._failing_since is None:
            self._failing_since = self._now()
        # The pause is a random part of the backoff, at least half of it, so that the consumers of one shard do not
        # retry at the same time.
        self._not_before = self._now() + backoff * self._runtime.random.uniform(0.5, 1.0)
        if self._not_before > give_up:
            raise error

    def _confirm_stream(self) -> None:
        """Raise StreamNotFound if the stream is missing, because its shards must then not count as ended. If the
        stream exists, only the shard has expired."""
        try:
            call(self._client, "describe_stream_summary", StreamName=self._stream)
        except ResourceMissing as error:
            raise StreamNotFound(f"stream {self._stream} does not exist any more") from error

    def _accept(self, answer: Mapping[str, Any]) -> list[StreamRecord] | None:
        """Handle a page: record the state of the shard, and return the page's records that belong to the range.
        Returns None if the range ends before this page."""
        millis_behind = answer.get("MillisBehindLatest", self.millis_behind)
        page: list[StreamRecord] = answer["Records"]
        is_far = is_far_behind(millis_behind)
        if self._cut.ends_before(self._gaps.before(is_far=is_far, has_records=bool(page))):
            self._iterator = None
            return None
        self._iterator = answer.get("NextShardIterator")
        self.millis_behind = millis_behind
        if page:
            self._record_bytes = max(self._page_bytes / len(page), 1.0)
        mine = self._cut.keep(page)
        self.millis_behind = self._cut.lag_at_end(millis_behind, mine)
        self._gaps.went_on(self._cut.last_sequence, is_far=is_far, has_records=bool(page))
        if self.millis_behind == 0 and not page:
            self._cut.reached_end()
        if self._iterator is None and not self._cut.has_more:
            self.is_ended = True
            self._cut.reached_end()
            self.children = child_shards(answer)
        return mine
