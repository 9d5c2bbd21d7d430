"""Reads and changes leases in DynamoDB.

Modelled in spec/ExactlyOnce.tla.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from kcl_dagster import aws
from kcl_dagster.errors import LeaseLost, OutcomeUnknown, Unsafe
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.claim import Claim
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.shard import HashRange
from kcl_dagster.model.stored import BatchCounts, StoredCounts
from kcl_dagster.tables import outcomes, requests
from kcl_dagster.tables.attributes import rounded
from kcl_dagster.tables.expressions import Request, guarded, together
from kcl_dagster.tables.lease_reader import LeaseReader, ScanResult
from kcl_dagster.tables.outcomes import Judge, WriteVerdict
from kcl_dagster.tables.sending import Applied, Refused

__all__ = ["LeaseTable", "ScanResult"]

CaughtUp = Callable[[Lease], None]
"""A function that a transition of the owner calls after its write was refused, and before it writes again. The
lease is not lost: an earlier write of the owner was applied and its response was lost, or a handoff has begun. The
argument is the lease as it is in the table. If the transition fails later, the lease in the table is at most one
write ahead of the argument.
"""

CREATED_AT_ONCE: Final = 50  # leases per transaction; DynamoDB allows a hundred writes in a transaction
# After this many lost responses in a row, a transition of the owner fails. The next renewal tries again.
LOST_IN_A_ROW: Final = 5


class LeaseTable(LeaseReader):
    """Reads leases and carries out their transitions. Has no state except for caches, so any thread can call it.

    A transition takes the lease as the caller last read it, and returns the lease as it is afterwards. If another
    process has changed the lease since the caller read it:

    - A transition that any worker or leader can try returns None.
    - A transition of the owner raises LeaseLost.

    All transitions raise ServiceError or TableError if DynamoDB cannot be used. OutcomeUnknown is one of these
    errors.

    If an owner's write was applied but its response was lost, the owner's next write fails, because the row already
    has a higher counter. The owner then reads the row and writes again. When this write succeeds, the worker trusts
    its lease for one lease duration from the time when it sent this write. The KCL does not write again: it counts
    the failed write as applied. It then trusts the lease for one lease duration from the time when it sent the
    failed write. This is too long, because the write that was applied was sent earlier. With the policy `kcl`, this
    class does the same as the KCL.
    """

    # --- transitions of the owner -------------------------------------------------------------------------------

    def renew(
        self,
        lease: Lease,
        throughput_kbps: float | None = None,
        *,
        stored_through: int | None = None,
        caught_up: CaughtUp | None = None,
    ) -> Lease:
        """Raise the counter. The returned lease shows whether a handoff has begun. Raises LeaseLost."""
        return self._until_answered(
            lease,
            lambda known, deadline: self._renew_once(known, throughput_kbps, stored_through, deadline),
            lambda known, now: outcomes.may_have_renewed(known, now) or _is_handed_over_by(known, now),
            caught_up,
        )

    def checkpoint(
        self,
        lease: Lease,
        checkpoint: Checkpoint,
        *,
        batch: int | None = None,
        children: frozenset[str] = frozenset(),
        throughput_kbps: float | None = None,
        stored_through: int | None = None,
        counts: BatchCounts | None = None,
        claim: Claim | None = None,
        ends_claim: bool = False,
        caught_up: CaughtUp | None = None,
    ) -> Lease:
        """Record progress and clear the pending checkpoint. Counts as a renewal. Raises LeaseLost.

        - `counts`: the counts of rows that were stored since the lease's last checkpoint. They are added exactly
          once, even if responses are lost.
        - `claim`: the claim to write. From now on, its chain can have entries for the lease.
        - `ends_claim`: whether to remove the claim, because from now on no chain can have entries for the lease.

        Raises ValueError if `checkpoint` is before the checkpoint of `lease`, because progress never goes back.
        """
        _refuse_to_go_back(lease, checkpoint)
        return self._advance(
            lease,
            lambda known: requests.checkpoint(
                self._table,
                known,
                checkpoint,
                batch=batch,
                children=children,
                throughput_kbps=throughput_kbps,
                stored_through=stored_through,
                stored=_counted(known, checkpoint, counts, known.batch if batch is None else batch),
                claim=claim,
                ends_claim=ends_claim,
            ),
            lambda known: outcomes.checkpointed(
                known, checkpoint, _claim_after(known, claim, ends_claim=ends_claim)
            ),
            caught_up,
        )

    def prepare(
        self,
        lease: Lease,
        pending: Checkpoint,
        *,
        state: bytes | None = None,
        batch: int | None = None,
        caught_up: CaughtUp | None = None,
    ) -> Lease:
        """Record that a batch through `pending` begins. The checkpoint is not changed. Counts as a renewal. Raises
        as `checkpoint` does."""
        _refuse_to_go_back(lease, pending)
        return self._advance(
            lease,
            lambda known: requests.prepare_checkpoint(self._table, known, pending, state=state, batch=batch),
            lambda known: outcomes.prepared(known, pending, state, batch),
            caught_up,
        )

    def transfer(self, lease: Lease) -> Lease | None:
        """Complete a handoff as the old owner. Returns None if another process has moved the lease meanwhile."""
        if lease.owner is None:
            return None
        return self._moved(requests.transfer(self._table, lease), outcomes.assigned(lease, lease.owner))

    def release(self, lease: Lease) -> Lease | None:
        """Give up a lease. In a handoff, the next owner gets it. Returns None if another process has moved the
        lease meanwhile."""
        return self._moved(requests.release(self._table, lease), outcomes.released(lease))

    def vacate(self, lease: Lease, *, counter: int | None = None) -> Lease | None:
        """Remove the owners of a lease, also during a handoff. Returns None if the owners are no longer those of
        `lease`. If `counter` is given, it also returns None if the lease has another counter."""
        return self._moved(requests.vacate(self._table, lease, counter), outcomes.vacated(lease, counter))

    # --- transitions of others ----------------------------------------------------------------------------------

    def create(self, lease: Lease, guard: Request | None = None) -> bool:
        """Create the row of a lease. Returns False, without a change, if a row with this key exists.

        `guard`: a write that has to succeed in the same transaction, see `LeaderLock.guard`. If the guard fails,
        this raises Unsafe: the caller's reason for creating the lease may no longer hold.
        """
        request = requests.create(self._table, lease)
        outcome = self._write(guarded(request, guard) if guard else request, outcomes.created(lease))
        if guard is not None and isinstance(outcome, Refused) and outcome.item is None:
            raise Unsafe(f"lease {lease.key} is not made: another leader was at work since the leases were read")
        return isinstance(outcome, Applied)

    def create_all(self, leases: Sequence[Lease], guard: Request) -> list[Lease]:
        """Create up to `CREATED_AT_ONCE` leases in one transaction with the guard. If DynamoDB refuses this
        transaction, create the leases one by one. Returns the leases that were created.

        The leases are created in one transaction because every transaction of a leader writes the row of the lock.
        If two transactions write a row at the same time, DynamoDB refuses one of them. Raises as `create` does.
        """
        if len(leases) > 1:
            request = together([*(requests.create(self._table, lease) for lease in leases), guard])
            # If this fails, some of the leases exist already, or this process no longer leads. The single writes
            # below show which of the two is true.
            with suppress(aws.ConditionFailed):
                self._sender.overwrite(request)
                return list(leases)
        return [lease for lease in leases if self.create(lease, guard)]

    def create_child(self, parent: Lease, child: Lease, children: frozenset[str]) -> bool:
        """Create the lease of a child of a shard that was read to its end. Returns False if the child has a lease
        already.

        `children`: all children of the parent. Raises LeaseLost if the parent's lease is finished or deleted. In
        this case, another worker finished it, and the children may have been read and their leases deleted since.
        """
        request = requests.create_child(self._table, child, parent.key, children)
        outcome = self._write(request, outcomes.created(child))
        if isinstance(outcome, Refused) and outcome.item is None:
            raise LeaseLost(parent.key, f"it was finished by another worker before {child.key} had a lease")
        return isinstance(outcome, Applied)

    def take(self, lease: Lease, new_owner: WorkerId) -> Lease | None:
        """Take a lease. Returns None if its counter has changed since it was read."""
        return self._moved(requests.take(self._table, lease, new_owner), outcomes.taken(lease, new_owner))

    def assign(self, lease: Lease, to: WorkerId, *, counter: int | None = None) -> Lease | None:
        """Give a lease to a worker. Returns None if the owners are no longer those of `lease`. If `counter` is
        given, it also returns None if the lease has another counter."""
        request = requests.assign(self._table, lease, to, counter)
        return self._moved(request, outcomes.assigned(lease, to, counter))

    def initiate_handoff(self, lease: Lease, to: WorkerId) -> Lease | None:
        """Ask the owner to hand the lease over to `to`. Returns None if the owner has changed or a handoff is under
        way."""
        return self._moved(requests.initiate_handoff(self._table, lease, to), outcomes.handoff_begun(lease, to))

    def rewind(
        self,
        lease: Lease,
        checkpoint: Checkpoint,
        counted_since: int | None = None,
        *,
        ended_parent: str | None = None,
    ) -> Lease | None:
        """Move a lease without an owner to any position, for audited resets only. Returns None if a worker owns the
        lease.

        `counted_since`: see `requests.rewind`. `ended_parent`: see `Lease`.
        """
        request = requests.rewind(self._table, lease, checkpoint, counted_since, ended_parent)
        return self._moved(request, outcomes.rewound(lease, checkpoint))

    def update_children(self, key: LeaseKey, children: frozenset[str]) -> bool:
        """Record the children of a shard. Returns False if there is no lease. Raises UnreadableItem without
        writing."""
        request = requests.update_children(self._table, key, children)
        return self._described(key, request, outcomes.has_children(children))

    def update_hash_range(self, key: LeaseKey, hash_range: HashRange) -> bool:
        """Record the hash range of a shard. Returns False if there is no lease. Raises UnreadableItem without
        writing."""
        request = requests.update_hash_range(self._table, key, hash_range)
        return self._described(key, request, outcomes.has_hash_range(hash_range))

    def delete(self, lease: Lease, *, forced: bool = False) -> bool:
        """Delete a finished lease. With `forced`, delete any lease whose owners have not changed. Returns whether
        the lease no longer exists."""
        request = requests.delete_lease(self._table, lease, forced=forced)
        outcome = self._write(request, outcomes.deleted(lease, forced=forced))
        return isinstance(outcome, Applied) or outcome.item is None

    # --- common -------------------------------------------------------------------------------------------------

    def _write(self, request: Request, judge: Judge, deadline: float | None = None) -> Applied | Refused:
        return self._sender.write(request, lambda item: judge(self._lease(item)), deadline)

    def _moved(self, request: Request, judge: Judge) -> Lease | None:
        outcome = self._write(request, judge)
        return self._lease(outcome.item) if isinstance(outcome, Applied) else None

    def _described(self, key: LeaseKey, request: Request, judge: Judge) -> bool:
        """Write the children or the hash range of a lease. The write requires only that the row exists, so the row
        is read and checked first."""
        return self.get(key) is not None and isinstance(self._write(request, judge), Applied)

    def _advance(
        self,
        lease: Lease,
        request_for: Callable[[Lease], Request],
        judge_for: Callable[[Lease], Judge],
        caught_up: CaughtUp | None,
    ) -> Lease:
        def write(known: Lease, deadline: float) -> Lease | Refused:
            outcome = self._write(request_for(known), judge_for(known), deadline)
            written = self._lease(outcome.item)
            return written if isinstance(outcome, Applied) and written is not None else Refused(outcome.item)

        def is_behind(known: Lease, now: Lease) -> bool:
            if judge_for(known)(now) is WriteVerdict.APPLIED:
                return True
            # A worker of the KCL gives up the lease if its checkpoint fails because of the counter.
            return not self._as_kcl and _only_renewed(known, now)

        return self._until_answered(lease, write, is_behind, caught_up)

    def _renew_once(
        self, lease: Lease, throughput_kbps: float | None, stored_through: int | None, deadline: float
    ) -> Lease | Refused:
        request = requests.renew(self._table, lease, throughput_kbps, stored_through)
        outcome = self._write(request, outcomes.unmoved(lease), deadline)
        if isinstance(outcome, Applied):
            return _renewed(lease, throughput_kbps, stored_through)
        now = self._lease(outcome.item)
        if self._as_kcl and now is not None and outcomes.may_have_renewed(lease, now):
            return now  # like the KCL: treat this write as applied, though only an earlier one was applied
        return outcome

    def _until_answered(
        self,
        lease: Lease,
        write: Callable[[Lease, float], Lease | Refused],
        is_behind: Callable[[Lease, Lease], bool],
        caught_up: CaughtUp | None,
    ) -> Lease:
        """Write as the owner. If the write is refused and `is_behind` returns True, write again, based on the
        stored row. `is_behind`: whether the only change of the row is an earlier write of the owner, whose response
        was lost. For a renewal, the only change can also be that a handoff has begun."""
        deadline = self._sender.deadline()
        known = lease
        for _ in range(LOST_IN_A_ROW):
            outcome = write(known, deadline)
            if isinstance(outcome, Lease):
                return outcome
            now = self._lease(outcome.item)
            if now is None or not is_behind(known, now):
                raise LeaseLost(lease.key, _why_lost(known, now))
            known = now
            if caught_up is not None:
                caught_up(known)
        raise OutcomeUnknown(f"lease {lease.key}: {LOST_IN_A_ROW} answers in a row were lost")


def _counted(known: Lease, checkpoint: Checkpoint, counts: BatchCounts | None, batch: int) -> StoredCounts | None:
    """Return the counts to write; None to leave the counts unchanged. If the lease has this checkpoint already, it
    also has the counts: an earlier write was applied, and its response was lost."""
    if counts is None or known.checkpoint == checkpoint:
        return None
    return counts.added_to(known.stored, known.checkpoint, checkpoint, batch)


def _claim_after(known: Lease, claim: Claim | None, *, ends_claim: bool) -> Claim | None:
    if ends_claim:
        return None
    return known.claim if claim is None else claim


def _renewed(lease: Lease, throughput_kbps: float | None, stored_through: int | None) -> Lease:
    """Return the lease after a renewal. It is calculated from `lease`, because the response does not contain the
    row, and the condition of the write excludes other changes."""
    throughput = lease.throughput_kbps if throughput_kbps is None else rounded(throughput_kbps)
    tip = lease.stored_through if stored_through is None else stored_through
    ended = lease.ended_parent if stored_through is None else None
    counter = lease.counter + 1
    return replace(lease, counter=counter, throughput_kbps=throughput, stored_through=tip, ended_parent=ended)


def _is_handed_over_by(lease: Lease, now: Lease) -> bool:
    """Whether a handoff to another worker has begun, and nothing else has changed, since the owner read `lease`."""
    return (
        now.counter == lease.counter
        and not lease.in_handoff
        and now.checkpoint_owner is not None
        and now.checkpoint_owner == lease.owner
        and now.owner != lease.owner
    )


def _only_renewed(before: Lease, now: Lease) -> bool:
    """Whether the only change between `before` and `now` is a renewal. The renewal was then applied, and its
    response was lost."""
    progress = (before.checkpoint, before.pending_checkpoint, before.batch)
    return (
        now.counter == before.counter + 1
        and now.actual_owner == before.actual_owner
        and (now.checkpoint, now.pending_checkpoint, now.batch) == progress
    )


def _refuse_to_go_back(lease: Lease, checkpoint: Checkpoint) -> None:
    if lease.checkpoint is not None and checkpoint.compare(lease.checkpoint) < 0:
        msg = f"lease {lease.key} is at {lease.checkpoint}: progress may not go back to {checkpoint}"
        raise ValueError(msg)


def _why_lost(lease: Lease, now: Lease | None) -> str:
    if now is None:
        return "its row was deleted"
    if now.actual_owner != lease.actual_owner:
        return f"{now.actual_owner or 'no worker'} owns it since counter {lease.counter} became {now.counter}"
    return f"its counter is {now.counter} and not {lease.counter}: another process writes in our name"
