"""Whether the workers of this deployment come to read, and when the leader leaves the lead to another deployment.

Each deployment has a run queue and an image of its own. If no run leaves the queue, or each one ends before its
worker reads, the leader serves no shard, and as long as it has the lock, no other deployment launches workers. So
it gives the lock up, and does not take it for long enough that another candidate can. Where there is none, it leads
again and waits longer the next time.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

# The runs of two launches: a run that is not counted on any more (120 s) is followed by another one.
STUCK_SECONDS: Final = 240.0
STUCK_TICKS: Final = 3  # at least: a leader that ticks seldom sees a worker come to read one tick later
LONGEST_STUCK_SECONDS: Final = 3600.0
# A run of this age may still start: a pod fetches its image, then Spark starts.
START_SECONDS: Final = 600.0
REST_TICKS: Final = 6  # another candidate looks at the lock once in a tick
SHORTEST_REST: Final = 30.0


@dataclass(slots=True)
class StartWatch:
    """Lives as long as the leader's process. All times are monotonic."""

    tick_interval: float
    stuck_since: float | None = None
    given_up: int = 0
    """How often in a row leadership was given up."""

    waits_until: float = 0.0
    has_failed: bool = False
    """Whether a run ended, or started for too long, since the last worker that read."""

    _starting: frozenset[str] = frozenset()

    def see(self, now: float, *, is_short: bool, reads: bool, starting: Collection[str] = ()) -> bool:
        """After each tick as the leader; whether leadership must be given up now. `is_short`: workers are missing.
        `reads`: a worker of this deployment reads, or could. `starting`: its runs that have left the queue, whose
        worker does not read yet and may still come to it. The first of them are waited for."""
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
        first = max(STUCK_SECONDS, STUCK_TICKS * self.tick_interval)
        patience = min(first * 2.0 ** min(self.given_up, 16), max(first, LONGEST_STUCK_SECONDS))
        if now - self.stuck_since < patience or (starting and not has_failed):
            return False
        self.forget()
        self.given_up += 1
        self.waits_until = now + max(REST_TICKS * self.tick_interval, SHORTEST_REST)
        return True

    def forget(self) -> None:
        """Another leader has the lock, or there is nothing to wait for: the time counts anew."""
        self.stuck_since = None
        self.has_failed = False

    def waits(self, now: float) -> float:
        """Seconds for which leadership is left to others."""
        return max(0.0, self.waits_until - now)
