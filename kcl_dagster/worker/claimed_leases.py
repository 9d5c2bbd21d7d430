"""Keeps two facts about each lease that this worker holds: the claim on the lease, and the record through which a
chain has decided batches of the lease. A chain is a worker's log of committed batches. A claim is the name of a
chain in the row of a lease; see `kcl_dagster.worker.claims`."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from kcl_dagster.errors import KclError, LeaseLost
from kcl_dagster.model.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint
from kcl_dagster.model.claim import Begun, ChainId, Claim
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.worker.held_lease import HeldLease, Unpublished, Unwritten
from kcl_dagster.worker.lease_writes import LeaseWrites


@dataclass(slots=True)
class ClaimedLeases:
    """Reads and writes the claims of held leases. Called from the batch thread and from the renewal thread."""

    _leases: LeaseWrites

    def claim(self, key: LeaseKey, token: int, claim: Claim, stored: Callable[[Lease], Unwritten]) -> None:
        """Write the name of the chain into the row of the lease: from now on, the chain may have entries for the
        lease. `stored`: calculates from the lease's row what is stored of the lease. Its result replaces what this
        worker knew before. Raises EndWasWritten, and the errors of `LeaseWrites.renew`."""
        held = self._leases.find(key, token)
        with held.lock:
            self._leases.ready_to_go_on(held, token)
            held.unwritten = stored(held.lease)
            held.unpublished.clear()
            self._leases.write_stored(held, claim=claim)
            claim = held.lease.claim or claim
            with self._leases.map_lock:
                self._leases.left = {
                    one: row for one, row in self._leases.left.items() if one[0] != key and one[1] == claim.chain
                }
            held.claimed, held.is_deciding = claim, False

    def begin_batch(self, key: LeaseKey, token: int, begun: Begun) -> None:
        """Record in the claim that a batch is begun. Raises EndWasWritten, and the errors of
        `LeaseWrites.renew`."""
        held = self._leases.find(key, token)
        with held.lock:
            self._leases.ready_to_go_on(held, token)
            if held.claimed is None:
                raise LeaseLost(key, "no chain has claimed it")
            if held.unwritten is None:
                held.unwritten = Unwritten(held.lease.checkpoint or TRIM_HORIZON)
            self._leases.write_stored(held, claim=replace(held.claimed, begun=begun))

    def begun(self, key: LeaseKey) -> Begun | None:
        """The batch that the row records as begun. None if there is none, or if the batch is decided."""
        held = self._leases.held(key)
        claim = None if held is None else held.lease.claim
        if claim is None or claim.begun is None:
            return None
        decided = self.decided_to(key)
        return claim.begun if decided is None or decided <= claim.begun.after else None

    def begin_decision(self, tokens: Mapping[LeaseKey, int], chain: ChainId) -> set[LeaseKey]:
        """Mark leases for which the chain is about to make an entry. The claim of a marked lease is not ended until
        `end_decision` is called or the lease is claimed again. Returns the leases that the entry must not name:
        those that are no longer held, or not claimed by the chain."""
        refused = set()
        for key, token in sorted(tokens.items()):
            held = self._leases.held(key)
            if held is None:
                refused.add(key)
                continue
            with held.lock:
                is_claimed = held.is_claimed_by(chain)
                if is_claimed and self._leases.held(key) is held and self._leases.is_ours(key, token):
                    held.is_deciding = True
                else:
                    refused.add(key)
        return refused

    def end_decision(self, keys: Iterable[LeaseKey]) -> None:
        """Remove the marks of `begin_decision`. Called when it is certain that the entry will never be made, or
        after `decided` was called for all leases of the entry."""
        for key in keys:
            held = self._leases.held(key)
            if held is not None:
                held.is_deciding = False

    def decided(self, key: LeaseKey, token: int, number: int, stored: Unwritten) -> None:
        """Record that everything through `stored` is decided, by entry `number` of the chain that has claimed the
        lease. Has no effect if this worker no longer holds the lease, because the lease's next owner finds the
        entry in the chain."""
        held = self._leases.held(key)
        if held is None or held.token != token:
            return
        with held.lock:
            held.unpublished.append(Unpublished(number, stored))

    def published(self, chain: ChainId, number: int) -> None:
        """Record that the chain's entries through `number` are visible. The next renewals write to the rows what
        these entries have stored."""
        with self._leases.map_lock:
            waiting = [held for held in self._leases.every() if held.is_claimed_by(chain) and held.unpublished]
        for held in waiting:
            with held.lock:
                while held.unpublished and held.unpublished[0].number <= number:
                    one = held.unpublished.pop(0)
                    held.add_stored(one.stored)
                    if one.moment:
                        held.stored_through = max(one.moment, held.stored_through or 0)

    def unpublished(self) -> dict[ChainId, int]:
        """For each chain, the number of its last entry that is for a held lease and not known to be visible."""
        found: dict[ChainId, int] = {}
        with self._leases.map_lock:
            for held in self._leases.every():
                if held.claimed is not None and held.unpublished:
                    chain = held.claimed.chain
                    found[chain] = max(held.unpublished[-1].number, found.get(chain, 0))
        return found

    def awaits_publication(self, *, in_handoff: bool) -> bool:
        """Whether a decided batch is not known to be visible. With `in_handoff`, only batches of leases that are
        about to be handed over count."""
        with self._leases.map_lock:
            return any(
                held.unpublished and (self._leases.is_leaving(held) or not in_handoff)
                for held in self._leases.every()
            )

    def stored(self, key: LeaseKey, token: int, stored: Unwritten) -> None:
        """Record that the lease is stored through `stored`. Called for a range that needs no entry, such as a range
        without records. The next renewal writes this to the row, but not before everything that was decided earlier
        is visible. Sends no request. Has no effect if this worker no longer holds the lease."""
        held = self._leases.held(key)
        if held is None or held.token != token:
            return
        with held.lock:
            if held.unpublished:
                last = held.unpublished[-1]
                last.stored = last.stored.followed_by(stored)
            else:
                held.add_stored(stored)

    def decided_to(self, key: LeaseKey) -> Checkpoint | None:
        """The checkpoint through which batches of the lease are decided. They may not be visible yet."""
        held = self._leases.held(key)
        if held is not None and (waiting := held.unpublished[-1:]):
            return waiting[0].stored.through
        return self.stored_to(key)

    def stored_to(self, key: LeaseKey) -> Checkpoint | None:
        """The checkpoint through which the lease is stored and visible. The row may still have an earlier
        checkpoint."""
        held = self._leases.held(key)
        if held is None:
            return None
        newest = held.unwritten or held.in_flight
        return held.lease.checkpoint if newest is None else newest.through

    def written(self, chain: ChainId) -> dict[LeaseKey, Checkpoint]:
        """For each lease that the chain has claimed: a checkpoint that the lease's row has reached. For a lost
        lease, this is the last checkpoint that this worker knows. SHARD_END if the claim was ended, because the row
        then includes all entries of the chain."""
        with self._leases.map_lock:
            rows = {key: row for (key, of), row in self._leases.left.items() if of == chain}
            for held in self._leases.every():
                if held.is_claimed_by(chain) and held.lease.checkpoint is not None:
                    rows[held.lease.key] = held.lease.checkpoint
            return rows

    def claimed(self, chain: ChainId) -> set[LeaseKey]:
        with self._leases.map_lock:
            return {held.lease.key for held in self._leases.every() if held.is_claimed_by(chain)}

    def end_before_release(self, held: HeldLease) -> None:
        """Write to the row what is stored, and remove the claim, before the lease is given away. The next owner
        then has no chain to settle. The claim remains, and the next owner settles the chain, in three cases: an
        entry is being made, an entry is not visible yet, or the row cannot be written. Call this method under the
        lock of the lease, after `forget`."""
        if held.claimed is None or held.is_deciding or held.unpublished:
            return
        if not self._leases.is_trusted(held) or held.in_doubt:
            return
        stored = held.unwritten
        checkpoint = held.lease.checkpoint if stored is None else stored.through
        if checkpoint is None:
            return
        with suppress(KclError):
            held.lease = self._leases.table.checkpoint(
                held.lease,
                checkpoint,
                batch=None if stored is None else held.next_number(stored),
                stored_through=None if stored is None else held.newer_moment(stored.stored_through),
                counts=None if stored is None else stored.counts,
                ends_claim=True,
                caught_up=held.caught_up,
            )
            with self._leases.map_lock:
                self._leases.left[held.lease.key, held.claimed.chain] = SHARD_END
