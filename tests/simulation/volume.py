"""Check how many events and log lines a worker and its leases cause (L9).

Dagster keeps every event, and every log line costs money. A failure that lasts must not be reported again and
again: an episode has one event at its beginning, and then few.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from tests.simulation.properties import Violations

HOUR: Final = 3600.0
# Of one kind, by one worker, about one lease. A failure that is retried once a minute may be reported each time.
MOST_AN_HOUR: Final = 120


class Volume:
    """Counts every event, and every log line from warnings on."""

    def __init__(self, violations: Violations, now: Callable[[], float]) -> None:
        self._violations = violations
        self._now = now
        self._recent: dict[tuple[str, str, str | None], deque[float]] = {}
        self.highest = 0
        """The highest count within an hour."""

    def event(self, process: str, kind: str, about: str | None = None) -> None:
        now = self._now()
        recent = self._recent.setdefault((process, kind, about), deque())
        recent.append(now)
        while recent[0] <= now - HOUR:
            recent.popleft()
        self.highest = max(self.highest, len(recent))
        if len(recent) == MOST_AN_HOUR + 1:
            self._violations.add("L9", f"{process} told of {kind} {about or ''} {len(recent)} times within an hour")


class LogLines(logging.Handler):
    """Counts the package's log lines in a `Volume`."""

    def __init__(self, volume: Volume, process: Callable[[], str]) -> None:
        super().__init__(logging.WARNING)
        self._volume = volume
        self._process = process

    def emit(self, record: logging.LogRecord) -> None:
        self._volume.event(self._process(), f"log line of {record.name}", str(record.msg))
