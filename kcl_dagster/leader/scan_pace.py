"""Decides how often the leader reads the tables.

Nearly every row changes with each renewal, so the leader can only read all rows, or none. With many leases, a read
takes seconds, and thousands of read units. The leader therefore leaves out the read, and the stages that depend on
it, as long as all of these conditions hold:

- Since the last read, less than four times its duration has passed. So reads take at most about a quarter of the
  leader's time.
- The last read showed nothing to do, and no lease that could have expired meanwhile.
- Since the last read, no run of the orchestrator has changed, and no operator has paused or resumed anything.

A pause between reads does not make a takeover unsafe: `Standing` counts only the time between two reads of the same
version. The pause can delay the takeover from a worker that has ended, by at most `LONGEST_PART` of the lease
duration.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from kcl_dagster.leader.observation import Sight
from kcl_dagster.model.lease import LeaseKey

READS_PART: Final = 0.25  # of the time
LONGEST_PART: Final = 0.5  # of the lease duration


def is_settled(sight: Sight, paused: Collection[LeaseKey]) -> bool:
    """Whether nothing is left to do: each lease that is not paused is read by its owner, no handoff is in progress,
    and no worker starts or ends."""
    waiting = (sight.unserved.keys() | sight.unbegun) - set(paused)
    return (
        not waiting
        and not any(lease.in_handoff for lease in sight.unfinished)
        and all(seen.ready and not seen.drains for seen in sight.workers if seen.alive)
    )


@dataclass(slots=True)
class ScanPace:
    """Decides when to read the tables next. For one thread at a time. All times are monotonic seconds."""

    lease_duration: float
    due: float = -math.inf
    _seen: object = None
    """The value of `known` (see `is_due`) at the last read."""

    def is_due(self, now: float, known: object) -> bool:
        """Whether to read now. `known`: the information that the leader has without a read, such as the runs. If
        `known` has changed since the last read, the leader reads."""
        return now >= self.due or known != self._seen

    def note(self, started: float, ended: float, known: object, soonest: float) -> None:
        """Record a read that showed nothing to do. `soonest`: the seconds until the first lease can be expired."""
        pause = min((ended - started) / READS_PART, self.lease_duration * LONGEST_PART)
        self.due = started + min(pause, soonest)
        self._seen = known

    def reset(self) -> None:
        """Make the next tick read the tables."""
        self.due = -math.inf
