"""Exactly-once batches: plan, fetch, prepare, write, commit.

    plan     choose the leases that can be read: held, not finished, parents done, not in a handoff
    fetch    read their next records, which do not change any more; a lease with a pinned batch is read exactly
             through the pinned record
    prepare  pin: write the batch's end and number to each lease, by a conditional write; if the write for a lease
             fails, the lease is left out of the batch
    write    pass the records to the sink, under the identity of their parts
    commit   move each checkpoint to the batch's end and remove the pin, by a conditional write; finished shards get
             their child leases first

If the worker crashes before `prepare`, the records are read again, and nothing is lost. If it crashes later, a pin
remains. The next owner of the lease then reads exactly the same records and writes them under the same identity. So
a sink that stores each part once stores each record once. If a former owner was stalled and writes later, it writes
only these records, too, and only under this identity.

Modelled in spec/ExactlyOnce.tla, which shows what is lost when a step is left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic

from kcl_dagster.errors import BatchError, KclError
from kcl_dagster.model.checkpoint import SHARD_END
from kcl_dagster.model.lease import Lease
from kcl_dagster.model.stored import BatchCounts
from kcl_dagster.worker.batch import D, Fetched, PartCounts, Progress, Range, Sink
from kcl_dagster.worker.batch_retries import LOSSES_TO_NARROW
from kcl_dagster.worker.concurrency import ForEach, errors_of, one_by_one
from kcl_dagster.worker.error_text import full
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.held_lease import Holding
from kcl_dagster.worker.holdings import Holdings
from kcl_dagster.worker.lease_writes import EndWasWritten
from kcl_dagster.worker.left_claims import refuse_claim
from kcl_dagster.worker.pins import Pin, pin_of
from kcl_dagster.worker.poison import PoisonHandling
from kcl_dagster.worker.ranges import Planner
from kcl_dagster.worker.reading import Reading, Round, stored_through
from kcl_dagster.worker.report import BatchReport, Outcome
from kcl_dagster.worker.shard_end import ShardEnds, ShardEndWaits
from kcl_dagster.worker.stored_counts import WindowRules


def never() -> bool:
    return False


@dataclass(slots=True)
class BatchProtocol(Generic[D]):
    """Rounds of a worker that pins its batches in the rows of its leases. Runs on the worker's main thread, one
    round after another. All progress is in the leases, so another worker can continue after any step."""

    reading: Reading[Fetched[D]]
    holdings: Holdings
    sink: Sink[D]
    planner: Planner
    shard_ends: ShardEnds
    poison: PoisonHandling
    rules: WindowRules | None = None
    """The windows by which stored rows are counted. None if they are not counted."""

    for_each: ForEach = one_by_one
    """Calls a function for the leases of a batch. Their writes are independent of each other."""

    def run_once(self, abandon: Callable[[], bool] = never) -> BatchReport:
        """Run one round. `abandon` is called before anything is pinned. If it returns True, the batch is given up,
        and nothing has to be undone.

        Errors of AWS, the sink and user code are not raised. They are in the report and in events.
        """
        this = Round()
        self.reading.plan(this, self._range)
        if this.ranges:
            self.holdings.begin(this.ranges)
            try:
                self._run(this, abandon)
            finally:
                self.holdings.end(this.ranges)
        return this.finished(self.reading.failures)

    def close(self) -> None:
        """Does nothing, because nothing is left between rounds."""

    def _range(self, holding: Holding) -> Range:
        refuse_claim(holding.lease)
        return self.planner.plan(holding.lease, self.reading.failures.until(holding.key))

    def _run(self, this: Round, abandon: Callable[[], bool]) -> None:
        fetched = self.reading.fetch(this)
        if fetched is None:
            return
        try:
            found = self.reading.sound(this, fetched)
            full = [progress for progress in found if progress.records]
            empty = [progress for progress in found if not progress.records]
            # As long as the row of a lease has no batch number, each plan of its first batch has another number.
            # This batch cannot be read ahead.
            this.empty = [one for one in empty if this.holdings[one.range.lease].lease.batch]
            if abandon():
                for progress in full:
                    this.report(progress.range.lease, Outcome.ABANDONED, progress)
            elif full:
                self._store(this, fetched, full, abandon)
            self._commit(this, empty)
        finally:
            fetched.release()

    def _store(
        self, this: Round, fetched: Fetched[D], full: Sequence[Progress], abandon: Callable[[], bool]
    ) -> None:
        full = [progress for progress in full if not self._is_treated_for_losses(this, fetched, progress)]
        with self.reading.timed(this, "prepare"):
            prepared = self._prepare(this, full)
        ours = self.reading.still_ours(this, prepared)
        if ours and self._write(this, fetched, ours, abandon):
            with self.reading.timed(this, "commit"):
                self._commit(this, ours)

    def _is_treated_for_losses(self, this: Round, fetched: Fetched[D], progress: Progress) -> bool:
        """Treat a batch that has ended the processes of former owners. Returns True if the batch must not be
        written now."""
        outcome = self.poison.treat_lost(
            fetched, progress, this.holdings[progress.range.lease], self.reading.part(progress)
        )
        if outcome is not None:
            this.report(progress.range.lease, outcome, progress)
        return outcome is not None

    # Prepare

    def _prepare(self, this: Round, found: Sequence[Progress]) -> list[Progress]:
        """Pin the batch in the rows of its leases. Returns the ranges that are pinned, whose records can therefore
        be written. If a former owner pinned the batch, its pin is written again, and the end of that owner can
        count as a loss: see `Pin.inherited`. If the outcome of a write is not known, the range is left out. The row
        is then read before the next write of the lease. If the row has the pin, the next round reads exactly
        through the pinned record."""
        read = {progress.range.lease: progress for progress in found}
        refused = errors_of(self.for_each, lambda key: self._pin(this.holdings[key], read[key]), read)
        for key, error in refused.items():
            if isinstance(error, EndWasWritten):
                self._finished(this, read[key], error.children)
            else:
                this.report(key, Outcome.DROPPED, read[key], error)
        return [progress for key, progress in read.items() if key not in refused]

    def _pin(self, holding: Holding, progress: Progress) -> None:
        code = self.reading.settings.code
        if progress.range.is_pinned:
            # The response to the last write may have been lost. The row may have another pin, or a later
            # checkpoint.
            lease = self.holdings.settled(holding.key, holding.token)
            pin = pin_of(lease)
            if pin is not None and pin.number == progress.range.number:
                if not self.poison.own.has(holding.key, holding.token, pin.number):
                    self._write_pin(holding, progress, pin.inherited(code))
                return
            if pin is not None:
                raise BatchError(f"{holding.key} is pinned to batch {pin.number}, not to {progress.range.number}")
            if not lease.is_finished and _is_behind(progress, lease):
                raise BatchError(f"batch {progress.range.number} of {holding.key} is checkpointed already")
        losses = LOSSES_TO_NARROW - 1 if self.reading.failures.is_lost(holding.key) else progress.range.losses
        arrived = None if progress.first_arrival_ms is None else progress.first_arrival_ms // 1000
        instead_of = progress.range.instead_of
        pin = Pin(progress.range.number, progress.first, instead_of, losses, code, arrived=arrived)
        self._write_pin(holding, progress, pin)

    def _write_pin(self, holding: Holding, progress: Progress, pin: Pin) -> None:
        end = progress.through or progress.range.after
        self.holdings.prepare(holding.key, holding.token, end, pin.to_state(), pin.number)
        self.poison.own.wrote(holding.key, holding.token, pin.number)

    def _forget_losses(self, holding: Holding, progress: Progress) -> None:
        """Reset the number of losses. Called when the batch has failed and this process has not ended: the batch
        then did not end the processes of former owners, either."""
        try:
            pin = pin_of(self.holdings.settled(holding.key, holding.token))
            if pin is not None and pin.losses:
                self._write_pin(holding, progress, replace(pin, losses=0))
        except KclError as error:
            self.reading.tell(EventKind.BATCH_FAILED, f"its losses still count: {error}", holding.key)

    # Write

    def _write(
        self, this: Round, fetched: Fetched[D], found: Sequence[Progress], abandon: Callable[[], bool]
    ) -> bool:
        batch = self.reading.begin_batch(this, found, self.rules, abandon)
        try:
            leases = [part.lease for part in batch.parts]
            with self.reading.timed(this, "write"), self.reading.processing.running(leases):
                self.sink.write(fetched.data(leases), batch)
        except Exception as error:
            self._failed(this, fetched, found, error)
            return False
        return True

    def _failed(self, this: Round, fetched: Fetched[D], found: Sequence[Progress], error: Exception) -> None:
        keys = [progress.range.lease for progress in found]
        this.error = full(error)
        self.reading.failed(this, keys, error)
        for progress in found:
            self._forget_losses(this.holdings[progress.range.lease], progress)
            this.report(progress.range.lease, Outcome.FAILED, progress, error)
        if len(found) > 1:
            self.reading.tell(EventKind.BATCH_FAILED, this.error, None, leases=len(keys))
            return
        progress = found[0]
        self.reading.tell(EventKind.BATCH_FAILED, this.error, progress.range.lease, number=progress.range.number)
        holding, part = this.holdings[progress.range.lease], self.reading.part(progress)
        outcome = self.poison.treat(fetched, progress, holding, part, error)
        this.report(progress.range.lease, outcome, progress, error)

    # Commit

    def _commit(self, this: Round, found: Sequence[Progress]) -> None:
        going_on = [progress for progress in found if not (progress.ended and self._finish(this, progress))]
        ends = {
            progress.range.lease: progress.through
            for progress in going_on
            if progress.through is not None and progress.through != progress.range.after
        }
        read = {progress.range.lease: progress for progress in going_on}
        refused = errors_of(
            self.for_each,
            lambda key: self.holdings.checkpoint(
                key,
                this.holdings[key].token,
                ends[key],
                stored_through=stored_through(read[key]),
                counts=self._counts(this, read[key]),
            ),
            ends,
        )
        for progress in going_on:
            key = progress.range.lease
            error = refused.get(key)
            if isinstance(error, EndWasWritten):
                self._finished(this, progress, error.children)
                continue
            if error is not None:
                this.report(key, Outcome.UNCOMMITTED, progress, error)
                continue
            self.reading.done(this, progress)
            this.report(key, Outcome.COMMITTED if key in ends else Outcome.IDLE, progress)
            if key in ends or (progress.is_answered and not progress.ended):
                self.reading.failures.succeeded(key, ends.get(key, SHARD_END))

    def _counts(self, this: Round, progress: Progress) -> BatchCounts | None:
        """The counts of the range, by window. Called after the sink has stored the range."""
        if self.rules is None or progress.range.lease in this.stored_before:
            return None
        lease = this.holdings[progress.range.lease].lease
        if not progress.records:
            return self.rules.nothing(lease, progress)
        return self.rules.counts(lease, progress, PartCounts(None))

    def _finish(self, this: Round, progress: Progress) -> bool:
        """Create the leases of the children, and then write SHARD_END. Returns False if the children's leases
        cannot be created yet. The caller then commits the range like any other."""
        key, holding = progress.range.lease, this.holdings[progress.range.lease]
        try:
            children = self.shard_ends.create_children(holding.lease, progress)
        except KclError as error:
            self.reading.failed(this, [key], error)
            kind = EventKind.SHARD_END_WAITS if isinstance(error, ShardEndWaits) else EventKind.FETCH_FAILED
            self.reading.tell(kind, str(error), key)
            return False
        try:
            self.holdings.checkpoint(
                key,
                holding.token,
                SHARD_END,
                children,
                stored_through=stored_through(progress),
                counts=self._counts(this, progress),
            )
        except KclError as error:
            this.report(key, Outcome.UNCOMMITTED, progress, error)
            return True
        self._finished(this, progress, children)
        return True

    def _finished(self, this: Round, progress: Progress, children: frozenset[str]) -> None:
        key = progress.range.lease
        self.reading.parents.finished(key)
        self.reading.failures.succeeded(key, SHARD_END)
        this.report(key, Outcome.FINISHED, progress)
        self.reading.tell(EventKind.SHARD_FINISHED, f"children {', '.join(sorted(children)) or 'none'}", key)


def _is_behind(progress: Progress, lease: Lease) -> bool:
    through, done = progress.through, lease.checkpoint
    return through is not None and done is not None and through <= done
