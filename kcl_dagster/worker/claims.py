"""This worker's chain, and its claims on the leases.

A chain is a worker's log of committed batches (`kcl_dagster.chains`). A claim is the name of a chain in the row of
a lease. It means that the chain may have entries for the lease. To settle a chain is to close it, and to publish
the batches that it has decided.

Before its first entry for a lease, a worker settles the chain that the row names, and writes the name of its own
chain there. So only the chain that the row names can have entries beyond the row's checkpoint. It is the chain of
the last worker that claimed the lease. After that worker, other workers may have owned the lease without a claim,
for example Java workers.

This worker stops using its chain in three cases:

- A successor closed the chain, or it is not known whether an entry was made. The worker then begins another chain,
  and claims each lease again. It settles the former chain as it settles chains of other workers.
- The chain has entries for a lease that was lost: see `tidy`.
- The chain claims no lease any more. From then on, this worker writes the chain into no row, and another worker can
  close and delete it.

Modelled in spec/Chain.tla.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kcl_dagster.chains.chain import Chain
from kcl_dagster.chains.deletion import delete_chains
from kcl_dagster.chains.entry import StoredRange
from kcl_dagster.chains.publication import Publisher, chain_id
from kcl_dagster.chains.store import Entries
from kcl_dagster.errors import Unsafe
from kcl_dagster.model.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint
from kcl_dagster.model.claim import Begun, ChainId, Claim, ClaimId
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.worker.former_chains import FormerChains, store_errors, stored_after
from kcl_dagster.worker.held_lease import Holding, Unwritten
from kcl_dagster.worker.holdings import Holdings
from kcl_dagster.worker.pins import binds, pin_of
from kcl_dagster.worker.spans import DECIDE, NO_SPANS, PUBLISH, Spans
from kcl_dagster.worker.staging import StagedBatch


@dataclass(slots=True)
class Claims:
    """Claims leases, decides batches and publishes them. Called on the worker's main thread. Errors of the store
    are raised as SinkError."""

    entries: Entries
    holdings: Holdings
    application: str
    worker: str
    new_id: Callable[[], str]
    publisher: Publisher
    code: str | None = None
    """The version of the consumer's code."""

    spans: Spans = NO_SPANS

    _chains: set[ChainId] = field(default_factory=set)
    """The chains of this worker."""

    _chain: Chain | None = None
    _claimed: dict[LeaseKey, tuple[int, Claim]] = field(default_factory=dict)
    """The claims by the present chain, and the ownership (token) under which each was written."""

    _tried: dict[LeaseKey, Claim] = field(default_factory=dict)
    """Claims by the present chain whose writes have an unknown outcome."""

    _decided: dict[LeaseKey, Checkpoint] = field(default_factory=dict)
    """The checkpoint through which the present chain's entries store each lease. At first, this is the checkpoint
    at which the lease was claimed."""

    _former_chains: FormerChains = field(init=False)

    def __post_init__(self) -> None:
        self._former_chains = FormerChains(self.entries, self.worker, self.new_id, self.publisher)

    @property
    def chain(self) -> Chain:
        if self._chain is None or self._chain.is_over:
            self._chain = Chain(self.entries, chain_id(self.application, self.worker, self.new_id()), self.new_id)
            self._chains.add(self._chain.id)
            self._claimed.clear()
            self._tried.clear()
            self._decided.clear()
        return self._chain

    def claim(self, holding: Holding) -> Lease:
        """Claim a lease, unless the present chain has claimed it already. Returns the lease, with the `checkpoint`
        at which reading has to continue. This is the end of what is decided, and can be beyond the row's
        checkpoint. Raises KclError if the lease must not be read now."""
        self.publisher.check()
        key = holding.key
        self._end_unclaimed()
        chain = self.chain.id  # if the former chain is over, all leases are claimed again
        claimed = self._claimed.get(key)
        if claimed is None or claimed[0] != holding.token or claimed[1].chain != chain:
            self._claim(holding)
        held = self.holdings.get(key)
        lease = holding.lease if held is None else held.lease
        return replace(lease, checkpoint=self.holdings.claims.decided_to(key) or lease.checkpoint)

    def _end_unclaimed(self) -> None:
        chain = self._chain
        was_claimed = bool(self._claimed or self._tried)
        if chain is not None and was_claimed and not self.holdings.claims.claimed(chain.id):
            self.leave()
            chain.is_over = True

    def _claim(self, holding: Holding) -> None:
        key, token = holding.key, holding.token
        lease = self.holdings.settled(key, token)
        pin, former = pin_of(lease), lease.claim
        if pin is not None and binds(pin):
            raise Unsafe(f"{key} is pinned to batch {pin.number}, which has to be finished first")
        tried = self._tried.pop(key, None)
        is_own = former is not None and tried is not None and former.id == tried.id
        if former is None or is_own:  # is_own: this worker wrote `former`, got no response, and made no entry
            settlement = None
        else:
            if former.chain == self.chain.id:  # the lease was lost, and acquired again
                self.chain.is_over = True
            settlement = self._former_chains.of_claim(key, former)
        claim = Claim(
            self.chain.id,
            ClaimId(self.new_id()),
            begun=self._inherited(former, is_own=is_own),
            place=self._former_chains.place,
        )
        self._tried[key] = claim
        self.holdings.claims.claim(key, token, claim, lambda lease: stored_after(lease, settlement))
        del self._tried[key]
        self._claimed[key] = token, claim
        self._decided[key] = self.holdings.claims.stored_to(key) or TRIM_HORIZON

    def _inherited(self, former: Claim | None, *, is_own: bool) -> Begun | None:
        """The note of a begun batch that the new claim takes over from the former claim. If the batch is stored by
        the time at which the claim is written, `held_lease.renewed_claim` removes the note."""
        if former is None or former.id is None or former.begun is None:
            return None
        if is_own or former.chain in self._chains:
            return former.begun  # begun by this process, which is alive
        return former.begun.inherited(self.code)

    def claim_id(self, key: LeaseKey) -> ClaimId | None:
        claimed = self._claimed.get(key)
        return None if claimed is None else claimed[1].id

    def decided_to(self, key: LeaseKey) -> Checkpoint | None:
        """The checkpoint at which the next entry for the lease begins: the end of the last entry. Ranges without
        records, and records that were set aside, have no entry of their own. The next entry includes them, because
        a gap between two entries would look like a missing entry."""
        return self._decided.get(key)

    def decide(
        self,
        chain: Chain,
        staged: StagedBatch,
        ranges: Sequence[StoredRange],
        tokens: Mapping[LeaseKey, int],
    ) -> bool:
        """Store a batch: decide it, and publish it. Files of a folder are published at once. Files of a table are
        published later, by `publish`.

        - `chain`: the chain for which the batch was staged.
        - `tokens`: the ownerships under which the leases of the batch were read.

        If this returns False, the batch is never stored: its staged files are removed, and its records have to be
        read again. If this raises an error, the batch may have been decided. Its leases are then claimed again
        before they are read.
        """
        with store_errors(self.entries, self.worker, "could not be decided"):
            refused = self.holdings.claims.begin_decision(tokens, chain.id)
            # If `chain.decide` raises, the leases remain marked. A handoff then does not end their claims, and
            # their next owners settle the chain.
            with self.spans.span(DECIDE) as span:
                entry = None if refused else chain.decide(staged.files, ranges, staged.rules, staged.others)
                span.note("kcl.chain", chain.id)
                span.note("kcl.entry", chain.last)
            if entry is None:
                self.holdings.claims.end_decision(tokens)
                self.publisher.discard(chain.id, staged.paths)
                return False
            # If `publish` raises, it may not be known what is published, or another process may have settled the
            # chain. This worker then no longer uses the chain, and settles it. The settlement shows what is stored.
            chain.is_over = True
            with self.spans.span(PUBLISH) as span:
                self.publisher.publish(chain.id, chain.last, entry)
                span.note("kcl.visible", self.publisher.visible(chain.id) >= chain.last)
            chain.is_over = False
        for one in ranges:
            stored = Unwritten(one.through, one.stored_through, one.counts, one.number)
            self._decided[one.lease] = one.through
            self.holdings.claims.decided(one.lease, tokens[one.lease], chain.last, stored)
        self._see_visible()
        self.holdings.claims.end_decision(tokens)
        return True

    def publish(self) -> None:
        """Publish the batches that are due. If a lease with an unpublished batch is about to be handed over,
        publish all decided batches now. Everything that is stored of this lease can then be written to its row
        before the handover. Raises SinkError."""
        with store_errors(self.entries, self.worker, "could not be published"):
            if self.holdings.claims.awaits_publication(in_handoff=True):
                self.publisher.finish(self.holdings.claims.unpublished())
            else:
                self.publisher.step(self.holdings.claims.unpublished())
        self._see_visible()

    def finish(self) -> None:
        """Publish everything that is decided. Raises SinkError."""
        with store_errors(self.entries, self.worker, "could not be published"):
            self.publisher.finish(self.holdings.claims.unpublished())
        self._see_visible()

    def _see_visible(self) -> None:
        for chain in self.holdings.claims.unpublished():
            self.holdings.claims.published(chain, self.publisher.visible(chain))

    def tidy(self) -> int:
        """Delete the entries that are no longer needed. Returns how many were deleted. Sends no request if there
        are none. An entry is no longer needed if it is visible, and the row of each of its leases has a checkpoint
        at the end of the entry or later.

        If the chain has entries for a lease that was lost, it takes no further entries, and the next batch is
        decided in another chain. So the chain does not become longer while it waits for the lease's next owner,
        which settles it.
        """
        chain = self.chain
        chain.written(self.holdings.claims.written(chain.id))
        with store_errors(self.entries, self.worker, "could not be tidied"):
            deleted = chain.delete_entries(self.publisher.visible(chain.id))
        chain.is_over = chain.waits_without(self.holdings.claims.claimed(chain.id))
        return deleted

    def leave(self) -> None:
        """Remove this worker's chain if all claims of the chain were ended. No row then names the chain, and no
        process will look for it. If a claim remains, the chain is kept, and the next owners of the leases settle
        it."""
        chain = self._chain
        if chain is None or chain.is_over or self._tried:
            return
        rows = self.holdings.claims.written(chain.id)
        is_visible = self.publisher.visible(chain.id) >= chain.last
        if is_visible and all(rows.get(key) == SHARD_END for key in self._claimed):
            with store_errors(self.entries, self.worker, "could not be removed"):
                self.publisher.forget(chain.id)
                self.entries.forget(chain.id)
            chain.is_over = True

    def delete_former(self, named: Collection[ChainId], before: float) -> list[ChainId]:
        """Delete old chains of the application, see `chains.deletion`. `named`: the chains that are named in the
        rows of all leases of the application."""
        with store_errors(self.entries, self.worker, "could not delete former chains"):
            known = {*named, self.chain.id}
            return delete_chains(
                self.entries, self.application, known, before, self.worker, self.new_id, self.publisher
            )
