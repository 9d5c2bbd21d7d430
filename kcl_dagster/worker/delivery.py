"""Delivery to receivers that can be slow, hang or fail, such as Dagster's storage or a log.

The threads of a worker renew its leases, so they must not wait for a receiver. They add a call to a bounded queue,
and the queue's own thread makes the calls in order. If the queue is full or a call fails repeatedly, the call is
dropped and counted by kind. When the receiver accepts calls again, it gets one call with the number of dropped
calls. A receiver that is always too slow gets such a call regularly.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from kcl_dagster.runtime import Clock, SystemClock

CAPACITY: Final = 1000  # calls; with some KB each, these are a few MB while a receiver does not answer
RESERVED: Final = 100  # the part of the capacity that is kept for important calls
ATTEMPTS: Final = 3  # after this many failures, a call is dropped: the receiver may accept other calls
FIRST_PAUSE: Final = 1.0  # seconds after a failure, doubled with every further failure
LONGEST_PAUSE: Final = 30.0  # seconds; a receiver that works again is noticed within half a minute
REPORT_SECONDS: Final = 300.0  # between two reports of dropped calls, if the receiver is always too slow
LAST_SECONDS: Final = 5.0  # for the delivery of the queued calls when a worker ends
IDLE_SECONDS: Final = 60.0  # between two steps of a thread without calls

Call = Callable[[], object]
Offer = Callable[..., bool]
"""`offer(kind, call, important=False)`: returns True if the call has been or will be made."""


def at_once(_: str, call: Call, *, important: bool = False) -> bool:  # noqa: ARG001
    """An `Offer` that makes the call at once, on the caller's thread. The caller therefore waits for the
    receiver."""
    call()
    return True


@dataclass(slots=True)
class _Waiting:
    kind: str
    call: Call
    attempts: int = 0


class DeliveryQueue:
    """A bounded queue of calls. `offer` can be called from any thread, `step` from one thread only."""

    def __init__(
        self,
        clock: Clock | None = None,
        on_dropped: Callable[[Mapping[str, int]], object] | None = None,
        *,
        capacity: int = CAPACITY,
        new_lock: Callable[[], threading.Lock] = threading.Lock,
    ) -> None:
        """`on_dropped` is called by `step`, after a call that succeeded, with the number of dropped calls by kind.
        If it raises, it is called again later."""
        self._clock = clock or SystemClock()
        self._on_dropped = on_dropped
        self._capacity = capacity
        self._lock = new_lock()
        self._waiting: deque[_Waiting] = deque()
        self._dropped: Counter[str] = Counter()
        self._failures = 0
        self._reported = float("-inf")
        self._is_closed = False
        self.woken: Callable[[], object] = _ignore
        """Called after each accepted offer, to wake a thread that waits."""

    def offer(self, kind: str, call: Call, *, important: bool = False) -> bool:
        """Queue a call. Never waits, never raises. Returns False if the call was dropped because the queue is full
        or closed."""
        with self._lock:
            reserved = 0 if important else min(RESERVED, self._capacity // 10)
            accepted = not self._is_closed and len(self._waiting) < self._capacity - reserved
            if accepted:
                self._waiting.append(_Waiting(kind, call))
            else:
                self._dropped[kind] += 1
        if accepted:
            self.woken()
        return accepted

    @property
    def dropped(self) -> Mapping[str, int]:
        """The calls that were dropped and not reported yet, by kind."""
        with self._lock:
            return dict(self._dropped)

    @property
    def is_finished(self) -> bool:
        return self._is_closed and not self._waiting

    def step(self) -> float:
        """Make the oldest queued call. Blocks as long as the call does. Returns the seconds until the next step is
        useful. Never raises an Exception."""
        with self._lock:
            first = self._waiting[0] if self._waiting else None
        if first is None:
            return IDLE_SECONDS
        try:
            first.call()
        except Exception:
            return self._failed(first)
        self._failures = 0
        self._remove(first)
        self._report_dropped()
        return 0.0 if self._waiting else IDLE_SECONDS

    def close(self) -> None:
        """Accept no more calls, and do not pause after failures any more."""
        with self._lock:
            self._is_closed = True
        self.woken()

    def abandon(self) -> Mapping[str, int]:
        """Drop the queued calls. Returns all calls that were dropped and never reported, by kind."""
        with self._lock:
            self._dropped.update(waiting.kind for waiting in self._waiting)
            self._waiting.clear()
            return dict(self._dropped)

    def _failed(self, first: _Waiting) -> float:
        first.attempts += 1
        self._failures += 1
        if first.attempts >= ATTEMPTS or self._is_closed:
            self._remove(first)
            with self._lock:
                self._dropped[first.kind] += 1
        if self._is_closed:
            return 0.0
        doubled = FIRST_PAUSE * 2.0 ** min(self._failures - 1, 10)
        return float(min(LONGEST_PAUSE, doubled))

    def _remove(self, first: _Waiting) -> None:
        with self._lock:
            if self._waiting and self._waiting[0] is first:  # otherwise the queue was abandoned during the call
                self._waiting.popleft()

    def _report_dropped(self) -> None:
        now = self._clock.monotonic()
        with self._lock:
            dropped = Counter(self._dropped)
            is_due = not self._waiting or now - self._reported >= REPORT_SECONDS
        if not dropped or not is_due or self._on_dropped is None:
            return
        try:
            self._on_dropped(dict(dropped))
        except Exception:
            self._failures += 1
            return
        self._reported = now
        with self._lock:
            self._dropped -= dropped


def _ignore() -> None:
    """The default for `woken`: no thread waits for offers."""


class DeliveryThread:
    """A context manager whose thread steps a queue. At the end of the block, it makes queued calls for up to
    `last_seconds`, and drops the calls that remain."""

    def __init__(self, queue: DeliveryQueue, name: str, last_seconds: float = LAST_SECONDS) -> None:
        self._queue = queue
        self._last_seconds = last_seconds
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.undelivered: Mapping[str, int] = {}
        """After the block: the calls that were dropped and never reported, by kind."""

    def _run(self) -> None:
        while not self._queue.is_finished:
            self._wake.clear()
            pause = self._queue.step()
            if pause > 0 and not self._queue.is_finished:
                self._wait(pause)

    def _wait(self, pause: float) -> None:
        """Wait for `pause` seconds. The end of the block ends the wait early. If there was no failed call, an offer
        does so, too."""
        if pause >= IDLE_SECONDS:
            self._wake.wait(pause)
        else:
            self._closing.wait(pause)

    def __enter__(self) -> Self:
        self._queue.woken = self._wake.set
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.close()
        self._closing.set()
        self._thread.join(self._last_seconds)
        self.undelivered = self._queue.abandon()


def counted(dropped: Mapping[str, int]) -> str:
    """A text with the number of dropped calls by kind, such as `3 (2 lease lost, 1 batch)`."""
    kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(dropped.items(), key=lambda kind: -kind[1]))
    return f"{sum(dropped.values())} ({kinds})"
