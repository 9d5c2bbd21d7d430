"""Applies the failure policy to a shard whose batch keeps failing."""

from dataclasses import dataclass, field
from typing import Any

from kcl_dagster.application import FailureAction
from kcl_dagster.errors import KclError, ProcessLost
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.stored import BatchCounts
from kcl_dagster.runtime import Clock
from kcl_dagster.worker.batch import Fetched, Part, Progress
from kcl_dagster.worker.batch_retries import LOSSES_TO_NARROW, Failures, Verdict
from kcl_dagster.worker.dead_letter import DeadLetters, dead_letter
from kcl_dagster.worker.error_class import class_of, depends_on_records
from kcl_dagster.worker.error_text import brief, full, text_of
from kcl_dagster.worker.events import EventKind, OnEvent, WorkerEvent, ignore
from kcl_dagster.worker.held_lease import Holding
from kcl_dagster.worker.holdings import Holdings
from kcl_dagster.worker.pins import OwnPins, Pin
from kcl_dagster.worker.reading import stored_through
from kcl_dagster.worker.report import Outcome
from kcl_dagster.worker.stored_counts import WindowRules


@dataclass(slots=True)
class PoisonHandling:
    """Treats failed batches. Called by the protocol right after a batch of one lease has failed, before its records
    are released."""

    holdings: Holdings
    failures: Failures
    letters: DeadLetters
    clock: Clock
    on_event: OnEvent = ignore
    rules: WindowRules | None = None
    own: OwnPins = field(default_factory=OwnPins)
    code: str | None = None
    """The version of the consumer's code."""

    def treat(
        self, fetched: Fetched[Any], progress: Progress, holding: Holding, part: Part, error: Exception
    ) -> Outcome:
        """Treat a failed batch. Returns the outcome. If treating the batch fails, the batch keeps its pin and is
        tried again."""
        key = holding.key
        try:
            middle = None
            if depends_on_records(error) and self.failures.action is not FailureAction.STOP:
                middle = middle_of(fetched, progress)
            verdict = self.failures.verdict(key, error, can_narrow=middle is not None)
            return self._carry_out(verdict, fetched, progress, holding, part, error, middle)
        except Exception as problem:
            self._not_treated(holding, problem)
        return Outcome.FAILED

    def treat_lost(self, fetched: Fetched[Any], progress: Progress, holding: Holding, part: Part) -> Outcome | None:
        """Treat a batch that a former owner has begun. Called before this worker writes the batch. Returns None if
        the batch should be written now. Otherwise returns the outcome. If the batch has ended processes of its
        owners, the range is narrowed under every policy, because there is no other way to find a record that ends
        the process."""
        losses = progress.range.losses
        if losses < LOSSES_TO_NARROW or self.own.has(holding.key, holding.token, part.number):
            return None
        error = ProcessLost(f"the processes of {losses} workers ended while they wrote batch {part.number}")
        try:
            middle = middle_of(fetched, progress)
            verdict = self.failures.verdict_of_loss(holding.key, losses, can_narrow=middle is not None)
            if verdict is Verdict.RETRY:
                return None
            return self._carry_out(verdict, fetched, progress, holding, part, error, middle)
        except Exception as problem:
            self._not_treated(holding, problem)
        return Outcome.FAILED

    def _carry_out(
        self,
        verdict: Verdict,
        fetched: Fetched[Any],
        progress: Progress,
        holding: Holding,
        part: Part,
        error: Exception,
        middle: Checkpoint | None,
    ) -> Outcome:
        match verdict:
            case Verdict.STOP:
                if self.failures.announce(holding.key, brief(error)):
                    message = f"batch {part.number} keeps failing ({class_of(error)}): {full(error)}"
                    self._tell(EventKind.SHARD_STOPPED, message, holding, after=str(part.after))
            case Verdict.NARROW if middle is not None:
                self._narrow(progress, holding, middle)
                return Outcome.NARROWED
            case Verdict.DEAD_LETTER:
                self._send_dead_letters(fetched, holding, part, error)
                self._go_on_behind(holding, part, progress, self._no_counts(holding, progress))
                return Outcome.SET_ASIDE
            case Verdict.SKIP:
                self._go_on_behind(holding, part, progress, self._no_counts(holding, progress))
                self._tell(EventKind.RECORD_SKIPPED, full(error), holding, sequence=part.through.sequence)
                return Outcome.SET_ASIDE
            case _:
                pass
        return Outcome.FAILED

    def _no_counts(self, holding: Holding, progress: Progress) -> BatchCounts | None:
        return None if self.rules is None else self.rules.nothing(holding.lease, progress)

    def _go_on_behind(self, holding: Holding, part: Part, progress: Progress, counts: BatchCounts | None) -> None:
        through = stored_through(progress)
        self.holdings.checkpoint(holding.key, holding.token, part.through, stored_through=through, counts=counts)
        self.failures.succeeded(holding.key, part.through)

    def _narrow(self, progress: Progress, holding: Holding, middle: Checkpoint) -> None:
        """Pin the first half of the range. If the range has ended processes of its owners, one more loss is enough
        for the half to be narrowed again."""
        losses = LOSSES_TO_NARROW - 1 if progress.range.losses >= LOSSES_TO_NARROW else 0
        self._pin_instead(progress, holding, middle, losses)
        if progress.through is not None:
            self.failures.narrowed(holding.key, progress.through, is_lost=losses > 0)
        self._tell(EventKind.BATCH_NARROWED, f"to the records through {middle}", holding, records=progress.records)

    def _pin_instead(self, progress: Progress, holding: Holding, through: Checkpoint, losses: int = 0) -> None:
        """Pin a piece of a failing batch, to be stored instead of the batch. The piece gets a new number. A stalled
        former owner can still be writing the whole batch under the old number, and a sink must be able to
        distinguish the piece from the batch. Raises LeaseLost."""
        failed = progress.range
        first_number = failed.number if failed.instead_of is None else failed.instead_of
        arrived = None if progress.first_arrival_ms is None else progress.first_arrival_ms // 1000
        pin = Pin(failed.number + 1, progress.first, first_number, losses, self.code, arrived=arrived)
        self.holdings.prepare(holding.key, holding.token, through, pin.to_state(), pin.number)
        self.own.wrote(holding.key, holding.token, pin.number)

    def _send_dead_letters(self, fetched: Fetched[Any], holding: Holding, part: Part, error: Exception) -> None:
        for record in fetched.records(holding.key):
            letter = dead_letter(
                record,
                part,
                worker=str(holding.lease.actual_owner),
                attempts=self.failures.attempts(holding.key),
                failed_at_ms=round(self.clock.now() * 1000),
                error=error,
            )
            self.letters.write(letter)
            self._tell(EventKind.RECORD_DEAD_LETTERED, letter.name, holding, sequence=record.sequence_number)

    def _not_treated(self, holding: Holding, problem: Exception) -> None:
        """Report that a dead letter could not be stored, or that a row could not be written. The worker and its
        other shards continue."""
        text = text_of(problem) if isinstance(problem, KclError) else full(problem)
        self._tell(EventKind.BATCH_FAILED, f"while treating a poison record: {text}", holding)

    def _tell(self, kind: EventKind, message: str, holding: Holding, **facts: str | float) -> None:
        self.on_event(WorkerEvent(kind, message, holding.key, facts))


def middle_of(fetched: Fetched[Any], progress: Progress) -> Checkpoint | None:
    """The last record of the first half of a batch; None if the batch cannot be divided."""
    middle = fetched.midpoint(progress.range.lease)
    if middle is None or progress.through is None or not progress.range.after < middle < progress.through:
        return None
    return middle
