"""Builds the surroundings of a worker on AWS, from a DynamoDB and a Kinesis client."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kcl_dagster import aws
from kcl_dagster.application import Application, Position
from kcl_dagster.errors import ConfigurationError, KclError, LayoutRefused, StreamRecreated
from kcl_dagster.model.shard import Shard
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.runtime import Runtime
from kcl_dagster.streams.listing import describe, list_shards
from kcl_dagster.tables.completeness_row import CompletenessRow
from kcl_dagster.tables.control import ControlRow
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.starts import StartTable
from kcl_dagster.tables.table_layout import TableLayout, detect_layout, verify_layout
from kcl_dagster.tables.workers import WorkerTable
from kcl_dagster.worker.batch import D, Engine, Read, Sink
from kcl_dagster.worker.bound import Bound
from kcl_dagster.worker.dead_letter import DeadLetters, NoDeadLetters
from kcl_dagster.worker.events import OnEvent, ignore
from kcl_dagster.worker.heartbeat import Utilization
from kcl_dagster.worker.hosted_processor import ProcessorHosts
from kcl_dagster.worker.leader_watch import LockWatch
from kcl_dagster.worker.processing_watch import Interrupt, cannot_interrupt
from kcl_dagster.worker.service_clock import ServiceClock
from kcl_dagster.worker.settings import WorkerSettings
from kcl_dagster.worker.staging import StagingSink
from kcl_dagster.worker.surroundings import (
    EndProcess,
    NoEngine,
    NoSink,
    OnBatch,
    Ready,
    Surroundings,
    Watch,
    at_once_ready,
    cannot_end,
    ignore_batch,
)

_SECONDS_PER_HOUR = 3600.0
VERIFY_SECONDS = 60.0  # between two checks of the layout of the tables


class StreamLookup:
    def __init__(self, kinesis: aws.Client, application: Application, starts: StartTable, runtime: Runtime) -> None:
        self._kinesis = kinesis
        self._application = application.name
        self._configured = {settings.name: settings.start for settings in application.streams}
        # If the configuration sets a stream's creation epoch, any stream with its name is accepted.
        self._renamed = {settings.name for settings in application.streams if settings.creation_epoch is not None}
        self._starts = starts
        self._runtime = runtime
        self._resolved: dict[StreamIdentifier, int] = {}

    def list_shards(self, stream: StreamIdentifier) -> Sequence[Shard]:
        return list_shards(self._kinesis, stream.name, runtime=self._runtime)

    def retention_of(self, stream: StreamIdentifier) -> float | None:
        return describe(self._kinesis, stream.name, runtime=self._runtime).retention_hours * _SECONDS_PER_HOUR

    def confirm(self, stream: StreamIdentifier) -> None:
        """Refuse leases of another stream. In a multi-stream application, raise StreamRecreated if the leases name
        a former stream with this name. In a single-stream application, raise OtherStream if the leases are recorded
        as those of another stream."""
        if not stream.is_multi:
            self._starts.refuse_other(self._application, stream)
        if not stream.is_multi or stream.name in self._renamed:
            return
        created = int(describe(self._kinesis, stream.name, runtime=self._runtime).created)
        if created != stream.creation_epoch:
            raise StreamRecreated(
                f"stream {stream.name} was created in second {created}; the leases of {stream} belong to another "
                "one that had its name, and a leader retires them"
            )

    def resolved_start(self, stream: StreamIdentifier) -> int | None:
        """The time from which the stream is read, in epoch milliseconds, as a leader stored it. If no leader stored
        a start, because a Java leader started the application, this is the configured timestamp. None if there is
        neither."""
        if stream not in self._resolved:
            start = self._starts.get(str(stream))
            moment = start.timestamp_ms if start is not None else self._configured_ms(stream)
            if moment is None:
                return None
            self._resolved[stream] = moment
        return self._resolved[stream]

    def _configured_ms(self, stream: StreamIdentifier) -> int | None:
        start = self._configured.get(stream.name)
        if start is None or start.position is not Position.AT_TIMESTAMP or start.timestamp is None:
            return None
        return round(start.timestamp.timestamp() * 1000)


class LayoutWatch:
    """A `surroundings.Watch` that stops the worker if the fleet changes its protocol or its tables. It reads the
    tables once per minute."""

    def __init__(
        self, dynamodb: aws.Client, application: Application, layout: TableLayout, runtime: Runtime
    ) -> None:
        self._verify = partial(verify_layout, dynamodb, application, layout, runtime)
        self._clock = runtime.clock
        self._due = runtime.clock.monotonic()

    def __call__(self) -> str | None:
        now = self._clock.monotonic()
        if now < self._due:
            return None
        self._due = now + VERIFY_SECONDS
        try:
            self._verify()
        except LayoutRefused as refusal:
            return str(refusal)
        except KclError:
            return None  # checked again later; the worker does not stop because a read failed
        return None


def open_surroundings(
    application: Application,
    *,
    dynamodb: aws.Client,
    kinesis: aws.Client,
    engine: Engine[D] | None = None,
    sink: Sink[D] | None = None,
    chains: StagingSink[D] | None = None,
    runtime: Runtime,
    processors: ProcessorHosts[Read] | None = None,
    layout: TableLayout | None = None,
    bound: Bound | None = None,
    dead_letters: DeadLetters | None = None,
    utilization: Utilization | None = None,
    watches: tuple[Watch, ...] = (),
    is_ready: Ready = at_once_ready,
    interrupt: Interrupt = cannot_interrupt,
    end_process: EndProcess = cannot_end,
    on_batch: OnBatch = ignore_batch,
    on_event: OnEvent = ignore,
    parallel: Callable[..., Any] | None = None,
) -> Surroundings[D]:
    """Build all that `Worker` needs. Requests to the tables of leases and workers get a deadline that fits the
    lease duration.

    Needs either an engine and one of `sink` and `chains`, or `processors`. `chains`: see `Surroundings`.
    `parallel`: a function like `map` that can make its calls at the same time; it is used to read the segments of a
    scan. Raises LayoutRefused for tables that must not be used.
    """
    if [sink, chains, processors].count(None) != 2 or (processors is None) != (engine is not None):
        raise ConfigurationError(f"application {application.name} needs a sink or record processors, not both")
    layout = layout or detect_layout(dynamodb, application, runtime)
    deadline = WorkerSettings.of(application).write_deadline
    starts = StartTable(dynamodb, application, layout, runtime)
    lookup = StreamLookup(kinesis, application, starts, runtime)
    return Surroundings(
        application=application,
        leases=LeaseTable(dynamodb, application, layout, runtime, deadline_seconds=deadline, parallel=parallel),
        workers=WorkerTable(dynamodb, application, layout, runtime, deadline_seconds=deadline),
        list_shards=lookup.list_shards,
        engine=engine if engine is not None else NoEngine(),
        sink=sink if sink is not None else NoSink(),
        chains=chains,
        processors=processors,
        retention_of=lookup.retention_of,
        confirm_stream=lookup.confirm,
        service_time=ServiceClock(kinesis, application.streams[0].name, runtime).now,
        resolved_start=lookup.resolved_start,
        bound=bound,
        load_completeness=CompletenessRow(dynamodb, application, layout, runtime).load,
        dead_letters=dead_letters or NoDeadLetters(),
        utilization=utilization,
        leader=LockWatch(dynamodb, layout, runtime, ControlRow(dynamodb, application, layout, runtime)),
        watches=(*watches, LayoutWatch(dynamodb, application, layout, runtime)),
        is_ready=is_ready,
        interrupt=interrupt,
        end_process=end_process,
        on_batch=on_batch,
        on_event=on_event,
    )
