"""What a batch spends on a record: CPU and memory, for what it takes in and what it may give out."""

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.shard import HashRange
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.spark.fetch import record_batches
from kcl_dagster.streams.cutting import RangeCut
from kcl_dagster.streams.deaggregation import deaggregate
from kcl_dagster.streams.pacing import Allowance
from kcl_dagster.streams.position import Bounds
from kcl_dagster.streams.records import StreamRecord
from kcl_dagster.streams.unpacking import Columns, Unpacker
from kcl_dagster.worker.batch import Range
from tests.doubles.aggregation import UserRecord, aggregate

# The budget of the batches that are measured.
ROWS: Final = 5_000
BYTES: Final = 1024 * 1024
SHARD: Final = "shardId-000000000000"
RANGE: Final = Range(LeaseKey(SHARD), StreamIdentifier("s"), SHARD, TRIM_HORIZON, 1)
HALF: Final = HashRange(0, 2**127 - 1)


@dataclass(frozen=True)
class Cost:
    """Of one batch that begins with a record."""

    bytes_in: int
    rows: int
    cpu_seconds: float
    peak_bytes: int = 0


@dataclass(frozen=True)
class Scale:
    """What honest input costs on this machine, at this moment: all else is said in multiples of it."""

    full_batch: Cost
    """Of a batch whose budget is used up by records without aggregates."""

    byte_seconds: float
    """CPU that each byte of an honest aggregate takes to be looked at, where nothing of it has room."""

    def cpu(self, cost: Cost) -> float:
        """How many times the CPU that the bytes of a record should take was spent, beside that of a full batch."""
        return max(0.0, cost.cpu_seconds - self.full_batch.cpu_seconds) / (self.byte_seconds * cost.bytes_in)

    def memory(self, cost: Cost) -> float:
        """How many bytes there were at once for each byte of the record, beside those of a full batch."""
        return max(0, cost.peak_bytes - self.full_batch.peak_bytes) / cost.bytes_in


def scale(size: int) -> Scale:
    rows = [_record(str(number), b"x" * (BYTES // ROWS - 20)) for number in range(1, ROWS + 1)]
    users = [UserRecord(f"{number % 100:06d}", b"12345678") for number in range(size // 14)]
    body = aggregate(users)
    looked_at = min(_seconds(lambda: deaggregate(body, first=len(users))) for _ in range(5))
    return Scale(_cost(rows, memory=True), looked_at / len(body))


def cost_of(data: bytes, *, memory: bool = False) -> Cost:
    """Read it as the first batch does: claim, open, make Arrow batches."""
    return _cost([_record("1", data)], memory=memory)


def _cost(page: list[StreamRecord], *, memory: bool) -> Cost:
    """`memory` is measured in a pass of its own, as that slows everything down. Arrow's memory is not Python's; of
    that, one batch lives at a time."""
    rows = _read(page)
    spent = min(_seconds(lambda: _read(page)) for _ in range(2))
    peak = 0
    if memory:
        tracemalloc.start()
        try:
            _read(page)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    return Cost(sum(len(record["Data"]) for record in page), rows, spent, peak)


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _read(page: list[StreamRecord]) -> int:
    bounds, allowance, columns = Bounds(TRIM_HORIZON), Allowance(ROWS, BYTES, 1), Columns()
    claimed = RangeCut(bounds, SHARD, goes_on=False).claim(page, allowance)
    Unpacker(bounds, HALF).unpack(claimed, columns, allowance)
    for batch in record_batches(RANGE, columns):
        del batch
    return len(columns)


def _record(sequence: str, data: bytes) -> StreamRecord:
    return {"SequenceNumber": sequence, "Data": data, "PartitionKey": "k", "ApproximateArrivalTimestamp": 1.0}
