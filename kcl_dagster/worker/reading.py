"""The first half of every round: choose the leases that are read, read them, and check the results."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, Literal

from kcl_dagster.errors import BatchError, ConfigurationError, DataLoss, KclError, LeaseLost
from kcl_dagster.model.checkpoint import SHARD_END, Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.runtime import Clock
from kcl_dagster.worker.batch import Batch, Budget, Part, Progress, R, Range, Read, Reader, is_near_tip
from kcl_dagster.worker.batch_retries import LOSSES_TO_ISOLATE, Failures
from kcl_dagster.worker.error_class import ErrorClass, class_of
from kcl_dagster.worker.error_text import brief, full
from kcl_dagster.worker.events import EventKind, OnEvent, WorkerEvent, ignore
from kcl_dagster.worker.held_lease import Holding
from kcl_dagster.worker.holdings import Holdings
from kcl_dagster.worker.parents import Parents
from kcl_dagster.worker.pins import pin_of
from kcl_dagster.worker.processing_watch import ProcessingWatch
from kcl_dagster.worker.ranges import following
from kcl_dagster.worker.report import BatchReport, LeaseReport, Outcome
from kcl_dagster.worker.retention import RetentionWatch, loss_in
from kcl_dagster.worker.spans import NO_SPANS, Spans
from kcl_dagster.worker.stored_counts import WindowRules

PlanRange = Callable[[Holding], Range]
"""Plans the range of a lease. Can raise a ServiceError."""


@dataclass(frozen=True, slots=True)
class RoundSettings:
    application: str
    worker: WorkerId
    budget: Budget
    on_data_loss: Literal["stop", "continue"] = "stop"
    prefetch: bool = True
    code: str | None = None
    """The version of the consumer's code. None if not known."""


@dataclass(slots=True)
class Round:
    holdings: dict[LeaseKey, Holding] = field(default_factory=dict)
    ranges: dict[LeaseKey, Range] = field(default_factory=dict)
    leases: dict[LeaseKey, LeaseReport] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    held: int = 0
    blocked: int = 0
    error: str | None = None
    empty: list[Progress] = field(default_factory=list)
    """Ranges without records. The next ranges of these shards are read ahead together with those of the other
    shards. If they were not, reading a shard with few records would begin only after all other shards were read
    ahead."""

    fetch_began: float | None = None
    """When the fetch began, in epoch seconds by the clock that all workers share; None if not known."""

    fetch_began_at: float = 0.0
    """When the fetch began (monotonic)."""

    stored_before: set[LeaseKey] = field(default_factory=set)
    """Leases whose batch was stored by an earlier attempt and cannot be read again. It is therefore not known how
    many rows such a batch has."""

    confirmed: dict[StreamIdentifier, KclError | None] = field(default_factory=dict)
    """The streams that were checked since the fetch, each with the error that was found. A check takes one request,
    and is valid for all shards that the fetch has read."""

    unread: set[LeaseKey] = field(default_factory=set)
    """Leases whose reading continues after a batch that cannot be read again."""

    fatal: ConfigurationError | None = None
    """The error because of which this worker cannot work at all."""

    def report(
        self, key: LeaseKey, outcome: Outcome, progress: Progress | None = None, error: Exception | None = None
    ) -> None:
        """Record the outcome for a lease. It replaces an earlier outcome."""
        planned = self.ranges[key]
        self.leases[key] = LeaseReport(
            lease=key,
            stream=planned.stream,
            shard_id=planned.shard_id,
            outcome=outcome,
            number=planned.number,
            after=planned.after,
            through=progress.through if progress else None,
            records=progress.records if progress else 0,
            bytes=progress.bytes if progress else 0,
            broken_aggregates=progress.broken_aggregates if progress else 0,
            millis_behind=progress.millis_behind if progress else None,
            error=None if error is None else brief(error),
        )

    def finished(self, failures: Failures) -> BatchReport:
        stopped = failures.stopped()
        return BatchReport(
            leases=tuple(self.leases[key] for key in sorted(self.leases)),
            fetch_seconds=self.seconds.get("fetch", 0.0),
            prepare_seconds=self.seconds.get("prepare", 0.0),
            write_seconds=self.seconds.get("write", 0.0),
            commit_seconds=self.seconds.get("commit", 0.0),
            error=self.error,
            held=self.held,
            blocked=self.blocked,
            stopped=tuple(stopped),
            why_stopped=stopped,
            failing=failures.failing(),
            why_failing=failures.why_failing(),
            attempts=failures.attempts_told(),
            fatal=self.fatal,
        )


# The limit of the first batch after a lease was acquired, and of batches while leases are expected. It is enough
# for two reads of each shard.
FIRST_SECONDS = 0.5

ConfirmStream = Callable[[StreamIdentifier], None]
"""Checks a stream. Raises StreamRecreated if the stream was deleted and created again, or a ServiceError."""


HoldsPart = Callable[[Part], bool]
"""Returns whether the sink has stored a part. Raises SinkError."""


def believed(_: StreamIdentifier) -> None:
    """Accept every stream. For streams that are never recreated."""


def stored_through(progress: Progress) -> int | None:
    """The moment (epoch seconds) through which a shard is stored when this range is stored. It is the second of the
    last record, because more records of that second can follow."""
    return None if progress.last_arrival_ms is None else progress.last_arrival_ms // 1000


def every_lease(_: Lease) -> bool:
    return True


@dataclass(slots=True)
class Reading(Generic[R]):
    """Chooses and reads the ranges of one worker's leases. Keeps no progress, but remembers results that are costly
    to find again: which leases are blocked, failing, or near the end of their retention."""

    settings: RoundSettings
    holdings: Holdings
    engine: Reader[R]
    parents: Parents
    failures: Failures
    retention: RetentionWatch
    clock: Clock
    processing: ProcessingWatch
    service_time: Callable[[], float | None]
    """Epoch seconds by a clock that all workers share; None if not known. Can sometimes block for one request."""

    expects_leases: Callable[[], bool] = lambda: False
    """Returns whether another worker is about to hand over a lease to this worker."""

    on_event: OnEvent = ignore
    confirm: ConfirmStream = believed
    holds: HoldsPart | None = None
    """Returns whether the sink has stored a part. None if the sink cannot tell."""

    spans: Spans = NO_SPANS

    _begun: set[int] = field(default_factory=set)
    """Tokens of the leases that were read before."""

    _known: set[int] = field(default_factory=set)
    """Tokens of the leases that were held when the present round was planned."""

    _rounds: int = 0
    _answered: dict[int, int] = field(default_factory=dict)
    """The round in which each lease was last read, by token. The lease that was read longest ago comes first in the
    next batch, because a batch may lack room for records of every shard."""

    _given_up: dict[int, Range] = field(default_factory=dict)
    """Begun batches that are not stored and cannot be repeated, by token. Their remaining records are read as a new
    batch."""

    _told: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    """The beginning and the end of the last loss that was reported, by token."""

    def plan(self, this: Round, plan_range: PlanRange, is_wanted: Callable[[Lease], bool] = every_lease) -> None:
        """Choose the leases that can be read now: held, not finished, not about to be handed over, not pausing
        after a failure, and with finished parents. `is_wanted`: leases for which it returns False are not read in
        this round."""
        held = self.holdings.holdings()
        keys = {holding.key for holding in held}
        for memory in (self.failures, self.parents, self.retention):
            memory.keep(keys)
        this.held = sum(not holding.lease.is_finished for holding in held)
        tokens = {holding.token for holding in held}
        self._known = tokens
        self._begun &= tokens
        self._given_up = {token: begun for token, begun in self._given_up.items() if token in tokens}
        self._told = {token: place for token, place in self._told.items() if token in tokens}
        readable = {h.key: h for h in held if is_wanted(h.lease) and self._is_readable(h, this)}
        for key, holding in readable.items():
            pin = pin_of(holding.lease)
            if pin is not None and pin.losses >= LOSSES_TO_ISOLATE:
                self.failures.suspect(key)
        self._rounds += 1
        self._answered = {token: last for token, last in self._answered.items() if token in tokens}
        waiting = sorted(readable.values(), key=lambda holding: (self._answered.get(holding.token, 0), holding.key))
        for key in self.failures.next_group([holding.key for holding in waiting]):
            try:
                this.ranges[key] = self._without_the_lost(readable[key], plan_range(readable[key]))
            except KclError as error:
                self.failed(this, [key], error)
                self.tell(EventKind.FETCH_FAILED, f"its start could not be looked up: {error}", key)
            else:
                this.holdings[key] = readable[key]

    def _is_readable(self, holding: Holding, this: Round) -> bool:
        if holding.lease.is_finished or holding.is_leaving:
            return False
        if self.failures.is_resting(holding.key):
            return False
        try:
            blocked = self.parents.is_blocked(holding.lease)
        except KclError as error:
            self.tell(EventKind.FETCH_FAILED, f"parents could not be looked up: {error}", holding.key)
            self.failed(this, [holding.key], error)
            blocked = True
        else:
            if blocked:  # a blocked lease is not read, so a recorded failure can only be a failure of this check
                self.failures.succeeded(holding.key, SHARD_END)
        this.blocked += blocked
        return not blocked

    def fetch(self, this: Round) -> R | None:
        """Read the planned ranges. Returns the result, which the caller has to release. Returns None if no range
        could be read."""
        this.fetch_began, this.fetch_began_at = self.service_time(), self.clock.monotonic()
        try:
            with self.timed(this, "fetch"):
                return self.engine.fetch(list(this.ranges.values()), self._budget(this))
        except Exception as error:
            # User code never makes a fetch fail. An error of an unknown class therefore counts as a failure of the
            # platform, and the same leases are tried together again.
            failure = error if isinstance(error, KclError) else BatchError(brief(error))
            self.failed(this, list(this.ranges), failure)
            this.error = f"fetch failed: {failure}"
            self.tell(EventKind.FETCH_FAILED, str(failure))
            for key in this.ranges:
                this.report(key, Outcome.NOT_READ)
            return None

    def _budget(self, this: Round) -> Budget:
        """The budget of the next batch. If a shard in it was just acquired, the batch is closed early, because this
        shard was not read for a while."""
        tokens = {holding.token for holding in this.holdings.values()}
        goes_on = tokens <= self._begun
        self._begun |= tokens
        return self._usual_budget() if goes_on else self._short_budget()

    def _usual_budget(self) -> Budget:
        """The budget of a batch of shards that were read before. The batch is closed early if other workers are
        about to hand over leases to this worker, or if a lease was acquired since the round was planned. Those
        shards are not read until the batch ends."""
        is_new = any(holding.token not in self._known for holding in self.holdings.holdings())
        return self._short_budget() if is_new or self.expects_leases() else self.settings.budget

    def _short_budget(self) -> Budget:
        budget = self.settings.budget
        return replace(budget, seconds=min(budget.seconds, FIRST_SECONDS))

    def sound(self, this: Round, fetched: Read) -> list[Progress]:
        """The results of the ranges that can be processed. The problems of all other ranges are reported here."""
        sound = []
        for key, planned in this.ranges.items():
            progress, error = fetched.progress.get(key), fetched.failures.get(key)
            if progress is None or progress.is_answered:
                self._answered[this.holdings[key].token] = self._rounds
            begun = self._given_up.get(this.holdings[key].token)
            if isinstance(error, DataLoss) and planned.is_pinned:
                sound += self._gone_on_from(this, planned, error)
            elif error is not None:
                self.not_read(this, key, error)
            elif progress is None:
                self.not_read(this, key, BatchError("the engine did not say what it read"))
            elif planned.is_pinned and progress.through != planned.through:
                end = f"read through {progress.through} instead of {planned.through}"
                self.not_read(this, key, BatchError(f"pinned batch {planned.number} was {end}"))
            elif progress.records and progress.through is None:
                self.not_read(this, key, BatchError("the engine read records and did not say through which"))
            elif progress.through is not None and progress.through < planned.after:
                back = f"from {planned.after} back to {progress.through}"
                self.not_read(this, key, BatchError(f"the engine read {back}"))
            elif begun is not None and planned.number != begun.number:
                sound += self._what_is_left(this, begun, progress)
            elif self._is_of_its_stream(this, progress) and self._is_bearable(this, progress):
                sound.append(progress)
        return sound

    def _without_the_lost(self, holding: Holding, planned: Range) -> Range:
        """Return `planned`, unless the begun batch of the lease is given up. If it is, return the range to read
        instead. This range begins like the batch, and has an open end. It has a new number, so that a sink can
        distinguish it from the given-up batch. A former owner can still store that batch."""
        begun = self._given_up.get(holding.token)
        if begun is None or not planned.is_pinned or planned.number != begun.number:
            self._given_up.pop(holding.token, None)
            return planned
        first_number = begun.number if begun.instead_of is None else begun.instead_of
        return replace(begun, number=begun.number + 1, instead_of=first_number, through=None, first=None, losses=0)

    def _what_is_left(self, this: Round, begun: Range, progress: Progress) -> list[Progress]:
        """Report which records of a given-up batch left the stream, and continue with the remaining records. If
        there are none, continue after the batch."""
        key = begun.lease
        if not self._is_as_planned(this, key) or not self._is_of_its_stream(this, progress):
            return []
        is_at_end = progress.ended or (progress.is_answered and progress.millis_behind == 0)
        if not progress.records and not is_at_end:
            this.report(key, Outcome.NOT_READ, progress)  # the responses have been empty so far
            return []
        left = progress.first if progress.records else None
        through = begun.through
        if left is None and through is not None:
            left = str(int(through.sequence) + 1)
        error = f"{key}: records of batch {begun.number} left the stream before they were stored"
        self.tell(EventKind.DATA_LOST, error, key, since=str(begun.after), until=left or "")
        del self._given_up[this.holdings[key].token]
        return [progress if progress.records else Progress(begun, through=through)]

    def _gone_on_from(self, this: Round, planned: Range, error: DataLoss) -> list[Progress]:
        """Handle a begun batch that cannot be repeated, because some of its records left the stream.

        - If the sink has stored the batch, nothing is lost, and reading continues after the batch.
        - If `on_data_loss` is "stop", and the sink has not stored the batch or cannot tell, the shard is stopped.
        - If `on_data_loss` is "continue", and the sink has not stored the batch, its remaining records are read as
          another batch.
        - If `on_data_loss` is "continue", and the sink cannot tell whether it has stored the batch, reading
          continues after the batch. If the remaining records were read again, some of them might be stored twice.
        """
        key, stops = planned.lease, self.settings.on_data_loss == "stop"
        if not self._is_as_planned(this, key):
            return []
        behind = Progress(planned, through=planned.through)
        if self.holds is not None:
            try:
                is_stored = self.holds(self.part(behind))
            except KclError as problem:
                self.not_read(this, key, problem)
                return []
            if is_stored:
                this.stored_before.add(key)
                this.unread.add(key)
                return [behind]
            if not stops:
                self._given_up[this.holdings[key].token] = planned
                this.report(key, Outcome.NARROWED)
                return []
        if stops:
            self.not_read(this, key, error)
        is_news = not stops or self.failures.announce(key, brief(error), is_loss=True)
        if planned.through is not None and is_news:
            until = str(int(planned.through.sequence) + 1)
            self.tell(EventKind.DATA_LOST, str(error), key, since=str(planned.after), until=until)
        if stops:
            return []
        this.unread.add(key)
        return [behind]

    def _is_of_its_stream(self, this: Round, progress: Progress) -> bool:
        """Whether the range was read from the right stream. If a stream was recreated, its shards have the same
        names as before, but other records. The service detects this if reading begins at a record. If reading
        begins at another position, or if the shard is gone, this method checks the stream. One check per round
        applies to all shards of the stream."""
        planned = progress.range
        begins_at_record = planned.first is not None or not planned.after.is_initial_position
        found_something = progress.through is not None or progress.ended
        if progress.gone or (found_something and not begins_at_record):
            error = self._what_is_wrong(this, planned.stream)
            if error is not None:
                self.not_read(this, planned.lease, error)
                return False
        return True

    def _what_is_wrong(self, this: Round, stream: StreamIdentifier) -> KclError | None:
        if stream not in this.confirmed:
            try:
                self.confirm(stream)
            except KclError as error:
                this.confirmed[stream] = error
            else:
                this.confirmed[stream] = None
        return this.confirmed[stream]

    def _is_bearable(self, this: Round, progress: Progress) -> bool:
        """Whether the range can be processed although records left the stream or soon will. Reports such
        records."""
        key = progress.range.lease
        # The broken aggregates of a pinned range were reported when it was first read.
        if progress.broken_aggregates and not progress.range.is_pinned:
            count = progress.broken_aggregates
            self.tell(EventKind.BROKEN_AGGREGATE, f"{count} aggregates kept as raw records", key, count=count)
        step = self.retention.warning(progress)
        if step is not None:
            behind = (progress.millis_behind or 0) / 1000
            message = f"{behind:.0f} s behind: {step:.0%} of the stream's retention is used up"
            self.tell(EventKind.RETENTION_NEAR, message, key, seconds_behind=behind, used=step)
        holding, stream = this.holdings[key], progress.range.stream
        retention = partial(self.retention.ask_retention, stream)
        loss = loss_in(progress, holding.lease.stored_through, self.clock.now(), retention)
        if loss is None:
            return True
        if not self._is_as_planned(this, key):
            return False
        stops = self.settings.on_data_loss == "stop"
        if stops:
            self.not_read(this, key, DataLoss(f"{key}: {loss}"))
        is_news = (
            self.failures.announce(key, f"DataLoss: {loss}", is_loss=True)
            if stops
            else self._told.get(holding.token) not in (loss.place, (loss.since, None))
        )
        if is_news:
            self._told[holding.token] = loss.place
            self.tell(EventKind.DATA_LOST, str(loss), key, since=loss.since, until=loss.until or "")
        return not stops

    def _is_as_planned(self, this: Round, key: LeaseKey) -> bool:
        """Renew a lease before a loss of its records is reported. Returns whether the lease is unchanged since it
        was planned. It can have changed in two ways. If this worker was paused, it may no longer own the lease, and
        the next owner may have read the missing records. If the response to a write was lost, the checkpoint may
        have moved."""
        planned = this.holdings[key]
        try:
            self.holdings.renew(key, planned.token)
        except LeaseLost as error:
            this.report(key, Outcome.DROPPED, error=error)
            return False
        except KclError as error:
            self.not_read(this, key, error)
            return False
        renewed = self.holdings.get(key)
        if renewed is not None and _place(renewed.lease) == _place(planned.lease):
            return True
        this.report(key, Outcome.DROPPED)
        return False

    def still_ours(self, this: Round, found: Sequence[Progress]) -> list[Progress]:
        """The results for leases that this worker still holds. The other leases are reported as dropped."""
        ours: list[Progress] = []
        for progress in found:
            key = progress.range.lease
            if self.holdings.is_ours(key, this.holdings[key].token):
                ours.append(progress)
            else:
                this.report(key, Outcome.DROPPED, progress)
        return ours

    def begin_batch(
        self,
        this: Round,
        found: Sequence[Progress],
        rules: WindowRules | None,
        abandon: Callable[[], bool],
    ) -> Batch:
        """Make the batch for a sink, and start to read the next records ahead. Nothing is read ahead if the worker
        is about to stop."""
        settings, time_column = self.settings, None if rules is None else rules.time_column
        for progress in found:
            self.holdings.delivered(progress.range.lease, progress.bytes)
        if settings.prefetch and not self._is_live(found) and not abandon():
            self.engine.prefetch(following(found, this.empty), self._usual_budget())
        parts = tuple(self.part(progress) for progress in found)
        return Batch(settings.application, settings.worker, parts, time_column)

    def _is_live(self, found: Sequence[Progress]) -> bool:
        """Whether records are stored as soon as they arrive, and no record is waiting. In this case, reading ahead
        gains nothing, because the batch that is read ahead is also closed soon after its first records. Reading
        ahead would even do harm: another process would read the batch, and this would interrupt subscriptions."""
        is_early = self.settings.budget.linger is not None
        return is_early and all(is_near_tip(progress.millis_behind) for progress in found)

    def part(self, progress: Progress) -> Part:
        this = progress.range
        return Part(
            application=self.settings.application,
            lease=this.lease,
            stream=this.stream,
            shard_id=this.shard_id,
            after=this.after,
            through=progress.through or this.after,
            number=this.number,
            records=progress.records,
            bytes=progress.bytes,
            instead_of=this.instead_of,
        )

    def done(self, this: Round, progress: Progress) -> None:
        """Record through which moment the shard is stored. Called when the range is committed or had no records.

        An open shard without further records is stored through the time at which it was read. In all other cases, a
        shard is stored only through the last record that was read. The reasons are that a pinned range ends at a
        given record, that a closed shard has children with newer records, and that a shard that just had records
        may have been closed since.
        """
        key = progress.range.lease
        is_at_tip = progress.millis_behind == 0 and progress.through is None
        if is_at_tip and not progress.ended and not progress.range.is_pinned:
            if this.fetch_began is None:
                return
            waited = 0.0 if progress.read_since is None else max(0.0, this.fetch_began_at - progress.read_since)
            self.holdings.stored_through(key, this.holdings[key].token, this.fetch_began - waited)
        elif (moment := stored_through(progress)) is not None:
            self.holdings.stored_through(key, this.holdings[key].token, moment)

    def not_read(self, this: Round, key: LeaseKey, error: Exception) -> None:
        self.tell(EventKind.FETCH_FAILED, str(error), key)
        self.failed(this, [key], error if isinstance(error, KclError) else BatchError(brief(error)))
        this.report(key, Outcome.NOT_READ, error=error)

    def failed(self, this: Round, keys: Sequence[LeaseKey], error: Exception) -> None:
        """Count a failure, and report the shards that are stopped by it. After a configuration error, the worker
        ends."""
        if isinstance(error, ConfigurationError) and class_of(error) is ErrorClass.CONFIGURATION:
            this.fatal = this.fatal or error
        for key in self.failures.failed(keys, error):
            message = f"it keeps failing ({class_of(error)}), and is tried once a minute: {full(error)}"
            self.tell(EventKind.SHARD_STOPPED, message, key)

    def tell(self, kind: EventKind, message: str, key: LeaseKey | None = None, **facts: str | float) -> None:
        self.on_event(WorkerEvent(kind, message, key, facts))

    @contextmanager
    def timed(self, this: Round, stage: str) -> Iterator[None]:
        started = self.clock.monotonic()
        try:
            with self.spans.span(stage):
                yield
        finally:
            this.seconds[stage] = this.seconds.get(stage, 0.0) + self.clock.monotonic() - started


def _place(lease: Lease) -> tuple[Checkpoint | None, Checkpoint | None, int]:
    """What a plan depends on: the checkpoint from which a lease is read, the record through which its pinned batch
    extends, and the number of its last batch."""
    return lease.checkpoint, lease.pending_checkpoint, lease.batch
