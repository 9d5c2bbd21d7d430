"""What a worker needs from outside: tables, the stream, the engine, the sink, and receivers of its events."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol

from kcl_dagster.application import Application
from kcl_dagster.errors import BatchError, SinkError
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.model.windows import Windows
from kcl_dagster.tables.control import Control
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.workers import WorkerTable
from kcl_dagster.worker.batch import Batch, Budget, D, Engine, Fetched, Range, Read, Sink
from kcl_dagster.worker.bound import Bound
from kcl_dagster.worker.completeness_watch import LoadCompleteness, nothing_known
from kcl_dagster.worker.dead_letter import DeadLetters, NoDeadLetters
from kcl_dagster.worker.events import OnEvent, ignore
from kcl_dagster.worker.heartbeat import Utilization
from kcl_dagster.worker.hosted_processor import ProcessorHosts
from kcl_dagster.worker.lag import OnLag, ignore_lag
from kcl_dagster.worker.processing_watch import Interrupt, cannot_interrupt
from kcl_dagster.worker.ranges import ResolvedStart
from kcl_dagster.worker.reading import ConfirmStream, believed
from kcl_dagster.worker.report import BatchReport
from kcl_dagster.worker.retention import RetentionOf
from kcl_dagster.worker.shard_end import ListShards
from kcl_dagster.worker.spans import NO_SPANS, Spans
from kcl_dagster.worker.staging import StagingSink

OnBatch = Callable[[BatchReport], None]
"""Receives the report of a round. Called on the main thread after each round that had leases to read. Must not
raise."""

Watch = Callable[[], str | None]
"""Returns None, or the reason why this worker should stop: for example, its parent process ended, or its run was
cancelled. Called on the thread that writes the heartbeat, so it must not wait and must not raise. A watch with a
request that can hang should use a `worker.latest.Latest`."""


class LeaderWatch(Protocol):
    def silent_for(self) -> float:
        """For how many seconds this worker has observed no change by a leader. Reads a table; can raise a
        ServiceError."""

    def control(self) -> Control:
        """What an operator has paused. If there is no leader, the workers themselves apply the pauses. Reads a
        table; can raise a ServiceError."""


class NoSink:
    """The sink of a worker with record processors."""

    def write(self, data: object, batch: Batch) -> None:
        raise SinkError(f"there is no sink for {batch.records} records of {type(data).__name__}")


class NoEngine:
    """The engine of a worker with record processors, whose hosts read the records."""

    def fetch(self, ranges: Sequence[Range], budget: Budget) -> Fetched[Any]:
        raise BatchError(f"there is no engine to read {len(ranges)} ranges with, {budget}")

    def prefetch(self, ranges: Sequence[Range], budget: Budget) -> None:
        """Does nothing."""


Ready = Callable[[], bool]
"""Returns whether the engine has started, so that the worker can read. Called several times per second until then.
It must not wait."""


def at_once_ready() -> bool:
    """Return True. For engines that need no time to start."""
    return True


EndProcess = Callable[[str], None]
"""Ends the process of a worker whose batch does not end, and records the reason in its run. Called once, on the
housekeeping thread, after the worker's row and leases are gone. It need not return. It must not raise."""


def cannot_end(_: str) -> None:
    """Do nothing. For workers that share their process with other work."""


def ignore_batch(_: BatchReport) -> None:
    """Discard the report: the default receiver."""


def unknown_retention(_: StreamIdentifier) -> float | None:
    return None


def unresolved_start(_: StreamIdentifier) -> int | None:
    return None


@dataclass(frozen=True, slots=True)
class Surroundings(Generic[D]):
    """What a worker needs from outside. `list_shards`, `retention_of`, `resolved_start` and `confirm_stream` are
    rarely called. Implementations can cache the results, except those of `confirm_stream`."""

    application: Application
    leases: LeaseTable
    workers: WorkerTable
    list_shards: ListShards
    engine: Engine[D]
    sink: Sink[D]
    code: str | None = None
    """The version of the consumer's code. Losses of a batch are counted per version."""

    processors: ProcessorHosts[Read] | None = None
    """If set, record processors get the shards, and neither the engine nor the sink is used."""

    chains: StagingSink[D] | None = None
    """If set, batches are decided in chains of entries, and `sink` is not used."""

    windows: Windows | None = None
    """The windows by which stored rows are counted. None if they are not counted."""

    event_time: str | None = None
    """The column of the output that determines the window of a row. If it is None, the arrival of the row's record
    determines the window."""

    allowed_lateness: int = 0
    """Seconds for which a window waits after its end for further rows, if `event_time` is set."""

    retention_of: RetentionOf = unknown_retention
    resolved_start: ResolvedStart = unresolved_start
    confirm_stream: ConfirmStream = believed
    service_time: Callable[[], float | None] | None = None
    """Epoch seconds by a clock that all workers share; None if not known. Called in every round. Can sometimes
    block for one request. Default: the worker's own clock."""

    load_completeness: LoadCompleteness = nothing_known
    bound: Bound | None = None
    """If set, the worker stops when everything that had arrived before a given time is stored; see
    `worker.bound`."""

    dead_letters: DeadLetters = field(default_factory=NoDeadLetters)
    utilization: Utilization | None = None
    leader: LeaderWatch | None = None
    watches: tuple[Watch, ...] = ()
    is_ready: Ready = at_once_ready
    interrupt: Interrupt = cannot_interrupt
    end_process: EndProcess = cannot_end
    spans: Spans = NO_SPANS
    """Receives the work of the main thread as spans, see `worker.spans`."""

    on_batch: OnBatch = ignore_batch
    on_lag: OnLag = ignore_lag
    on_event: OnEvent = ignore
