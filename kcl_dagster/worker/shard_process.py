"""One shard in the hands of one record processor, for as long as one ownership lasts."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kcl_dagster.errors import BatchError
from kcl_dagster.model.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.checkpointer import Checkpointer
from kcl_dagster.worker.holdings import Holding, Holdings
from kcl_dagster.worker.processor import (
    InitializeInput,
    LeaseLostInput,
    ProcessorCheckpointer,
    ProcessRecordsInput,
    Record,
    RecordProcessor,
    ShardEndedInput,
    ShutdownRequestedInput,
)


@dataclass(slots=True)
class _LeaseStore:
    """Writes the checkpoints of one ownership."""

    holdings: Holdings
    key: LeaseKey
    token: int
    batch: int
    children: frozenset[str] = field(default_factory=frozenset)

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        children = self.children if checkpoint.is_shard_end else frozenset[str]()
        self.holdings.checkpoint(self.key, self.token, checkpoint, children)

    def prepare(self, pending: Checkpoint, state: bytes | None) -> None:
        self.holdings.prepare(self.key, self.token, pending, state, self.batch)


class ShardProcess:
    """Calls the processor and keeps its place. Whatever the processor raises goes through."""

    def __init__(
        self, holdings: Holdings, holding: Holding, processor: RecordProcessor, error: type[Exception]
    ) -> None:
        start = holding.lease.checkpoint or TRIM_HORIZON
        self.token = holding.token
        self.position = start
        """Everything through here was delivered."""

        self._shard_id = holding.lease.shard_id
        self._start = start
        self._processor = processor
        self._store = _LeaseStore(holdings, holding.key, holding.token, holding.lease.batch)
        self._places = Checkpointer(self._store, last=start, largest=start)
        self._checkpointer = ProcessorCheckpointer(self._places, error)
        self._at_end = False

    def initialize(self) -> None:
        start = self._start
        self._processor.initialize(InitializeInput(self._shard_id, start.sequence, start.sub_sequence))

    def process(self, records: Sequence[Record], millis_behind: int | None) -> None:
        """Deliver records in order. They may be checkpointed from within the call."""
        last = records[-1]
        self._places.delivered(Checkpoint(last.sequence_number, last.sub_sequence_number))
        self._processor.process_records(ProcessRecordsInput(records, millis_behind, self._checkpointer))

    def end(self, children: frozenset[str]) -> None:
        """The shard is finished. Raises BatchError when the processor does not say so too: it is asked again."""
        self._store.children = children
        if not self._at_end:
            self._at_end = True
            self._places.end_of_shard()
        self._processor.shard_ended(ShardEndedInput(self._checkpointer))
        if self._places.last != SHARD_END:
            raise BatchError(f"the processor of {self._shard_id} did not checkpoint at the end of its shard")

    def lose(self) -> None:
        self._processor.lease_lost(LeaseLostInput())

    def shut_down(self) -> None:
        self._processor.shutdown_requested(ShutdownRequestedInput(self._checkpointer))
