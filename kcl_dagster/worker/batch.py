"""A batch: the ranges that one worker processes together, and what it asks of the engine and the sink.

The protocol around these values (plan, fetch, prepare, write, commit) is `kcl_dagster.worker.protocol`.
Everything here is a value or a promise; nothing reads a stream or a table.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.shard import ChildShard, HashRange
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.streams.window import Window

D = TypeVar("D")
D_co = TypeVar("D_co", covariant=True)
D_contra = TypeVar("D_contra", contravariant=True)
R = TypeVar("R", bound="Read")
R_co = TypeVar("R_co", bound="Read", covariant=True)


@dataclass(frozen=True, slots=True)
class Range:
    """The records of one shard that a batch reads: those strictly after `after`, as (sequence, sub-sequence).

    Open (`through` is None): as far as the budget and the shard's tip allow.
    Pinned (`through` is a record): exactly through that record, whatever the budget says, because these records
    may already have been written under `number`. A pinned range that cannot be read to its end is a failure.

    Where to begin: at the record `first` when it is known (a pinned range names the record it began with, so that
    neither LATEST nor a moved trim horizon changes it), else after the record `after`, or when that is an initial
    position, at `timestamp_ms` if it is known (LATEST and AT_TIMESTAMP are resolved once per stream), else there.
    """

    lease: LeaseKey
    stream: StreamIdentifier
    shard_id: str
    after: Checkpoint
    number: int
    """The batch number under which this range is written. It grows by one with each batch of the lease, over all
    its owners. The first one is above all numbers of former leases of the shard."""

    through: Checkpoint | None = None
    first: str | None = None
    timestamp_ms: int | None = None
    hash_range: HashRange | None = None
    """The hash keys of the shard. Aggregated records outside this range belong to another shard."""

    window: Window | None = None
    """The window of a replay: the range is open, and ends where the window determines, not the budget.
    `Progress.ended` then means that the window has no more records in this shard."""

    instead_of: int | None = None
    """If the range was narrowed because it kept failing: the number of the whole range, which must not be stored
    any more."""

    losses: int = 0
    """Owners of the lease whose process ended while they wrote the pinned batch with the code of this worker, where
    another owner has pinned it; or while a record processor had the next records. See `Pin`."""

    @property
    def is_pinned(self) -> bool:
        return self.through is not None


@dataclass(frozen=True, slots=True)
class Budget:
    """When a fetch stops reading open ranges: whichever comes first. For the whole batch, not for each shard.

    `records` and `bytes` count user records with their keys, and are not exceeded by open ranges, except by a first
    record that is larger. When there is not room for all ranges, they are served in the order in which they are
    asked for.
    """

    records: int
    bytes: int
    seconds: float
    linger: float | None = None
    """Seconds after the first records at which a batch of shards near their tips is closed; None: when `seconds`
    are over."""

    def beside(self, records: int, bytes_: int, missing: int, ranges: int) -> "Budget":
        """What is left beside a fetch that holds so much, for the `missing` ones of so many ranges: the rest, and
        no less than their part, or a fetch that always holds everything would keep them from being read."""
        part = missing / ranges
        return Budget(
            max(1, self.records - records, int(self.records * part)),
            max(1, self.bytes - bytes_, int(self.bytes * part)),
            self.seconds,
            self.linger,
        )


NEAR_TIP_MS: Final = 1000


def is_near_tip(millis_behind: int | None) -> bool:
    """Whether a shard was read so far that `Budget.linger` applies."""
    return millis_behind is not None and millis_behind < NEAR_TIP_MS


@dataclass(frozen=True, slots=True)
class MinuteRecords:
    """User records of a range that arrived in one minute. `minute`: its start, epoch seconds. `first` and `last`:
    sequence numbers."""

    minute: int
    records: int
    bytes: int
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class Progress:
    """What a fetch found in one range.

    `through` is the last record read, user records or not (an aggregate may hold none for this shard); None when
    there was none. `records` and `bytes` count user records after de-aggregation, payload only.
    """

    range: Range
    through: Checkpoint | None = None
    first: str | None = None
    """Sequence number of the first record read."""

    records: int = 0
    bytes: int = 0
    millis_behind: int | None = None
    """How far behind the tip the range ends, as the stream says; None when it did not say."""

    ended: bool = False
    """The shard is closed and has no record after this range."""

    children: tuple[ChildShard, ...] = ()
    """As the shard's last answer named them; only with `ended`."""

    gone: bool = False
    """The stream no longer has the shard. Implies `ended`; whatever was not read is lost."""

    start_trimmed: bool = False
    """The record at `range.after` is no longer in the stream, so records after it may have been lost."""

    first_arrival_ms: int | None = None
    """When the first record read arrived at the stream, epoch milliseconds."""

    last_arrival_ms: int | None = None

    read_since: float | None = None
    """When reading began, monotonic, if that was before `fetch` was called."""

    minutes: tuple[MinuteRecords, ...] | None = None
    """The user records by the minute in which they arrived, oldest first; None: they were not counted so."""

    broken_aggregates: int = 0
    """Aggregates whose body could not be parsed; each was kept as the raw record it came in."""

    @property
    def is_answered(self) -> bool:
        """Whether the shard was read at all: the batch may have had no room for it."""
        return self.through is not None or self.millis_behind is not None or self.ended


@dataclass(frozen=True, slots=True)
class PoisonRecord:
    """A user record as it was read, with everything needed to process it again elsewhere."""

    data: bytes
    partition_key: str
    sequence_number: str
    sub_sequence_number: int
    explicit_hash_key: str | None = None
    arrival_ms: int | None = None


class Read(Protocol):
    """What came of reading ranges, wherever the records are now."""

    @property
    def progress(self) -> Mapping[LeaseKey, Progress]:
        """Of each range that was read. A range that is missing here is in `failures`."""

    @property
    def failures(self) -> Mapping[LeaseKey, Exception]:
        """Ranges that could not be read this time; they take no part in the batch."""

    def release(self) -> None:
        """Free what the fetch holds. Called exactly once, whatever happened to the batch."""


class Fetched(Read, Protocol[D_co]):
    """The frozen records of a fetch. Driver side; used on the thread that called `fetch`."""

    def data(self, leases: Collection[LeaseKey]) -> D_co:
        """The records of these leases and of no other. The same records at every call and every evaluation:
        an engine that cannot promise it any more makes the evaluation fail with BatchContentChanged."""

    def midpoint(self, lease: LeaseKey) -> Checkpoint | None:
        """The last record of the first half of the lease's records. None if there is only one record. Called if a
        batch keeps failing."""

    def records(self, lease: LeaseKey) -> Sequence[PoisonRecord]:
        """The lease's records, on the driver. Called for a range that was narrowed to the record that fails."""


class Reader(Protocol[R_co]):
    """Reads ranges. For the protocol it is stateless: all progress is in the leases."""

    def fetch(self, ranges: Sequence[Range], budget: Budget) -> R_co:
        """Read the ranges and say how far it went. Blocks for `budget.seconds` at most, pinned ranges apart, and
        what a shard asks to be left alone for first. Reads nothing else. A failure that concerns one shard is
        reported in `failures`; raises only when nothing could be read at all."""

    def prefetch(self, ranges: Sequence[Range], budget: Budget) -> None:
        """A hint that the next `fetch` will probably request these ranges. May do nothing. Never blocks. A result
        is used only if the next `fetch` requests an equal range; otherwise it is discarded."""


class Engine(Reader[Fetched[D_co]], Protocol[D_co]):
    """Reads ranges and freezes what was read, for batches that sinks store."""


@dataclass(frozen=True, slots=True)
class Part:
    """The identity of what one batch writes for one shard. Every repetition in any process has an equal part.

    `number` is also the fencing token: it never falls over the life of a shard, even if the owner changes. So if a
    sink stores the highest number of each (application, stream, shard), it can refuse any lower number.
    """

    application: str
    lease: LeaseKey
    stream: StreamIdentifier
    shard_id: str
    after: Checkpoint
    through: Checkpoint
    number: int
    records: int = field(compare=False)
    bytes: int = field(compare=False)
    instead_of: int | None = field(default=None, compare=False)
    """If the part is a piece of a part that kept failing: the number of that part. A stalled former owner may still
    try to store the whole part."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch that a sink writes. `worker` is for logs and lineage, and not part of the identity.

    Example:
        .. code-block:: python

            def store(rows: DataFrame, batch: kcl.Batch) -> None:
                for part in batch.parts:
                    rows.where(rows.lease_key == part.lease).write.parquet(f"/lake/{part.lease}.{part.number}")
    """

    application: str
    worker: WorkerId
    parts: tuple[Part, ...]
    time_column: str | None = None
    """The column of the output by which rows are counted. None: they are not."""

    @property
    def records(self) -> int:
        return sum(part.records for part in self.parts)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


class Sink(Protocol[D_contra]):
    """Stores batches. Called on the worker's main thread, one batch at a time."""

    def write(self, data: D_contra, batch: Batch) -> None:
        """Store the batch, all of it, durably, before returning. Never called with an empty batch.

        The same parts may come again, alone or together with other parts: after a crash, from the next owner, or
        from a stalled former owner while the next owner works. The records of a part are then the same. An
        exactly-once sink therefore keys its output by part, and stores each part once.

        Raises SinkError if storing failed. Any other error counts as a failure of user code.
        """


@dataclass(frozen=True, slots=True)
class MinuteRows:
    """Rows of a file whose time is in one minute, and whose records arrived in another. Both are epoch seconds, the
    start of the minute. `arrived` is None where the output does not say when its records arrived."""

    minute: int
    arrived: int | None
    rows: int


@dataclass(frozen=True, slots=True)
class FileCounts:
    """What a sink stored of a part in one file. `minutes` leaves out rows without a time, whose number is
    `timeless`. `files`: 0 if the file holds rows of several parts and is counted with another one."""

    bytes: int
    minutes: tuple[MinuteRows, ...]
    timeless: int = 0
    files: int = 1


@dataclass(frozen=True, slots=True)
class PartCounts:
    """What a sink stored of one part. `files` is None where the minutes of the rows are not known: the output has
    no column of times, or the part was stored by an earlier attempt. `size`: then the bytes of its files, 0 where
    that is not known, and their `number`, which leaves out files that are counted with another part. `rows`: then
    all rows of the part; None where they are the records as they were read."""

    files: tuple[FileCounts, ...] | None
    size: int = 0
    number: int = 0
    rows: int | None = None
