"""The common interface of all ways of measuring."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

FULL = 100.0  # percent

ReadText = Callable[[str], str]
"""The content of a file. Raises OSError."""


class Unmeasurable(Exception):
    """Raised if a reading could not be taken or understood. The next reading may succeed."""


class Probe(Protocol):
    """Measures the use since the last call. The first call returns 0, because there is no earlier reading."""

    def percent(self) -> float:
        """The use from 0 to 100. Raises Unmeasurable."""


def read_file(path: str) -> str:
    return Path(path).read_text(encoding="ascii", errors="replace")


def busy_percent(cores_used: float, cores: float) -> float:
    """The used part of the available cores in percent, at most 100."""
    return max(0.0, min(FULL, cores_used / cores * FULL)) if cores > 0 else FULL
