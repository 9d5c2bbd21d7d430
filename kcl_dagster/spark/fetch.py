"""The executor's side of a fetch: read the shards of one task and pass them to Spark as Arrow.

The executors' Python workers import this module by name and serve many batches. So each Python worker makes the
objects at module level, such as the Kinesis clients, once. The driver's side is `kcl_dagster.spark.engine`.
"""

import logging
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from kcl_dagster.aws import Access, Client
from kcl_dagster.errors import BatchError, EndpointUnreachable, KclError
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Clock, Runtime, system
from kcl_dagster.spark.frozen_rows import frozen_rows
from kcl_dagster.spark.python_worker_tuning import TaskMemory, settle
from kcl_dagster.spark.schema import ARROW_SCHEMA, LEASE_KEY, PROGRESS, PROGRESS_TYPE
from kcl_dagster.streams.fanout import FanoutReader, Subscriptions
from kcl_dagster.streams.pacing import Allowance, ReadDeadline, ShardLimits
from kcl_dagster.streams.parsing import install
from kcl_dagster.streams.polling import Bookmark, ShardReader
from kcl_dagster.streams.position import Bounds
from kcl_dagster.streams.records import utf8_sizes
from kcl_dagster.streams.unpacking import Columns, Unpacker
from kcl_dagster.streams.window import WindowReader
from kcl_dagster.worker.batch import Budget, Range, is_near_tip

log = logging.getLogger(__name__)

# Larger Arrow batches are slower and use more memory; with smaller ones, Spark's overhead per batch is too large.
BATCH_ROWS: Final = 8_000
BATCH_BYTES: Final = 4 * 1024 * 1024
# The most Arrow batches that wait for Spark. While this many batches wait, the readers pause.
QUEUED_BATCHES: Final = 4
READ_SECONDS: Final = 15.0  # timeout between two pieces of a page; a slow connection that delivers data is kept
PAGE_SECONDS: Final = 60.0  # timeout of a page: 10 MiB over a slow connection
# After the time of the batch is over, the fetch gives up a shard that makes no progress for this number of seconds.
# This happens, for example, if a response arrives byte by byte, which READ_SECONDS does not detect.
LATE_SECONDS: Final = 15.0
LOOK_SECONDS: Final = 0.5  # between two checks for shards without progress
CONNECTIONS: Final = 128  # one per reader thread


@dataclass(frozen=True, slots=True)
class Connection(Access):
    """How executors reach Kinesis. Without keys, they use the credentials of their machine, pod or role. With
    `role_arn`, each executor assumes the role itself, so that credentials are renewed where they are used.

    Keys are sent inside Spark's serialised tasks. They appear in no plan, log line or configuration of Spark.
    """

    def kinesis(self) -> Client:
        client = self.client(
            "kinesis", read_seconds=READ_SECONDS, total_seconds=PAGE_SECONDS, connections=CONNECTIONS
        )
        install(client)
        return client


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """The part of a shard that a task reads. `consumer_arn` is set for enhanced fan-out."""

    range: Range
    bookmark: Bookmark | None = None
    consumer_arn: str | None = None
    failure: tuple[str, str] | None = None
    """If set, the reason why the shard cannot be read this time, as in `Trailer.failure`."""


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """The plan of a fetch, for all its tasks. `tasks[i]`: the shards of task i. `budget`: the budget of the whole
    batch, see `allowance`."""

    connection: Connection
    tasks: tuple[tuple[ShardPlan, ...], ...]
    budget: Budget
    limits: ShardLimits
    opens_aggregates: bool = True

    @property
    def ranges(self) -> tuple[Range, ...]:
        """All ranges, task by task."""
        return tuple(shard.range for shards in self.tasks for shard in shards)

    def deadline(self, clock: Clock) -> ReadDeadline:
        """The deadline of a task that begins to read now."""
        return ReadDeadline(clock.monotonic() + self.budget.seconds, clock, self.budget.linger)

    def allowance(self, task: int) -> Allowance:
        """The task's part of the budget, in proportion to its number of shards."""
        mine = len(self.tasks[task])
        part = mine / sum(len(shards) for shards in self.tasks)
        return Allowance(max(1, int(self.budget.records * part)), max(1, int(self.budget.bytes * part)), mine)


class Child(msgspec.Struct):
    id: str
    start: str  # 128 bits do not fit a JSON number
    end: str
    parents: tuple[str, ...]


class Trailer(msgspec.Struct, omit_defaults=True):
    """The result of one range, sent by its task at the end. Either only `failure` is set, or only other fields."""

    through: tuple[str, int] | None = None
    first: str | None = None
    records: int = 0
    bytes: int = 0
    millis_behind: int | None = None
    ended: bool = False
    children: tuple[Child, ...] = ()
    gone: bool = False
    start_trimmed: bool = False
    first_arrival_ms: int | None = None
    last_arrival_ms: int | None = None
    minutes: list[tuple[int, int, int, str, str]] | None = None
    broken_aggregates: int = 0
    misplaced: int = 0
    bookmark: Bookmark | None = None
    failure: tuple[str, str] | None = None  # name of the error's class, its message


def said_of(error: KclError) -> tuple[str, str]:
    """An error in the form of `Trailer.failure`."""
    return type(error).__name__, str(error)


class FetchTask:
    """The function that a fetch passes to `mapInArrow`. Each input row is the number of a task. The output consists
    of the rows that Spark keeps for this task, see `kcl_dagster.spark.frozen_rows`."""

    def __init__(self, plan: FetchPlan) -> None:
        self._plan = plan

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        client = client_of(self._plan.connection)
        settle()
        leases = [range_.lease for range_ in self._plan.ranges]
        memory = TaskMemory()
        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield from frozen_rows(memory.watch(fetch(self._plan, task, client, system())), leases)
        memory.end()


_clients: dict[Connection, Client] = {}
_subscriptions: Final = Subscriptions()
_making = threading.Lock()


def client_of(connection: Connection) -> Client:
    with _making:
        if connection not in _clients:
            _clients[connection] = connection.kinesis()
        return _clients[connection]


def fetch(
    plan: FetchPlan, task: int, client: Client, runtime: Runtime, deadline: ReadDeadline | None = None
) -> Iterator[pa.RecordBatch]:
    """Read the shards of one task, each on its own thread. `deadline`: by default the deadline of the plan. A
    caller that passes a deadline can bring it forward during the fetch.

    The first Arrow batch contains the id of this attempt for every shard, and no record. The last batch has the
    id again, and the trailer of every shard, which states how far the shard was read. If Spark runs the task twice,
    the two attempts have different ids. So a task that uses the records later can detect whether they are from the
    attempt whose trailers the driver has received.
    """
    shards = plan.tasks[task]
    attempt = runtime.new_id()
    output: queue.Queue[pa.RecordBatch | _Done] = queue.Queue(QUEUED_BATCHES)
    allowance = plan.allowance(task)
    deadline = deadline or plan.deadline(runtime.clock)
    attempts = {
        shard.range.lease: _Attempt(shard.range, runtime, deadline.at) for shard in shards if shard.failure is None
    }
    trailers: dict[LeaseKey, tuple[Range, Trailer | None]] = {
        shard.range.lease: (shard.range, Trailer(failure=shard.failure))
        for shard in shards
        if shard.failure is not None
    }
    for shard in shards:
        if shard.failure is None:
            threading.Thread(
                target=_read,
                args=(plan, shard, allowance, deadline, client, runtime, output, attempts[shard.range.lease]),
                name=f"kcl-read-{shard.range.shard_id}",
                daemon=True,
            ).start()
    try:
        # The reader threads are started before this line, because the first array that pyarrow makes imports
        # pandas, which takes time.
        yield _proofs([(shard.range, None) for shard in shards], attempt)
        while len(trailers) < len(shards):
            try:
                item = output.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                for late in [one for key, one in attempts.items() if key not in trailers and one.is_late]:
                    late.stop.set()
                    trailers[late.range.lease] = (late.range, Trailer(failure=said_of(late.error())))
                continue
            if not isinstance(item, _Done):
                yield item
            elif item.range.lease not in trailers:  # else the shard was given up just before it finished
                trailers[item.range.lease] = (item.range, item.trailer)
    finally:
        for started in attempts.values():
            started.stop.set()
    yield _proofs(list(trailers.values()), attempt)


class _Attempt:
    """The progress of one reader thread. The reader thread updates it, and the thread of the task checks it."""

    def __init__(self, range_: Range, runtime: Runtime, deadline: float) -> None:
        self.range = range_
        self.stop = threading.Event()
        self._clock = runtime.clock
        self._deadline = deadline
        self._went_on_at = runtime.clock.monotonic()

    def is_stopped(self) -> bool:
        """Whether the reader has to stop. The reader calls this before each request. The call counts as
        progress."""
        self.went_on()
        return self.stop.is_set()

    def went_on(self) -> None:
        self._went_on_at = self._clock.monotonic()

    @property
    def is_late(self) -> bool:
        return self._clock.monotonic() - max(self._went_on_at, self._deadline) > LATE_SECONDS

    def error(self) -> KclError:
        return EndpointUnreachable(
            f"{self.range.shard_id} of stream {self.range.stream.name}: no answer has arrived for "
            f"{self._clock.monotonic() - self._went_on_at:.0f} s; the other shards go on without it"
        )


@dataclass(frozen=True, slots=True)
class _Done:
    range: Range
    trailer: Trailer


def _read(
    plan: FetchPlan,
    shard: ShardPlan,
    allowance: Allowance,
    deadline: ReadDeadline,
    client: Client,
    runtime: Runtime,
    output: "queue.Queue[pa.RecordBatch | _Done]",
    attempt: _Attempt,
) -> None:
    """The body of a reader thread. The last item that it puts into `output` is a `_Done`, even after an unexpected
    error. Without this item, the task would wait for a shard that cannot be read, and its other shards would wait,
    too. Only a reader that was stopped puts no `_Done`."""
    range_, stop = shard.range, attempt.stop

    def put(item: pa.RecordBatch | _Done) -> None:
        while not stop.is_set():
            with suppress(queue.Full):
                output.put(item, timeout=0.2)
                attempt.went_on()
                return

    try:
        bounds = Bounds(range_.after, range_.through, range_.first, range_.timestamp_ms)
        unpacker = Unpacker(bounds, range_.hash_range, opens_aggregates=plan.opens_aggregates)
        reader = _reader(plan, shard, bounds, client, runtime)
        columns, flushed = Columns(), 0
        opening = range_.window.opening() if range_.window is not None else allowance
        for page in reader.pages(allowance, deadline, attempt.is_stopped):
            if is_near_tip(reader.millis_behind):  # in a backlog, batches last longer, so that they are large
                deadline.records_came()
            is_whole = unpacker.unpack_from(reader, page, columns, opening)
            if len(columns) >= BATCH_ROWS or unpacker.bytes - flushed >= BATCH_BYTES:
                for batch in record_batches(range_, columns):
                    put(batch)
                columns, flushed = Columns(), unpacker.bytes
            if not is_whole:
                break
        for batch in record_batches(range_, columns):
            put(batch)
        put(_Done(range_, _trailer(reader, unpacker)))
    except KclError as error:
        put(_Done(range_, Trailer(failure=said_of(error))))
    except Exception as error:
        log.exception("%s could not be read", range_.lease)
        failure = (BatchError.__name__, f"{range_.lease} could not be read: {type(error).__name__}: {error}")
        put(_Done(range_, Trailer(failure=failure)))


def _reader(
    plan: FetchPlan, shard: ShardPlan, bounds: Bounds, client: Client, runtime: Runtime
) -> ShardReader | FanoutReader | WindowReader:
    stream, shard_id, window = shard.range.stream.name, shard.range.shard_id, shard.range.window
    if window is not None:
        return WindowReader(client, stream, shard_id, bounds, window, runtime=runtime, limits=plan.limits)
    if shard.consumer_arn is not None:
        return FanoutReader(
            client,
            shard.consumer_arn,
            stream,
            shard_id,
            bounds,
            runtime=runtime,
            bookmark=shard.bookmark,
            subscriptions=_subscriptions,
        )
    return ShardReader(
        client,
        stream,
        shard_id,
        bounds,
        runtime=runtime,
        limits=plan.limits,
        bookmark=shard.bookmark,
    )


def _trailer(reader: ShardReader | FanoutReader | WindowReader, unpacker: Unpacker) -> Trailer:
    through = unpacker.through
    return Trailer(
        through=(through.sequence, through.sub_sequence) if through else None,
        first=unpacker.first,
        records=unpacker.records,
        bytes=unpacker.bytes,
        millis_behind=reader.millis_behind,
        ended=reader.is_ended,
        children=tuple(
            Child(child.id, str(child.hash_range.start), str(child.hash_range.end), child.parents)
            for child in reader.children
        ),
        gone=reader.is_gone,
        start_trimmed=reader.is_start_trimmed,
        first_arrival_ms=unpacker.first_arrival_ms,
        last_arrival_ms=unpacker.last_arrival_ms,
        minutes=unpacker.minutes,
        broken_aggregates=unpacker.broken_aggregates,
        misplaced=unpacker.misplaced,
        bookmark=reader.bookmark,
    )


def record_batches(range_: Range, columns: Columns) -> Iterator[pa.RecordBatch]:
    """Split columns into Arrow batches of at most BATCH_ROWS rows, and at most BATCH_BYTES plus one row.

    The bytes of a key count for each record. If many records of an aggregate share a key, Python has one string for
    all of them, but Arrow copies the key for each record.
    """
    start = size = 0
    sizes = map(len, columns.data), utf8_sizes(columns.partition_key), _sizes(columns.explicit_hash_key)
    for stop, row in enumerate(map(sum, zip(*sizes, strict=True)), 1):
        size += row
        if stop - start == BATCH_ROWS or size >= BATCH_BYTES:
            yield _record_batch(range_, columns.slice(start, stop))
            start, size = stop, 0
    if start < len(columns):
        yield _record_batch(range_, columns.slice(start, len(columns)))


def _sizes(texts: Sequence[str | None]) -> Iterable[int]:
    return utf8_sizes([text or "" for text in texts]) if any(texts) else repeat(0, len(texts))


def _record_batch(range_: Range, columns: Columns) -> pa.RecordBatch:
    rows = len(columns)
    # Kinesis times have a precision of milliseconds; further digits of the float are noise.
    arrival_ms = pc.cast(pc.round(pc.multiply(pa.array(columns.arrival, pa.float64()), 1000.0)), pa.int64())
    arrivals = arrival_ms.cast(pa.timestamp("ms", tz="UTC")).cast(_type("arrival_timestamp"))
    values: dict[str, Any] = {
        "data": pa.array(columns.data, pa.binary()),
        "partition_key": pa.array(columns.partition_key, pa.string()),
        "explicit_hash_key": pa.array(columns.explicit_hash_key, pa.string()),
        "sequence_number": pa.array(columns.sequence_number, pa.string()),
        "sub_sequence_number": pa.array(columns.sub_sequence_number, pa.int64()),
        "arrival_timestamp": arrivals,
        "stream": pa.repeat(range_.stream.name, rows),
        "shard_id": pa.repeat(range_.shard_id, rows),
        LEASE_KEY: pa.repeat(str(range_.lease), rows),
        "aggregate_problem": pa.array(columns.problem, pa.string()),
        PROGRESS: pa.nulls(rows, PROGRESS_TYPE),
    }
    return pa.RecordBatch.from_arrays([values[name] for name in ARROW_SCHEMA.names], schema=ARROW_SCHEMA)


def _proofs(ranges: Sequence[tuple[Range, Trailer | None]], attempt: str) -> pa.RecordBatch:
    proofs = [
        {
            "lease_key": range_.lease,
            "attempt": attempt,
            "trailer": msgspec.json.encode(trailer).decode() if trailer is not None else None,
        }
        for range_, trailer in ranges
    ]
    arrays = [
        pa.array(proofs, PROGRESS_TYPE) if name == PROGRESS else pa.nulls(len(proofs), _type(name))
        for name in ARROW_SCHEMA.names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def _type(name: str) -> pa.DataType:
    return ARROW_SCHEMA.field(name).type
