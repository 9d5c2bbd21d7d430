"""Limits of reading: how fast one shard is read, and how much one batch reads from all of its shards together."""

import math
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from kcl_dagster.runtime import Clock

# Kinesis allows five GetRecords per second per shard, for all consumers together. One is left for other consumers.
READS_PER_SECOND: Final = 4.0
# Kinesis serves 2 MiB per second per shard. After a larger page, it refuses requests until the average is met. The
# limit here is 5 % lower, because Kinesis counts keys, too, and measures time by another clock.
BYTES_PER_SECOND: Final = 1.9 * 1024 * 1024
# A shard without records is read once per second, which leaves four fifths of the allowed requests to others.
IDLE_SECONDS: Final = 1.0
# The pause between two reads of a shard without records, in a batch that cannot end early (its `ReadDeadline` has
# no `linger`). The pause does not keep records out of the batch: each shard is read once more just before the end
# of the batch, and one page has room for all records that a shard takes in this time.
QUIET_SECONDS: Final = 5.0
# A shard at its tip is read for the last time this long before the end of a batch. The batch then includes the
# records that have arrived by this time. With many shards, the last reads are spread over a longer time. Each shard
# adds LAST_READ_SECONDS_OF_SHARD to it.
LAST_READ_SECONDS: Final = 0.05
LAST_READ_SECONDS_OF_SHARD: Final = 0.005
# The size of the largest page of GetRecords, and of the largest record that a stream can be configured for.
MAX_PAGE_BYTES: Final = 10 * 1024 * 1024
# The size of the largest record, unless the stream was configured for larger records.
LIKELY_LARGEST_RECORD_BYTES: Final = 1024 * 1024
# The first page of a shard shows how large its records are. A few records suffice for this.
FIRST_PAGE_RECORDS: Final = 20
# How often a reader that waits for others checks whether it has to stop. A thousand readers can wait at once.
STOP_POLL_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class ShardLimits:
    """The rates at which one consumer reads a shard. `unlimited()` is for emulators and benchmarks without
    limits."""

    reads_per_second: float = READS_PER_SECOND
    bytes_per_second: float = BYTES_PER_SECOND
    idle_seconds: float = IDLE_SECONDS
    quiet_seconds: float = QUIET_SECONDS

    @classmethod
    def unlimited(cls, idle_seconds: float = 0.05) -> "ShardLimits":
        return cls(reads_per_second=1e6, bytes_per_second=1e15, idle_seconds=idle_seconds, quiet_seconds=0.0)

    def wait_after(self, page_bytes: int, *, is_at_tip: bool, left: float = math.inf) -> float:
        """Seconds to wait after a page, counted from when it was requested. `left`: seconds until the last read of
        the batch."""
        pause = 1 / self.reads_per_second
        if not is_at_tip:
            return max(pause, page_bytes / self.bytes_per_second)
        is_next_the_last = 0 < left < self.idle_seconds + pause
        return max(pause, left if is_next_the_last else self.idle_seconds)


class ReadDeadline:
    """The time at which the readers of a batch stop waiting for records. Shared by the readers. Thread-safe.

    With a `linger`, the deadline is brought forward to `linger` seconds after the first records, and waiting
    readers are woken.
    """

    def __init__(self, at: float, clock: Clock, linger: float | None = None) -> None:
        """`at`: a time of `clock.monotonic()`. With a `linger`, `sleep` waits in real time, whatever `clock` is."""
        self._at = at
        self._clock = clock
        self._linger = linger
        self._changed = threading.Condition()
        self._wake: list[Callable[[], None]] = []
        self.is_early = False
        """Whether the deadline was brought forward."""

    @property
    def at(self) -> float:
        return self._at

    @property
    def may_be_early(self) -> bool:
        """Whether the first records bring the deadline forward."""
        return self._linger is not None

    def records_came(self) -> None:
        """Called after each page of a shard near its tip. Brings the deadline forward if there is a `linger`."""
        if self._linger is not None and not self.is_early:
            self.bring_forward(self._linger)

    def bring_forward(self, seconds: float = 0.0) -> None:
        """Bring the deadline forward to `seconds` from now, unless it is earlier already."""
        with self._changed:
            self._at = min(self._at, self._clock.monotonic() + seconds)
            self.is_early = True
            self._changed.notify_all()
            wake = list(self._wake)
        for one in wake:
            one()

    def wakes(self, one: Callable[[], None]) -> None:
        """Register a function that is called when the deadline is brought forward, on the thread that brings it
        forward."""
        with self._changed:
            self._wake.append(one)

    def sleep(self, seconds: float) -> None:
        """Wait for `seconds`. If the deadline is brought forward, the wait ends at the deadline."""
        if self._linger is None:
            self._clock.sleep(seconds)
            return
        until = self._clock.monotonic() + seconds
        with self._changed:
            while (left := min(until, self._at if self.is_early else until) - self._clock.monotonic()) > 0:
                self._changed.wait(left)


class Allowance:
    """The budget of a batch, in records and bytes, shared by the readers of one task. Thread-safe.

    The records that are kept never exceed the budget, except that a first record is kept whatever its size. A page
    has up to ten megabytes, however few records are requested. A reader may therefore have to wait before it
    requests a page. It need not wait if no other reader is requesting one, or if the rest of the budget has room
    for this page and for all pages that other readers are requesting.
    """

    def __init__(self, records: int, bytes_: int, readers: int) -> None:
        self._records = records
        self._bytes = bytes_
        self._page_records = max(records // max(readers, 1), 1)
        self._page_bytes = max(bytes_ // max(readers, 1), 1)
        self._readers = readers
        self._is_untouched = True
        self._is_closed = False
        self._asking = 0
        self._lock = threading.RLock()
        # One condition for each waiting reader, in the order of arrival. Only the first reader is notified. If a
        # thousand readers woke for each page, they would take a hundred times the CPU of their requests.
        self._waiting: deque[threading.Condition] = deque()

    @property
    def is_spent(self) -> bool:
        """Whether there is no room for another record. There is always room for a first record."""
        return self._is_closed or (not self._is_untouched and (self._records <= 0 or self._bytes <= 0))

    def last_read_seconds(self, chance: float) -> float:
        """How many seconds before the end of the batch a shard at its tip is read for the last time. `chance`: from
        0 to 1, to spread the reads of several shards."""
        return LAST_READ_SECONDS + chance * LAST_READ_SECONDS_OF_SHARD * self._readers

    @contextmanager
    def page_permit(self, is_stopped: Callable[[], bool], *, pinned: bool = False) -> Iterator[bool]:
        """Wait until the caller is allowed to request another page. Callers are served in the order of arrival.
        Yields True when the request is allowed; until the end of the block, the page then counts as requested.
        Yields False if `is_stopped` returns True, or if the budget is spent and the range is not `pinned`."""
        granted, turn = False, threading.Condition(self._lock)
        with self._lock:
            self._waiting.append(turn)
            try:
                while not is_stopped() and (pinned or not self.is_spent):
                    if self._waiting[0] is turn and self._has_room_for_a_page():
                        granted = True
                        self._asking += 1
                        break
                    turn.wait(STOP_POLL_SECONDS)
            finally:
                self._waiting.remove(turn)
                self._wake_first()
        try:
            yield granted
        finally:
            if granted:
                with self._lock:
                    self._asking -= 1
                    self._wake_first()

    def _wake_first(self) -> None:
        if self._waiting:
            self._waiting[0].notify()

    def claim(self, sizes: Sequence[int]) -> int:
        """Take records of these sizes, in order, as long as there is room. Returns how many were taken. If not all
        fit, the budget counts as spent, and the next batch reads the remaining records."""
        with self._lock:
            if len(sizes) <= self._records and sum(sizes) <= self._bytes:
                fitting = len(sizes)
            else:
                fitting = max(0, min(self._records, bisect_right(list(accumulate(sizes)), self._bytes)))
                fitting = max(fitting, self._is_untouched and len(sizes) > 0)
            self._is_closed = self._is_closed or fitting < len(sizes)
            self._spend(fitting, sum(sizes[:fitting]))
            return fitting

    def spend(self, records: int, bytes_: int) -> None:
        """Take room for records that have to be read, even if the budget has no room left."""
        with self._lock:
            self._spend(records, bytes_)

    @contextmanager
    def opening(self, claimed: int) -> Iterator["Opening"]:
        """Yields the room for the user records inside one Kinesis record. `claimed`: the bytes that `claim` has
        taken for the Kinesis record. Only one Kinesis record is opened at a time."""
        with self._lock:
            opening = Opening(max(self._records, 0) + 1, max(self._bytes, 0) + claimed)
            yield opening
            self._is_closed = self._is_closed or not opening.is_whole
            self._spend(max(opening.rows_taken - 1, 0), max(opening.bytes_taken - claimed, 0))

    def page_limit(self, record_bytes: float, most: int, record_rows: float = 1.0) -> int:
        """How many records to request, so that concurrent readers together stay near the budget. Each record
        contains about `record_rows` user records of `record_bytes` in total."""
        by_bytes = int(min(self._page_bytes, self._bytes) / max(record_bytes, 1.0))
        by_rows = int(min(self._page_records, self._records) / max(record_rows, 1.0))
        return max(1, min(most, by_rows, by_bytes))

    def first_page_limit(self) -> int:
        """How many records to request from a shard whose record sizes are not known yet."""
        likely_largest = self._page_bytes // LIKELY_LARGEST_RECORD_BYTES
        return max(1, min(FIRST_PAGE_RECORDS, likely_largest, self._page_records, self._records))

    def _has_room_for_a_page(self) -> bool:
        return not self._asking or (self._asking + 1) * MAX_PAGE_BYTES <= self._bytes

    def _spend(self, records: int, bytes_: int) -> None:
        self._is_untouched = self._is_untouched and not records
        self._records -= records
        self._bytes -= bytes_
        if self.is_spent:
            for turn in self._waiting:
                turn.notify()


@dataclass(slots=True)
class Opening:
    """The room for the user records inside one Kinesis record, and how much of the room was used. `is_whole`:
    whether there was room for all of them."""

    rows: int
    bytes: int
    rows_taken: int = 0
    bytes_taken: int = 0
    is_whole: bool = True
