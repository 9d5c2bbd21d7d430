"""When a Java leader of the same application would act."""

from typing import Final

ASSIGNS_EVERY: Final = 2.0  # lease durations between two assignment passes, unless configured


def assignment_interval(failover: float, configured: float | None = None) -> float:
    """Seconds between two passes of a Java leader. The first one comes at once."""
    return ASSIGNS_EVERY * failover if configured is None else configured
