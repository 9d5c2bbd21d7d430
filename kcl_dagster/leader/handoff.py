"""Decides how long a graceful handoff is allowed to take.

The old owner transfers the lease when it has finished its batch. If the old owner exceeds the time that it has for
this, the leader forces the move. `Standing` measures how long the handoff has lasted, in the same way in which it
measures how long the counter of a lease was unchanged. A part of the measurement survives a restart of the leader.
A restart never shortens the time that the old owner has.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kcl_dagster.model.lease import Lease

HANDOFF: Final = "handoff/"  # prefix of the keys under which `Standing` observes handoffs


def observed_key(lease: Lease) -> str:
    return HANDOFF + lease.key


def observed_version(lease: Lease) -> str:
    """Return a value that identifies a handoff. Renewals by the old owner do not change it. Two handoffs between
    the same workers differ in the counter that the lease had when they began. A Java leader does not write that
    counter, so the workers alone identify its handoffs."""
    return f"{lease.checkpoint_owner}>{lease.owner}@{lease.handoff}"


class HandoffVerdict(StrEnum):
    """What the leader does with a lease in handoff."""

    WAIT = "wait"
    FORCE = "force"


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time for a handoff. `notice`: seconds until the old owner has read that a handoff began. `timeout`: the
    seconds after that in which the old owner has to finish its batch and transfer the lease."""

    timeout: float
    notice: float

    def judge(self, lease: Lease, stood: float) -> HandoffVerdict:
        """Decide about a handoff that has lasted `stood` seconds. A finished shard has nothing to hand over, so its
        handoff is forced at once."""
        over = lease.is_finished or stood >= self.timeout + self.notice
        return HandoffVerdict.FORCE if over else HandoffVerdict.WAIT


def may_be_asked_for(lease: Lease, *, unserved: bool) -> bool:
    """Whether a handoff can begin: the lease has an owner that serves it, and no handoff is in progress."""
    return lease.owner is not None and not unserved and not lease.is_finished and not lease.in_handoff
