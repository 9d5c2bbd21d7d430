"""Time that moves when it is told to."""

import heapq
import itertools
from collections.abc import Callable
from typing import Final

# Friday, 1 January 2027, 00:00 UTC: a plain date that no stored fixture depends on.
DEFAULT_START: Final = 1_798_761_600.0


class FakeClock:
    """A clock for one thread: `sleep` moves it on at once, and what was scheduled in between happens on the way.

    The wall clock (`now`) may be set askew with `jump`; `monotonic` only ever moves forward.
    """

    def __init__(self, start: float = DEFAULT_START, monotonic: float = 1000.0) -> None:
        self._now = start
        self._monotonic = monotonic
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.slept: list[float] = []
        """Every duration passed to `sleep`, so that a test can see backoffs."""

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(max(0.0, seconds))

    def advance(self, seconds: float) -> None:
        """Move both clocks on; callbacks fall due in order, each seeing its own moment."""
        if seconds < 0:
            msg = f"time cannot go back {-seconds} s; use jump() for the wall clock"
            raise ValueError(msg)
        end = self._monotonic + seconds
        while self._due and self._due[0][0] <= end:
            when, _, callback = heapq.heappop(self._due)
            self._move_to(max(when, self._monotonic))
            callback()
            # A callback may itself have slept past the end.
            end = max(end, self._monotonic)
        self._move_to(end)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back, as NTP or an operator does."""
        self._now += seconds

    def call_in(self, seconds: float, callback: Callable[[], None]) -> None:
        """Run `callback` when `seconds` have passed, from within `advance` or `sleep`."""
        heapq.heappush(self._due, (self._monotonic + seconds, next(self._order), callback))

    def _move_to(self, monotonic: float) -> None:
        self._now += monotonic - self._monotonic
        self._monotonic = monotonic
