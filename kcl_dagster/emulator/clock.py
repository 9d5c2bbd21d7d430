"""The clock of the embedded Kinesis."""

from __future__ import annotations

from kcl_dagster.emulator.kinesis.service import Clock


class AdjustableClock:
    """The time of another clock, plus the seconds by which it was advanced."""

    def __init__(self, base: Clock) -> None:
        self._base = base
        self._ahead = 0.0

    def __call__(self) -> float:
        return self._base() + self._ahead

    def advance(self, seconds: float) -> None:
        """Move the clock ahead. It cannot be set back, because the clocks of AWS are not set back either."""
        if seconds < 0:
            raise ValueError(f"a clock can only be advanced, not by {seconds} s")
        self._ahead += seconds
