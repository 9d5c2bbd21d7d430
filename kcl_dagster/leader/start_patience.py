"""How long the leader waits for starting workers, after it has given up earlier starts.

A start may take longer than the leader waits at first, because machines are added to a cluster or an image loads
slowly. The next start may take as long. Each start that is given up therefore doubles the waiting time, up to an
hour, for one day. The leader remembers a set of runs with the times at which they were given up. Entries are added,
and dropped only if they are too old or too many. Leaders that merge their sets, repeatedly and in any order,
therefore get the same waiting time.

The starts that were given up are *over* when a worker that was launched after the last of them can read, or when no
worker has to be launched. Until then, the leader reports these starts. The leader remembers one time for this: all
starts that were given up at this time or earlier are over. The time only grows.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from kcl_dagster.model.counting import counted

REMEMBERED_SECONDS: Final = 24 * 3600.0
LONGEST_SECONDS: Final = 3600.0
SKEW_SECONDS: Final = 600.0  # the largest difference between the clocks of two leaders
SHOWN: Final = 3  # a message names at most this many runs
MOST_REMEMBERED: Final = 64  # runs; 64 starts of ten minutes one after another take half a day


def remembered(given_up: Mapping[str, int], now: float) -> dict[str, int]:
    """Return the newest runs of `given_up` (run -> epoch seconds) whose times are valid at `now` (epoch seconds):
    at most a day old, and not in the future, apart from a difference between clocks."""
    recent = [(at, run) for run, at in given_up.items() if now - REMEMBERED_SECONDS < at <= now + SKEW_SECONDS]
    return {run: at for at, run in sorted(recent)[-MOST_REMEMBERED:]}


def shown(given_up: Mapping[str, int], over: float, now: float) -> dict[str, int]:
    """Return the starts that are shown to operators: those that are still remembered at `now`, and were given up
    after `over`. `over`: all starts that were given up at this time or earlier are over."""
    return {run: at for run, at in remembered(given_up, now).items() if at > over}


def described(given_up: Mapping[str, float]) -> str:
    """Return a sentence about the given starts. There must be at least one."""
    runs = sorted(given_up, key=lambda run: (-given_up[run], run))
    last = datetime.fromtimestamp(given_up[runs[0]], UTC)
    named = ", ".join(runs[:SHOWN]) + (f" and {len(runs) - SHOWN} more" if len(runs) > SHOWN else "")
    was = "was" if len(runs) == 1 else "were"
    workers = counted(len(runs), "worker")
    return f"{workers} did not come to read in time and {was} given up, last at {last:%H:%M} UTC: run {named}"


def patience(first: float, given_up: Iterable[float]) -> float:
    """Return the seconds within which a starting worker has to be able to read. `first`: the seconds if no start
    was given up.

    Starts that were given up close together count once, because they all had the same waiting time.
    """
    waited, since = first, None
    longest = max(first, LONGEST_SECONDS)
    for at in sorted(given_up):
        if since is None or at - since >= first:
            waited, since = min(2 * waited, longest), at
    return waited
