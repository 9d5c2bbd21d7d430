"""The leases that this worker holds. All writes of them by the worker are in this module.

Each lease has one lock, held around every write of it, so a renewal can never make a checkpoint fail. A lease is
trusted until the moment at which the last successful write was *sent*, plus the lease duration, on this process's
monotonic clock. Every other process observes the change of the counter later than that moment, so no process can
have taken the lease in between. If a lease is no longer trusted, or a conditional write of it was refused, it is
dropped here and not written again. If the table still names this worker as its owner, discovery acquires it anew,
under a new token.

Modelled in spec/ExactlyOnce.tla: if the response to a write was lost, the row is read; its outcome is never
guessed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace

from kcl_dagster.errors import KclError, LeaseLost, OutcomeUnknown
from kcl_dagster.model.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint
from kcl_dagster.model.claim import Begun, ChainId, Claim
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.stored import BatchCounts
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.leases import CaughtUp, LeaseTable
from kcl_dagster.worker.events import EventKind, OnEvent, WorkerEvent, ignore
from kcl_dagster.worker.pending import pin_of
from kcl_dagster.worker.throughput import Throughput


class EndWasWritten(KclError):
    """The row is at its shard's end already: an earlier write was applied, and its response was lost."""

    def __init__(self, key: LeaseKey, children: frozenset[str]) -> None:
        super().__init__(f"{key} is at the end of its shard: the earlier write was applied")
        self.children = children


@dataclass(frozen=True, slots=True)
class Holding:
    """A held lease as it was when it was read. `token`: identifies this ownership. Work that began under one token
    may not be finished under another."""

    lease: Lease
    token: int
    handoff_since: float | None = None

    @property
    def key(self) -> LeaseKey:
        return self.lease.key


@dataclass(frozen=True, slots=True)
class Unwritten:
    """What a worker that decides its batches in a chain has stored since the checkpoint of a lease. The next
    renewal writes it. `counts`: None if they are not known. `number`: of the last batch."""

    through: Checkpoint
    stored_through: int | None = None
    counts: BatchCounts | None = None
    number: int | None = None

    def followed_by(self, later: "Unwritten") -> "Unwritten":
        known = [moment for moment in (self.stored_through, later.stored_through) if moment is not None]
        counts = None
        if self.counts is not None and later.counts is not None:
            counts = self.counts.followed_by(later.counts)
        numbers = [number for number in (self.number, later.number) if number is not None]
        return Unwritten(later.through, max(known, default=None), counts, max(numbers, default=None))


@dataclass(slots=True)
class _Unpublished:
    """What entry `number` of a chain has decided, and readers do not see yet. It is not written before: neither the
    checkpoint nor the moment through which the shard is stored may run ahead of what readers see."""

    number: int
    stored: Unwritten
    moment: int = 0  # see `Holdings.stored_through`


@dataclass(slots=True)
class _Held:
    lease: Lease
    token: int
    trusted_until: float
    written_at: float
    lock: AbstractContextManager[object]
    busy: bool = False
    handoff_since: float | None = None
    stored_through: int | None = None
    in_doubt: bool = False  # a write was sent, and its outcome is not known
    pinned: int | None = None  # the number of the batch that this owner pinned last
    unwritten: Unwritten | None = None
    in_flight: Unwritten | None = None  # what the write in doubt has written, if it was applied
    claimed: Claim | None = None  # by this worker, since it got the lease
    is_deciding: bool = False  # an entry for the lease may have been made: its claim may not be ended
    unpublished: list[_Unpublished] = field(default_factory=list)  # in the order of their numbers


GoesOn = Callable[[WorkerId], bool]
"""Whether a worker may be given a lease: it has neither ended nor been asked to. May read a table once; must not
raise."""


def every_worker_goes_on(_: WorkerId) -> bool:
    """For callers that know no rows of workers."""
    return True


class Holdings:
    """Called from the batch thread and from the renewal thread; every method may block for one table write."""

    def __init__(
        self,
        table: LeaseTable,
        worker: WorkerId,
        lease_duration: float,
        throughput_window: float,
        runtime: Runtime,
        on_event: OnEvent = ignore,
        goes_on: GoesOn = every_worker_goes_on,
    ) -> None:
        self._table = table
        self._worker = worker
        self._goes_on = goes_on
        self._duration = lease_duration
        self._throughput = Throughput(runtime.clock.monotonic, throughput_window)
        self._runtime = runtime
        self._on_event = on_event
        self._held: dict[LeaseKey, _Held] = {}
        self._expired: dict[LeaseKey, Lease] = {}  # not acquired since; this worker may still be their owner
        self._last_token = 0
        self._left: dict[tuple[LeaseKey, ChainId], Checkpoint] = {}
        """The rows of claimed leases when these were dropped; SHARD_END where the claim was ended."""

        self._map_lock = runtime.new_lock()

    # Looking

    def holdings(self) -> list[Holding]:
        """The leases that may be worked on now, by key."""
        now = self._runtime.clock.monotonic()
        with self._map_lock:
            held = sorted(self._held.items())
        return [_snapshot(h) for _, h in held if h.trusted_until > now]

    def get(self, key: LeaseKey) -> Holding | None:
        held = self._held.get(key)
        return _snapshot(held) if held is not None and self._is_trusted(held) else None

    def keys(self) -> set[LeaseKey]:
        """Everything held, trusted or not."""
        with self._map_lock:
            return set(self._held)

    def to_be_read(self) -> dict[LeaseKey, Lease]:
        """The leases that this worker has to read: those it holds, trusted or not, that are not finished, and those
        that expired here while the table still names this worker, as far as it is known."""
        with self._map_lock:
            held = {key: held.lease for key, held in self._held.items() if not held.lease.is_finished}
            return self._expired | held

    def keep_expired(self, assigned: Iterable[LeaseKey]) -> None:
        """Forget the expired leases of which the table names another owner."""
        with self._map_lock:
            still = set(assigned)
            self._expired = {key: lease for key, lease in self._expired.items() if key in still}

    def is_ours(self, key: LeaseKey, token: int) -> bool:
        """Whether the ownership that `token` names still stands. The last question before a sink is written."""
        held = self._held.get(key)
        return held is not None and held.token == token and self._is_trusted(held)

    def due(self, interval: float) -> list[LeaseKey]:
        """Leases that were not written for `interval` seconds, the oldest write first."""
        limit = self._runtime.clock.monotonic() - interval
        with self._map_lock:
            waiting = [(h.written_at, key) for key, h in self._held.items() if h.written_at <= limit]
        return [key for _, key in sorted(waiting)]

    def oldest_write(self) -> float | None:
        """The moment of the oldest last write of all leases; monotonic."""
        with self._map_lock:
            return min((h.written_at for h in self._held.values()), default=None)

    def in_handoff(self, waiting_longer_than: float | None = None) -> list[LeaseKey]:
        """Leases in a handoff to another worker: those that are not in a batch, and of which all that is decided is
        published. With `waiting_longer_than`: those
        for which the next owner has waited for at least so many seconds."""
        now = self._runtime.clock.monotonic()
        with self._map_lock:
            asked = [
                (k, h.busy or bool(h.unpublished), now - h.handoff_since)
                for k, h in self._held.items()
                if h.handoff_since is not None
            ]
        if waiting_longer_than is None:
            return [key for key, busy, _ in asked if not busy]
        return [key for key, _, waited in asked if waited >= waiting_longer_than]

    # Getting

    def acquire(self, lease: Lease) -> Holding | None:
        """Hold a lease of which the table names this worker as the owner. The lease is renewed at once: it is not
        known for how long its counter was unchanged, so only a write of our own can start the time for which the
        lease is trusted. None: this worker does not own it any more."""
        if lease.owner != self._worker or lease.in_handoff:
            self._expired.pop(lease.key, None)
            return None
        sent = self._runtime.clock.monotonic()
        try:
            renewed = self._table.renew(lease)
        except LeaseLost:
            return None
        with self._map_lock:
            self._last_token += 1
            held = _Held(renewed, self._last_token, sent + self._duration, sent, self._runtime.new_lock())
            self._held[lease.key] = held
            self._expired.pop(lease.key, None)
            self._throughput.start(lease.key, lease.throughput_kbps)
        self._tell(EventKind.LEASE_ACQUIRED, f"at {lease.checkpoint}", lease.key)
        try:
            self._learn(held, renewed)
        except LeaseLost:
            return None
        return self.get(lease.key)

    # Writing

    def renew(self, key: LeaseKey, token: int | None = None) -> None:
        """Raises LeaseLost (the lease is then dropped) or a ServiceError (it is kept while it is trusted)."""
        held = self._find(key, token)
        with held.lock:
            self._ready(held, token)
            if held.unwritten is not None:
                self._write_down(held)
                return
            sent = self._runtime.clock.monotonic()
            with self._dropping(held):
                renewed = self._table.renew(
                    held.lease,
                    self._published(key),
                    stored_through=_newer_moment(held),
                    caught_up=_catching_up(held),
                )
            self._wrote(held, renewed, sent)

    def settled(self, key: LeaseKey, token: int) -> Lease:
        """The lease as the table has it, once a write whose answer was lost is settled. Reads the table only then.
        Raises as `renew`."""
        held = self._find(key, token)
        with held.lock:
            self._ready(held, token)
            return held.lease

    def prepare(self, key: LeaseKey, token: int, pending: Checkpoint, state: bytes | None, batch: int) -> None:
        """Pin the next batch of the lease. Raises as `renew`, or EndWasWritten. After OutcomeUnknown the pin may or
        may not have been written."""
        held = self._find(key, token)
        with held.lock:
            self._ready_to_go_on(held, token)
            held.pinned = batch
            sent = self._runtime.clock.monotonic()
            with self._dropping(held):
                prepared = self._table.prepare(
                    held.lease, pending, state=state, batch=batch, caught_up=_catching_up(held)
                )
            self._wrote(held, prepared, sent)

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
        """Everything through `checkpoint` is done; the pin goes. Raises as `renew`, or EndWasWritten.

        `stored_through`: see `Lease`; `counts`: what was stored since the last checkpoint, None if it was not
        counted. At the end of a shard its claim by a chain ends, too.
        """
        held = self._find(key, token)
        with held.lock:
            if checkpoint.is_shard_end:
                self._ready(held, token)
            else:
                self._ready_to_go_on(held, token)
            if held.unpublished:
                raise OutcomeUnknown(f"{key}: what was decided is not visible yet")
            if held.claimed is not None:
                held.unwritten = _followed_by(held.unwritten, Unwritten(checkpoint, stored_through, counts))
                self._write_down(held, children=children, ends_claim=checkpoint.is_shard_end)
                return
            sent = self._runtime.clock.monotonic()
            with self._dropping(held):
                written = self._table.checkpoint(
                    held.lease,
                    checkpoint,
                    children=children,
                    throughput_kbps=self._published(key),
                    stored_through=_newer_moment(held, stored_through),
                    counts=counts,
                    caught_up=_catching_up(held),
                )
            self._wrote(held, written, sent)

    # Chains; see `kcl_dagster.worker.claims`

    def claim(self, key: LeaseKey, token: int, claim: Claim, stored: Callable[[Lease], Unwritten]) -> None:
        """Name the chain that may have entries for the lease. `stored`: what is stored of a lease that is as the
        row says; it replaces what this worker knew. Raises as `renew`, or EndWasWritten."""
        held = self._find(key, token)
        with held.lock:
            self._ready_to_go_on(held, token)
            held.unwritten = stored(held.lease)
            held.unpublished.clear()
            self._write_down(held, claim=claim)
            claim = held.lease.claim or claim
            with self._map_lock:
                self._left = {
                    one: row for one, row in self._left.items() if one[0] != key and one[1] == claim.chain
                }
            held.claimed, held.is_deciding = claim, False

    def begin_batch(self, key: LeaseKey, token: int, begun: Begun) -> None:
        """Write beside the claim that a batch is begun. Raises as `renew`, or EndWasWritten."""
        held = self._find(key, token)
        with held.lock:
            self._ready_to_go_on(held, token)
            if held.claimed is None:
                raise LeaseLost(key, "no chain has claimed it")
            if held.unwritten is None:
                held.unwritten = Unwritten(held.lease.checkpoint or TRIM_HORIZON)
            self._write_down(held, claim=replace(held.claimed, begun=begun))

    def begun(self, key: LeaseKey) -> Begun | None:
        """The batch that was begun, as the row says, and is not decided."""
        held = self._held.get(key)
        claim = None if held is None else held.lease.claim
        if claim is None or claim.begun is None:
            return None
        decided = self.decided_to(key)
        return claim.begun if decided is None or decided <= claim.begun.after else None

    def end_claim(self, key: LeaseKey, token: int, stored: Callable[[Lease], Unwritten]) -> None:
        """Name no chain any more. `stored`: as for `claim`. Raises as `renew`, or EndWasWritten."""
        held = self._find(key, token)
        with held.lock:
            self._ready_to_go_on(held, token)
            held.unwritten = stored(held.lease)
            self._write_down(held, ends_claim=True)

    def begin_decision(self, tokens: Mapping[LeaseKey, int], chain: ChainId) -> set[LeaseKey]:
        """Mark leases for which an entry of the chain is about to be made: until `end_decision`, or until they are
        claimed again, their claims are not ended. Returns those that are not ours any more, or not claimed by the
        chain: the entry may not name them."""
        refused = set()
        for key, token in sorted(tokens.items()):
            held = self._held.get(key)
            if held is None:
                refused.add(key)
                continue
            with held.lock:
                is_claimed = held.claimed is not None and held.claimed.chain == chain
                if is_claimed and self._held.get(key) is held and self.is_ours(key, token):
                    held.is_deciding = True
                else:
                    refused.add(key)
        return refused

    def end_decision(self, keys: Iterable[LeaseKey]) -> None:
        """The entry was not made and will not be, or `decided` was called for what it stores."""
        for key in keys:
            held = self._held.get(key)
            if held is not None:
                held.is_deciding = False

    def decided(self, key: LeaseKey, token: int, number: int, stored: Unwritten) -> None:
        """Everything through `stored` is decided, by entry `number` of the chain that has claimed the lease. Has no
        effect if the lease is not ours any more: its next owner learns it from the chain."""
        held = self._held.get(key)
        if held is None or held.token != token:
            return
        with held.lock:
            held.unpublished.append(_Unpublished(number, stored))

    def published(self, chain: ChainId, number: int) -> None:
        """What the chain has decided through entry `number` is visible: the next renewals write it."""
        with self._map_lock:
            waiting = [held for held in self._held.values() if _waits_for(held, chain)]
        for held in waiting:
            with held.lock:
                while held.unpublished and held.unpublished[0].number <= number:
                    one = held.unpublished.pop(0)
                    held.unwritten = _followed_by(held.unwritten, one.stored)
                    if one.moment:
                        held.stored_through = max(one.moment, held.stored_through or 0)

    def unpublished(self) -> dict[ChainId, int]:
        """For each chain its last entry that is not known to be visible, of leases that are held."""
        found: dict[ChainId, int] = {}
        with self._map_lock:
            for held in self._held.values():
                if held.claimed is not None and held.unpublished:
                    chain = held.claimed.chain
                    found[chain] = max(held.unpublished[-1].number, found.get(chain, 0))
        return found

    def awaits_publication(self, *, in_handoff: bool) -> bool:
        """Whether something is decided and not known to be visible: of any lease, or of one in a handoff."""
        with self._map_lock:
            return any(
                held.unpublished and (held.handoff_since is not None or not in_handoff)
                for held in self._held.values()
            )

    def stored(self, key: LeaseKey, token: int, stored: Unwritten) -> None:
        """Nothing through `stored` has to be stored any more: the next renewal writes it, once what was decided
        before is visible. Writes nothing now, and has no effect if the lease is not ours any more."""
        held = self._held.get(key)
        if held is None or held.token != token:
            return
        with held.lock:
            if held.unpublished:
                last = held.unpublished[-1]
                last.stored = last.stored.followed_by(stored)
            else:
                held.unwritten = _followed_by(held.unwritten, stored)

    def decided_to(self, key: LeaseKey) -> Checkpoint | None:
        """How far the lease is decided, whether readers see it or not."""
        held = self._held.get(key)
        if held is not None and (waiting := held.unpublished[-1:]):
            return waiting[0].stored.through
        return self.stored_to(key)

    def stored_to(self, key: LeaseKey) -> Checkpoint | None:
        """How far the lease is stored and visible, whether its row has it or not."""
        held = self._held.get(key)
        if held is None:
            return None
        newest = held.unwritten or held.in_flight
        return held.lease.checkpoint if newest is None else newest.through

    def written(self, chain: ChainId) -> dict[LeaseKey, Checkpoint]:
        """How far the rows of leases are at least that the chain has claimed; SHARD_END for those whose claims were
        ended. Leases that were lost are as they were when this worker wrote them last."""
        with self._map_lock:
            rows = {key: row for (key, of), row in self._left.items() if of == chain}
            for key, held in self._held.items():
                if held.claimed is not None and held.claimed.chain == chain and held.lease.checkpoint is not None:
                    rows[key] = held.lease.checkpoint
            return rows

    def claimed(self, chain: ChainId) -> set[LeaseKey]:
        """The leases that are held under a claim of the chain."""
        with self._map_lock:
            return {
                key for key, held in self._held.items() if held.claimed is not None and held.claimed.chain == chain
            }

    def delivered(self, key: LeaseKey, payload_bytes: int) -> None:
        """Count payload that is about to be delivered. Never waits for a write: the caller has just checked that
        the lease is ours, and during a wait it could be lost."""
        with self._map_lock:
            self._throughput.record(key, payload_bytes)

    def stored_through(self, key: LeaseKey, token: int, at: float) -> None:
        """Record that everything which arrived before `at` (epoch seconds) is stored. Written with the next
        renewal, once all that is decided is visible."""
        held = self._held.get(key)
        if held is None or held.token != token:
            return
        if held.unpublished:
            held.unpublished[-1].moment = max(int(at), held.unpublished[-1].moment)
        else:
            held.stored_through = max(int(at), held.stored_through or 0)

    def tip_of(self, key: LeaseKey) -> int | None:
        """The latest moment (epoch seconds) until which no record beyond the checkpoint had arrived. It may not be
        written yet."""
        held = self._held.get(key)
        if held is None:
            return None
        known = (held.stored_through, held.lease.stored_through)
        return max((moment for moment in known if moment is not None), default=None)

    def unwritten_tips(self) -> list[LeaseKey]:
        """Leases whose row does not have the moment of `tip_of` yet."""
        with self._map_lock:
            return sorted(key for key, held in self._held.items() if _newer_moment(held) is not None)

    # Batches

    def begin(self, keys: Iterable[LeaseKey]) -> None:
        """Mark leases as in a batch: a handoff waits for its end."""
        for key in keys:
            held = self._held.get(key)
            if held is not None:
                held.busy = True

    def end(self, keys: Iterable[LeaseKey]) -> None:
        for key in keys:
            held = self._held.get(key)
            if held is not None:
                held.busy = False

    # Letting go

    def transfer(self, key: LeaseKey) -> bool:
        """Complete the handoff that the leader began. If the next owner has ended or drains, give the lease up
        instead. The lease is dropped in any case. True: the handoff was completed, or the lease was given up."""
        held = self._held.get(key)
        if held is None:
            return False
        with held.lock:
            if self._held.get(key) is not held:
                return False
            self._forget(held)
            self._mark_left(held)
            self._end_claim(held)
            passed = self.pass_on(held.lease)
        if passed is None:
            self._tell(EventKind.LEASE_LOST, "another worker or the leader ended the handoff", key)
        elif passed.owner is None:
            why = f"given up: {held.lease.owner}, which was to have it, has ended or drains"
            self._tell(EventKind.LEASE_RELEASED, why, key)
        else:
            self._tell(EventKind.HANDOFF_DONE, f"to {passed.owner}", key)
        return passed is not None

    def pass_on(self, lease: Lease) -> Lease | None:
        """End the handoff of a lease that this worker still owns and does not read. The lease goes to its next
        owner. If that worker has ended or drains, the lease remains without owner: that worker would not read it.
        None: another process moved the lease."""
        if lease.owner is not None and not self._goes_on(lease.owner):
            return self._table.vacate(lease)
        return self._table.transfer(lease)

    def release(self, key: LeaseKey, successor: WorkerId | None = None, *, unless_pinned: bool = False) -> bool:
        """Give the lease to `successor`, so that it is read at once. If that is not possible, give it up. If a
        handoff is under way, complete it instead. The lease is dropped in any case, with one exception: with
        `unless_pinned` it is kept while its batch is pinned and being written, or decided and not visible. True:
        the table has the change."""
        held = self._held.get(key)
        if held is None:
            return False
        with held.lock:
            if self._held.get(key) is not held:
                return False
            is_written = held.lease.pending_checkpoint is not None or held.is_deciding
            if unless_pinned and ((held.busy and is_written) or held.unpublished):
                self._mark_left(held)  # the process may be killed before its batch ends
                return False
            self._forget(held)
            self._mark_left(held)
            self._end_claim(held)
            assigned = successor is not None and self._assign_to(held.lease, successor)
            done = assigned or self._release(held.lease)
        if done:
            self._tell(EventKind.LEASE_RELEASED, f"given to {successor}" if assigned else "given up", key)
        return done

    def _mark_left(self, held: _Held) -> None:
        """Write to the pin of a batch that this worker has begun that the worker leaves it: a batch that hangs or
        waits for its next attempt ends no process. If the write fails, the next owner counts a loss."""
        pin = pin_of(held.lease)
        if pin is None or pin.left or held.pinned != pin.number or held.lease.pending_checkpoint is None:
            return
        sent = self._runtime.clock.monotonic()
        with suppress(KclError), self._dropping(held):
            left = self._table.prepare(
                held.lease,
                held.lease.pending_checkpoint,
                state=replace(pin, left=True).to_state(),
                batch=pin.number,
                caught_up=_catching_up(held),
            )
            held.lease, held.written_at, held.trusted_until = left, sent, sent + self._duration

    def _assign_to(self, lease: Lease, successor: WorkerId) -> bool:
        """Assign the lease to `successor`. The write is conditional on the counter, too: if this worker was paused
        and does not own the lease any more, the write is refused."""
        if lease.in_handoff or lease.is_finished:
            return False
        return self._table.assign(lease, successor, counter=lease.counter) is not None

    def _release(self, lease: Lease) -> bool:
        if self._let_go(lease) is not None:
            return True
        # The condition names both owners: a handoff we have not heard of yet makes it fail.
        current = self._table.get(lease.key)
        if current is None or current.actual_owner != self._worker:
            return False
        return self._let_go(current) is not None

    def _let_go(self, lease: Lease) -> Lease | None:
        return self.pass_on(lease) if lease.in_handoff else self._table.release(lease)

    def expire(self) -> list[LeaseKey]:
        """Drop what is no longer trusted."""
        now = self._runtime.clock.monotonic()
        with self._map_lock:
            over = [h for h in self._held.values() if h.trusted_until <= now]
        for held in over:
            if not held.lease.is_finished:
                with self._map_lock:
                    self._expired[held.lease.key] = held.lease
            self._drop(held, f"not renewed for {self._duration:g} s")
        return [held.lease.key for held in over]

    # Inside

    def _write_down(
        self,
        held: _Held,
        *,
        claim: Claim | None = None,
        children: frozenset[str] = frozenset(),
        ends_claim: bool = False,
    ) -> None:
        """Write what is stored of the lease. Under its lock."""
        stored = held.in_flight = held.unwritten
        assert stored is not None
        held.unwritten = None
        kept = claim or held.claimed
        if kept is not None and not ends_claim:
            claim = _renewed_claim(kept, stored.through)
        sent = self._runtime.clock.monotonic()
        with self._dropping(held):
            written = self._table.checkpoint(
                held.lease,
                stored.through,
                batch=_next_number(held.lease, stored),
                children=children,
                throughput_kbps=self._published(held.lease.key),
                stored_through=_newer_moment(held, stored.stored_through),
                counts=stored.counts,
                claim=claim,
                ends_claim=ends_claim,
                caught_up=_catching_up(held),
            )
        held.in_flight = None
        if held.claimed is not None and not ends_claim:
            held.claimed = claim
        self._wrote(held, written, sent)

    def _end_claim(self, held: _Held) -> None:
        """Before the lease is given away: its row gets what is stored, and names no chain any more, so that its
        next owner has nothing to settle. While an entry is being made or is not visible, or if the row cannot be
        written, the claim remains, and the next owner settles the chain. Under the lease's lock, and after it was
        forgotten."""
        if held.claimed is None or held.is_deciding or held.unpublished:
            return
        if not self._is_trusted(held) or held.in_doubt:
            return
        stored = held.unwritten
        checkpoint = held.lease.checkpoint if stored is None else stored.through
        if checkpoint is None:
            return
        with suppress(KclError):
            held.lease = self._table.checkpoint(
                held.lease,
                checkpoint,
                batch=None if stored is None else _next_number(held.lease, stored),
                stored_through=None if stored is None else _newer_moment(held, stored.stored_through),
                counts=None if stored is None else stored.counts,
                ends_claim=True,
                caught_up=_catching_up(held),
            )
            with self._map_lock:
                self._left[held.lease.key, held.claimed.chain] = SHARD_END

    def _is_trusted(self, held: _Held) -> bool:
        return held.trusted_until > self._runtime.clock.monotonic()

    def _find(self, key: LeaseKey, token: int | None = None) -> _Held:
        held = self._held.get(key)
        if held is None or (token is not None and held.token != token):
            raise LeaseLost(key, f"{self._worker} does not hold it any more")
        return held

    def _ready(self, held: _Held, token: int | None = None) -> None:
        """The lock is ours now; is the lease still?"""
        key = held.lease.key
        if self._held.get(key) is not held or (token is not None and held.token != token):
            raise LeaseLost(key, f"{self._worker} does not hold it any more")
        if not self._is_trusted(held):
            self._drop(held, f"not renewed for {self._duration:g} s")
            raise LeaseLost(key, f"not renewed for {self._duration:g} s")
        if held.in_doubt:
            self._settle(held)

    def _ready_to_go_on(self, held: _Held, token: int) -> None:
        self._ready(held, token)
        if held.lease.is_finished:
            raise EndWasWritten(held.lease.key, held.lease.children)

    def _settle(self, held: _Held) -> None:
        """Learn what became of a write whose answer was lost. Only that one write may separate us from the
        table, as `_catching_up` kept what was learnt before it: anything else means that the lease had another
        owner in between."""
        current = self._table.get(held.lease.key)
        known = held.lease
        if (
            current is None
            or current.actual_owner != self._worker
            or current.counter not in (known.counter, known.counter + 1)
        ):
            self._drop(held, "another worker wrote it")
            raise LeaseLost(known.key, "another worker wrote it")
        held.lease = current
        held.in_doubt = False
        sent, held.in_flight = held.in_flight, None
        if sent is not None and current.checkpoint != sent.through:  # it was not applied
            held.unwritten = sent if held.unwritten is None else sent.followed_by(held.unwritten)
        self._learn(held, current)

    @contextmanager
    def _dropping(self, held: _Held) -> Iterator[None]:
        """Around one write: a refused lease is dropped; after any other failure the table has to be asked."""
        try:
            yield
        except LeaseLost as lost:
            self._drop(held, str(lost))
            raise
        except BaseException:
            held.in_doubt = True
            raise

    def _wrote(self, held: _Held, lease: Lease, sent: float) -> None:
        held.lease = lease
        held.written_at = sent
        held.trusted_until = sent + self._duration
        self._learn(held, lease)

    def _learn(self, held: _Held, lease: Lease) -> None:
        """Notice a handoff, or an ownership that ended without one."""
        if lease.in_handoff and lease.checkpoint_owner == self._worker and lease.owner != self._worker:
            if held.handoff_since is None:
                held.handoff_since = self._runtime.clock.monotonic()
                self._tell(EventKind.HANDOFF_ASKED, f"to {lease.owner}", lease.key)
        elif lease.actual_owner != self._worker or lease.in_handoff:
            self._drop(held, f"owned by {lease.actual_owner} now")
            raise LeaseLost(lease.key, f"owned by {lease.actual_owner} now")

    def _drop(self, held: _Held, why: str) -> None:
        if self._forget(held) and not held.lease.is_finished:  # finished leases are cleaned up, not lost
            self._tell(EventKind.LEASE_LOST, why, held.lease.key)

    def _forget(self, held: _Held) -> bool:
        with self._map_lock:
            if self._held.get(held.lease.key) is not held:
                return False
            del self._held[held.lease.key]
            self._throughput.stop(held.lease.key)
            if held.claimed is not None and held.lease.checkpoint is not None:
                self._left[held.lease.key, held.claimed.chain] = held.lease.checkpoint
        return True

    def _published(self, key: LeaseKey) -> float | None:
        with self._map_lock:
            return self._throughput.publish(key)

    def _tell(self, kind: EventKind, message: str, key: LeaseKey) -> None:
        self._on_event(WorkerEvent(kind, message, key))


def _catching_up(held: _Held) -> CaughtUp:
    """Keeps what a call learns before it fails: what is in doubt afterwards is one write and no more."""

    def caught_up(lease: Lease) -> None:
        held.lease = lease

    return caught_up


def _followed_by(former: Unwritten | None, later: Unwritten) -> Unwritten:
    return later if former is None else former.followed_by(later)


def _waits_for(held: _Held, chain: ChainId) -> bool:
    return held.claimed is not None and held.claimed.chain == chain and bool(held.unpublished)


def _next_number(lease: Lease, stored: Unwritten) -> int | None:
    """Numbers of batches only grow, and late rows are told by them."""
    return None if stored.number is None else max(stored.number, lease.batch + 1)


def _renewed_claim(claim: Claim, at: Checkpoint) -> Claim:
    """A claim as it is written with the checkpoint `at`: a batch that is stored was not the one that ended them."""
    begun = claim.begun
    return replace(claim, at=at, begun=begun if begun is not None and begun.after >= at else None)


def _newer_moment(held: _Held, committed: int | None = None) -> int | None:
    """The moment to be written, None if the row has one as late: it never falls while the lease is not put back."""
    newest = max(held.stored_through or 0, committed or 0)
    return newest if newest > (held.lease.stored_through or 0) else None


def _snapshot(held: _Held) -> Holding:
    return Holding(held.lease, held.token, held.handoff_since)
