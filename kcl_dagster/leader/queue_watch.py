"""Whether the runs that this leader wants start, and when it leaves the lead to another deployment.

Each deployment has a run queue of its own. A leader whose queue does not move launches nobody, and as long as it
has the lock, no other deployment launches anybody either. So it gives the lock up, and does not take it for long
enough that another candidate can. Where there is none, it leads again and waits longer the next time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kcl_dagster.leader.runs import SlotRun

# The runs of two launches: a run that is not counted on any more (120 s) is followed by another one.
STUCK_SECONDS: Final = 240.0
LONGEST_STUCK_SECONDS: Final = 3600.0
REST_TICKS: Final = 6  # another candidate looks at the lock once in a tick
SHORTEST_REST: Final = 30.0


@dataclass(slots=True)
class QueueWatch:
    """Lives as long as the leader's process. All times are monotonic."""

    tick_interval: float
    stuck_since: float | None = None
    given_up: int = 0
    """How often in a row leadership was given up."""

    waits_until: float = 0.0

    def see(self, now: float, *, is_short: bool, moves: bool) -> bool:
        """After each tick as the leader; whether leadership must be given up now. `is_short`: workers are missing.
        `moves`: a run of this deployment starts, or its worker is alive."""
        if moves:
            self.given_up = 0
        if moves or not is_short:
            self.stuck_since = None
            return False
        if self.stuck_since is None:
            self.stuck_since = now
        patience = min(STUCK_SECONDS * 2.0 ** min(self.given_up, 16), LONGEST_STUCK_SECONDS)
        if now - self.stuck_since < patience:
            return False
        self.stuck_since = None
        self.given_up += 1
        self.waits_until = now + max(REST_TICKS * self.tick_interval, SHORTEST_REST)
        return True

    def waits(self, now: float, runs: Mapping[str, SlotRun]) -> float:
        """Seconds for which leadership is left to others; none once a run has left the queue."""
        if any(run.status != "queued" for run in runs.values()):
            self.waits_until = now
        return max(0.0, self.waits_until - now)
