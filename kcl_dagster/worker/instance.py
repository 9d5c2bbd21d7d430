"""Calls one record processor, and offers the operations that the processor can request during a call.

This module runs in the process of the processor, in an executor. The worker's counterpart is
`kcl_dagster.worker.hosted_processor`.
"""

import traceback
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.worker.batch import PoisonRecord
from kcl_dagster.worker.error_text import encodable, kind_of, text_of
from kcl_dagster.worker.processor import (
    InitializeInput,
    LeaseLostInput,
    ProcessorCheckpointer,
    ProcessRecordsInput,
    Record,
    RecordProcessor,
    ShardEndedInput,
    ShutdownRequestedInput,
    poison_of,
)

MAX_ERROR_TEXT: Final = 8192  # characters, for a log and a dead letter


class ProcessorContext(Protocol):
    """The requests that a processor can make during a call, on the thread of the call."""

    def checkpoint(self, at: Checkpoint | None, delivered: Checkpoint | None) -> str | None:
        """Checkpoint at `at`; if `at` is None, after all delivered records. `delivered`: the last delivered record;
        None at the end of the shard and at a shutdown. Returns None if the checkpoint is written. Otherwise returns
        the KCL's name of the reason why it was refused."""

    def set_aside(self, record: PoisonRecord, error_type: str, error: str) -> bool:
        """Report a failure of a record that was delivered alone. Returns True if the record was set aside, so that
        the next record can follow."""


class Instance:
    """One record processor. Errors of the processor are raised unchanged. After an error, the instance must not be
    used any more, except that `shard_ended` can be called again."""

    def __init__(self, processor: RecordProcessor, shard_id: str, error: type[Exception]) -> None:
        """`error`: the class that the processor catches if a checkpoint is refused."""
        self._processor = processor
        self._shard_id = shard_id
        self._error = error
        self._delivered: Checkpoint | None = None

    def initialize(self, start: Checkpoint) -> None:
        self._processor.initialize(InitializeInput(self._shard_id, start.sequence, start.sub_sequence))

    def process(
        self,
        records: Iterable[Sequence[Record]],
        millis_behind: int | None,
        context: ProcessorContext,
        *,
        one_by_one: bool = False,
    ) -> Checkpoint | None:
        """Deliver records in order, several at a time. Returns the position of the last record. With `one_by_one`,
        each record is delivered alone, and `set_aside` is called for each record that fails."""
        for some in records:
            if one_by_one:
                for record in some:
                    self._deliver_alone(record, millis_behind, context)
            elif some:
                self._deliver(some, millis_behind, context)
        return self._delivered

    def _deliver_alone(self, record: Record, millis_behind: int | None, context: ProcessorContext) -> None:
        try:
            self._deliver([record], millis_behind, context)
        except (Exception, SystemExit) as error:
            if not context.set_aside(poison_of(record), kind_of(error), described(error)):
                raise

    def _deliver(self, records: Sequence[Record], millis_behind: int | None, context: ProcessorContext) -> None:
        self._delivered = Checkpoint(records[-1].sequence_number, records[-1].sub_sequence_number)
        checkpointer = self._checkpointer(context, self._delivered)
        self._processor.process_records(ProcessRecordsInput(records, millis_behind, checkpointer))

    def shard_ended(self, context: ProcessorContext) -> None:
        self._processor.shard_ended(ShardEndedInput(self._checkpointer(context, None)))

    def lease_lost(self) -> None:
        self._processor.lease_lost(LeaseLostInput())

    def shutdown_requested(self, context: ProcessorContext) -> None:
        self._processor.shutdown_requested(ShutdownRequestedInput(self._checkpointer(context, None)))

    def _checkpointer(self, context: ProcessorContext, delivered: Checkpoint | None) -> ProcessorCheckpointer:
        return ProcessorCheckpointer(lambda at: context.checkpoint(at, delivered), self._error)


def described(error: BaseException) -> str:
    """The text of an error that user code raised, and its place."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return encodable(text_of(error)[:MAX_ERROR_TEXT] + where)
