"""The interface of a probe, which measures how busy the machine or container of a worker is."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

FULL = 100.0  # percent

ReadText = Callable[[str], str]
"""Returns the content of a file. Raises OSError."""


class Unmeasurable(Exception):
    """Raised if a reading could not be taken or understood. The next reading can succeed."""


class Probe(Protocol):
    """Measures how busy the machine or container was since the last call. If there is no earlier reading, the first
    call returns 0."""

    def percent(self) -> float:
        """The use in percent, from 0 to 100. Raises Unmeasurable."""


def read_file(path: str) -> str:
    return Path(path).read_text(encoding="ascii", errors="replace")


def busy_percent(cores_used: float, cores: float) -> float:
    """The used part of the available cores in percent, at most 100."""
    return max(0.0, min(FULL, cores_used / cores * FULL)) if cores > 0 else FULL
