"""Rounds of a worker whose shards are read by record processors.

A processor keeps state between calls and decides when to checkpoint. While this worker has the lease and the
process of the processor is alive, the processor's position in the shard can be beyond the checkpoint. The next
instance of the processor begins at the checkpoint, so records that were not checkpointed are delivered again.
Delivery is at least once and in order, as in the KCL.

Unlike in the KCL, records are not skipped if a processor raises an error. Instead, new instances begin at the
checkpoint until the failure policy decides. If records end the processes of several workers, the shard of these
records is stopped under every policy, and tried again at long intervals; see `worker.processor_attempts`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from kcl_dagster.application import FailureAction
from kcl_dagster.errors import LeaseLost, ProcessLost, Unavailable
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.batch import PoisonRecord, Progress, Range, Read
from kcl_dagster.worker.batch_retries import LOSSES_TO_NARROW, Verdict
from kcl_dagster.worker.dead_letter import DeadLetters, dead_letter
from kcl_dagster.worker.error_class import depends_on_records
from kcl_dagster.worker.error_text import brief, full
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.held_lease import Holding
from kcl_dagster.worker.holdings import Holdings
from kcl_dagster.worker.hosted_processor import HostLost, ProcessorFailed, ProcessorHosts
from kcl_dagster.worker.left_claims import refuse_claim
from kcl_dagster.worker.processor_attempts import Attempts
from kcl_dagster.worker.protocol import never
from kcl_dagster.worker.ranges import Planner
from kcl_dagster.worker.reading import Reading, Round
from kcl_dagster.worker.report import BatchReport, Outcome
from kcl_dagster.worker.shard_end import ShardEnds, ShardEndWaits
from kcl_dagster.worker.shard_process import ShardProcess
from kcl_dagster.worker.stored_counts import WindowRules

FAILURES_ALONE = 2  # failures of one record, in different processors, before it is set aside


@dataclass(slots=True)
class ProcessorProtocol:
    """Reads records and delivers them to processors, in rounds. Called on the worker's main thread. Shards whose
    processors are in different processes get their records at the same time, on threads of the hosts."""

    reading: Reading[Read]
    holdings: Holdings
    hosts: ProcessorHosts[Read]
    planner: Planner
    shard_ends: ShardEnds
    letters: DeadLetters
    rules: WindowRules | None = None
    """The windows by which records are counted. None if they are not counted."""

    _attempts: Attempts = field(init=False)
    _processes: dict[LeaseKey, ShardProcess] = field(default_factory=dict)
    _careful: set[LeaseKey] = field(default_factory=set)
    """Shards that get their records one by one, so that the failing record is found."""

    _failed_alone: dict[LeaseKey, dict[str, int]] = field(default_factory=dict)
    """For each shard in `_careful`: how often a record failed when it was delivered alone, by position. One failure
    can be random. A record is set aside only when the next processor fails at it, too."""

    _to_confirm: set[LeaseKey] = field(default_factory=set)
    """Shards whose last failure was the first failure of a record that was delivered alone."""

    _failed_through: dict[LeaseKey, Checkpoint] = field(default_factory=dict)
    """The last record of the delivery at which each shard failed. The next processor begins at the checkpoint.
    Until this next processor has passed the record, its progress does not count as a success. If it did, every
    failure would count as the first failure."""

    def __post_init__(self) -> None:
        self._attempts = Attempts(self.holdings, self.reading.clock, self.reading.settings.code)

    def delivered(self) -> dict[LeaseKey, Checkpoint]:
        """The last record that was delivered to each living processor. Can be called on any thread."""
        return {key: process.position for key, process in list(self._processes.items())}

    def run_once(self, abandon: Callable[[], bool] = never) -> BatchReport:
        """Run one round. Errors of AWS and processors are not raised. They are in the report and in events."""
        this = Round()
        held = {holding.key for holding in self.holdings.holdings()}
        self._failed_through = {key: place for key, place in self._failed_through.items() if key in held}
        self._careful &= held
        self._failed_alone = {key: places for key, places in self._failed_alone.items() if key in held}
        self._to_confirm &= held
        self._let_go()
        self.reading.plan(this, self._range)
        if this.ranges:
            self.holdings.begin(this.ranges)
            read = self.reading.fetch(this)
            if read is not None:
                try:
                    self._go_on(this, self.reading.sound(this, read), abandon)
                finally:
                    read.release()
            # A lease with a living processor remains marked as being in a batch, so that the processor can be
            # called before the lease is given away. Other leases can be given away now.
            self.holdings.end(key for key in this.ranges if key not in self._processes)
        return this.finished(self.reading.failures)

    def close(self) -> None:
        """Stop. Every processor gets a last chance to checkpoint."""
        for key in sorted(self._processes):
            self._shut_down(key)
        self.hosts.close()

    def _range(self, holding: Holding) -> Range:
        refuse_claim(holding.lease)
        planned = replace(self.planner.plan(holding.lease), through=None, first=None)
        process = self._processes.get(holding.key)
        if process is None or process.position == planned.after:
            return planned
        return replace(planned, after=process.position, timestamp_ms=None)

    def _let_go(self) -> None:
        """Remove the processors that have ended, and the processors whose leases are lost or about to be handed
        over."""
        for key, process in sorted(self._processes.items()):
            holding = self.holdings.get(key)
            if holding is None or holding.token != process.token:
                del self._processes[key]
                self._call(key, process.lose)
            elif holding.is_leaving:
                self._shut_down(key)
            elif process.is_gone:
                del self._processes[key]
                self.holdings.end([key])

    def _shut_down(self, key: LeaseKey) -> None:
        process = self._processes.pop(key)
        self._call(key, process.shut_down)
        self.holdings.end([key])

    def _call(self, key: LeaseKey, last_words: Callable[[], None]) -> None:
        """Call a processor that is about to be removed. Its errors are reported and have no other effect."""
        try:
            last_words()
        except Exception as error:
            self.reading.tell(EventKind.BATCH_FAILED, full(error), key)

    def _go_on(self, this: Round, found: Sequence[Progress], abandon: Callable[[], bool]) -> None:
        tasks: dict[LeaseKey, Callable[[], None]] = {}
        for progress in found:
            key = progress.range.lease
            if abandon():
                this.report(key, Outcome.ABANDONED, progress)
            elif not self.holdings.is_ours(key, this.holdings[key].token):
                this.report(key, Outcome.DROPPED, progress)
            elif not self._is_stopped_by_losses(this, progress):
                tasks[key] = partial(self._deliver, progress, this.holdings[key])
        with self.reading.timed(this, "write"), self.reading.processing.running(sorted(tasks)):
            failed = self.hosts.run_in_parallel(tasks)
        for progress in found:
            key = progress.range.lease
            if isinstance(failed.get(key), LeaseLost):
                this.report(key, Outcome.DROPPED, progress, failed[key])
            elif key in failed:
                self._failed(this, progress, failed[key])
            elif key in tasks:
                self._delivered(this, progress)

    def _deliver(self, progress: Progress, holding: Holding) -> None:
        """Deliver the records of one shard. Runs on a thread of the hosts, so it uses only objects that belong to
        this lease or have a lock."""
        key = holding.key
        process = self._process(holding)
        if process.position != progress.range.after:
            raise HostLost(f"the processor of {key} was lost while its records were read")
        if progress.records:
            self._attempts.begin(progress, holding, process.start)
            self.holdings.delivered(key, progress.bytes)
            put_aside = partial(self._set_aside, progress, holding)
            process.process(progress, put_aside, one_by_one=key in self._careful)

    def _is_stopped_by_losses(self, this: Round, progress: Progress) -> bool:
        """Return True if the records must not be delivered now, because processes of former owners ended while
        processors worked on these records. No record is set aside, because the failing record cannot be found
        without ending more processes."""
        key, failures = progress.range.lease, self.reading.failures
        losses = self._attempts.losses(progress, this.holdings[key])
        if not progress.records or losses < LOSSES_TO_NARROW:
            return False
        verdict = failures.verdict_of_loss(key, losses, can_narrow=False, can_set_aside=False)
        if verdict is Verdict.RETRY:
            return False
        error = ProcessLost(f"the processes of {losses} workers ended while a processor had the next records")
        if failures.announce(key, brief(error)):
            after = str(progress.range.after)
            self.reading.tell(EventKind.SHARD_STOPPED, f"tried at long intervals: {full(error)}", key, after=after)
        this.report(key, Outcome.FAILED, progress, error)
        return True

    def _delivered(self, this: Round, progress: Progress) -> None:
        key = progress.range.lease
        process, holding = self._processes[key], this.holdings[key]
        process.position = progress.through or process.position
        is_at_tip = progress.ended or progress.millis_behind == 0
        self._attempts.survived(holding, process.position, is_at_tip=is_at_tip)
        failed_through = self._failed_through.get(key)
        if failed_through is None or process.position >= failed_through:
            self._failed_through.pop(key, None)
            self._careful.discard(key)
            self._failed_alone.pop(key, None)
            if progress.is_answered:
                self.reading.failures.succeeded(key, process.position)
        now = self.holdings.get(key)
        if now is not None and now.lease.checkpoint == process.position:
            self.reading.done(this, progress)  # no delivered record waits for its checkpoint
        this.report(key, Outcome.DELIVERED if progress.records else Outcome.IDLE, progress)
        if progress.ended:
            self._finish(this, process, progress, holding)

    def _process(self, holding: Holding) -> ShardProcess:
        process = self._processes.get(holding.key)
        if process is None:
            process = ShardProcess(
                self.holdings, holding, self.hosts.create_processor(holding.key, holding.lease.shard_id), self.rules
            )
            process.initialize()
            self._processes[holding.key] = process
        return process

    def _set_aside(
        self, progress: Progress, holding: Holding, record: PoisonRecord, error_type: str, text: str
    ) -> bool:
        """Apply the policy to a record that failed when it was delivered alone. Returns True if the record was set
        aside. Returns False if a new processor is needed; the records are then delivered to it again from the
        checkpoint on."""
        action, sequence = self.reading.failures.action, record.sequence_number
        if action not in (FailureAction.DEAD_LETTER, FailureAction.SKIP) or error_type == Unavailable.__name__:
            return False
        places = self._failed_alone.setdefault(holding.key, {})
        place = f"{sequence}/{record.sub_sequence_number}"
        places[place] = places.get(place, 0) + 1
        if places[place] < FAILURES_ALONE:
            self._to_confirm.add(holding.key)
            return False
        error = ProcessorFailed(error_type, text)
        if action is FailureAction.DEAD_LETTER:
            letter = dead_letter(
                record,
                self.reading.part(progress),
                worker=str(holding.lease.actual_owner),
                attempts=self.reading.failures.attempts(holding.key),
                failed_at_ms=round(self.reading.clock.now() * 1000),
                error=error,
            )
            self.letters.write(letter)
            self.reading.tell(EventKind.RECORD_DEAD_LETTERED, letter.name, holding.key, sequence=sequence)
        else:
            self.reading.tell(EventKind.RECORD_SKIPPED, full(error), holding.key, sequence=sequence)
        return True

    def _finish(self, this: Round, process: ShardProcess, progress: Progress, holding: Holding) -> None:
        """Finish the shard. If finishing it fails for any reason, the processor is kept and called again."""
        key = holding.key
        try:
            process.end(self.shard_ends.create_children(holding.lease, progress))
        except Exception as error:
            self.reading.failed(this, [key], error)
            kind = EventKind.SHARD_END_WAITS if isinstance(error, ShardEndWaits) else EventKind.BATCH_FAILED
            self.reading.tell(kind, full(error), key)
            return
        self._processes.pop(key).discard()
        self.reading.parents.finished(key)
        this.report(key, Outcome.FINISHED, progress)
        self.reading.tell(EventKind.SHARD_FINISHED, "by its processor", key)

    def _failed(self, this: Round, progress: Progress, error: Exception) -> None:
        """Handle an error of a processor. The processor can be in any state, so a new processor replaces it and
        begins at the checkpoint."""
        key, failures = progress.range.lease, self.reading.failures
        process = self._processes.pop(key, None)
        if process is not None:
            process.discard()
        this.error = full(error)
        self.reading.tell(EventKind.BATCH_FAILED, this.error, key)
        self.reading.failed(this, [key], error)
        self._attempts.survived(this.holdings[key])
        reached = progress.through or progress.range.after
        self._failed_through[key] = max(reached, self._failed_through.get(key, reached))
        this.report(key, Outcome.FAILED, progress, error)
        is_to_confirm = key in self._to_confirm
        self._to_confirm.discard(key)
        if failures.verdict(key, error, can_narrow=False) is Verdict.RETRY or is_to_confirm:
            return
        if failures.action is not FailureAction.STOP and depends_on_records(error) and key not in self._careful:
            self._careful.add(key)
        elif failures.announce(key, brief(error)):
            self.reading.tell(EventKind.SHARD_STOPPED, f"keeps failing: {this.error}", key)


def is_processor(candidate: Any) -> bool:
    names = ("initialize", "process_records", "lease_lost", "shard_ended", "shutdown_requested")
    return all(callable(getattr(candidate, name, None)) for name in names)
