"""Shards in the hands of record processors.

A processor keeps state between calls and decides itself when to checkpoint, so its position in the shard runs
ahead of the checkpoint, in memory, for as long as this worker has the lease. What was delivered and not
checkpointed is delivered again to the next instance: at least once, in order, as in the KCL.

Other than in the KCL, a processor that raises does not lose its records: it is replaced by a new instance, which
begins at the checkpoint, until the failure policy decides.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic

from kcl_dagster.application import FailureAction
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.batch import D, Fetched, Part, PoisonRecord, Progress, Range
from kcl_dagster.worker.dead_letter import DeadLetters, dead_letter
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.failure import Verdict
from kcl_dagster.worker.holdings import Holding, Holdings
from kcl_dagster.worker.kclpy import checkpoint_error
from kcl_dagster.worker.processor import ProcessorFactory, record_of
from kcl_dagster.worker.protocol import never
from kcl_dagster.worker.ranges import Planner
from kcl_dagster.worker.reading import Reading, Round
from kcl_dagster.worker.report import BatchReport, Outcome
from kcl_dagster.worker.shard_end import ShardEnds, ShardEndWaits
from kcl_dagster.worker.shard_process import ShardProcess


@dataclass(slots=True)
class ProcessorProtocol(Generic[D]):
    """Rounds of fetch and deliver, on the worker's main thread, one shard after another."""

    reading: Reading[D]
    holdings: Holdings
    new_processor: ProcessorFactory
    planner: Planner
    shard_ends: ShardEnds
    letters: DeadLetters
    _processes: dict[LeaseKey, ShardProcess] = field(default_factory=dict)
    _careful: set[LeaseKey] = field(default_factory=set)
    """Shards that get their records one by one, to find the one that fails."""

    def run_once(self, abandon: Callable[[], bool] = never) -> BatchReport:
        """One round. Raises nothing that AWS or a processor can cause; that is in the report and in the events."""
        this = Round()
        self._let_go()
        self.reading.plan(this, self._range)
        if this.ranges:
            self.holdings.begin(this.ranges)
            fetched = self.reading.fetch(this)
            if fetched is not None:
                try:
                    for progress in self.reading.sound(this, fetched):
                        if abandon():
                            this.report(progress.range.lease, Outcome.ABANDONED, progress)
                        else:
                            self._go_on(this, fetched, progress)
                finally:
                    fetched.release()
            # A processor that lives is asked before its lease goes; the others have nothing to lose.
            self.holdings.end(key for key in this.ranges if key not in self._processes)
        return this.finished(self.reading.failures)

    def close(self) -> None:
        """The worker stops: every processor gets its last chance to checkpoint."""
        for key in sorted(self._processes):
            self._shut_down(key)

    def _range(self, holding: Holding) -> Range:
        planned = replace(self.planner.plan(holding.lease), through=None, first=None)
        process = self._processes.get(holding.key)
        if process is None or process.position == planned.after:
            return planned
        return replace(planned, after=process.position, timestamp_ms=None)

    def _let_go(self) -> None:
        """Part with processors whose leases are lost or asked for."""
        for key, process in sorted(self._processes.items()):
            holding = self.holdings.get(key)
            if holding is None or holding.token != process.token:
                del self._processes[key]
                self._call(key, process.lose)
            elif holding.handoff_since is not None:
                self._shut_down(key)

    def _shut_down(self, key: LeaseKey) -> None:
        process = self._processes.pop(key)
        self._call(key, process.shut_down)
        self.holdings.end([key])

    def _call(self, key: LeaseKey, last_words: Callable[[], None]) -> None:
        """What a processor raises when it is on its way out changes nothing any more."""
        try:
            last_words()
        except Exception as error:
            self.reading.tell(EventKind.BATCH_FAILED, f"{type(error).__name__}: {error}", key)

    def _go_on(self, this: Round, fetched: Fetched[D], progress: Progress) -> None:
        key, holding = progress.range.lease, this.holdings[progress.range.lease]
        if not self.holdings.is_ours(key, holding.token):
            this.report(key, Outcome.DROPPED, progress)
            return
        try:
            with self.reading.timed(this, "write"):
                process = self._process(holding)
                if progress.records:
                    self._deliver(process, fetched, progress, holding)
                process.position = progress.through or process.position
        except Exception as error:
            self._failed(this, progress, error)
            return
        self._careful.discard(key)
        self.reading.failures.succeeded(key, process.position)
        now = self.holdings.get(key)
        if now is not None and now.lease.checkpoint == process.position:
            self.reading.done(this, progress)  # nothing that was delivered waits for its checkpoint
        this.report(key, Outcome.DELIVERED if progress.records else Outcome.IDLE, progress)
        if progress.ended:
            self._finish(this, process, progress, holding)

    def _process(self, holding: Holding) -> ShardProcess:
        process = self._processes.get(holding.key)
        if process is None:
            process = ShardProcess(self.holdings, holding, self.new_processor(), checkpoint_error())
            process.initialize()
            self._processes[holding.key] = process
        return process

    def _deliver(self, process: ShardProcess, fetched: Fetched[D], progress: Progress, holding: Holding) -> None:
        records = fetched.records(progress.range.lease)
        self.holdings.delivered(progress.range.lease, progress.bytes)
        if progress.range.lease not in self._careful:
            process.process([record_of(record) for record in records], progress.millis_behind)
            return
        for record in records:
            try:
                process.process([record_of(record)], progress.millis_behind)
            except Exception as error:
                if self.reading.failures.action is FailureAction.BISECT:
                    raise
                self._set_aside(record, progress, holding, error)

    def _set_aside(self, record: PoisonRecord, progress: Progress, holding: Holding, error: Exception) -> None:
        sequence = record.sequence_number
        if self.reading.failures.action is FailureAction.DEAD_LETTER:
            letter = dead_letter(
                record,
                self._part(progress),
                worker=str(holding.lease.actual_owner),
                attempts=self.reading.failures.attempts(holding.key),
                failed_at_ms=round(self.reading.clock.now() * 1000),
                error=error,
            )
            self.letters.write(letter)
            self.reading.tell(EventKind.RECORD_DEAD_LETTERED, letter.name, holding.key, sequence=sequence)
        else:
            self.reading.tell(EventKind.RECORD_SKIPPED, str(error), holding.key, sequence=sequence)

    def _part(self, progress: Progress) -> Part:
        this = progress.range
        return Part(
            application=self.reading.settings.application,
            lease=this.lease,
            stream=this.stream,
            shard_id=this.shard_id,
            after=this.after,
            through=progress.through or this.after,
            number=this.number,
            records=progress.records,
            bytes=progress.bytes,
        )

    def _finish(self, this: Round, process: ShardProcess, progress: Progress, holding: Holding) -> None:
        """Whatever hinders the end of the shard, its processor lives on and is asked again."""
        key = holding.key
        try:
            process.end(self.shard_ends.create_children(holding.lease, progress))
        except Exception as error:
            self.reading.failures.failed([key], error)
            kind = EventKind.SHARD_END_WAITS if isinstance(error, ShardEndWaits) else EventKind.BATCH_FAILED
            self.reading.tell(kind, f"{type(error).__name__}: {error}", key)
            return
        del self._processes[key]
        self.reading.parents.finished(key)
        this.report(key, Outcome.FINISHED, progress)
        self.reading.tell(EventKind.SHARD_FINISHED, "by its processor", key)

    def _failed(self, this: Round, progress: Progress, error: Exception) -> None:
        """A processor that raised may be in any state: the next one begins at the checkpoint."""
        key, failures = progress.range.lease, self.reading.failures
        self._processes.pop(key, None)
        failures.failed([key], error)
        this.report(key, Outcome.FAILED, progress, error)
        this.error = f"{type(error).__name__}: {error}"
        self.reading.tell(EventKind.BATCH_FAILED, this.error, key)
        age = None
        if progress.first_arrival_ms is not None:
            age = self.reading.clock.now() - progress.first_arrival_ms / 1000
        if failures.verdict(key, error, age, can_narrow=False) is Verdict.RETRY:
            return
        if failures.action is not FailureAction.STOP and key not in self._careful:
            self._careful.add(key)
        elif failures.announce(key):
            self.reading.tell(EventKind.SHARD_STOPPED, f"keeps failing: {this.error}", key)


def is_processor(candidate: Any) -> bool:
    """Whether an object has a processor's methods."""
    names = ("initialize", "process_records", "lease_lost", "shard_ended", "shutdown_requested")
    return all(callable(getattr(candidate, name, None)) for name in names)
