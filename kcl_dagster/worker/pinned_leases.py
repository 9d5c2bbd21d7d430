"""Ends the pins of leases, for workers that decide their batches in chains.

A worker of version 0.1 pinned a lease to a batch before it stored the batch (see `worker.pending`). If that worker
was killed, it is not known whether the sink has the batch. This worker reads exactly the same records again, and
reports records that have left the stream. If the sink has the batch, the worker continues after the batch. If the
sink does not have it, the worker withdraws the batch (see `staging.FormerParts.withdraw`), and then removes the
pin. The records are then read like any others.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic

from kcl_dagster.errors import KclError, Unsafe
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import Lease
from kcl_dagster.worker.batch import D, Fetched, PartCounts, Progress, Range
from kcl_dagster.worker.error_text import full
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.held_lease import Holding
from kcl_dagster.worker.holdings import Holdings
from kcl_dagster.worker.pins import Pin, binds, pin_of
from kcl_dagster.worker.ranges import Planner
from kcl_dagster.worker.reading import Reading, Round, stored_through
from kcl_dagster.worker.report import BatchReport, Outcome
from kcl_dagster.worker.staging import FormerParts
from kcl_dagster.worker.stored_counts import WindowRules


def is_bound(lease: Lease) -> bool:
    """Whether the lease is pinned to a batch that an earlier version has begun and not finished."""
    return binds(pin_of(lease))


@dataclass(slots=True)
class PinnedLeases(Generic[D]):
    """Ends the pins of leases, in rounds of their own. Called on the worker's main thread. `reading.holds` has to
    look up parts in `parts`."""

    reading: Reading[Fetched[D]]
    holdings: Holdings
    parts: FormerParts
    planner: Planner
    rules: WindowRules | None = None
    """The windows by which stored rows are counted. None if they are not counted."""

    def run_once(self, abandon: Callable[[], bool]) -> BatchReport | None:
        """Read the pinned leases, and end their pins. Returns None if there are none. Errors of AWS and the sink
        are not raised."""
        if not any(is_bound(holding.lease) for holding in self.holdings.holdings()):
            return None
        this = Round()
        self.reading.plan(this, self._range, is_bound)
        if not this.ranges:
            return None
        self.holdings.begin(this.ranges)
        try:
            self._run(this, abandon)
        finally:
            self.holdings.end(this.ranges)
        return this.finished(self.reading.failures)

    def _range(self, holding: Holding) -> Range:
        """Plan the range. Raises Unsafe if a worker of an earlier version took the lease without settling the chain
        that the row names."""
        lease = holding.lease
        if lease.claim is not None and lease.claim.id is not None:
            raise Unsafe(
                f"{lease.key} names a chain and is pinned to batch {lease.batch}, which a worker of a former "
                "version has begun without settling the chain: some of its records may be stored twice. Reset it"
            )
        return self.planner.plan(lease)

    def _run(self, this: Round, abandon: Callable[[], bool]) -> None:
        fetched = self.reading.fetch(this)
        if fetched is None:
            return
        try:
            for progress in self.reading.sound(this, fetched):
                if abandon():
                    this.report(progress.range.lease, Outcome.ABANDONED, progress)
                else:
                    self._settle(this, progress)
        finally:
            fetched.release()

    def _settle(self, this: Round, progress: Progress) -> None:
        key, holding = progress.range.lease, this.holdings[progress.range.lease]
        try:
            part = self.reading.part(progress)
            stored_to = part.through if key in this.unread else self.parts.stored_to(part)
            if stored_to is None:
                self._withdraw(holding, progress)
            else:
                self._go_on_behind(this, holding, progress, stored_to)
        except KclError as error:
            self.reading.failed(this, [key], error)
            self.reading.tell(EventKind.BATCH_FAILED, f"batch of a former version: {full(error)}", key)
            this.report(key, Outcome.FAILED, progress, error)
        else:
            self.reading.failures.succeeded(key, stored_to or progress.range.after)
            this.report(key, Outcome.WITHDRAWN if stored_to is None else Outcome.COMMITTED, progress)

    def _go_on_behind(self, this: Round, holding: Holding, progress: Progress, stored_to: Checkpoint) -> None:
        counts = None
        if self.rules is not None and holding.key not in this.stored_before and stored_to == progress.through:
            counts = self.rules.counts(holding.lease, progress, PartCounts(None))
        self.holdings.checkpoint(
            holding.key, holding.token, stored_to, stored_through=stored_through(progress), counts=counts
        )

    def _withdraw(self, holding: Holding, progress: Progress) -> None:
        """Remove an unstored batch. The worker first writes another batch number to the lease. If another worker
        owns the lease by now, this write is refused, and the files of that worker are not removed. If this worker
        ends after the write, the next owner removes the batch again."""
        begun, through = progress.range, holding.lease.pending_checkpoint
        assert through is not None
        first = begun.number if begun.instead_of is None else begun.instead_of
        pin = Pin(begun.number + 1, progress.first or begun.first, first)
        self.holdings.prepare(holding.key, holding.token, through, pin.to_state(), pin.number)
        part = self.reading.part(replace(progress, range=replace(begun, number=pin.number, instead_of=first)))
        self.parts.withdraw(part)
        self.holdings.checkpoint(holding.key, holding.token, holding.lease.checkpoint or TRIM_HORIZON)
