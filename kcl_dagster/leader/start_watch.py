"""Watches whether workers of this deployment begin to read, and decides when to leave leadership to another
deployment.

Each deployment has a run queue and an image of its own. If no run leaves the queue, or every run ends before its
worker reads, this leader serves no shard. While it has the lock, no other deployment launches workers. It therefore
gives up the lock, and does not take it again until another candidate had time to take it. If no other candidate
takes the lock, this leader leads again, and waits longer before it gives up the lock the next time.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

# Long enough for two launches: a run without a worker does not count any more after 120 s, and another run is then
# launched.
STUCK_SECONDS: Final = 240.0
LONGEST_STUCK_SECONDS: Final = 3600.0
# A run may take this long to start: a pod loads its image, then Spark starts.
START_SECONDS: Final = 600.0
REST_TICKS: Final = 6  # another candidate reads the lock once per tick
SHORTEST_REST: Final = 30.0


@dataclass(slots=True)
class StartWatch:
    """The state of the watch. It exists as long as the leader's process. All times are monotonic."""

    tick_interval: float
    stuck_since: float | None = None
    given_up: int = 0
    """How many times in a row leadership was given up."""

    waits_until: float = 0.0
    has_failed: bool = False
    """Whether a run has ended, or has been starting for too long, since a worker last read."""

    _starting: frozenset[str] = frozenset()

    def see(self, now: float, *, is_short: bool, reads: bool, starting: Collection[str] = ()) -> bool:
        """Called after each tick of the leader. Returns whether the leader should give up leadership now.

        - `is_short`: whether workers are missing.
        - `reads`: whether a worker of this deployment is able to read.
        - `starting`: the ids of the deployment's runs that have left the queue, and whose workers may still begin
          to read. While there are such runs, and no run has failed, the leader does not give up leadership.
        """
        has_failed = self.has_failed or bool(self._starting - frozenset(starting))
        self._starting = frozenset(starting)
        if reads:
            self.given_up = 0
        if reads or not is_short:
            self.forget()
            return False
        self.has_failed = has_failed
        if self.stuck_since is None:
            self.stuck_since = now
        patience = min(STUCK_SECONDS * 2.0 ** min(self.given_up, 16), LONGEST_STUCK_SECONDS)
        if now - self.stuck_since < patience or (starting and not has_failed):
            return False
        self.forget()
        self.given_up += 1
        self.waits_until = now + max(REST_TICKS * self.tick_interval, SHORTEST_REST)
        return True

    def forget(self) -> None:
        """Restart the measurement. Called when another leader has the lock, when a worker reads or none is missing,
        and when leadership is given up."""
        self.stuck_since = None
        self.has_failed = False

    def waits(self, now: float) -> float:
        """Seconds for which leadership is left to others."""
        return max(0.0, self.waits_until - now)
