"""What a leader does if it cannot read or assign: try once more, then let another candidate lead."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from kcl_dagster.errors import KclError

T = TypeVar("T")

FAILURES_BEFORE_RELEASE: Final = 3
# Pauses after leadership was given up. By default, the longest pause is four times as long as workers wait for a
# leader before they share leases by themselves.
FIRST_PAUSE: Final = 5.0
LONGEST_PAUSE: Final = 480.0


@dataclass(slots=True)
class FailureCount:
    """Counts failed passes in a row, and how long leadership is left to others. Lives as long as the leader's
    process.

    Workers take unserved leases by themselves if the lock has not changed for a while. A leader that cannot work
    must therefore not take the lock again every few seconds.
    """

    in_a_row: int = 0
    given_up: int = 0
    """How many times in a row leadership was given up."""

    cannot_read: bool = False
    """Whether leadership was given up because the tables could not be read. Whether they can be read again can be
    tested without the lock."""

    waits_until: float = 0.0
    """Monotonic time until which leadership is left to others."""

    def succeeded(self) -> None:
        """Record that a pass succeeded."""
        self.in_a_row = self.given_up = 0
        self.cannot_read = False

    def failed(self, *, fatal: bool = False) -> bool:
        """Record that a pass failed. Returns whether to give up leadership now. `fatal`: this process cannot
        continue."""
        self.in_a_row += 1
        return fatal or self.in_a_row >= FAILURES_BEFORE_RELEASE

    def give_up(self, now: float, *, cannot_read: bool) -> None:
        """Leave leadership to others: until the tables can be read again, or else for a pause that doubles each
        time."""
        self.in_a_row = 0
        self.cannot_read = cannot_read
        pause = min(FIRST_PAUSE * 2.0 ** min(self.given_up, 16), LONGEST_PAUSE)
        self.waits_until = now if cannot_read else now + pause
        self.given_up += 1

    def waits(self, now: float) -> float:
        """Seconds for which leadership is left to others."""
        return max(0.0, self.waits_until - now)


def twice(read: Callable[[], T]) -> T:
    """Call `read`, and call it again if it fails. As in the KCL, a pass fails only if its tables cannot be read
    twice."""
    try:
        return read()
    except KclError:
        return read()
