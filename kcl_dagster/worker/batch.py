"""A batch: the ranges that one worker processes together, and the interfaces of the engine and the sink.

The protocol that uses them (plan, fetch, prepare, write, commit) is `kcl_dagster.worker.protocol`. This module has
only values and interfaces; nothing in it reads a stream or a table.
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
    """The records of one shard that a batch reads. They follow the checkpoint `after`.

    - An open range (`through` is None) extends as far as the budget and the shard's tip allow.
    - A pinned range (`through` is a record) extends exactly through that record, whatever the budget is, because
      these records may already have been written under `number`. If the range cannot be read to its end, reading
      fails.

    Where reading begins:

    - If `first` is set, at this record. A pinned range has `first`, so that neither LATEST nor a moved trim horizon
      changes its beginning.
    - Otherwise, if `after` is a record, after this record.
    - Otherwise, `after` is an initial position. Reading begins at `timestamp_ms`, the time to which LATEST or
      AT_TIMESTAMP was resolved once for the stream. If that time is not known, reading begins at the initial
      position itself.
    """

    lease: LeaseKey
    stream: StreamIdentifier
    shard_id: str
    after: Checkpoint
    number: int
    """The batch number under which this range is written. The number grows by one with each batch of the lease,
    also if the owner changes. The first number is higher than all numbers of former leases of the shard."""

    through: Checkpoint | None = None
    first: str | None = None
    timestamp_ms: int | None = None
    hash_range: HashRange | None = None
    """The hash keys of the shard. Aggregated records outside this range belong to another shard."""

    window: Window | None = None
    """The window of a replay; None outside of replays. A range with a window is open, and the window determines its
    end instead of the budget. `Progress.ended` then means that the shard has no more records in the window."""

    instead_of: int | None = None
    """If this range is a piece of a larger range that kept failing: the number of the larger range. The larger
    range must not be stored any more."""

    losses: int = 0
    """How many owners of the lease ended while they worked on the lease's next records. They ended while they wrote
    the pinned batch, or while a record processor had the records. Owners with another version of the consumer's
    code are not counted. See `Pin`."""

    @property
    def is_pinned(self) -> bool:
        return self.through is not None


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of a fetch. When the first of them is reached, the fetch stops reading its open ranges. It reads
    pinned ranges to their ends in any case; see `Range`. The limits apply to the whole batch, and not to each
    shard.

    `records` is a number of user records, and `bytes` the size of their payloads and keys. Open ranges exceed
    `bytes` only if the first record alone is larger. If the limits leave no room for some of the open ranges, those
    that were requested first are read first.
    """

    records: int
    bytes: int
    seconds: float
    linger: float | None = None
    """If all shards of the batch are near their tips, the batch is closed this many seconds after its first
    records. None: the batch is closed after `seconds`."""

    def beside(self, records: int, bytes_: int, missing: int, ranges: int) -> "Budget":
        """Return the budget for the ranges of a batch that were not read ahead. `ranges`: the number of ranges in
        the batch. `missing`: how many of them were not read ahead. `records` and `bytes_`: the size of what was
        read ahead. The result is the unused part of this budget, but at least the fraction `missing / ranges` of
        it. Without this minimum, ranges that are read ahead and always use the whole budget would prevent the
        missing ranges from being read."""
        part = missing / ranges
        return Budget(
            max(1, self.records - records, int(self.records * part)),
            max(1, self.bytes - bytes_, int(self.bytes * part)),
            self.seconds,
            self.linger,
        )


NEAR_TIP_MS: Final = 1000


def is_near_tip(millis_behind: int | None) -> bool:
    """Whether a shard was read so close to its tip that `Budget.linger` applies."""
    return millis_behind is not None and millis_behind < NEAR_TIP_MS


@dataclass(frozen=True, slots=True)
class MinuteRecords:
    """The user records of a range that arrived in one minute. `minute`: its start, in epoch seconds. `first` and
    `last`: sequence numbers."""

    minute: int
    records: int
    bytes: int
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class Progress:
    """The result of a fetch for one range.

    `through`: the last record that was read, which can be an aggregate without user records of this shard; None if
    no record was read. `records`: the number of user records after de-aggregation. `bytes`: the size of their
    payloads, without keys.
    """

    range: Range
    through: Checkpoint | None = None
    first: str | None = None
    """The sequence number of the first record that was read."""

    records: int = 0
    bytes: int = 0
    millis_behind: int | None = None
    """How far the end of the range is behind the tip, as the stream reported; None if the stream did not report
    it."""

    ended: bool = False
    """Whether the shard is closed and has no record after this range."""

    children: tuple[ChildShard, ...] = ()
    """The children named in the shard's last response; only with `ended`."""

    gone: bool = False
    """Whether the shard is no longer in the stream. Implies `ended`; records that were not read are lost."""

    start_trimmed: bool = False
    """Whether the record at `range.after` is no longer in the stream. Later records may then have been lost as
    well."""

    first_arrival_ms: int | None = None
    """When the first record that was read arrived in the stream, in epoch milliseconds."""

    last_arrival_ms: int | None = None

    read_since: float | None = None
    """When reading began (monotonic), if that was before the call of `fetch`."""

    minutes: tuple[MinuteRecords, ...] | None = None
    """The user records by the minute of their arrival, oldest first; None if they were not counted by minute."""

    broken_aggregates: int = 0
    """The number of aggregates that could not be parsed; each is kept as the raw record."""

    @property
    def is_answered(self) -> bool:
        """Whether the shard was read at all. It was not read if the budget was used up by other shards."""
        return self.through is not None or self.millis_behind is not None or self.ended


@dataclass(frozen=True, slots=True)
class PoisonRecord:
    """A user record as it was read, with all data that is needed to process it again elsewhere."""

    data: bytes
    partition_key: str
    sequence_number: str
    sub_sequence_number: int
    explicit_hash_key: str | None = None
    arrival_ms: int | None = None


class Read(Protocol):
    """The result of reading ranges. The implementation decides where the records are kept."""

    @property
    def progress(self) -> Mapping[LeaseKey, Progress]:
        """The progress of each range that was read. All other ranges are in `failures`."""

    @property
    def failures(self) -> Mapping[LeaseKey, Exception]:
        """The errors of ranges that could not be read. These ranges are not part of the batch."""

    def release(self) -> None:
        """Free the resources of the fetch. Called exactly once, whether the batch succeeded or not."""


class Fetched(Read, Protocol[D_co]):
    """The records of a fetch, which do not change any more. Used in the driver, on the thread that called
    `fetch`."""

    def data(self, leases: Collection[LeaseKey]) -> D_co:
        """The records of these leases. Every call and every evaluation gives the same records. If the engine can no
        longer ensure this, the evaluation fails with BatchContentChanged."""

    def midpoint(self, lease: LeaseKey) -> Checkpoint | None:
        """The last record of the first half of the lease's records. None if there is only one record. Called if a
        batch keeps failing."""

    def records(self, lease: LeaseKey) -> Sequence[PoisonRecord]:
        """The lease's records, on the driver. Called for a range that was narrowed to the record that fails."""


class Reader(Protocol[R_co]):
    """Reads ranges. The protocol treats it as stateless: all progress is in the leases."""

    def fetch(self, ranges: Sequence[Range], budget: Budget) -> R_co:
        """Read the ranges. Blocks for about `budget.seconds`. In two cases, the call blocks for longer: pinned
        ranges are not read to their ends by then, or the service does not allow a shard to be read yet. If one
        shard fails, its error is in `failures`. Raises only if no range could be read."""

    def prefetch(self, ranges: Sequence[Range], budget: Budget) -> None:
        """Announce that the next `fetch` will probably request these ranges. An implementation is allowed to do
        nothing. Never blocks. What was read ahead is used only if the next `fetch` requests an equal range. If not,
        it is discarded."""


class Engine(Reader[Fetched[D_co]], Protocol[D_co]):
    """Reads ranges, and keeps the records unchanged for batches that sinks store."""


@dataclass(frozen=True, slots=True)
class Part:
    """The identity of what one batch writes for one shard. If the batch is repeated, in this process or another
    one, the part is equal.

    `number` is also the fencing token: over the life of a shard it never falls, even if the owner changes. A sink
    that stores the highest number per (application, stream, shard) can therefore refuse any lower number.
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
    """If this part is a piece of a larger part that kept failing: the number of the larger part. A stalled former
    owner can still try to store the larger part."""


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
    """The column of the output by whose times rows are counted. None if they are not counted."""

    @property
    def records(self) -> int:
        return sum(part.records for part in self.parts)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


class Sink(Protocol[D_contra]):
    """Stores batches. Called on the worker's main thread, one batch at a time."""

    def write(self, data: D_contra, batch: Batch) -> None:
        """Store the whole batch durably before returning. Never called with an empty batch.

        The same parts can be written again, alone or together with others: after a crash, by the next owner, or by
        a stalled former owner while the next owner works. A part always has the same records. An exactly-once sink
        therefore uses the part as its key, and stores each part once.

        Raises SinkError if storing failed. Any other error counts as a failure of user code.
        """


@dataclass(frozen=True, slots=True)
class MinuteRows:
    """How many rows of a file have their time (`Batch.time_column`) in the minute `minute`, and come from records
    that arrived in the minute `arrived`. Each minute is given as its start in epoch seconds. `arrived` is None if
    the output does not have the arrival times."""

    minute: int
    arrived: int | None
    rows: int


@dataclass(frozen=True, slots=True)
class FileCounts:
    """What a sink stored of a part in one file. `timeless`: the number of rows that have no time; `minutes` counts
    the other rows. `files`: the number of files to count for this part: 1, or 0 if the file also has rows of
    another part and is counted with that part."""

    bytes: int
    minutes: tuple[MinuteRows, ...]
    timeless: int = 0
    files: int = 1


@dataclass(frozen=True, slots=True)
class PartCounts:
    """What a sink stored of one part.

    - `files`: the counts of each file. None if the times of the rows are not known: the output does not have the
      column `Batch.time_column`, or an earlier attempt stored the part. If `files` is None, use the other fields.
    - `size`: the bytes of its files, 0 if not known.
    - `number`: the number of its files, without files that are counted with another part.
    - `rows`: all rows of the part. None if each record was stored as one row.
    """

    files: tuple[FileCounts, ...] | None
    size: int = 0
    number: int = 0
    rows: int | None = None
