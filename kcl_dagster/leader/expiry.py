"""Decides which leases are unserved.

The rule of the KCL is: a lease can be taken if it has no owner, or if its counter was unchanged for the lease
duration. kcl_dagster adds a rule: if the orchestrator reports that the owner's run is over, the owner's leases can
be taken at once. Both rules are safe: taking a lease changes its counter and owner, so every later write of the old
owner is refused.

Modelled in spec/Takeover.tla.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId

LEASE: Final = "lease/"  # prefix of the keys under which `Standing` observes leases


def observed_key(lease: Lease) -> str:
    return LEASE + lease.key


def observed_version(lease: Lease) -> str:
    """Return a value that changes with every renewal. The value includes the owner, because the counter of a lease
    that was deleted and created again begins at 0, under another owner. The start of a handoff is not a renewal and
    does not change the value."""
    return f"{lease.counter}:{lease.actual_owner or ''}"


def why_unserved(
    lease: Lease, stood: float, duration: float, run_is_over: Callable[[WorkerId], bool]
) -> str | None:
    """Return why `lease` needs an owner now; None if it does not need one. `stood`: the seconds for which the
    lease's `observed_version` was unchanged."""
    owner = lease.actual_owner
    if lease.is_finished:
        return None
    if owner is None:
        return "no worker owns it"
    if run_is_over(owner):
        return f"the run of {owner} is over"
    if stood > duration:
        return f"{owner} has not renewed it for {stood:.0f} s"
    return None


# A lease duration is often a multiple of the tick interval. If a lease expires a few milliseconds after the tick
# has read it, its shard would remain unread for another whole tick interval. The tick therefore waits for such a
# lease.
_WORTH_WAITING: Final = 1.0  # seconds; a tick waits no longer than this
# A lease is nearly expired if at most this part of its duration is left. Without this limit, a lease with a short
# duration would count as nearly expired as soon as its counter is observed for the first time.
_NEARLY: Final = 0.1
_MARGIN: Final = 0.01  # seconds; a counter must have been unchanged for longer than the duration


def rest(
    leases: Iterable[Lease], ages: Mapping[LeaseKey, float], durations: Mapping[LeaseKey, float]
) -> float | None:
    """Return the seconds until all leases that are nearly expired now are expired; None if there are none."""
    owned = [lease.key for lease in leases if lease.actual_owner and not lease.is_finished]
    lacking = [(durations[key] - ages[key], durations[key]) for key in owned]
    worth = [lack for lack, duration in lacking if 0 <= lack <= min(_WORTH_WAITING, duration * _NEARLY)]
    return max(worth) + _MARGIN if worth else None


def soonest(leases: Iterable[Lease], ages: Mapping[LeaseKey, float], durations: Mapping[LeaseKey, float]) -> float:
    """Return the number of seconds from the last read of the leases until the first of them can be expired.
    Infinite if no unfinished lease has an owner."""
    owned = (lease.key for lease in leases if lease.actual_owner and not lease.is_finished)
    return min((durations[key] - ages[key] for key in owned), default=math.inf)
