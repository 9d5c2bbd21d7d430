"""What may be said of a lease by looking at it."""

from kcl_dagster.leader.handoff import Deadline, HandoffVerdict, may_be_asked_for
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.lease_taking import Candidate, TakingRules, is_available, unchanged_for
from tests.conformance.agreement import Observed
from tests.conformance.areas.small_rules import milliseconds
from tests.conformance.case import Given, NotUnderstood
from tests.conformance.registry import area


def _lease(given: Given) -> Lease:
    def worker(*names: str) -> WorkerId | None:
        text = given.text_or_none(*names)
        return None if text is None else WorkerId(text)

    checkpoint = given.text_or_none("checkpoint")
    return Lease(
        key=LeaseKey("lease"),
        shard_id="lease",
        owner=worker("lease_owner", "leaseOwner", "owner"),
        checkpoint_owner=worker("checkpoint_owner", "checkpointOwner"),
        checkpoint=None if checkpoint is None else Checkpoint(checkpoint),
    )


@area("lease.available")
def available(given: Given) -> Observed:
    now, duration = milliseconds(given, "now"), milliseconds(given, "lease_duration", "duration")
    if now is None or duration is None:
        raise NotUnderstood("given has no now_ns or lease_duration_ns")
    stood = unchanged_for(now, milliseconds(given, "last_counter_increment"))
    lease = _lease(given)
    rules = TakingRules(duration)
    owned_by_somebody = Candidate(lease.key, lease.owner or WorkerId("somebody"), stood)
    return {
        "available": is_available(Candidate(lease.key, lease.owner, stood), rules),
        "expired": is_available(owned_by_somebody, rules),
    }


@area("lease.blocked_on_pending_checkpoint")
def blocked(given: Given) -> Observed:
    lease = _lease(given)
    now, deadline = milliseconds(given, "now"), milliseconds(given, "handoff_deadline", "deadline")
    unserved = given.flag("is_expired_or_unassigned", default=False)
    if not lease.in_handoff or unserved or deadline is None:
        return {"blocked": False, "shutdown_requested": lease.in_handoff}
    if now is None:
        raise NotUnderstood("given has no now_ms")
    # The handoff began when its whole time was still ahead.
    time = Deadline(timeout=deadline, notice=0.0)
    return {"blocked": time.judge(lease, now) is HandoffVerdict.WAIT, "shutdown_requested": lease.in_handoff}


@area("lease.eligible_for_graceful_handoff")
def eligible(given: Given) -> Observed:
    unserved = given.flag("is_expired_or_unassigned", default=False)
    return {"eligible": may_be_asked_for(_lease(given), unserved=unserved)}
