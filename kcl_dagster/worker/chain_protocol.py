"""Batches that are committed by entries in a chain: claim, plan, fetch, stage, decide, publish.

A chain is this worker's log of committed batches, see `kcl_dagster.chains`. To settle a chain is to close it, and
to publish the batches that it has decided.

    claim    settle the chain that the row of a lease names, and write the name of this worker's chain there
    fetch    read the next records of the leases
    stage    pass the records to the sink, which writes files that readers do not see
    decide   make the next entry of the chain: the batch will be stored if this succeeds, and never if it fails
    publish  give the files their final names, or let the table's next commit add them; then the next renewals write
             the checkpoints

If the worker crashes before the decision, the records are read again, and nothing is lost. If it crashes later, the
next owner of each lease finds the entry, publishes the files, and continues after them. Delivery is exactly once,
whatever the user's code does.

Before its first batch of a lease, a worker records in its claim that the batch is begun. If the worker ends before
there is an entry for the batch, the next owner counts this as a loss. After repeated losses, the owner reads the
lease separately from others: see `worker.lost_owners`.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, Generic

from kcl_dagster.application import FailureAction
from kcl_dagster.chains.deletion import MIN_AGE_SECONDS
from kcl_dagster.chains.entry import StoredRange
from kcl_dagster.errors import KclError, ProcessLost
from kcl_dagster.model.checkpoint import SHARD_END, Checkpoint
from kcl_dagster.model.claim import ClaimId
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.stored import BatchCounts
from kcl_dagster.worker.batch import D, Fetched, Progress, Range
from kcl_dagster.worker.batch_retries import LOSSES_TO_NARROW, Verdict
from kcl_dagster.worker.claims import Claims
from kcl_dagster.worker.dead_letter import DeadLetters, dead_letter
from kcl_dagster.worker.error_class import class_of, depends_on_records
from kcl_dagster.worker.error_text import brief, full
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.held_lease import Holding, Unwritten
from kcl_dagster.worker.holdings import Holdings
from kcl_dagster.worker.lost_owners import LostOwners
from kcl_dagster.worker.pinned_leases import PinnedLeases, is_bound
from kcl_dagster.worker.poison import middle_of
from kcl_dagster.worker.protocol import never
from kcl_dagster.worker.ranges import Planner, following
from kcl_dagster.worker.reading import Reading, Round, stored_through
from kcl_dagster.worker.report import BatchReport, Outcome
from kcl_dagster.worker.shard_end import ShardEnds, ShardEndWaits
from kcl_dagster.worker.staging import StagedBatch, StagingSink
from kcl_dagster.worker.stored_counts import WindowRules

_UNSETTLED: Final = (Outcome.FAILED, Outcome.NOT_READ)
FIRST_DELETION_SECONDS: Final = 600.0  # so that workers that live for less than an hour delete chains, too
DELETION_SECONDS: Final = 3600.0  # each deletion lists the chains and scans the leases


@dataclass(slots=True)
class ChainProtocol(Generic[D]):
    """Rounds of a worker that uses a chain. Runs on the worker's main thread, one round after another. Each round
    begins with the leases that a worker of an earlier version has pinned to a batch: see `worker.pinned_leases`."""

    reading: Reading[Fetched[D]]
    holdings: Holdings
    sink: StagingSink[D]
    claims: Claims
    planner: Planner
    shard_ends: ShardEnds
    losses: LostOwners
    letters: DeadLetters
    pinned: PinnedLeases[D]
    rules: WindowRules | None = None
    """The windows by which stored rows are counted. None if they are not counted."""

    scan: Callable[[], Iterable[Lease]] | None = None
    """Returns all leases of the application, to find chains that no lease names. If None, no chain is deleted."""

    _deletion_due: float | None = None
    _batches: int = 0
    _ahead: dict[LeaseKey, tuple[int, Range]] = field(default_factory=dict)
    """For each lease, the ownership (token), and the range that the engine may have read ahead during the last
    batch.
    """

    _narrowed: dict[LeaseKey, tuple[int, Checkpoint]] = field(default_factory=dict)
    """For leases whose batch failed: the ownership (token) under which the batch failed, and the end of their next
    batch."""

    def run_once(self, abandon: Callable[[], bool] = never) -> BatchReport:
        """Run one round: read and store one batch. `abandon` is called before the batch is staged. If it returns
        True, the batch is given up, and nothing has to be undone.

        Errors of AWS, the sink and user code are not raised. They are in the report and in events.
        """
        pinned = self.pinned.run_once(abandon)
        if pinned is not None and not all(one.outcome in _UNSETTLED for one in pinned.leases):
            return pinned
        # A pinned lease that keeps failing, for example because its records left the stream, delays no other lease.
        report = self._round(abandon)
        return report if pinned is None else replace(report, leases=(*pinned.leases, *report.leases))

    def _round(self, abandon: Callable[[], bool]) -> BatchReport:
        this = Round()
        self._publish()
        for holding in self.holdings.holdings():
            if self.losses.is_suspect(holding):
                self.reading.failures.suspect(holding.key)  # the lease is then read separately from the others
        self.reading.plan(this, self._range, lambda lease: not is_bound(lease))
        if this.ranges:
            self.holdings.begin(this.ranges)
            try:
                self._run(this, abandon)
            finally:
                self.holdings.end(this.ranges)
        self._delete_chains()
        return this.finished(self.reading.failures)

    def close(self) -> None:
        """Publish all decided batches. A batch that is not decided is never stored."""
        self.publish_all()

    def publish_all(self) -> None:
        """Publish all decided batches at once, even if they are not due yet. Their checkpoints can then be written
        to the rows."""
        try:
            self.claims.finish()
        except KclError as error:  # a later round, or the next owner, publishes them
            self.reading.tell(EventKind.BATCH_FAILED, str(error))

    def _publish(self) -> None:
        """Publish the batches that are due. If publishing fails, no lease is read until publishing succeeds: see
        `Claims.claim`."""
        try:
            self.claims.publish()
        except KclError as error:
            self.reading.tell(EventKind.BATCH_FAILED, str(error))

    def leave(self) -> None:
        """Remove this worker's chain if possible. Called after all leases were given up."""
        with suppress(KclError):  # another worker deletes the chain a day later
            self.claims.leave()

    def _delete_chains(self) -> None:
        """Delete old chains once per hour. The first deletion is ten minutes after the first round, so that it does
        not delay the work at the start."""
        now = self.reading.clock.monotonic()
        if self._deletion_due is None or now < self._deletion_due or self.scan is None:
            self._deletion_due = now + FIRST_DELETION_SECONDS if self._deletion_due is None else self._deletion_due
            return
        self._deletion_due = now + DELETION_SECONDS
        time = self.reading.service_time()
        if time is None:
            return
        before = time - MIN_AGE_SECONDS
        try:
            named = {lease.claim.chain for lease in self.scan() if lease.claim is not None}
            self.claims.delete_former(named, before)
        except KclError as error:
            self.reading.tell(EventKind.BATCH_FAILED, f"former chains could not be deleted: {error}")

    def _range(self, holding: Holding) -> Range:
        lease = self.claims.claim(holding)
        until = self.reading.failures.until(holding.key)
        narrowed = self._narrowed.get(holding.key)
        if narrowed is not None and narrowed[0] == holding.token:
            until = narrowed[1]
        elif until is None:
            until = self.losses.until(holding)
        planned = self.planner.plan(lease, until)
        token, ahead = self._ahead.get(holding.key, (None, planned))
        if token == holding.token and replace(planned, number=ahead.number) == ahead:
            return ahead  # the engine may have read this range ahead under this number, which is in no row yet
        return planned

    def _run(self, this: Round, abandon: Callable[[], bool]) -> None:
        self.sink.begin_reading(self.claims.chain.id, None if self.rules is None else self.rules.time_column)
        fetched = self.reading.fetch(this)
        if fetched is None:
            return
        try:
            found = self.reading.sound(this, fetched)
            full = [progress for progress in found if progress.records]
            this.empty = [progress for progress in found if not progress.records]
            if abandon():
                for progress in full:
                    this.report(progress.range.lease, Outcome.ABANDONED, progress)
            elif full:
                self._store(this, fetched, full, abandon)
            for progress in this.empty:
                self._pass_over(this, progress)
        finally:
            fetched.release()

    # Batches with records

    def _store(
        self, this: Round, fetched: Fetched[D], found: Sequence[Progress], abandon: Callable[[], bool]
    ) -> None:
        found = [progress for progress in found if not self._is_treated_for_losses(this, fetched, progress)]
        ours = self._begun(this, self.reading.still_ours(this, found))
        if not ours:
            return
        chain = self.claims.chain
        staged = self._stage(this, fetched, ours, abandon)
        if staged is None:
            return
        ranges, tokens = [], {}
        for progress in ours:
            key = progress.range.lease
            claim = self.claims.claim_id(key)
            if claim is not None:
                ranges.append(self._stored_range(this, progress, staged, claim))
            tokens[key] = this.holdings[key].token
        try:
            with self.reading.timed(this, "commit"):
                is_stored = self.claims.decide(chain, staged, ranges, tokens)
        except KclError as error:
            this.error = full(error)
            self.reading.failed(this, list(tokens), error)
            self.reading.tell(EventKind.BATCH_FAILED, this.error)
            for progress in ours:
                this.report(progress.range.lease, Outcome.UNCOMMITTED, progress, error)
            return
        for progress in ours:
            if is_stored:
                self._stored(this, progress)
            else:
                this.report(progress.range.lease, Outcome.DROPPED, progress)
        with suppress(KclError):  # the entries are deleted after a later batch instead
            self.claims.tidy()

    def _is_treated_for_losses(self, this: Round, fetched: Fetched[D], progress: Progress) -> bool:
        """Treat a batch that has ended the processes of former owners. `Failures` decides how. Returns True if the
        batch must not be staged now."""
        key, holding = progress.range.lease, this.holdings[progress.range.lease]
        losses = self.losses.of(holding, progress)
        if losses < LOSSES_TO_NARROW:
            return False
        error = ProcessLost(f"the processes of {losses} workers ended while they worked on it")
        try:
            middle = middle_of(fetched, progress)
            verdict = self.reading.failures.verdict_of_loss(key, losses, can_narrow=middle is not None)
            if verdict is Verdict.RETRY:
                return False
            outcome = self._carry_out(this, fetched, progress, error, verdict, middle, is_lost=True)
        except Exception as problem:
            self.reading.tell(EventKind.BATCH_FAILED, f"while treating a poison record: {full(problem)}", key)
            outcome = Outcome.FAILED
        this.report(key, outcome, progress, error)
        return True

    def _begun(self, this: Round, found: Sequence[Progress]) -> list[Progress]:
        """Record in the claims that the batch is begun, so that the next owner counts a loss if the batch ends this
        process. `LostOwners.begin` decides for which leases a write is needed. Returns the ranges that can be
        staged: those for which no write has failed."""
        begun = []
        for progress in found:
            key = progress.range.lease
            try:
                is_piece = self.reading.failures.is_lost(key)
                self.losses.begin(this.holdings[key], progress, is_piece=is_piece)
            except KclError as error:
                this.report(key, Outcome.DROPPED, progress, error)
            else:
                begun.append(progress)
        return begun

    def _stage(
        self, this: Round, fetched: Fetched[D], found: Sequence[Progress], abandon: Callable[[], bool]
    ) -> StagedBatch | None:
        batch = self.reading.begin_batch(this, found, self.rules, abandon)
        self._batches += 1
        self._ahead = {
            range_.lease: (this.holdings[range_.lease].token, range_) for range_ in following(found, this.empty)
        }
        leases = [part.lease for part in batch.parts]
        try:
            with self.reading.timed(this, "write"), self.reading.processing.running(leases):
                return self.sink.stage(fetched.data(leases), batch, self.claims.chain.id, self._batches)
        except Exception as error:
            self._failed(this, fetched, found, error)
            return None

    def _stored_range(self, this: Round, progress: Progress, staged: StagedBatch, claim: ClaimId) -> StoredRange:
        key = progress.range.lease
        counts = None
        if self.rules is not None:
            counts = self.rules.counts(this.holdings[key].lease, progress, staged.counts.get(key))
        return StoredRange(
            key,
            claim,
            self.claims.decided_to(key) or progress.range.after,
            progress.through or progress.range.after,
            progress.records,
            progress.bytes,
            stored_through(progress),
            counts,
            progress.range.number,
        )

    def _stored(self, this: Round, progress: Progress) -> None:
        """Report that the batch of a lease is stored. `claims.decide` has already recorded this in the lease."""
        key, through = progress.range.lease, progress.through or progress.range.after
        narrowed = self._narrowed.get(key)
        if narrowed is not None and through >= narrowed[1]:
            del self._narrowed[key]
        self.reading.failures.succeeded(key, through)
        self.reading.done(this, progress)
        this.report(key, Outcome.COMMITTED, progress)
        if progress.ended:
            self._finish(this, progress)

    # Ranges without records

    def _pass_over(self, this: Round, progress: Progress) -> None:
        key, through = progress.range.lease, progress.through
        is_further = through is not None and through != progress.range.after
        if is_further and through is not None:
            self._go_on_behind(this, progress, through)
        if progress.ended:
            self._finish(this, progress)
            return
        self.reading.done(this, progress)
        if progress.is_answered:
            self.reading.failures.succeeded(key, SHARD_END if through is None else through)
        this.report(key, Outcome.COMMITTED if is_further else Outcome.IDLE, progress)

    def _go_on_behind(self, this: Round, progress: Progress, through: Checkpoint) -> None:
        """Continue after a range of which nothing is stored. If the worker ends before the next renewal, the range
        is read again."""
        holding = this.holdings[progress.range.lease]
        number = progress.range.number
        stored = Unwritten(through, stored_through(progress), self._no_counts(this, progress), number)
        self.holdings.claims.stored(holding.key, holding.token, stored)

    def _no_counts(self, this: Round, progress: Progress) -> BatchCounts | None:
        lease = this.holdings[progress.range.lease].lease
        return None if self.rules is None else self.rules.nothing(lease, progress)

    def _finish(self, this: Round, progress: Progress) -> None:
        """Create the leases of the children, then write SHARD_END. Everything that is stored is published first."""
        key, holding = progress.range.lease, this.holdings[progress.range.lease]
        try:
            self.claims.finish()
            children = self.shard_ends.create_children(holding.lease, progress)
        except KclError as error:
            self.reading.failed(this, [key], error)
            kind = EventKind.SHARD_END_WAITS if isinstance(error, ShardEndWaits) else EventKind.FETCH_FAILED
            self.reading.tell(kind, str(error), key)
            this.report(key, Outcome.COMMITTED if progress.records else Outcome.IDLE, progress)
            return
        try:
            self.holdings.checkpoint(
                key,
                holding.token,
                SHARD_END,
                children,
                stored_through=stored_through(progress),
                counts=self._no_counts(this, progress),
            )
        except KclError as error:
            this.report(key, Outcome.UNCOMMITTED, progress, error)
            return
        self.reading.parents.finished(key)
        self.reading.failures.succeeded(key, SHARD_END)
        this.report(key, Outcome.FINISHED, progress)
        self.reading.tell(EventKind.SHARD_FINISHED, f"children {', '.join(sorted(children)) or 'none'}", key)

    # Failures

    def _failed(self, this: Round, fetched: Fetched[D], found: Sequence[Progress], error: Exception) -> None:
        keys = [progress.range.lease for progress in found]
        this.error = full(error)
        self.reading.failed(this, keys, error)
        for progress in found:
            this.report(progress.range.lease, Outcome.FAILED, progress, error)
            with suppress(KclError):  # if the write fails, the losses still count
                self.losses.survived(this.holdings[progress.range.lease])
        if len(found) > 1:
            self.reading.tell(EventKind.BATCH_FAILED, this.error, None, leases=len(keys))
            return
        self.reading.tell(EventKind.BATCH_FAILED, this.error, keys[0])
        try:
            outcome = self._treat(this, fetched, found[0], error)
        except Exception as problem:  # for example a dead letter could not be stored: the shard is tried again
            self.reading.tell(EventKind.BATCH_FAILED, f"while treating a poison record: {full(problem)}", keys[0])
        else:
            this.report(keys[0], outcome, found[0], error)

    def _treat(self, this: Round, fetched: Fetched[D], progress: Progress, error: Exception) -> Outcome:
        """Apply the failure policy to a batch of one lease. The batch was not decided, so it is certain that
        nothing of the batch is stored."""
        key, failures = progress.range.lease, self.reading.failures
        middle = None
        if depends_on_records(error) and failures.action is not FailureAction.STOP:
            middle = middle_of(fetched, progress)
        verdict = failures.verdict(key, error, can_narrow=middle is not None)
        return self._carry_out(this, fetched, progress, error, verdict, middle)

    def _carry_out(
        self,
        this: Round,
        fetched: Fetched[D],
        progress: Progress,
        error: Exception,
        verdict: Verdict,
        middle: Checkpoint | None,
        *,
        is_lost: bool = False,
    ) -> Outcome:
        key, failures, through = progress.range.lease, self.reading.failures, progress.through
        if verdict is Verdict.STOP and failures.announce(key, brief(error)):
            message = f"its batch keeps failing ({class_of(error)}): {full(error)}"
            self.reading.tell(EventKind.SHARD_STOPPED, message, key, after=str(progress.range.after))
        if through is None or verdict in (Verdict.STOP, Verdict.RETRY):
            return Outcome.FAILED
        if verdict is Verdict.NARROW and middle is not None:
            if is_lost:
                self.losses.narrow(this.holdings[key], middle)
            self._narrowed[key] = this.holdings[key].token, middle
            failures.narrowed(key, through, is_lost=is_lost)
            message = f"to the records through {middle}"
            self.reading.tell(EventKind.BATCH_NARROWED, message, key, records=progress.records)
            return Outcome.NARROWED
        if verdict is Verdict.DEAD_LETTER:
            self._send_dead_letters(fetched, progress, error)
        else:
            self.reading.tell(EventKind.RECORD_SKIPPED, full(error), key, sequence=through.sequence)
        self._go_on_behind(this, progress, through)
        self._narrowed.pop(key, None)
        failures.succeeded(key, through)
        return Outcome.SET_ASIDE

    def _send_dead_letters(self, fetched: Fetched[D], progress: Progress, error: Exception) -> None:
        key = progress.range.lease
        for record in fetched.records(key):
            letter = dead_letter(
                record,
                self.reading.part(progress),
                worker=str(self.reading.settings.worker),
                attempts=self.reading.failures.attempts(key),
                failed_at_ms=round(self.reading.clock.now() * 1000),
                error=error,
            )
            self.letters.write(letter)
            self.reading.tell(EventKind.RECORD_DEAD_LETTERED, letter.name, key, sequence=record.sequence_number)
