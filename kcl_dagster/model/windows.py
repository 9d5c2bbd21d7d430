"""Windows of time: which window contains a moment, and when it ends.

All moments are whole epoch seconds, UTC. A window begins at `start_of` and ends, exclusively, at `end_of`, where
the next one begins. Windows can differ in length: a local day has 23 to 25 hours.
"""

from dataclasses import dataclass
from typing import Protocol


class Windows(Protocol):
    """Divides time without gaps. Pure, and safe to call from any thread. Used on the driver, never in executors."""

    @property
    def division(self) -> str:
        """A text that is equal for windows that divide time in the same way, in all processes and versions."""

    def start_of(self, moment: int) -> int:
        """The start of the window that contains `moment`; never later than `moment`."""

    def end_of(self, start: int) -> int:
        """The start of the window after the one that begins at `start`; later than `start`."""

    def has_partition(self, start: int) -> bool:
        """Whether the window that begins at `start` is ever declared complete."""


@dataclass(frozen=True, slots=True)
class FixedWindows:
    """Windows of one length, counted from the epoch: hours of UTC unless another length is given."""

    seconds: int = 3600

    def __post_init__(self) -> None:
        if self.seconds < 1:
            msg = f"a window of {self.seconds} s is too short: it should have a second at least"
            raise ValueError(msg)

    @property
    def division(self) -> str:
        return f"{self.seconds} s"

    def start_of(self, moment: int) -> int:
        return moment - moment % self.seconds

    def end_of(self, start: int) -> int:
        return start + self.seconds

    def has_partition(self, start: int) -> bool:  # noqa: ARG002 (every window has one)
        return True
