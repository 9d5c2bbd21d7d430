"""The moment through which the application is complete, as a worker last read it. The worker stores this moment
with its commits to the application's table."""

from collections.abc import Callable
from typing import Final

from kcl_dagster.errors import KclError
from kcl_dagster.runtime import Clock
from kcl_dagster.tables.completeness_row import WrittenThrough

READ_SECONDS: Final = 30.0  # the leader writes the moment every few seconds; one read costs one capacity unit

LoadCompleteness = Callable[[], WrittenThrough]
"""Reads the completeness row. Can raise a KclError."""


def nothing_known() -> WrittenThrough:
    """Return a row without a moment. For applications without a completeness row."""
    return WrittenThrough()


class CompletenessWatch:
    """Reads the completeness row regularly. `step` is called on the housekeeping thread and can block for one
    request. `last` never blocks."""

    def __init__(self, load: LoadCompleteness, clock: Clock) -> None:
        self._load = load
        self._clock = clock
        self._due = float("-inf")
        self._last = WrittenThrough()

    def step(self) -> None:
        """Read the row if this is due. If the read fails, the last known moment is kept: within its epoch, it
        remains true."""
        now = self._clock.monotonic()
        if now < self._due:
            return
        self._due = now + READ_SECONDS
        try:
            self._last = self._load()
        except KclError:
            return

    def last(self) -> WrittenThrough | None:
        """The row as last read; None if no moment is known."""
        return None if self._last.through is None else self._last
