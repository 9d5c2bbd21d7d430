"""Record processors: objects that get the records of one shard, with the KCL's life cycle, in the executors.

For processors that exist already: one made for `amazon_kclpy` v3 runs unchanged, given `ProcessorSink` a function
that makes one. Every batch of a shard is a short tenure of its lease: `initialize`, `process_records` as often as
needed, `shutdown_requested`; then the batch is committed, whatever was checkpointed. So a processor that buffers
must flush in `shutdown_requested`, as it must for the KCL, and sees records at least once.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame

from kcl_dagster.errors import SinkError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.failures import write_failures
from kcl_dagster.spark.schema import LEASE_KEY
from kcl_dagster.spark.transform import gathered
from kcl_dagster.worker.batch import Batch, Part

PROCESSED: Final = pa.schema([("lease_key", pa.string()), ("rows", pa.int64())])
PROCESSED_DDL: Final = "lease_key string, rows bigint"


class RecordProcessor(Protocol):
    """The methods that are called, in this order, on one thread. All of `amazon_kclpy.v3.processor`'s are accepted;
    `lease_lost` and `shard_ended` are never called: a lease that is lost is noticed when the batch is committed,
    and the end of a shard is ours to write."""

    def initialize(self, initialize_input: "InitializeInput") -> None: ...

    def process_records(self, process_records_input: "ProcessRecordsInput") -> None: ...

    def shutdown_requested(self, shutdown_requested_input: "ShutdownRequestedInput") -> None: ...


@dataclass(frozen=True, slots=True)
class InitializeInput:
    """The shard, and the checkpoint that the records follow."""

    shard_id: str
    sequence_number: str
    sub_sequence_number: int


class Record:
    """One user record, with the attributes of `amazon_kclpy.messages.Record`."""

    __slots__ = (
        "approximate_arrival_timestamp",
        "binary_data",
        "partition_key",
        "sequence_number",
        "sub_sequence_number",
    )

    def __init__(self, row: Mapping[str, Any]) -> None:
        self.binary_data: bytes = row["data"]
        self.partition_key: str = row["partition_key"]
        self.sequence_number: str = row["sequence_number"]
        self.sub_sequence_number: int = row["sub_sequence_number"]
        self.approximate_arrival_timestamp: datetime | None = row["arrival_timestamp"]

    @property
    def data(self) -> str:
        """The payload in base64, as the KCL sends it."""
        return base64.b64encode(self.binary_data).decode()


class Checkpointer:
    """Accepts checkpoints as the KCL does. They are promises kept at the end of the batch, not writes."""

    def __init__(self, after: Checkpoint) -> None:
        self._delivered = after
        self._last = after

    @property
    def last(self) -> Checkpoint:
        """The furthest checkpoint that was asked for."""
        return self._last

    def delivered(self, record: Record) -> None:
        self._delivered = Checkpoint(record.sequence_number, record.sub_sequence_number)

    def checkpoint(self, sequence_number: str | None = None, sub_sequence_number: int | None = None) -> None:
        """Raises ValueError for a place that has not been delivered, or lies before the last checkpoint."""
        place = self._delivered
        if sequence_number is not None:
            place = Checkpoint(str(sequence_number), int(sub_sequence_number or 0))
        if not self._last <= place <= self._delivered:
            msg = f"checkpoint {place} is not between the last one, {self._last}, and {self._delivered}"
            raise ValueError(msg)
        self._last = place


@dataclass(frozen=True, slots=True)
class ProcessRecordsInput:
    """Some records of the shard, in order. How far behind the stream is, is not known in the executors: 0."""

    records: list[Record]
    checkpointer: Checkpointer
    millis_behind_latest: int = 0


@dataclass(frozen=True, slots=True)
class ShutdownRequestedInput:
    """The last chance to flush and checkpoint."""

    checkpointer: Checkpointer


class ProcessorSink:
    """Runs one record processor for each shard of a batch, in the executors.

    `make_processor` is sent to the executors by name or by value, so it may not hold open connections itself.
    """

    def __init__(self, make_processor: Callable[[], RecordProcessor]) -> None:
        self._make_processor = make_processor

    def write(self, data: DataFrame, batch: Batch) -> None:
        """See `worker.batch.Sink.write`. What a processor raises fails the batch, as user code."""
        name = getattr(self._make_processor, "__name__", type(self._make_processor).__name__)
        task = _Process(self._make_processor, {part.lease: part for part in batch.parts})
        with write_failures(name):
            rows = gathered([data], data).mapInArrow(task, PROCESSED_DDL).collect()
        processed: dict[LeaseKey, int] = {row.lease_key: row.rows for row in rows}
        for part in batch.parts:
            if processed.get(part.lease, 0) != part.records:
                raise SinkError(
                    f"{name} got {processed.get(part.lease, 0)} of {part.records} records of {part.lease}"
                )


@dataclass(frozen=True, slots=True)
class _Process:
    """What `mapInArrow` runs, with the rows of a lease in one partition and in order."""

    make_processor: Callable[[], RecordProcessor]
    parts: Mapping[LeaseKey, Part]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tenures: dict[LeaseKey, _Tenure] = {}
        for batch in batches:
            for lease, records in _by_lease(batch):
                if lease not in tenures:
                    tenures[lease] = _Tenure(self.make_processor(), self.parts[lease])
                tenures[lease].process(records)
        for tenure in tenures.values():
            tenure.end()
        yield pa.RecordBatch.from_pylist(
            [{"lease_key": lease, "rows": tenure.rows} for lease, tenure in tenures.items()], schema=PROCESSED
        )


class _Tenure:
    """One processor and its part of the batch."""

    def __init__(self, processor: RecordProcessor, part: Part) -> None:
        self.rows = 0
        self._processor = processor
        self._checkpointer = Checkpointer(part.after)
        processor.initialize(InitializeInput(part.shard_id, part.after.sequence, part.after.sub_sequence))

    def process(self, records: list[Record]) -> None:
        self.rows += len(records)
        self._checkpointer.delivered(records[-1])
        self._processor.process_records(ProcessRecordsInput(records, self._checkpointer))

    def end(self) -> None:
        self._processor.shutdown_requested(ShutdownRequestedInput(self._checkpointer))


def _by_lease(batch: pa.RecordBatch) -> Iterator[tuple[LeaseKey, list[Record]]]:
    found: dict[LeaseKey, list[Record]] = {}
    for row in batch.to_pylist():
        found.setdefault(row[LEASE_KEY], []).append(Record(row))
    yield from found.items()
