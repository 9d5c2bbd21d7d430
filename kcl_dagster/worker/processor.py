"""Record processors with the KCL's life cycle. Processors written for `amazon_kclpy` (version 3) run unchanged.

    initialize           once, before the first record
    process_records      repeatedly, in order
    lease_lost           another worker has the shard now; no checkpoint is possible any more
    shard_ended          the shard is finished; the processor must checkpoint
    shutdown_requested   the shard is given away or the worker stops; the last chance to checkpoint

A processor is any object with these methods; it need not be derived from a class of this package. Attributes and
their types are those of `amazon_kclpy`, including unusual ones: arrival times are naive local times.
"""

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from kcl_dagster.errors import LeaseLost, TableNotFound, Throttled
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.worker.batch import PoisonRecord

MIDNIGHT_1970 = 0.0  # the arrival time of a record that has none; records of real streams always have one


class CheckpointError(Exception):
    """Raised if a checkpoint was refused. `value` is the name of the KCL's exception:

    ShutdownException (the lease is lost), ThrottlingException (try again), InvalidStateException (no table),
    IllegalArgumentException (beyond what was delivered, or going back), KinesisClientLibDependencyException.
    """

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, slots=True)
class Record:
    """One user record."""

    binary_data: bytes
    partition_key: str
    sequence_number: str
    sub_sequence_number: int
    timestamp_millis: int
    explicit_hash_key: str | None = None
    """Set for an aggregated record that has an explicit hash key. The KCL's record has no such field."""

    @property
    def data(self) -> str:
        return b64encode(self.binary_data).decode()

    @property
    def approximate_arrival_timestamp(self) -> datetime:
        return datetime.fromtimestamp(self.timestamp_millis / 1000)  # noqa: DTZ006 (as amazon_kclpy gives it)

    def get(self, field: str) -> Any:
        """Return the field with this name. The names are those of the MultiLangDaemon protocol between the KCL and
        its Python processes. Raises KeyError for another name."""
        match field:
            case "data":
                return self.data
            case "partitionKey":
                return self.partition_key
            case "sequenceNumber":
                return self.sequence_number
            case "subSequenceNumber":
                return self.sub_sequence_number
            case "approximateArrivalTimestamp":
                return self.timestamp_millis
        raise KeyError(field)

    def __getitem__(self, field: str) -> Any:
        return self.get(field)


def record_of(record: PoisonRecord) -> Record:
    return Record(
        binary_data=record.data,
        partition_key=record.partition_key,
        sequence_number=record.sequence_number,
        sub_sequence_number=record.sub_sequence_number,
        timestamp_millis=record.arrival_ms or int(MIDNIGHT_1970),
        explicit_hash_key=record.explicit_hash_key,
    )


def poison_of(record: Record) -> PoisonRecord:
    return PoisonRecord(
        data=record.binary_data,
        partition_key=record.partition_key,
        sequence_number=record.sequence_number,
        sub_sequence_number=record.sub_sequence_number,
        explicit_hash_key=record.explicit_hash_key,
        arrival_ms=record.timestamp_millis or None,
    )


WriteCheckpoint = Callable[[Checkpoint | None], str | None]
"""Writes a checkpoint at the given record; if the argument is None, after all delivered records. Returns None if
the checkpoint is written. Otherwise returns the KCL's name for the reason of the refusal."""


class ProcessorCheckpointer:
    """The object with which processors checkpoint."""

    def __init__(self, write: WriteCheckpoint, error: type[Exception] = CheckpointError) -> None:
        self._write = write
        self._error = error

    def checkpoint(self, sequence_number: str | None = None, sub_sequence_number: int | None = None) -> None:
        """Checkpoint at this record, or without arguments after all delivered records. Blocks for one write. Raises
        CheckpointError."""
        at = None
        if sequence_number is not None:
            try:
                at = Checkpoint(str(sequence_number), sub_sequence_number or 0)
            except ValueError as error:
                raise self._error("IllegalArgumentException") from error
        refused = self._write(at)
        if refused is not None:
            raise self._error(refused)


def name_in_the_kcl(error: Exception) -> str:
    """The name of the KCL's exception for an error that made a checkpoint fail."""
    match error:
        case LeaseLost():
            return "ShutdownException"
        case Throttled():
            return "ThrottlingException"
        case TableNotFound():
            return "InvalidStateException"
        case ValueError():
            return "IllegalArgumentException"
    return "KinesisClientLibDependencyException"


@dataclass(frozen=True, slots=True)
class InitializeInput:
    """`sequence_number`: the checkpoint. It can be a sentinel such as TRIM_HORIZON."""

    shard_id: str
    sequence_number: str
    sub_sequence_number: int
    action: str = "initialize"


@dataclass(frozen=True, slots=True)
class ProcessRecordsInput:
    records: Sequence[Record]
    millis_behind_latest: int | None
    checkpointer: ProcessorCheckpointer
    action: str = "processRecords"


@dataclass(frozen=True, slots=True)
class LeaseLostInput:
    action: str = "leaseLost"


@dataclass(frozen=True, slots=True)
class ShardEndedInput:
    checkpointer: ProcessorCheckpointer
    action: str = "shardEnded"


@dataclass(frozen=True, slots=True)
class ShutdownRequestedInput:
    checkpointer: ProcessorCheckpointer
    action: str = "shutdownRequested"


class RecordProcessor(Protocol):
    """A record processor. There is one instance per shard and ownership. All calls are made on one thread, one
    after another.

    An exception from `process_records` counts as a failure of the batch. A new instance then begins at the last
    checkpoint. This is repeated until the application's failure policy decides otherwise. (The KCL logs the
    exception and continues with the next records.)
    """

    def initialize(self, initialize_input: InitializeInput) -> None: ...

    def process_records(self, process_records_input: ProcessRecordsInput) -> None: ...

    def lease_lost(self, lease_lost_input: LeaseLostInput) -> None: ...

    def shard_ended(self, shard_ended_input: ShardEndedInput) -> None: ...

    def shutdown_requested(self, shutdown_requested_input: ShutdownRequestedInput) -> None: ...


ProcessorFactory = Callable[[], RecordProcessor]


class RecordProcessorBase:
    """A base class for processors that do not need every method."""

    version = 3

    def initialize(self, initialize_input: InitializeInput) -> None:
        """Called before the first record."""

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Called with the next records, at least one."""
        raise NotImplementedError

    def lease_lost(self, lease_lost_input: LeaseLostInput) -> None:
        """Called when no checkpoint is possible any more."""

    def shard_ended(self, shard_ended_input: ShardEndedInput) -> None:
        """Called after all records were delivered. The checkpoint confirms that the processor has finished."""
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input: ShutdownRequestedInput) -> None:
        """Called as the last chance to checkpoint."""
        shutdown_requested_input.checkpointer.checkpoint()
