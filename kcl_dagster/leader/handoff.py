"""How long a graceful handoff may take.

The old owner transfers the lease when it has finished its batch. If it does not, the leader forces the move. The
time is counted as for leases, by what is known to have passed: a restarted leader neither forgets nor hurries.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kcl_dagster.model.lease import Lease

HANDOFF: Final = "handoff/"  # prefix of the keys under which handoffs are observed


def observed_key(lease: Lease) -> str:
    return HANDOFF + lease.key


def observed_version(lease: Lease) -> str:
    """The same two workers are the same handoff, however often the old owner renews meanwhile."""
    return f"{lease.checkpoint_owner}>{lease.owner}"


class Verdict(StrEnum):
    """What to do about a lease in handoff."""

    WAIT = "wait"
    FORCE = "force"


@dataclass(frozen=True, slots=True)
class Deadline:
    """`timeout` for the old owner to finish, after `notice`: the time it may take to learn of the handoff."""

    timeout: float
    notice: float

    def judge(self, lease: Lease, stood: float) -> Verdict:
        """`lease` is in handoff, which is known to have lasted `stood` seconds. A finished shard has nothing to
        hand over and is never waited for."""
        over = lease.is_finished or stood >= self.timeout + self.notice
        return Verdict.FORCE if over else Verdict.WAIT


def may_be_asked_for(lease: Lease, *, unserved: bool) -> bool:
    """Whether there is somebody to hand this lease over: an owner who serves it and was not asked before."""
    return lease.owner is not None and not unserved and not lease.is_finished and not lease.in_handoff
