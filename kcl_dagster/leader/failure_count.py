"""What a leader does when it cannot read or assign: try once more, then let another one lead."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from kcl_dagster.errors import KclError

T = TypeVar("T")

FAILURES_BEFORE_RELEASE: Final = 3
# After leadership was given up. The longest pause is four times after which workers do without a leader by default.
FIRST_PAUSE: Final = 5.0
LONGEST_PAUSE: Final = 480.0


@dataclass(slots=True)
class FailureCount:
    """Passes that failed in a row, and how long leadership is left to others after it was given up. Lives as long
    as the leader's process.

    Workers take unserved leases by themselves when the lock has not changed for a while. So a leader that cannot do
    its work must not take the lock again every few seconds.
    """

    in_a_row: int = 0
    given_up: int = 0
    """How often in a row leadership was given up."""

    cannot_read: bool = False
    """It was given up because the tables could not be read; whether they can be needs no lock to find out."""

    waits_until: float = 0.0
    """Monotonic time."""

    def succeeded(self) -> None:
        """A pass went through."""
        self.in_a_row = self.given_up = 0
        self.cannot_read = False

    def failed(self, *, fatal: bool = False) -> bool:
        """Count a failed pass; whether leadership must be given up now. `fatal`: this process cannot go on."""
        self.in_a_row += 1
        return fatal or self.in_a_row >= FAILURES_BEFORE_RELEASE

    def give_up(self, now: float, *, cannot_read: bool) -> None:
        """Leave leadership to others: until the tables can be read again, or for twice as long each time."""
        self.in_a_row = 0
        self.cannot_read = cannot_read
        pause = min(FIRST_PAUSE * 2.0 ** min(self.given_up, 16), LONGEST_PAUSE)
        self.waits_until = now if cannot_read else now + pause
        self.given_up += 1

    def waits(self, now: float) -> float:
        """Seconds for which leadership is left to others."""
        return max(0.0, self.waits_until - now)


def twice(read: Callable[[], T]) -> T:
    """A pass that cannot read its tables tries once more at once, as in the KCL, before it counts as failed."""
    try:
        return read()
    except KclError:
        return read()
