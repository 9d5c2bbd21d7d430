"""For how long the leader waits for workers that start, after starts that it has given up.

A start may take longer than the leader waits at first: machines are added to a cluster, an image is slow. Its
successor needs as long. So each start that is given up doubles the patience, up to an hour, for a day.

What is remembered is a set of runs with the times at which they were given up. It only grows until entries are too
old, so leaders that merge theirs, in any order and repeatedly, come to the same patience.

Starts that were given up are shown until a worker that was launched after the last of them reads, or none is to be
launched any more. The leader also remembers the time of the last start that is over, which only grows.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from kcl_dagster.model.counting import counted

REMEMBERED_SECONDS: Final = 24 * 3600.0
LONGEST_SECONDS: Final = 3600.0
SKEW_SECONDS: Final = 600.0  # between the clocks of two leaders
SHOWN: Final = 3  # runs that are named
MOST_REMEMBERED: Final = 64  # runs; 64 starts of ten minutes one after the other take half of the day


def remembered(given_up: Mapping[str, int], now: float) -> dict[str, int]:
    """The newest entries that count at `now`, in epoch seconds."""
    recent = [(at, run) for run, at in given_up.items() if now - REMEMBERED_SECONDS < at <= now + SKEW_SECONDS]
    return {run: at for at, run in sorted(recent)[-MOST_REMEMBERED:]}


def shown(given_up: Mapping[str, int], over: float, now: float) -> dict[str, int]:
    """The entries that are not over. `over`: the time of the last one that is."""
    return {run: at for run, at in remembered(given_up, now).items() if at > over}


def described(given_up: Mapping[str, float]) -> str:
    """A sentence about starts that are not over; at least one."""
    runs = sorted(given_up, key=lambda run: (-given_up[run], run))
    last = datetime.fromtimestamp(given_up[runs[0]], UTC)
    named = ", ".join(runs[:SHOWN]) + (f" and {len(runs) - SHOWN} more" if len(runs) > SHOWN else "")
    was = "was" if len(runs) == 1 else "were"
    workers = counted(len(runs), "worker")
    return f"{workers} did not come to read in time and {was} given up, last at {last:%H:%M} UTC: run {named}"


def patience(first: float, given_up: Iterable[float]) -> float:
    """Seconds within which a worker has to come to read. `first`: without starts that were given up.

    Starts that were given up together count once: none of them was waited for longer because of another one.
    """
    waited, since = first, None
    longest = max(first, LONGEST_SECONDS)
    for at in sorted(given_up):
        if since is None or at - since >= first:
            waited, since = min(2 * waited, longest), at
    return waited
