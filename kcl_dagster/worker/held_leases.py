"""The leases that this worker holds, and until when each of them is trusted. Does not access a table."""

from collections.abc import Iterable

from kcl_dagster.errors import LeaseLost
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.claim import ChainId
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.runtime import Runtime
from kcl_dagster.worker.events import EventKind, OnEvent, WorkerEvent, ignore
from kcl_dagster.worker.held_lease import HeldLease, Holding
from kcl_dagster.worker.throughput import Throughput

# After a handoff was noticed, this number of other leases is renewed early. If all were, one handoff would cause
# hundreds of writes in a second.
LEASES_TO_CHECK = 100


class LeaseRegistry:
    """The held leases. Called from the batch thread and from the renewal thread. No method waits for a write.

    A lease is trusted for `duration` seconds after the last successful write was *sent*, on this process's
    monotonic clock. Every other process observes the change of the counter after the write was sent, and waits for
    at least `duration` from then on. So no other process can take the lease while it is trusted.
    """

    def __init__(
        self,
        worker: WorkerId,
        duration: float,
        throughput_window: float,
        runtime: Runtime,
        on_event: OnEvent = ignore,
    ) -> None:
        self.worker = worker
        self.duration = duration
        self.reads_on = 0.0
        """The seconds for which a lease is still read after a handoff of it was noticed. Meanwhile, the next owner
        can end its batch, so that it reads the lease as soon as it gets it."""

        self._throughput = Throughput(runtime.clock.monotonic, throughput_window)
        self._runtime = runtime
        self._on_event = on_event
        self._held: dict[LeaseKey, HeldLease] = {}
        self._expired: dict[LeaseKey, Lease] = {}
        """Leases that expired and were not acquired again. The table may still name this worker as their owner."""

        self.left: dict[tuple[LeaseKey, ChainId], Checkpoint] = {}
        """The claimed leases that this worker no longer holds, each with the chain of its claim. The value is the
        last known checkpoint of the lease's row, or SHARD_END if the claim was ended."""

        self.map_lock = runtime.new_lock()

    # Views

    def holdings(self) -> list[Holding]:
        """The held leases that are still trusted, ordered by key."""
        now = self.now()
        with self.map_lock:
            held = sorted(self._held.items())
        return [self._snapshot(h) for _, h in held if h.trusted_until > now]

    def get(self, key: LeaseKey) -> Holding | None:
        held = self._held.get(key)
        return self._snapshot(held) if held is not None and self.is_trusted(held) else None

    def _snapshot(self, held: HeldLease) -> Holding:
        return Holding(held.lease, held.token, self.is_leaving(held))

    def is_leaving(self, held: HeldLease) -> bool:
        """Whether the lease is in a handoff and is not read any more."""
        reads_on = self.reads_on if held.was_read else 0.0
        return held.handoff_since is not None and self.now() - held.handoff_since >= reads_on

    def keys(self) -> set[LeaseKey]:
        with self.map_lock:
            return set(self._held)

    def to_be_read(self) -> dict[LeaseKey, Lease]:
        """The leases that this worker has to read. These are the unfinished leases that it holds, trusted or not.
        The result also has the leases that expired in this worker, as long as it is not known that the table names
        another owner."""
        with self.map_lock:
            held = {key: held.lease for key, held in self._held.items() if not held.lease.is_finished}
            return self._expired | held

    def keep_expired(self, assigned: Iterable[LeaseKey]) -> None:
        """Forget the expired leases that are not in `assigned`, because the table names another owner for them."""
        with self.map_lock:
            still = set(assigned)
            self._expired = {key: lease for key, lease in self._expired.items() if key in still}

    def is_ours(self, key: LeaseKey, token: int) -> bool:
        """Whether the ownership named by `token` is still valid. This is the last check before records are passed
        to a sink or a processor."""
        held = self._held.get(key)
        return held is not None and held.token == token and self.is_trusted(held)

    def due(self, interval: float) -> list[LeaseKey]:
        """The leases that were not written for `interval` seconds, the oldest write first.

        After a handoff was noticed, the leases that were not written since are due, too. A leader often begins
        handoffs of several leases at once, and a write shows whether there is one. So they are all noticed during
        one batch, and completed together. If no further handoff is found in `LEASES_TO_CHECK` leases, no more of
        them are written early.
        """
        limit = self.now() - interval
        with self.map_lock:
            handoffs = [held.handoff_since for held in self._held.values() if held.handoff_since is not None]
            noticed = max(handoffs, default=limit)
            waiting = sorted((h.written_at, key) for key, h in self._held.items() if h.written_at <= limit)
            others = [
                (h.written_at, key)
                for key, h in self._held.items()
                if h.written_at > limit and h.handoff_since is None
            ]
        early = sorted(other for other in others if other[0] < noticed)
        left = LEASES_TO_CHECK - (len(others) - len(early))
        return [key for _, key in [*waiting, *early[: max(0, left)]]]

    def oldest_write(self) -> float | None:
        """The earliest of the times (monotonic) at which the held leases were last written. None if no lease is
        held."""
        with self.map_lock:
            return min((h.written_at for h in self._held.values()), default=None)

    def in_handoff(self, waiting_longer_than: float | None = None) -> list[LeaseKey]:
        """Leases in a handoff to another worker. If `waiting_longer_than` is None, only those that are not read any
        more, are not in a batch and have no unpublished entry. If it is a number of seconds, only those whose next
        owner has waited for at least this time, even if they are in a batch."""
        now = self.now()
        with self.map_lock:
            asked = [
                (k, h.busy or bool(h.unpublished) or not self.is_leaving(h), now - h.handoff_since)
                for k, h in self._held.items()
                if h.handoff_since is not None
            ]
        if waiting_longer_than is None:
            return [key for key, busy, _ in asked if not busy]
        return [key for key, _, waited in asked if waited >= waiting_longer_than]

    def has_leaving(self) -> bool:
        """Whether a lease is about to be handed over, at the latest when its batch ends."""
        with self.map_lock:
            return any(self.is_leaving(held) for held in self._held.values())

    def tip_of(self, key: LeaseKey) -> int | None:
        """The latest known moment (epoch seconds) through which the lease is stored. The row may still have an
        earlier one."""
        held = self._held.get(key)
        if held is None:
            return None
        known = (held.stored_through, held.lease.stored_through)
        return max((moment for moment in known if moment is not None), default=None)

    def unwritten_tips(self) -> list[LeaseKey]:
        with self.map_lock:
            return sorted(key for key, held in self._held.items() if held.newer_moment() is not None)

    def find(self, key: LeaseKey, token: int | None = None) -> HeldLease:
        """The held lease. Raises LeaseLost if this worker does not hold it under this token."""
        held = self._held.get(key)
        if held is None or (token is not None and held.token != token):
            raise LeaseLost(key, f"{self.worker} does not hold it any more")
        return held

    def held(self, key: LeaseKey) -> HeldLease | None:
        return self._held.get(key)

    def every(self) -> list[HeldLease]:
        """All held leases. Call it while holding `map_lock`."""
        return list(self._held.values())

    def now(self) -> float:
        return self._runtime.clock.monotonic()

    def is_trusted(self, held: HeldLease) -> bool:
        return held.trusted_until > self.now()

    # Batches

    def begin(self, keys: Iterable[LeaseKey]) -> None:
        """Mark leases as being in a batch. A handoff waits for the end of the batch."""
        for key in keys:
            held = self._held.get(key)
            if held is not None:
                held.busy = held.was_read = True

    def end(self, keys: Iterable[LeaseKey]) -> None:
        for key in keys:
            held = self._held.get(key)
            if held is not None:
                held.busy = False

    def delivered(self, key: LeaseKey, payload_bytes: int) -> None:
        """Count payload that is about to be delivered. Never waits for a write, because the caller has just checked
        that it holds the lease, and could lose the lease during a wait."""
        with self.map_lock:
            self._throughput.record(key, payload_bytes)

    def stored_through(self, key: LeaseKey, token: int, at: float) -> None:
        """Record that all records of the lease that arrived before `at` (epoch seconds) are stored. The next
        renewal writes this to the row, but not before all decided batches of the lease are visible."""
        held = self._held.get(key)
        if held is None or held.token != token:
            return
        if held.unpublished:
            held.unpublished[-1].moment = max(int(at), held.unpublished[-1].moment)
        else:
            held.stored_through = max(int(at), held.stored_through or 0)

    def throughput_of(self, key: LeaseKey) -> float | None:
        """The throughput that the next write of the row publishes."""
        with self.map_lock:
            return self._throughput.publish(key)

    # Losses

    def expire(self) -> list[LeaseKey]:
        """Drop the leases that are no longer trusted. Returns their keys."""
        now = self.now()
        with self.map_lock:
            over = [h for h in self._held.values() if h.trusted_until <= now]
        for held in over:
            if not held.lease.is_finished:
                with self.map_lock:
                    self._expired[held.lease.key] = held.lease
            self.drop(held, f"not renewed for {self.duration:g} s")
        return [held.lease.key for held in over]

    def drop(self, held: HeldLease, why: str) -> None:
        """Stop holding a lease that was lost, and report it."""
        if self.forget(held) and not held.lease.is_finished:  # a finished lease is not lost but cleaned up
            self.report(EventKind.LEASE_LOST, why, held.lease.key)

    def forget(self, held: HeldLease) -> bool:
        """Stop holding a lease. Returns False if it was no longer held."""
        with self.map_lock:
            if self._held.get(held.lease.key) is not held:
                return False
            del self._held[held.lease.key]
            self._throughput.stop(held.lease.key)
            if held.claimed is not None and held.lease.checkpoint is not None:
                self.left[held.lease.key, held.claimed.chain] = held.lease.checkpoint
        return True

    def report(self, kind: EventKind, message: str, key: LeaseKey) -> None:
        self._on_event(WorkerEvent(kind, message, key))
