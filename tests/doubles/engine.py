"""An engine without Spark: the same readers, de-aggregation and rules, records kept in memory."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kcl_dagster.aws import Client
from kcl_dagster.errors import KclError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Runtime
from kcl_dagster.streams.pacing import Allowance, ReadDeadline, ShardLimits
from kcl_dagster.streams.polling import Bookmark, ShardReader
from kcl_dagster.streams.position import Bounds
from kcl_dagster.streams.records import millis
from kcl_dagster.streams.unpacking import Columns, Unpacker
from kcl_dagster.streams.window import WindowReader
from kcl_dagster.worker.batch import Budget, MinuteRecords, PoisonRecord, Progress, Range

# As the Spark engine: an iterator that is about to expire would cost a wasted call.
BOOKMARK_SECONDS: Final = 240.0


@dataclass(frozen=True, slots=True)
class Row:
    """One user record and the lease it was read under."""

    lease: LeaseKey
    sequence_number: str
    sub_sequence_number: int
    partition_key: str
    data: bytes


@dataclass(slots=True)
class MemoryFetch:
    """What was read. Never changes, so it needs no guard."""

    progress: Mapping[LeaseKey, Progress]
    failures: Mapping[LeaseKey, Exception]
    columns: Mapping[LeaseKey, Columns]
    is_released: bool = field(default=False)

    def data(self, leases: Collection[LeaseKey]) -> list[Row]:
        if self.is_released:
            raise AssertionError("a fetch was used after its release")
        return [row for lease in leases for row in self._rows(lease)]

    def midpoint(self, lease: LeaseKey) -> Checkpoint | None:
        rows = self._rows(lease)
        if len(rows) < 2:
            return None
        last = rows[len(rows) // 2 - 1]
        return Checkpoint(last.sequence_number, last.sub_sequence_number)

    def records(self, lease: LeaseKey) -> Sequence[PoisonRecord]:
        found = self.columns[lease]
        return [
            PoisonRecord(
                data=found.data[i],
                partition_key=found.partition_key[i],
                sequence_number=found.sequence_number[i],
                sub_sequence_number=found.sub_sequence_number[i],
                explicit_hash_key=found.explicit_hash_key[i],
                arrival_ms=millis(found.arrival[i]),
            )
            for i in range(len(found))
        ]

    def release(self) -> None:
        if self.is_released:
            raise AssertionError("a fetch was released twice")
        self.is_released = True

    def _rows(self, lease: LeaseKey) -> list[Row]:
        found = self.columns[lease]
        return [
            Row(
                lease, found.sequence_number[i], found.sub_sequence_number[i], found.partition_key[i], found.data[i]
            )
            for i in range(len(found))
        ]


@dataclass(frozen=True, slots=True)
class _Left:
    after: Checkpoint
    bookmark: Bookmark
    at: float


class MemoryEngine:
    """Implements `worker.batch.Engine`. Reads one shard after another, on the caller's thread."""

    def __init__(
        self, client: Client, runtime: Runtime, *, limits: ShardLimits | None = None, opens_aggregates: bool = True
    ) -> None:
        self._client = client
        self._runtime = runtime
        self._limits = limits or ShardLimits()
        self._opens_aggregates = opens_aggregates
        self._left: dict[LeaseKey, _Left] = {}

    def fetch(self, ranges: Sequence[Range], budget: Budget) -> MemoryFetch:
        """See `worker.batch.Engine.fetch`."""
        allowance = Allowance(budget.records, budget.bytes, len(ranges))
        deadline = ReadDeadline(self._runtime.clock.monotonic() + budget.seconds, self._runtime.clock)
        progress: dict[LeaseKey, Progress] = {}
        failures: dict[LeaseKey, Exception] = {}
        columns: dict[LeaseKey, Columns] = {}
        for range_ in ranges:
            try:
                progress[range_.lease], columns[range_.lease] = self._read(range_, allowance, deadline)
            except KclError as error:
                failures[range_.lease] = error
        return MemoryFetch(progress, failures, columns)

    def prefetch(self, ranges: Sequence[Range], budget: Budget) -> None:
        """Does nothing, which the protocol must bear as well."""

    def _read(self, range_: Range, allowance: Allowance, deadline: ReadDeadline) -> tuple[Progress, Columns]:
        bounds = Bounds(range_.after, range_.through, range_.first, range_.timestamp_ms)
        unpacker = Unpacker(bounds, range_.hash_range, opens_aggregates=self._opens_aggregates)
        reader = self._reader(range_, bounds)
        columns = Columns()
        opening = range_.window.opening() if range_.window is not None else allowance
        for page in reader.pages(allowance, deadline):
            if not unpacker.unpack_from(reader, page, columns, opening):
                break
        self._remember(range_, reader.bookmark, unpacker.through or range_.after)
        return _progress(range_, reader, unpacker), columns

    def _reader(self, range_: Range, bounds: Bounds) -> ShardReader | WindowReader:
        name, shard, runtime, limits = range_.stream.name, range_.shard_id, self._runtime, self._limits
        if range_.window is not None:
            return WindowReader(self._client, name, shard, bounds, range_.window, runtime=runtime, limits=limits)
        bookmark = self._bookmark(range_)
        return ShardReader(
            self._client,
            name,
            shard,
            bounds,
            runtime=runtime,
            limits=limits,
            bookmark=bookmark,
        )

    def _bookmark(self, range_: Range) -> Bookmark | None:
        """The iterator that stands at the beginning of this range, if the last fetch ended there."""
        left = self._left.get(range_.lease)
        if left is None or range_.is_pinned or left.after != range_.after or range_.after.is_initial_position:
            return None
        age = self._runtime.clock.monotonic() - left.at
        return left.bookmark if age <= BOOKMARK_SECONDS else None

    def _remember(self, range_: Range, bookmark: Bookmark | None, after: Checkpoint) -> None:
        # After a pinned range the iterator may stand beyond its end: the last page is cut, not asked for in part.
        if bookmark is not None and not range_.is_pinned:
            self._left[range_.lease] = _Left(after, bookmark, self._runtime.clock.monotonic())
        else:
            self._left.pop(range_.lease, None)


def _progress(range_: Range, reader: ShardReader | WindowReader, unpacker: Unpacker) -> Progress:
    return Progress(
        range=range_,
        through=unpacker.through,
        first=unpacker.first,
        records=unpacker.records,
        bytes=unpacker.bytes,
        millis_behind=reader.millis_behind,
        ended=reader.is_ended,
        children=reader.children,
        gone=reader.is_gone,
        start_trimmed=reader.is_start_trimmed,
        first_arrival_ms=unpacker.first_arrival_ms,
        last_arrival_ms=unpacker.last_arrival_ms,
        minutes=None if unpacker.minutes is None else tuple(MinuteRecords(*one) for one in unpacker.minutes),
        broken_aggregates=unpacker.broken_aggregates,
    )
