"""Decides, from the present state of a lease, whether a write whose response was lost has been applied.

A judge is a function that decides this for one write. Most functions of this module make the judge of a write.
Right after a strongly consistent read of the lease, the judge is called with the lease that was read, or with None
if the lease was deleted. It returns one of these verdicts about its write:

- APPLIED: only this write leads to the present state of the lease, or the state serves the caller equally well.
- STANDING: the write has not been applied, and would succeed if it were sent again. Sending it again is safe,
  because the condition of the write lets at most one of the two requests succeed.
- SUPERSEDED: the write can no longer be applied.
"""

from collections.abc import Callable
from enum import StrEnum

from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.claim import Claim
from kcl_dagster.model.lease import Lease, WorkerId
from kcl_dagster.model.shard import HashRange
from kcl_dagster.tables.items import lease_to_item


class WriteVerdict(StrEnum):
    APPLIED = "applied"
    STANDING = "not applied, and still possible"
    SUPERSEDED = "not to be had any more"


Judge = Callable[[Lease | None], WriteVerdict]


def created(lease: Lease) -> Judge:
    """Return the judge of the creation of a lease. Two creators of one lease write the same row, so the write
    counts as applied whichever of them was first."""

    def judge(now: Lease | None) -> WriteVerdict:
        if now is None:
            return WriteVerdict.STANDING
        return WriteVerdict.APPLIED if lease_to_item(now) == lease_to_item(lease) else WriteVerdict.SUPERSEDED

    return judge


def unmoved(before: Lease) -> Judge:
    """Return the judge of a renewal. A renewal raises the counter, as other writes do. So it is never certain that
    a renewal was applied, and the judge never returns APPLIED."""

    def judge(now: Lease | None) -> WriteVerdict:
        if now is None or now.actual_owner != before.actual_owner:
            return WriteVerdict.SUPERSEDED
        return _by_counter(before, now, applied=False)

    return judge


def may_have_renewed(before: Lease, now: Lease) -> bool:
    """Whether an earlier renewal may have been applied: the owner is the same, and the counter is higher by one. An
    assignment to the same owner can also be the cause."""
    return now.actual_owner == before.actual_owner and now.counter == before.counter + 1


def taken(before: Lease, by: WorkerId) -> Judge:
    def judge(now: Lease | None) -> WriteVerdict:
        if now is None:
            return WriteVerdict.SUPERSEDED
        return _by_counter(before, now, applied=now.owner == by and now.checkpoint_owner is None)

    return judge


def assigned(before: Lease, to: WorkerId, counter: int | None = None) -> Judge:
    """Return the judge of an assignment. If the worker `to` owns the lease, the write counts as applied with any
    higher counter, because the worker may have renewed the lease since. It also counts as applied if another leader
    has assigned the lease to this worker."""

    def judge(now: Lease | None) -> WriteVerdict:
        if now is None:
            return WriteVerdict.SUPERSEDED
        if now.owner == to and now.checkpoint_owner is None and now.counter > before.counter:
            return WriteVerdict.APPLIED
        return _by_owners(before, now, counter)

    return judge


def handoff_begun(before: Lease, to: WorkerId) -> Judge:
    """Return the judge of a write that begins a handoff. The write also counts as applied if the old owner has
    already completed the handoff."""

    def judge(now: Lease | None) -> WriteVerdict:
        if now is None:
            return WriteVerdict.SUPERSEDED
        if now.owner == to and now.checkpoint_owner in {before.owner, None}:
            return WriteVerdict.APPLIED
        return _by_owners(before, now)

    return judge


def released(before: Lease) -> Judge:
    if before.checkpoint_owner is not None and before.owner is not None:
        return assigned(before, before.owner)
    return vacated(before)


def vacated(before: Lease, counter: int | None = None) -> Judge:
    def judge(now: Lease | None) -> WriteVerdict:
        if now is None:
            return WriteVerdict.SUPERSEDED
        if now.actual_owner is None and now.counter > before.counter:
            return WriteVerdict.APPLIED
        return _by_owners(before, now, counter)

    return judge


def checkpointed(before: Lease, checkpoint: Checkpoint, claim: Claim | None = None) -> Judge:
    """Return the judge of a checkpoint. `claim`: the claim in the row after the write."""

    def judge(now: Lease | None) -> WriteVerdict:
        if now is None or now.actual_owner != before.actual_owner:
            return WriteVerdict.SUPERSEDED
        progress = (checkpoint, None, claim)
        was_there_before = progress == (before.checkpoint, before.pending_checkpoint, before.claim)
        applied = progress == (now.checkpoint, now.pending_checkpoint, now.claim) and not was_there_before
        return _by_counter(before, now, applied=applied)

    return judge


def prepared(before: Lease, pending: Checkpoint, state: bytes | None, batch: int | None) -> Judge:
    def judge(now: Lease | None) -> WriteVerdict:
        if now is None or now.actual_owner != before.actual_owner:
            return WriteVerdict.SUPERSEDED
        pin = (pending, state, before.batch if batch is None else batch)
        was_there_before = pin == (before.pending_checkpoint, before.pending_state, before.batch)
        applied = pin == (now.pending_checkpoint, now.pending_state, now.batch) and not was_there_before
        return _by_counter(before, now, applied=applied)

    return judge


def rewound(before: Lease, checkpoint: Checkpoint) -> Judge:
    def judge(now: Lease | None) -> WriteVerdict:
        if now is None:
            return WriteVerdict.SUPERSEDED
        applied = now.actual_owner is None and now.checkpoint == checkpoint and now.pending_checkpoint is None
        return _by_counter(before, now, applied=applied)

    return judge


def has_children(children: frozenset[str]) -> Judge:
    def judge(now: Lease | None) -> WriteVerdict:
        if now is None:
            return WriteVerdict.SUPERSEDED
        return WriteVerdict.APPLIED if now.children == children else WriteVerdict.STANDING

    return judge


def has_hash_range(hash_range: HashRange) -> Judge:
    def judge(now: Lease | None) -> WriteVerdict:
        if now is None:
            return WriteVerdict.SUPERSEDED
        return WriteVerdict.APPLIED if now.hash_range == hash_range else WriteVerdict.STANDING

    return judge


def deleted(before: Lease, *, forced: bool) -> Judge:
    def judge(now: Lease | None) -> WriteVerdict:
        if now is None:
            return WriteVerdict.APPLIED
        if forced:
            return _by_owners(before, now)
        return WriteVerdict.STANDING if now.is_finished else WriteVerdict.SUPERSEDED

    return judge


def _by_counter(before: Lease, now: Lease, *, applied: bool) -> WriteVerdict:
    """Return the verdict on a write that requires the counter to be unchanged and adds one to it. `applied`:
    whether the lease looks as it would after the write."""
    if now.counter == before.counter:
        return WriteVerdict.STANDING
    return WriteVerdict.APPLIED if applied and now.counter == before.counter + 1 else WriteVerdict.SUPERSEDED


def _by_owners(before: Lease, now: Lease, counter: int | None = None) -> WriteVerdict:
    """Return the verdict on a write that requires the lease to have the owners of `before`, and changes them. If
    the lease still has these owners, the write has not been applied."""
    same = (now.owner, now.checkpoint_owner) == (before.owner, before.checkpoint_owner)
    return WriteVerdict.STANDING if same and counter in {None, now.counter} else WriteVerdict.SUPERSEDED
