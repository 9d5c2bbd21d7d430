"""Gives up leases in three ways: to the next owner that a leader has named in a handoff, to a successor that this
worker has chosen because it stops, or without a next owner."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from kcl_dagster.errors import KclError
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.worker.claimed_leases import ClaimedLeases
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.held_lease import HeldLease
from kcl_dagster.worker.lease_writes import LeaseWrites
from kcl_dagster.worker.pins import pin_of

GoesOn = Callable[[WorkerId], bool]
"""Returns whether a worker can be given a lease, because it has neither ended nor been asked to drain. Can read a
table once; must not raise."""


def every_worker_goes_on(_: WorkerId) -> bool:
    """Return True. For callers without access to the rows of workers."""
    return True


@dataclass(slots=True)
class LeaseHandover:
    """Transfers and releases leases. Called from the batch thread and from the renewal thread. Every method can
    block for several table writes."""

    _leases: LeaseWrites
    _claims: ClaimedLeases
    _goes_on: GoesOn = every_worker_goes_on

    def transfer(self, key: LeaseKey) -> bool:
        """Complete the handoff that the leader began: write the next owner into the row. If the next owner has
        ended or drains, write the row without an owner instead. Afterwards, this worker no longer holds the lease,
        whatever the outcome of the write is. Returns whether this worker's change is in the table."""
        held = self._leases.held(key)
        if held is None:
            return False
        with held.lock:
            if self._leases.held(key) is not held:
                return False
            self._leases.forget(held)
            self._mark_left(held)
            self._claims.end_before_release(held)
            passed = self.pass_on(held.lease)
        if passed is None:
            self._leases.report(EventKind.LEASE_LOST, "another worker or the leader ended the handoff", key)
        elif passed.owner is None:
            why = f"given up: {held.lease.owner}, which was to have it, has ended or drains"
            self._leases.report(EventKind.LEASE_RELEASED, why, key)
        else:
            self._leases.report(EventKind.HANDOFF_DONE, f"to {passed.owner}", key)
        return passed is not None

    def pass_on(self, lease: Lease) -> Lease | None:
        """End the handoff of a lease that this worker still owns and does not read. The next owner of the handoff
        becomes the owner. If that worker has ended or drains, it would not read the lease. The lease then gets no
        owner. Returns None if another process has changed the owner."""
        if lease.owner is not None and not self._goes_on(lease.owner):
            return self._leases.table.vacate(lease)
        return self._leases.table.transfer(lease)

    def release(self, key: LeaseKey, successor: WorkerId | None = None, *, unless_pinned: bool = False) -> bool:
        """Give the lease to `successor`, which can then read the shard at once. If that is not possible, write the
        row without an owner. If a handoff is under way, complete the handoff instead. Returns whether this worker's
        change is in the table.

        Afterwards, this worker no longer holds the lease, with one exception. With `unless_pinned`, it keeps the
        lease and returns False if the lease's batch is being written, or is decided and not visible.
        """
        held = self._leases.held(key)
        if held is None:
            return False
        with held.lock:
            if self._leases.held(key) is not held:
                return False
            is_written = held.lease.pending_checkpoint is not None or held.is_deciding
            if unless_pinned and ((held.busy and is_written) or held.unpublished):
                self._mark_left(held)  # the process may be killed before the batch ends
                return False
            self._leases.forget(held)
            self._mark_left(held)
            self._claims.end_before_release(held)
            assigned = successor is not None and self._assign_to(held.lease, successor)
            done = assigned or self._release(held.lease)
        if done:
            self._leases.report(EventKind.LEASE_RELEASED, f"given to {successor}" if assigned else "given up", key)
        return done

    def _mark_left(self, held: HeldLease) -> None:
        """Set `left` in the lease's pin, if this worker wrote the pin. The pinned batch hangs or waits for its next
        attempt. The batch has not ended this process, so the next owner should not count a loss. If the write
        fails, the next owner counts a loss all the same."""
        pin = pin_of(held.lease)
        if pin is None or pin.left or held.pinned != pin.number or held.lease.pending_checkpoint is None:
            return
        sent = self._leases.now()
        with suppress(KclError), self._leases.dropping(held):
            left = self._leases.table.prepare(
                held.lease,
                held.lease.pending_checkpoint,
                state=replace(pin, left=True).to_state(),
                batch=pin.number,
                caught_up=held.caught_up,
            )
            held.lease, held.written_at, held.trusted_until = left, sent, sent + self._leases.duration

    def _assign_to(self, lease: Lease, successor: WorkerId) -> bool:
        """Assign the lease to `successor`. The write is also conditional on the counter. It is therefore refused if
        this worker was paused and no longer owns the lease."""
        if lease.in_handoff or lease.is_finished:
            return False
        return self._leases.table.assign(lease, successor, counter=lease.counter) is not None

    def _release(self, lease: Lease) -> bool:
        if self._let_go(lease) is not None:
            return True
        # The condition of this write names the owner and the next owner. So the write is refused if a handoff has
        # begun that this worker has not read yet.
        current = self._leases.table.get(lease.key)
        if current is None or current.actual_owner != self._leases.worker:
            return False
        return self._let_go(current) is not None

    def _let_go(self, lease: Lease) -> Lease | None:
        return self.pass_on(lease) if lease.in_handoff else self._leases.table.release(lease)
