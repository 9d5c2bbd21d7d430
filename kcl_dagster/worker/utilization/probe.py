"""What every way of measuring has in common."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

FULL = 100.0  # percent

ReadText = Callable[[str], str]
"""The content of a file. Raises OSError."""


class Unmeasurable(Exception):
    """A reading could not be taken or understood; the next one may do better."""


class Probe(Protocol):
    """Measures one thing since the last call. The first call has nothing to compare with and says 0."""

    def percent(self) -> float:
        """0 to 100. Raises Unmeasurable."""


def read_file(path: str) -> str:
    return Path(path).read_text(encoding="ascii", errors="replace")


def busy_percent(cores_used: float, cores: float) -> float:
    """How much of the cores one may use is in use; above a limit that is a share, it says full."""
    return max(0.0, min(FULL, cores_used / cores * FULL)) if cores > 0 else FULL
