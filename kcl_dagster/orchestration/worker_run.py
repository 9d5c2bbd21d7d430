"""One worker, made from its application, its run and its Spark session."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import SparkSession

from kcl_dagster.errors import BatchError
from kcl_dagster.model.worker_row import worker_id
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.resources import KclResource
from kcl_dagster.orchestration.run_event_log import RunEventLog
from kcl_dagster.orchestration.sink_choices import Transform, open_staging
from kcl_dagster.runtime import system
from kcl_dagster.spark.engine import EngineSettings, SparkEngine, local_slots, no_staging
from kcl_dagster.spark.executors import check_executors, check_stream
from kcl_dagster.spark.fetch import Connection
from kcl_dagster.spark.interruption import Interruption
from kcl_dagster.spark.sharing import check_sharing
from kcl_dagster.spark.sinks.contract import SparkSink
from kcl_dagster.spark.storage import S3Options, open_store
from kcl_dagster.spark.transform import Observed, Traced, returns_its_argument
from kcl_dagster.telemetry.logs import queued_logs
from kcl_dagster.telemetry.otlp import open_traces
from kcl_dagster.telemetry.worker_metrics import open_telemetry
from kcl_dagster.worker.background_opening import Late, LateEngine, LateProcessorHosts
from kcl_dagster.worker.batch import Sink
from kcl_dagster.worker.bound import Bound
from kcl_dagster.worker.dead_letter import DeadLetters, FiledDeadLetters
from kcl_dagster.worker.events import EventKind, WorkerEvent
from kcl_dagster.worker.heartbeat import Identity
from kcl_dagster.worker.opening import open_surroundings
from kcl_dagster.worker.spans import NO_SPANS, Spans
from kcl_dagster.worker.stop import StopReason, StopSignal
from kcl_dagster.worker.surroundings import EndProcess, Surroundings, Watch, cannot_end
from kcl_dagster.worker.utilization.platform import measured

if TYPE_CHECKING:
    from kcl_dagster.spark.processor_hosts.spark_processor_hosts import SparkProcessorHosts
    from kcl_dagster.telemetry.batch_traces import BatchTraces

# If the worker of a run has ended, the run waits this long for a Spark that is still starting. Starting can take
# more than a minute on a busy machine.
STARTING_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class WorkerRun:
    """The parts of a worker that depend on its run. `open_session` is called once, on a separate thread, and can be
    slow."""

    consumer: Consumer
    kcl: KclResource
    open_session: Callable[[], SparkSession]
    slot: str
    run_id: str
    event_log: RunEventLog
    watches: tuple[Watch, ...] = ()
    end_process: EndProcess = cannot_end
    bound: Bound | None = None
    """If set, the worker stops when everything that had arrived by a given time is stored."""

    job: str | None = None
    """The job of the run, for the worker's traces."""

    launched_by: str | None = None
    """The `traceparent` of the tick that launched the run; the trace of the worker's start has a link to it."""

    def work(self, stop: StopSignal) -> StopReason:
        """Read and store batches until there is a reason to stop, and return this reason. Blocks for hours.

        If Spark cannot start, raises the error of the start. If the Spark session is lost, raises BatchError. In
        both cases, the leases were released before, and the run should be shown as failed.
        """
        application = self.consumer.application
        identity = Identity(worker_id(self.slot, self.run_id), self.slot, self.run_id, application.fleet.zone)
        with open_traces(application, identity, self.job, system(), self.event_log, self.launched_by) as traces:
            return self._work(stop, identity, traces)

    def _work(self, stop: StopSignal, identity: Identity, traces: "BatchTraces | None") -> StopReason:
        runtime = system()
        application = self.consumer.application
        spans = NO_SPANS if traces is None else traces
        sink, chains = self._sink(spans), self._staging_sink(spans)
        # Spark starts on another thread, in five to ten seconds. Meanwhile, the worker writes its row and gets
        # leases.
        interruption = Interruption()
        has_lease = threading.Event()
        late: Late[SparkEngine | SparkProcessorHosts] = Late(
            partial(self._open, chains, interruption, has_lease.is_set)
        )
        try:
            with (
                self.event_log.in_background(),
                open_telemetry(application, identity, runtime, self._client, self.event_log, traces) as telemetry,
                queued_logs(),
            ):
                surroundings = self._surroundings(late, sink, chains, interruption, has_lease)
                worker = telemetry.worker(surroundings, runtime)
                with interruption.installed():
                    reason = worker.run(stop)
            if late.why_failed() is not None:
                late.get()
            opened = late.if_opened()
            lost = None if opened is None else opened.health.why_lost()
            if lost is not None:
                raise BatchError(f"{identity.worker} released its leases and ended: {lost}")
            return reason
        finally:
            self._close(late)

    def _close(self, late: "Late[SparkEngine | SparkProcessorHosts]") -> None:
        """Close the engine. If Spark is still starting, first wait for it, because its JVM would remain if the
        engine was not closed. If Spark has not started after `STARTING_SECONDS`, end the process: the run
        would not end by itself, and would occupy its slot for ever, although its leases are released."""
        if not late.is_settled(STARTING_SECONDS):
            self.end_process(f"its leases are released, and Spark has not started {STARTING_SECONDS:.0f} s later")
            return
        with suppress(Exception):  # the error was raised by `work`, or the worker stopped before it mattered
            late.get().close()

    def _sink(self, spans: Spans = NO_SPANS) -> Sink[Any] | None:
        """The sink of batches that are announced in the leases, by a pending checkpoint. None for record processors
        and for sinks with chains."""
        choice = self.consumer.sink
        return None if choice.open is None else choice.open(self._transform(spans), self._connection("s3"))

    def _staging_sink(self, spans: Spans = NO_SPANS) -> SparkSink | None:
        """The sink of batches that are committed in chains (logs of committed batches). None for other sinks and
        for record processors."""
        return open_staging(self.consumer.sink, self._transform(spans), self._connection("s3"), system())

    def _transform(self, spans: Spans = NO_SPANS) -> Transform:
        """The transform, wrapped so that the columns of its result are recorded, and its calls are traced. A
        function of Arrow tables is not wrapped, because it runs in the executors."""
        transform = self.consumer.stored_transform
        if self.consumer.arrow:
            return transform
        observed = Observed(transform, self.event_log.note_columns)
        is_traced = spans is not NO_SPANS and not returns_its_argument(transform)
        return Traced(observed, spans) if is_traced else observed

    def _surroundings(
        self,
        late: "Late[SparkEngine | SparkProcessorHosts]",
        sink: Sink[Any] | None,
        chains: SparkSink | None,
        interruption: Interruption,
        has_lease: threading.Event,
    ) -> Surroundings[Any]:
        """What the worker needs from outside: tables, streams, engine, sink, and receivers of its events.
        `has_lease`: is set when the worker acquires a lease."""
        runtime = system()

        def why_lost() -> str | None:
            opened = late.if_opened()
            return late.why_failed() if opened is None else opened.health.why_lost()

        def tell(event: WorkerEvent) -> None:
            if event.kind is EventKind.LEASE_ACQUIRED:
                has_lease.set()
            self.event_log.event(event)

        opened: Any = late
        is_processors = self.consumer.sink.processors is not None
        opened_for = open_surroundings(
            self.consumer.application,
            dynamodb=self._client("dynamodb"),
            kinesis=self._client("kinesis"),
            engine=None if is_processors else LateEngine[Any](opened),
            sink=sink,
            chains=chains,
            processors=LateProcessorHosts[Any](opened) if is_processors else None,
            runtime=runtime,
            bound=self.bound,
            dead_letters=self._dead_letters(),
            utilization=measured(runtime.clock),
            watches=(*self.watches, why_lost),
            is_ready=lambda: late.if_opened() is not None,
            interrupt=interruption,
            end_process=self.end_process,
            on_batch=self.event_log.batch,
            on_event=tell,
        )
        return replace(
            opened_for,
            code=self.consumer.code_version,
            windows=self.consumer.windows,
            event_time=self.consumer.event_time,
            allowed_lateness=round(self.consumer.allowed_lateness.total_seconds()),
        )

    def _open(
        self, chains: SparkSink | None, interruption: Interruption, has_lease: Callable[[], bool]
    ) -> "SparkEngine | SparkProcessorHosts":
        """Open the engine, which takes five to ten seconds. One of these seconds is for Spark's first job. If the
        worker has no lease yet, a local `SparkEngine` runs a first job that reads nothing, so that the first fetch
        is faster. If the worker already has a lease, the first fetch is the first job."""
        clock = system().clock
        began = clock.monotonic()
        choice, session = self.consumer.sink, self.open_session()
        started = clock.monotonic()
        interruption.session = session
        connection = Connection(**self._connection("kinesis"))
        is_local = local_slots(session) is not None
        if not is_local:
            # Only `KclSparkResource` has already checked the executors of its session. Sessions of other resources
            # are checked for the first time here.
            check_executors(session)
            check_stream(session, connection, self.consumer.application.streams[0].name)
        for store in () if chains is None else chains.stores_into:
            check_sharing(session, store, system().new_id())
        settings = replace(EngineSettings.of(self.consumer.application), tasks=choice.processes)
        opened: SparkEngine | SparkProcessorHosts
        if choice.processors is not None:
            opened = _open_processor_hosts(session, connection, choice.processors, settings)
        else:
            staging = no_staging if chains is None else chains.staging
            opened = SparkEngine(session, connection, settings, staging=staging)
            if is_local and not has_lease():  # in other sessions, the checks above were the first jobs
                opened.warm_up()
        self.event_log.info(
            "ready to read: Spark took %.1f s to start, and %.1f s for checks and its first jobs",
            started - began,
            clock.monotonic() - started,
        )
        return opened

    def _dead_letters(self) -> DeadLetters | None:
        path = self.consumer.application.batch.failure.dead_letter_path
        if path is None:
            return None
        return FiledDeadLetters(open_store(path, S3Options(**self._connection("s3"))).put)

    def _connection(self, service: str) -> dict[str, str]:
        return self.kcl.connection(service, self.consumer.application)

    def _client(self, service: str) -> Any:
        return self.kcl.client(service, self.consumer.application)


def _open_processor_hosts(
    session: SparkSession, connection: Connection, processors: Callable[..., Any], settings: EngineSettings
) -> "SparkProcessorHosts":
    # Imported only here, because the library for certificates takes a quarter of a second.
    from kcl_dagster.spark.processor_hosts.spark_processor_hosts import SparkProcessorHosts

    return SparkProcessorHosts(session, connection, processors, settings)
