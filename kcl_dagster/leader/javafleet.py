"""When a Java leader of the same application would act. For mixed fleets: how long to wait before wondering."""

from typing import Final

ASSIGNS_EVERY: Final = 2.0  # lease durations between two assignment passes, unless configured
DISCOVERS_EVERY: Final = 0.5  # assignment intervals between two looks of a worker for leases it was given
ROW_LIVES: Final = 60.0  # seconds that a worker's row counts as alive: two reports
LOCK_HEARTBEAT: Final = 30.0  # seconds for which a Java worker believes that another one leads


def assignment_interval(failover: float, configured: float | None = None) -> float:
    """Seconds between two passes of a Java leader. The first one comes at once."""
    return ASSIGNS_EVERY * failover if configured is None else configured


def longest_assignment(failover: float, configured: float | None = None) -> float:
    """Seconds until a lease that nobody serves is read by a Java worker, while a Java leader leads.

    A lease without owner is seen by the next pass; one whose owner died must be seen standing still by a further
    one. Then its new owner must find it.
    """
    interval = assignment_interval(failover, configured)
    return failover + 2 * interval + DISCOVERS_EVERY * interval
