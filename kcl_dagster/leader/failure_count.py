"""Decides when a leader that cannot read the tables or assign leases lets another candidate lead, and for how
long."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from kcl_dagster.errors import KclError

T = TypeVar("T")

FAILURES_BEFORE_RELEASE: Final = 3
# Seconds for which a process that gave up leadership does not take the lock again. With default timings, the
# longest pause is four times the time after which workers without a leader take leases by themselves.
FIRST_PAUSE: Final = 5.0
LONGEST_PAUSE: Final = 480.0


@dataclass(slots=True)
class FailureCount:
    """Counts the failed ticks in a row, and records until when this process leaves leadership to others. The object
    exists as long as the leader's process.

    Workers take unserved leases by themselves if the lock has not changed for a while. A leader that cannot work
    must therefore not take the lock again every few seconds.
    """

    in_a_row: int = 0
    given_up: int = 0
    """How many times in a row leadership was given up."""

    cannot_read: bool = False
    """Whether leadership was given up because the tables could not be read. The process can test without the lock
    whether it can read them again."""

    waits_until: float = 0.0
    """Monotonic time until which leadership is left to others."""

    def succeeded(self) -> None:
        """Record that a tick succeeded."""
        self.in_a_row = self.given_up = 0
        self.cannot_read = False

    def failed(self, *, fatal: bool = False) -> bool:
        """Record that a tick failed. Returns whether to give up leadership now. `fatal`: this process cannot
        continue."""
        self.in_a_row += 1
        return fatal or self.in_a_row >= FAILURES_BEFORE_RELEASE

    def give_up(self, now: float, *, cannot_read: bool) -> None:
        """Record that leadership is given up. If `cannot_read`, leadership is left to others until this process can
        read the tables again; otherwise for a pause that doubles each time."""
        self.in_a_row = 0
        self.cannot_read = cannot_read
        pause = min(FIRST_PAUSE * 2.0 ** min(self.given_up, 16), LONGEST_PAUSE)
        self.waits_until = now if cannot_read else now + pause
        self.given_up += 1

    def waits(self, now: float) -> float:
        """Seconds for which leadership is left to others."""
        return max(0.0, self.waits_until - now)


def twice(read: Callable[[], T]) -> T:
    """Call `read`, and call it once more if it raises a KclError. As in the KCL, a tick fails only if two attempts
    to read the tables fail."""
    try:
        return read()
    except KclError:
        return read()
