"""Reading one shard with GetRecords.

`ShardReader.pages` gives the records of a range page by page; the reader's attributes say how far it came. One
reader reads one range once, on one thread. It waits on the runtime's clock and starts no thread.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kcl_dagster.aws import Client, RequestRefused, ResourceMissing, Unanswered, call
from kcl_dagster.errors import DataLoss, EndpointUnreachable, ServiceError, StreamNotFound, Throttled
from kcl_dagster.model.shard import ChildShard, HashRange
from kcl_dagster.runtime import Runtime
from kcl_dagster.streams.pacing import Allowance, ShardLimits
from kcl_dagster.streams.position import Bounds
from kcl_dagster.streams.records import StreamRecord, arrival_millis

MAX_PAGE_RECORDS: Final = 10_000  # GetRecords refuses a larger limit
# Size of a record before the first page has told; a page holds 10 MiB at most whatever we ask for.
ASSUMED_RECORD_BYTES: Final = 1024.0

# A pinned range is read to its end although the budget is spent, but not for ever.
PINNED_PATIENCE_SECONDS: Final = 120.0
# A shard that has not answered once is given this long, however short the batch: a throttle passes in a second.
OPEN_PATIENCE_SECONDS: Final = 5.0
FIRST_BACKOFF_SECONDS: Final = 0.25
LONGEST_BACKOFF_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Bookmark:
    """An iterator that stands after `sequence`, and what was learnt of the shard on the way there.

    Kinesis forgets iterators after five minutes; a reader falls back to the range's beginning then.
    """

    iterator: str
    record_bytes: float = ASSUMED_RECORD_BYTES
    wait_seconds: float = 0.0  # the shard asks to be left alone for this long yet


class ShardReader:
    """Reads one range of one shard."""

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
    ) -> None:
        self._client = client
        self._stream = stream
        self._shard_id = shard_id
        self._bounds = bounds
        self._runtime = runtime
        self._limits = limits
        self._iterator = bookmark.iterator if bookmark else None
        self._record_bytes = bookmark.record_bytes if bookmark else ASSUMED_RECORD_BYTES
        self._not_before = runtime.clock.monotonic() + (bookmark.wait_seconds if bookmark else 0.0)
        self._failures = 0  # since the last answer
        self._saw_anchor = bookmark is not None  # the iterator's sequence was read a moment ago

        self._last_sequence: str | None = None
        self.millis_behind: int | None = None
        self.is_ended = False
        self.is_gone = False
        self.is_start_trimmed = False
        self.children: tuple[ChildShard, ...] = ()

    @property
    def bookmark(self) -> Bookmark | None:
        """Where to go on; None when the next reader must find the place itself."""
        if self._iterator is None:
            return None
        wait = max(0.0, self._not_before - self._runtime.clock.monotonic())
        return Bookmark(self._iterator, self._record_bytes, wait)

    def pages(
        self, allowance: Allowance, deadline: float, is_stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[list[StreamRecord]]:
        """The records of the range, in order, in non-empty pages.

        Ends when the range is complete, when the shard ends, when `allowance` or the time until `deadline` (of
        the monotonic clock) is used up, or when `is_stopped` says so. An open range gets one answer at least. A
        pinned range knows neither allowance nor deadline.

        Whole Kinesis records: the edges inside an aggregate are the caller's to cut. Raises DataLoss when the
        records of a pinned range are gone, and Throttled, EndpointUnreachable or OutcomeUnknown when the shard
        did not answer for too long.
        """
        pinned = self._bounds.through is not None
        patience = PINNED_PATIENCE_SECONDS if pinned else OPEN_PATIENCE_SECONDS
        give_up = max(deadline, self._now() + patience)
        answered = False
        while not (self.is_ended or self._is_complete or is_stopped()):
            if answered and not pinned and (allowance.is_spent or self._not_before >= deadline):
                return
            self._wait()
            limit = MAX_PAGE_RECORDS if pinned else allowance.page_limit(self._record_bytes, MAX_PAGE_RECORDS)
            answer = self._ask(limit, give_up)
            if answer is None:
                continue
            if pinned:
                give_up = self._now() + patience
            records = self._accept(answer)
            # The checkpoint's own record is no answer, or a budget that others have spent would end here each time.
            answered = answered or not self._is_only_anchor(records)
            if records:
                allowance.spend(len(records), _size(records))
                yield records
        if pinned and not self._is_complete and not is_stopped():
            raise DataLoss(
                f"{self._name}: records through {self._bounds.through} were written by a batch before, but the "
                f"shard ended at {self._last_sequence}: they left the stream before they could be read again"
            )

    @property
    def _name(self) -> str:
        return f"{self._shard_id} of stream {self._stream}"

    @property
    def _is_complete(self) -> bool:
        """Whether the last record of a pinned range has been read."""
        through, last = self._bounds.through, self._last_sequence
        return through is not None and last is not None and int(last) >= int(through.sequence)

    def _now(self) -> float:
        return self._runtime.clock.monotonic()

    def _wait(self) -> None:
        wait = self._not_before - self._now()
        if wait > 0:
            self._runtime.clock.sleep(wait)

    def _ask(self, limit: int, give_up: float) -> Mapping[str, Any] | None:
        """One GetRecords. None when the shard has to be asked again or has turned out to be gone."""
        began = self._now()
        try:
            if self._iterator is None:
                self._iterator = self._find_place()
            answer = call(self._client, "get_records", ShardIterator=self._iterator, Limit=limit)
            if "Records" not in answer:
                # botocore takes a body that was cut off for an empty one.
                raise Unanswered(f"{self._name}: the answer to GetRecords has no records in it")
        except ServiceError as error:
            self._recover(error, give_up)
            return None
        self._failures = 0
        size = _size(answer["Records"])
        # A page can be empty far from the tip; only at the tip there is nothing to hurry for.
        is_at_tip = size == 0 and not answer.get("MillisBehindLatest")
        self._not_before = began + self._limits.wait_after(size, is_at_tip=is_at_tip)
        return answer

    def _find_place(self) -> str:
        if self._last_sequence is not None:
            place: dict[str, Any] = {
                "ShardIteratorType": "AFTER_SEQUENCE_NUMBER",
                "StartingSequenceNumber": self._last_sequence,
            }
        else:
            self._saw_anchor = False
            place = self._bounds.starting_point()
        answer = call(self._client, "get_shard_iterator", StreamName=self._stream, ShardId=self._shard_id, **place)
        iterator: str = answer["ShardIterator"]
        return iterator

    def _recover(self, error: ServiceError, give_up: float) -> None:
        """What a failed call means: find the place again, wait, a shard that is gone, or an error to raise."""
        match error:
            case RequestRefused(code="ExpiredIteratorException"):
                self._iterator = None
            case RequestRefused(code="InvalidArgumentException") if (
                self._iterator is not None and not self._failures
            ):
                self._iterator, self._failures = None, 1  # not an iterator of this service; only once
            case ResourceMissing():
                self._confirm_stream()
                self.is_gone = self.is_ended = True
            case Throttled() | EndpointUnreachable() | Unanswered():
                backoff = min(FIRST_BACKOFF_SECONDS * 2**self._failures, LONGEST_BACKOFF_SECONDS)
                self._failures += 1
                # Jitter over the upper half: consumers of one shard must not come back together.
                self._not_before = self._now() + backoff * self._runtime.random.uniform(0.5, 1.0)
                if self._not_before > give_up:
                    raise error
            case _:
                raise error

    def _confirm_stream(self) -> None:
        """A missing shard of an existing stream has expired; a missing stream must not end its shards."""
        try:
            call(self._client, "describe_stream_summary", StreamName=self._stream)
        except ResourceMissing as error:
            raise StreamNotFound(f"stream {self._stream} does not exist any more") from error

    def _accept(self, answer: Mapping[str, Any]) -> list[StreamRecord]:
        """Take in a page: its records that belong to the range, and what it says of the shard."""
        self._iterator = answer.get("NextShardIterator")
        self.millis_behind = answer.get("MillisBehindLatest", self.millis_behind)
        page: list[StreamRecord] = answer["Records"]
        mine = page
        if page:
            self._record_bytes = max(_size(page) / len(page), 1.0)
            self._check_anchor(page[0]["SequenceNumber"])
            if self._last_sequence is None:
                page = mine = [record for record in page if not self._is_early(record)]
            mine = self._through_the_end(page)
        if mine:
            self._last_sequence = mine[-1]["SequenceNumber"]
        if self._iterator is None and len(mine) == len(page):
            self.is_ended = True
            self.children = tuple(_child(child) for child in answer.get("ChildShards") or ())
        return mine

    def _check_anchor(self, sequence: str) -> None:
        if self._saw_anchor:
            return
        self._saw_anchor = True
        anchor = self._bounds.begins_at_record
        if anchor is not None and int(sequence) > int(anchor):
            self.is_start_trimmed = True
            if self._bounds.through is not None:
                raise DataLoss(
                    f"{self._name}: records from {anchor} on were written by a batch before and have to be read "
                    f"again, but the stream now begins at {sequence}"
                )

    def _is_only_anchor(self, records: list[StreamRecord]) -> bool:
        """Nothing but the record at which the range begins, although there is more."""
        return (
            len(records) == 1
            and records[0]["SequenceNumber"] == self._bounds.after.sequence
            and bool(self.millis_behind)
            and not self.is_ended
        )

    def _is_early(self, record: StreamRecord) -> bool:
        bounds = self._bounds
        if not bounds.after.is_initial_position:
            return int(record["SequenceNumber"]) < int(bounds.after.sequence)
        if bounds.first is None and bounds.timestamp_ms is not None:
            # boto3 sends timestamps in whole seconds, so a page may begin up to a second early.
            arrival = arrival_millis(record)
            return arrival is not None and arrival < bounds.timestamp_ms
        return False

    def _through_the_end(self, page: list[StreamRecord]) -> list[StreamRecord]:
        """Cut what lies beyond the pinned end."""
        if self._bounds.through is None:
            return page
        end = int(self._bounds.through.sequence)
        mine = [record for record in page if int(record["SequenceNumber"]) <= end]
        if len(mine) < len(page) and (not mine or int(mine[-1]["SequenceNumber"]) != end):
            raise DataLoss(
                f"{self._name}: record {self._bounds.through} was written by a batch before and is gone now"
            )
        return mine


def _size(records: list[StreamRecord]) -> int:
    return sum(len(record["Data"]) for record in records)


def _child(description: Mapping[str, Any]) -> ChildShard:
    hash_range = description["HashKeyRange"]
    return ChildShard(
        id=description["ShardId"],
        hash_range=HashRange(int(hash_range["StartingHashKey"]), int(hash_range["EndingHashKey"])),
        parents=tuple(description["ParentShards"]),
    )
