"""Decide which leases are unserved.

The KCL's rule: a lease may be taken if it has no owner, or if its counter was unchanged for the lease duration. One
rule is ours: if the orchestrator reports that the owner's run is over, its leases may be taken at once. Both are
safe, because taking a lease changes its counter and owner, so that every write of the old owner is refused.

Modelled in spec/Takeover.tla.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId

LEASE: Final = "lease/"  # prefix of the keys under which leases are observed


def observed_key(lease: Lease) -> str:
    return LEASE + lease.key


def observed_version(lease: Lease) -> str:
    """A value that changes with every renewal. It includes the owner, because a lease that was deleted and created
    again counts from 0, under another owner. The start of a handoff is not a renewal and does not change the value.
    """
    return f"{lease.counter}:{lease.actual_owner or ''}"


def why_unserved(
    lease: Lease, stood: float, duration: float, run_is_over: Callable[[WorkerId], bool]
) -> str | None:
    """Why `lease` needs an owner now; None if it does not. `stood`: for how many seconds its version was
    unchanged."""
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


# A lease duration is often a multiple of the tick. If a counter lacks some milliseconds to the full duration, its
# shard would remain unread for another whole tick.
_WORTH_WAITING: Final = 1.0  # seconds; ticks and reads are not delayed by more
# A part of the duration. A counter that was just observed for the first time lacks more, however short the duration
# is.
_NEARLY: Final = 0.1
_MARGIN: Final = 0.01  # seconds; a counter must have been unchanged for longer than the duration


def rest(
    leases: Iterable[Lease], ages: Mapping[LeaseKey, float], durations: Mapping[LeaseKey, float]
) -> float | None:
    """How long to wait until the leases that are nearly expired are expired; None if there are no such leases."""
    owned = [lease.key for lease in leases if lease.actual_owner and not lease.is_finished]
    lacking = [(durations[key] - ages[key], durations[key]) for key in owned]
    worth = [lack for lack, duration in lacking if 0 <= lack <= min(_WORTH_WAITING, duration * _NEARLY)]
    return max(worth) + _MARGIN if worth else None


def soonest(leases: Iterable[Lease], ages: Mapping[LeaseKey, float], durations: Mapping[LeaseKey, float]) -> float:
    """The number of seconds after the last read until the first lease can be expired; infinite if no lease has an
    owner."""
    owned = (lease.key for lease in leases if lease.actual_owner and not lease.is_finished)
    return min((durations[key] - ages[key] for key in owned), default=math.inf)
