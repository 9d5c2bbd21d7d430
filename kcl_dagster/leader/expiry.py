"""Which leases nobody serves.

The KCL's rule: a lease is up for taking when it has no owner, or when its counter was seen standing still for the
lease duration. One thing is ours: when the orchestrator says that the owner's run is over, its leases are up at
once. Both are safe, because taking a lease changes its counter and owner, which fences the old owner off.

Modelled in spec/Takeover.tla.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId

LEASE: Final = "lease/"  # prefix of the keys under which leases are observed


def observed_key(lease: Lease) -> str:
    return LEASE + lease.key


def observed_version(lease: Lease) -> str:
    """Changes with every sign of life. The owner belongs to it: a lease that was deleted and created again counts
    from 0 once more, under another owner. The start of a handoff is no sign of life and changes nothing here."""
    return f"{lease.counter}:{lease.actual_owner or ''}"


def why_unserved(
    lease: Lease, stood: float, duration: float, run_is_over: Callable[[WorkerId], bool]
) -> str | None:
    """The reason why `lease` needs an owner now, or None. `stood`: how long its version is known to have stood."""
    owner = lease.actual_owner
    if lease.is_finished:
        return None
    if owner is None:
        return "nobody owns it"
    if run_is_over(owner):
        return f"the run of {owner} is over"
    if stood > duration:
        return f"{owner} has not renewed it for {stood:.0f} s"
    return None


# A lease duration is often a multiple of the tick: a counter that then lacks some milliseconds to its full duration
# would cost its shard another whole tick of silence.
_WORTH_WAITING: Final = 1.0  # seconds; ticks and reads are not late by more
_NEARLY: Final = 0.1  # of the duration; a counter that was only just seen is far from it, however short it is
_MARGIN: Final = 0.01  # seconds; a counter must have stood longer than the duration


def rest(leases: Iterable[Lease], ages: Mapping[LeaseKey, float], duration: float) -> float | None:
    """How long to watch on, so that leases which are all but expired are; None when there are none."""
    lacking = [duration - ages[lease.key] for lease in leases if lease.actual_owner and not lease.is_finished]
    most = min(_WORTH_WAITING, duration * _NEARLY)
    worth = [lack for lack in lacking if 0 <= lack <= most]
    return max(worth) + _MARGIN if worth else None
