"""What a leader does when it cannot read or assign: try once more, then let another one lead."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from kcl_dagster.errors import KclError

T = TypeVar("T")

FAILURES_BEFORE_RELEASE: Final = 3


@dataclass(slots=True)
class FailureCount:
    """Passes that failed in a row. Lives as long as the leader's process."""

    in_a_row: int = 0

    def succeeded(self) -> None:
        """A pass went through, or leadership was just gained."""
        self.in_a_row = 0

    def failed(self, *, fatal: bool = False) -> bool:
        """Count a failed pass; whether leadership must be given up now. `fatal`: this process cannot go on."""
        self.in_a_row += 1
        return fatal or self.in_a_row >= FAILURES_BEFORE_RELEASE


def twice(read: Callable[[], T]) -> T:
    """A pass that cannot read its tables tries once more at once, as in the KCL, before it counts as failed."""
    try:
        return read()
    except KclError:
        return read()
