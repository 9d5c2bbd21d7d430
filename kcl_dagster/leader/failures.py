"""When a leader that keeps failing should let another try."""

from dataclasses import dataclass
from typing import Final

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
