"""Exactly-once batches: plan, fetch, prepare, write, commit.

    plan     the leases that may be read: held, not finished, parents done, not on their way to another worker
    fetch    freeze their next records; a lease with a pinned batch is read exactly through it
    prepare  pin: write the batch's end and number on each lease, compare-and-set; a lease that fails is dropped
             before anything is written
    write    hand the records to the sink, under the identity of their parts
    commit   move each checkpoint to the batch's end and remove the pin, compare-and-set; finished shards get
             their child leases first

A crash before `prepare` loses nothing: the records are read again. A crash after it leaves a pin: whoever owns the
lease next reads exactly the same records and writes them under the same identity, so a sink that stores a part
once stores each record once. A stalled former owner can only write what the pin says as well.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, Literal

from kcl_dagster.errors import BatchError, DataLoss, KclError
from kcl_dagster.model.checkpoint import SHARD_END
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.runtime import Clock
from kcl_dagster.worker.batch import Batch, Budget, D, Engine, Fetched, Part, Progress, Range, Sink
from kcl_dagster.worker.events import EventKind, OnEvent, WorkerEvent, ignore
from kcl_dagster.worker.failure import Failures
from kcl_dagster.worker.holdings import Holding, Holdings
from kcl_dagster.worker.parents import Parents
from kcl_dagster.worker.pending import Pin, pin_of
from kcl_dagster.worker.poison import PoisonHandling
from kcl_dagster.worker.ranges import Planner, next_range
from kcl_dagster.worker.report import BatchReport, LeaseReport, Outcome
from kcl_dagster.worker.retention import RetentionWatch, loss_in
from kcl_dagster.worker.shard_end import ShardEnds, ShardEndWaits


def never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class ProtocolSettings:
    application: str
    worker: WorkerId
    budget: Budget
    on_data_loss: Literal["stop", "continue"] = "stop"
    prefetch: bool = True


@dataclass(slots=True)
class _Round:
    """What is known of the batch while it is made."""

    holdings: dict[LeaseKey, Holding] = field(default_factory=dict)
    ranges: dict[LeaseKey, Range] = field(default_factory=dict)
    leases: dict[LeaseKey, LeaseReport] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    held: int = 0
    blocked: int = 0
    error: str | None = None


@dataclass(slots=True)
class BatchProtocol(Generic[D]):
    """Runs on the worker's main thread, one round after another. Holds no progress of its own: that is in the
    leases, so any other worker can go on from any step."""

    settings: ProtocolSettings
    holdings: Holdings
    engine: Engine[D]
    sink: Sink[D]
    planner: Planner
    parents: Parents
    shard_ends: ShardEnds
    failures: Failures
    poison: PoisonHandling
    retention: RetentionWatch
    clock: Clock
    on_event: OnEvent = ignore

    def run_once(self, abandon: Callable[[], bool] = never) -> BatchReport:
        """One round. `abandon` is asked before anything is pinned: True gives the batch up, at no cost.

        Raises nothing that AWS, a sink or user code can cause; that is in the report and in the events.
        """
        this = _Round()
        self._plan(this)
        if this.ranges:
            self.holdings.begin(this.ranges)
            try:
                self._run(this, abandon)
            finally:
                self.holdings.end(this.ranges)
        return BatchReport(
            leases=tuple(this.leases[key] for key in sorted(this.leases)),
            fetch_seconds=this.seconds.get("fetch", 0.0),
            prepare_seconds=this.seconds.get("prepare", 0.0),
            write_seconds=this.seconds.get("write", 0.0),
            commit_seconds=this.seconds.get("commit", 0.0),
            error=this.error,
            held=this.held,
            blocked=this.blocked,
            stopped=tuple(self.failures.stopped()),
        )

    # Plan

    def _plan(self, this: _Round) -> None:
        held = self.holdings.holdings()
        keys = {holding.key for holding in held}
        for memory in (self.failures, self.parents, self.retention):
            memory.keep(keys)
        this.held = len(held)
        readable = {h.key: h for h in held if self._is_readable(h, this)}
        for key in self.failures.next_group(sorted(readable)):
            try:
                this.ranges[key] = self.planner.plan(readable[key].lease, self.failures.until(key))
            except KclError as error:
                self.failures.failed([key], error)
                self._tell(EventKind.FETCH_FAILED, f"its start could not be looked up: {error}", key)
            else:
                this.holdings[key] = readable[key]

    def _is_readable(self, holding: Holding, this: _Round) -> bool:
        if holding.lease.is_finished or holding.handoff_since is not None:
            return False
        try:
            blocked = self.parents.is_blocked(holding.lease)
        except KclError as error:
            self._tell(EventKind.FETCH_FAILED, f"parents could not be looked up: {error}", holding.key)
            blocked = True
        this.blocked += blocked
        return not blocked

    # Fetch

    def _run(self, this: _Round, abandon: Callable[[], bool]) -> None:
        try:
            with self._timed(this, "fetch"):
                fetched = self.engine.fetch(list(this.ranges.values()), self.settings.budget)
        except Exception as error:
            # No user code runs in a fetch, so whatever it was, the same leases are tried together again.
            failure = error if isinstance(error, KclError) else BatchError(f"fetch failed: {error}")
            self.failures.failed(list(this.ranges), failure)
            this.error = str(failure)
            self._tell(EventKind.FETCH_FAILED, str(failure))
            for key in this.ranges:
                self._report(this, key, Outcome.NOT_READ)
            return
        try:
            self._process(this, fetched, abandon)
        finally:
            fetched.release()

    def _process(self, this: _Round, fetched: Fetched[D], abandon: Callable[[], bool]) -> None:
        found = self._sound(this, fetched)
        full = [progress for progress in found if progress.records]
        empty = [progress for progress in found if not progress.records]
        if full and abandon():
            for progress in full:
                self._report(this, progress.range.lease, Outcome.ABANDONED, progress)
        elif full:
            with self._timed(this, "prepare"):
                prepared = [progress for progress in full if self._prepare(this, progress)]
            ours = [progress for progress in prepared if self._is_still_ours(this, progress)]
            if ours and self._write(this, fetched, ours, abandon):
                with self._timed(this, "commit"):
                    for progress in ours:
                        self._commit(this, progress)
        for progress in empty:
            self._commit(this, progress)

    def _sound(self, this: _Round, fetched: Fetched[D]) -> list[Progress]:
        """What was read well enough to go on with."""
        for key, error in fetched.failures.items():
            self._not_read(this, key, error)
        sound = []
        for key in this.ranges:
            progress = fetched.progress.get(key)
            if progress is None:
                if key not in fetched.failures:
                    self._not_read(this, key, BatchError("the engine did not say what it read"))
            elif progress.range.is_pinned and progress.through != progress.range.through:
                end = f"read through {progress.through} instead of {progress.range.through}"
                self._not_read(this, key, BatchError(f"pinned batch {progress.range.number} was {end}"))
            elif self._is_bearable(this, progress):
                sound.append(progress)
        return sound

    def _is_bearable(self, this: _Round, progress: Progress) -> bool:
        """Looks at what the stream no longer had, or soon will not have."""
        key = progress.range.lease
        if progress.broken_aggregates:
            count = progress.broken_aggregates
            self._tell(EventKind.BROKEN_AGGREGATE, f"{count} aggregates kept as raw records", key, count=count)
        step = self.retention.warning(progress)
        if step is not None:
            behind = (progress.millis_behind or 0) / 1000
            message = f"{behind:.0f} s behind: {step:.0%} of the stream's retention is used up"
            self._tell(EventKind.RETENTION_NEAR, message, key, seconds_behind=behind, used=step)
        loss = loss_in(progress, self.clock.now())
        if loss is None:
            return True
        stops = self.settings.on_data_loss == "stop"
        if stops:
            self._not_read(this, key, DataLoss(f"{key}: {loss}"))
        if not stops or self.failures.announce(key):
            self._tell(EventKind.DATA_LOST, str(loss), key, since=loss.since, until=loss.until or "")
        return not stops

    def _not_read(self, this: _Round, key: LeaseKey, error: Exception) -> None:
        self.failures.failed([key], error if isinstance(error, KclError) else BatchError(str(error)))
        self._tell(EventKind.FETCH_FAILED, str(error), key)
        self._report(this, key, Outcome.NOT_READ, error=error)

    # Prepare

    def _prepare(self, this: _Round, progress: Progress) -> bool:
        """Pin the batch on the lease. After an unknown outcome the lease is asked again before its next write, and
        read through the pin if that is what it says."""
        key, end = progress.range.lease, progress.through
        holding = this.holdings[key]
        pin = Pin(progress.range.number, progress.first if progress.range.after.is_initial_position else None)
        if pin_of(holding.lease) is not None and progress.range.is_pinned:
            return True
        if end is None:
            self._not_read(this, key, BatchError("the engine read records and did not say through which"))
            return False
        try:
            self.holdings.prepare(key, holding.token, end, pin.to_state(), pin.number)
        except KclError as error:
            self._report(this, key, Outcome.DROPPED, progress, error)
            return False
        return True

    def _is_still_ours(self, this: _Round, progress: Progress) -> bool:
        key = progress.range.lease
        if self.holdings.is_ours(key, this.holdings[key].token):
            return True
        self._report(this, key, Outcome.DROPPED, progress)
        return False

    # Write

    def _write(
        self, this: _Round, fetched: Fetched[D], found: Sequence[Progress], abandon: Callable[[], bool]
    ) -> bool:
        parts = tuple(self._part(progress) for progress in found)
        batch = Batch(self.settings.application, self.settings.worker, parts)
        for progress in found:
            self.holdings.delivered(progress.range.lease, progress.bytes)
        if self.settings.prefetch and not abandon():
            ahead = [following for progress in found if (following := next_range(progress)) is not None]
            self.engine.prefetch(ahead, self.settings.budget)
        try:
            with self._timed(this, "write"):
                self.sink.write(fetched.data([part.lease for part in parts]), batch)
        except Exception as error:
            self._failed(this, fetched, found, error)
            return False
        return True

    def _part(self, progress: Progress) -> Part:
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
        )

    def _failed(self, this: _Round, fetched: Fetched[D], found: Sequence[Progress], error: Exception) -> None:
        keys = [progress.range.lease for progress in found]
        this.error = f"{type(error).__name__}: {error}"
        self.failures.failed(keys, error)
        for progress in found:
            self._report(this, progress.range.lease, Outcome.FAILED, progress, error)
        if len(found) > 1:
            self._tell(EventKind.BATCH_FAILED, this.error, None, leases=len(keys))
            return
        progress = found[0]
        self._tell(EventKind.BATCH_FAILED, this.error, progress.range.lease, number=progress.range.number)
        holding, part = this.holdings[progress.range.lease], self._part(progress)
        if self.poison.treat(fetched, progress, holding, part, error):
            self._report(this, progress.range.lease, Outcome.SET_ASIDE, progress, error)

    # Commit

    def _commit(self, this: _Round, progress: Progress) -> None:
        key, token = progress.range.lease, this.holdings[progress.range.lease].token
        try:
            if progress.ended and self._finish(this, progress):
                return
            if progress.through is not None and progress.through != progress.range.after:
                self.holdings.checkpoint(key, token, progress.through)
                self.failures.succeeded(key, progress.through)
                self._report(this, key, Outcome.COMMITTED, progress)
            else:
                self._report(this, key, Outcome.IDLE, progress)
                if not progress.ended:
                    self.failures.succeeded(key, SHARD_END)
        except KclError as error:
            self._report(this, key, Outcome.UNCOMMITTED, progress, error)

    def _finish(self, this: _Round, progress: Progress) -> bool:
        """Child leases, then SHARD_END. False when it has to wait; what was read is then committed as usual."""
        key, holding = progress.range.lease, this.holdings[progress.range.lease]
        try:
            children = self.shard_ends.create_children(holding.lease, progress)
        except KclError as error:
            self.failures.failed([key], error)
            kind = EventKind.SHARD_END_WAITS if isinstance(error, ShardEndWaits) else EventKind.FETCH_FAILED
            self._tell(kind, str(error), key)
            return False
        self.holdings.checkpoint(key, holding.token, SHARD_END, children)
        self.parents.finished(key)
        self.failures.succeeded(key, SHARD_END)
        self._report(this, key, Outcome.FINISHED, progress)
        self._tell(EventKind.SHARD_FINISHED, f"children {', '.join(sorted(children)) or 'none'}", key)
        return True

    # Telling

    def _report(
        self,
        this: _Round,
        key: LeaseKey,
        outcome: Outcome,
        progress: Progress | None = None,
        error: Exception | None = None,
    ) -> None:
        planned = this.ranges[key]
        this.leases[key] = LeaseReport(
            lease=key,
            stream=planned.stream,
            shard_id=planned.shard_id,
            outcome=outcome,
            number=planned.number,
            after=planned.after,
            through=progress.through if progress else None,
            records=progress.records if progress else 0,
            bytes=progress.bytes if progress else 0,
            millis_behind=progress.millis_behind if progress else None,
            error=None if error is None else f"{type(error).__name__}: {error}",
        )

    def _tell(self, kind: EventKind, message: str, key: LeaseKey | None = None, **facts: str | float) -> None:
        self.on_event(WorkerEvent(kind, message, key, facts))

    @contextmanager
    def _timed(self, this: _Round, stage: str) -> Iterator[None]:
        started = self.clock.monotonic()
        try:
            yield
        finally:
            this.seconds[stage] = this.seconds.get(stage, 0.0) + self.clock.monotonic() - started
