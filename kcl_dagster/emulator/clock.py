"""The clock that the embedded Kinesis goes by."""

from __future__ import annotations

from kcl_dagster.emulator.kinesis.service import Clock


class AdjustableClock:
    """Another clock, plus what it was advanced by."""

    def __init__(self, base: Clock) -> None:
        self._base = base
        self._ahead = 0.0

    def __call__(self) -> float:
        return self._base() + self._ahead

    def advance(self, seconds: float) -> None:
        """Let time pass at once. It does not go back: services do not either."""
        if seconds < 0:
            raise ValueError(f"a clock can only be advanced, not by {seconds} s")
        self._ahead += seconds
