"""Writes the leases that this worker holds: renewals, pins (pending checkpoints of begun batches) and checkpoints.

Each lease has one lock, which is held during every write of the lease, so a renewal can never make a checkpoint
fail. If a lease is no longer trusted, or a conditional write of it was refused, the worker drops it and does not
write it again. If the table still names this worker as the owner, discovery acquires the lease again, under a new
token.

If the response to a write was lost, the row is read before the next write. The outcome is never guessed. Modelled
in spec/ExactlyOnce.tla.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from kcl_dagster.errors import KclError, LeaseLost, OutcomeUnknown
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.claim import Claim
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.stored import BatchCounts
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.worker.events import EventKind, OnEvent, ignore
from kcl_dagster.worker.held_lease import HeldLease, Holding, Unwritten, renewed_claim
from kcl_dagster.worker.held_leases import LeaseRegistry


class EndWasWritten(KclError):
    """Raised if the row already has SHARD_END. An earlier write was applied, and its response was lost."""

    def __init__(self, key: LeaseKey, children: frozenset[str]) -> None:
        super().__init__(f"{key} is at the end of its shard: the earlier write was applied")
        self.children = children


class LeaseWrites(LeaseRegistry):
    """Adds the writes to `LeaseRegistry`. Called from the batch thread and from the renewal thread; every method
    here can block for one table write."""

    def __init__(
        self,
        table: LeaseTable,
        worker: WorkerId,
        lease_duration: float,
        throughput_window: float,
        runtime: Runtime,
        on_event: OnEvent = ignore,
    ) -> None:
        super().__init__(worker, lease_duration, throughput_window, runtime, on_event)
        self.table = table
        self._last_token = 0

    def acquire(self, lease: Lease) -> Holding | None:
        """Hold a lease for which the table names this worker as the owner. The lease is renewed at once. The lease
        is trusted only from this write on, because it is not known for how long the lease's counter had been
        unchanged before. Returns None if this worker no longer owns the lease."""
        if lease.owner != self.worker or lease.in_handoff:
            self._expired.pop(lease.key, None)
            return None
        sent = self.now()
        try:
            renewed = self.table.renew(lease)
        except LeaseLost:
            return None
        with self.map_lock:
            self._last_token += 1
            held = HeldLease(renewed, self._last_token, sent + self.duration, sent, self._runtime.new_lock())
            self._held[lease.key] = held
            self._expired.pop(lease.key, None)
            self._throughput.start(lease.key, lease.throughput_kbps)
        self.report(EventKind.LEASE_ACQUIRED, f"at {lease.checkpoint}", lease.key)
        try:
            self._learn(held, renewed)
        except LeaseLost:
            return None
        return self.get(lease.key)

    def renew(self, key: LeaseKey, token: int | None = None) -> None:
        """Renew a lease. If the lease is lost, this drops it and raises LeaseLost. If the table fails, this raises
        a ServiceError and keeps the lease as long as it is trusted."""
        held = self.find(key, token)
        with held.lock:
            self.ready(held, token)
            if held.unwritten is not None:
                self.write_stored(held)
                return
            sent = self.now()
            with self.dropping(held):
                renewed = self.table.renew(
                    held.lease,
                    self.throughput_of(key),
                    stored_through=held.newer_moment(),
                    caught_up=held.caught_up,
                )
            self.wrote(held, renewed, sent)

    def settled(self, key: LeaseKey, token: int) -> Lease:
        """The lease as it is in the table. The table is read only if the outcome of the last write is not known.
        Raises as `renew` does."""
        held = self.find(key, token)
        with held.lock:
            self.ready(held, token)
            return held.lease

    def prepare(self, key: LeaseKey, token: int, pending: Checkpoint, state: bytes | None, batch: int) -> None:
        """Pin the next batch of the lease. Raises EndWasWritten, and the errors of `renew`. After OutcomeUnknown,
        it is not known whether the row has the pin."""
        held = self.find(key, token)
        with held.lock:
            self.ready_to_go_on(held, token)
            held.pinned = batch
            sent = self.now()
            with self.dropping(held):
                prepared = self.table.prepare(
                    held.lease, pending, state=state, batch=batch, caught_up=held.caught_up
                )
            self.wrote(held, prepared, sent)

    def checkpoint(
        self,
        key: LeaseKey,
        token: int,
        checkpoint: Checkpoint,
        children: frozenset[str] = frozenset(),
        *,
        stored_through: int | None = None,
        counts: BatchCounts | None = None,
    ) -> None:
        """Record that everything through `checkpoint` is stored, and remove the pin. At the end of a shard, the
        claim of a chain on the lease is removed, too. Raises EndWasWritten, and the errors of `renew`.

        `stored_through`: see `Lease`. `counts`: what was stored since the last checkpoint; None if it was not
        counted.
        """
        held = self.find(key, token)
        with held.lock:
            if checkpoint.is_shard_end:
                self.ready(held, token)
            else:
                self.ready_to_go_on(held, token)
            if held.unpublished:
                raise OutcomeUnknown(f"{key}: what was decided is not visible yet")
            if held.claimed is not None:
                held.add_stored(Unwritten(checkpoint, stored_through, counts))
                self.write_stored(held, children=children, ends_claim=checkpoint.is_shard_end)
                return
            sent = self.now()
            with self.dropping(held):
                written = self.table.checkpoint(
                    held.lease,
                    checkpoint,
                    children=children,
                    throughput_kbps=self.throughput_of(key),
                    stored_through=held.newer_moment(stored_through),
                    counts=counts,
                    caught_up=held.caught_up,
                )
            self.wrote(held, written, sent)

    # The methods below are also used by the modules for claims and handoffs.

    def ready(self, held: HeldLease, token: int | None = None) -> None:
        """Check, under the lock of the lease, that this worker still holds the lease. If the outcome of its last
        write is not known, read the row."""
        key = held.lease.key
        if self._held.get(key) is not held or (token is not None and held.token != token):
            raise LeaseLost(key, f"{self.worker} does not hold it any more")
        if not self.is_trusted(held):
            self.drop(held, f"not renewed for {self.duration:g} s")
            raise LeaseLost(key, f"not renewed for {self.duration:g} s")
        if held.in_doubt:
            self._settle(held)

    def ready_to_go_on(self, held: HeldLease, token: int) -> None:
        """Do the same as `ready`, and raise EndWasWritten for a finished lease."""
        self.ready(held, token)
        if held.lease.is_finished:
            raise EndWasWritten(held.lease.key, held.lease.children)

    @contextmanager
    def dropping(self, held: HeldLease) -> Iterator[None]:
        """Wraps one write. If the write is refused, the lease is dropped. After any other failure, the outcome is
        not known."""
        try:
            yield
        except LeaseLost as lost:
            self.drop(held, str(lost))
            raise
        except BaseException:
            held.in_doubt = True
            raise

    def wrote(self, held: HeldLease, lease: Lease, sent: float) -> None:
        """Record a successful write. The lease is trusted from the time at which the write was sent."""
        held.lease = lease
        held.written_at = sent
        held.trusted_until = sent + self.duration
        self._learn(held, lease)

    def write_stored(
        self,
        held: HeldLease,
        *,
        claim: Claim | None = None,
        children: frozenset[str] = frozenset(),
        ends_claim: bool = False,
    ) -> None:
        """Write `held.unwritten` to the row: what is stored of the lease beyond the row's checkpoint. Called under
        the lock of the lease."""
        stored = held.in_flight = held.unwritten
        assert stored is not None
        held.unwritten = None
        kept = claim or held.claimed
        if kept is not None and not ends_claim:
            claim = renewed_claim(kept, stored.through)
        sent = self.now()
        with self.dropping(held):
            written = self.table.checkpoint(
                held.lease,
                stored.through,
                batch=held.next_number(stored),
                children=children,
                throughput_kbps=self.throughput_of(held.lease.key),
                stored_through=held.newer_moment(stored.stored_through),
                counts=stored.counts,
                claim=claim,
                ends_claim=ends_claim,
                caught_up=held.caught_up,
            )
        held.in_flight = None
        if held.claimed is not None and not ends_claim:
            held.claimed = claim
        self.wrote(held, written, sent)

    def _settle(self, held: HeldLease) -> None:
        """Read the row to find out whether the last write, whose response was lost, was applied. `held.lease` shows
        all earlier writes (see `HeldLease.caught_up`), so the row can differ from `held.lease` only by the last
        write. If the row differs in another way, the lease had another owner meanwhile. This then drops the lease
        and raises LeaseLost."""
        current = self.table.get(held.lease.key)
        known = held.lease
        if (
            current is None
            or current.actual_owner != self.worker
            or current.counter not in (known.counter, known.counter + 1)
        ):
            self.drop(held, "another worker wrote it")
            raise LeaseLost(known.key, "another worker wrote it")
        held.lease = current
        held.in_doubt = False
        sent, held.in_flight = held.in_flight, None
        if sent is not None and current.checkpoint != sent.through:  # the write was not applied
            held.unwritten = sent if held.unwritten is None else sent.followed_by(held.unwritten)
        self._learn(held, current)

    def _learn(self, held: HeldLease, lease: Lease) -> None:
        """Detect from the newest row whether a handoff has begun, or whether this worker's ownership has ended
        without a handoff. In the second case, this drops the lease and raises LeaseLost."""
        if lease.in_handoff and lease.checkpoint_owner == self.worker and lease.owner != self.worker:
            if held.handoff_since is None:
                held.handoff_since = self.now()
                self.report(EventKind.HANDOFF_ASKED, f"to {lease.owner}", lease.key)
        elif lease.actual_owner != self.worker or lease.in_handoff:
            self.drop(held, f"owned by {lease.actual_owner} now")
            raise LeaseLost(lease.key, f"owned by {lease.actual_owner} now")
