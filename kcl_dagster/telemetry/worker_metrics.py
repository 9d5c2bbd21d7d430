"""The telemetry of one worker, as its application configures it."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import kcl_dagster
from kcl_dagster import aws
from kcl_dagster.application import Application, MetricsLevel
from kcl_dagster.errors import KclError
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Clock, Runtime
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.telemetry import kcl_names
from kcl_dagster.telemetry.cloudwatch import CloudWatchMetrics, Flusher
from kcl_dagster.telemetry.endpoint import MetricsEndpoint
from kcl_dagster.telemetry.logs import json_lines, log_event
from kcl_dagster.telemetry.openmetrics import Family, MetricsRegistry
from kcl_dagster.telemetry.otlp import sent_metrics
from kcl_dagster.telemetry.units import UNITS, counted_units
from kcl_dagster.worker.batch import D
from kcl_dagster.worker.concurrency import ForEach
from kcl_dagster.worker.events import EventKind, WorkerEvent
from kcl_dagster.worker.heartbeat import Identity
from kcl_dagster.worker.holdings import Holdings
from kcl_dagster.worker.lag import LagReport
from kcl_dagster.worker.loop import Worker
from kcl_dagster.worker.renewal import RenewalReport, Renewer
from kcl_dagster.worker.report import BatchReport, Outcome
from kcl_dagster.worker.surroundings import Ready, Surroundings

if TYPE_CHECKING:
    from kcl_dagster.telemetry.batch_traces import BatchTraces

RECORDS: Final = Family("kcl_records", "counter", "Records stored, after de-aggregation.")
BYTES: Final = Family("kcl_data_bytes", "counter", "Payload of the records stored.", "bytes")
BROKEN: Final = Family(
    "kcl_broken_aggregates", "counter", "Aggregates that could not be opened and were stored as they came."
)
BATCHES: Final = Family("kcl_batches", "counter", "Rounds of the worker, by what came of each shard.")
BUSY: Final = Family("kcl_batch_seconds", "counter", "Time spent on batches, by stage.", "seconds")
BEHIND: Final = Family("kcl_behind_seconds", "gauge", "How far behind the tip the shard is stored.", "seconds")
COMPLETE: Final = Family(
    "kcl_complete_through_timestamp_seconds",
    "gauge",
    "Everything that had arrived by this moment is stored, of the whole application.",
    "seconds",
)
LEASES: Final = Family("kcl_leases", "gauge", "Leases that the worker holds.")
WAITING: Final = Family("kcl_leases_waiting", "gauge", "Leases that wait for parents of their shards.")
STOPPED: Final = Family("kcl_shards_stopped", "gauge", "Shards that keep failing and do not go on.")
HUNG: Final = Family("kcl_shards_hung", "gauge", "Shards on whose batch the consumer's code works for very long.")
RENEWALS: Final = Family("kcl_renewals", "counter", "Renewals of leases, by result.")
EVENTS: Final = Family("kcl_events", "counter", "What the worker told, by kind.")
SPANS_LOST: Final = Family("kcl_spans_lost", "counter", "Spans that did not reach the collector.")
EXPORTS_FAILED: Final = Family(
    "kcl_metric_exports_failed", "counter", "Exports of metrics that did not reach the collector."
)
BUILD: Final = Family("kcl_worker", "info", "Which worker this is.")
FAMILIES: Final = (
    *(RECORDS, BYTES, BROKEN, BATCHES, BUSY, BEHIND, COMPLETE, LEASES, WAITING, STOPPED, HUNG, RENEWALS, EVENTS),
    *(SPANS_LOST, EXPORTS_FAILED, UNITS, BUILD),
)

_STORED: Final = frozenset({Outcome.COMMITTED, Outcome.DELIVERED, Outcome.FINISHED})
_READ: Final = _STORED | {Outcome.IDLE, Outcome.SET_ASIDE}
_GONE: Final = frozenset(
    {EventKind.LEASE_LOST, EventKind.LEASE_RELEASED, EventKind.HANDOFF_DONE, EventKind.SHARD_FINISHED}
)


@dataclass(frozen=True, slots=True)
class WorkerTelemetry:
    """Receives the reports of the worker's threads. No method raises or waits."""

    identity: Identity
    registry: MetricsRegistry
    cloudwatch: CloudWatchMetrics | None = None
    endpoint: MetricsEndpoint | None = None
    traces: "BatchTraces | None" = None

    def batch(self, report: BatchReport) -> None:
        registry = self.registry
        for lease in report.leases:
            shard = {"stream": lease.stream.name, "shard": lease.shard_id}
            registry.add(BATCHES, 1, outcome=lease.outcome.value, **shard)
            if lease.outcome in _STORED:
                registry.add(RECORDS, lease.records, **shard)
                registry.add(BYTES, lease.bytes, **shard)
                if lease.broken_aggregates:
                    registry.add(BROKEN, lease.broken_aggregates, **shard)
            if lease.outcome is Outcome.FINISHED:
                registry.forget(BEHIND, lease=str(lease.lease))
            elif lease.outcome in _READ and lease.millis_behind is not None:
                registry.set(BEHIND, lease.millis_behind / 1000, lease=str(lease.lease))
        for stage, seconds in (
            ("fetch", report.fetch_seconds),
            ("prepare", report.prepare_seconds),
            ("write", report.write_seconds),
            ("commit", report.commit_seconds),
        ):
            registry.add(BUSY, seconds, stage=stage)
        registry.set(LEASES, report.held)
        registry.set(WAITING, report.blocked)
        registry.set(STOPPED, len(report.stopped))
        if self.traces is not None:
            self.traces.report(report)
            registry.set(SPANS_LOST, self.traces.lost)
        self._publish(kcl_names.of_batch(report))

    def lag(self, report: LagReport) -> None:
        """Publish the lag of all shards, including those whose batch does not end."""
        self.registry.replace(BEHIND, "lease", {str(key): millis / 1000 for key, millis in report.behind.items()})
        self.registry.set(HUNG, len(report.hung))
        self._publish(kcl_names.of_lag(report))

    def event(self, event: WorkerEvent) -> None:
        log_event(event)
        self.registry.add(EVENTS, 1, kind=event.kind.value)
        if event.kind in _GONE and event.lease is not None:
            self.registry.forget(BEHIND, lease=str(event.lease))

    def renewal(self, report: RenewalReport, seconds: float, held: int) -> None:
        for result, leases in (("renewed", report.renewed), ("lost", report.lost), ("failed", report.failed)):
            if leases:
                self.registry.add(RENEWALS, len(leases), result=result)
        self.registry.set(LEASES, held)
        self._publish(kcl_names.of_renewal(report, seconds, held, str(self.identity.worker)))

    def complete(self, known: WrittenThrough) -> None:
        """Publish the moment through which the application is complete, as the worker has read it. The value of the
        metric is the moment itself and not its age: the worker could not update an age while it cannot read the
        moment, so the age would stay the same."""
        if known.through is None:
            self.registry.forget(COMPLETE)
        else:
            self.registry.set(COMPLETE, known.through)

    def worker(self, surroundings: Surroundings[D], runtime: Runtime) -> Worker[D]:
        """Create a worker that passes its reports and events to this object, and then to the receivers in
        `surroundings`."""

        def on_batch(report: BatchReport) -> None:
            self.batch(report)
            surroundings.on_batch(report)

        def on_lag(report: LagReport) -> None:
            self.lag(report)
            surroundings.on_lag(report)

        def on_event(event: WorkerEvent) -> None:
            self.event(event)
            surroundings.on_event(event)

        def load_completeness() -> WrittenThrough:
            known = surroundings.load_completeness()
            self.complete(known)
            return known

        around = replace(
            surroundings, on_batch=on_batch, on_lag=on_lag, on_event=on_event, load_completeness=load_completeness
        )
        if self.traces is not None:
            around = replace(
                around, spans=self.traces, is_ready=_telling(surroundings.is_ready, self.traces.started)
            )
        worker = Worker(around, self.identity, runtime)
        settings = worker.settings
        worker.renewer = MeasuredRenewer(
            worker.holdings,
            settings.renewal_interval,
            settings.handoff_timeout,
            runtime.clock,
            worker.tell,
            worker.renew_each,
            self.renewal,
        )
        return worker

    def _publish(self, data: Iterable[Any]) -> None:
        if self.cloudwatch is not None:
            self.cloudwatch.put(data)


class MeasuredRenewer(Renewer):
    """A renewer that reports the result and duration of its steps."""

    def __init__(
        self,
        holdings: Holdings,
        interval: float,
        handoff_timeout: float,
        clock: Clock,
        on_event: Callable[[WorkerEvent], None],
        for_each: ForEach,
        tell: Callable[[RenewalReport, float, int], None],
    ) -> None:
        super().__init__(holdings, interval, handoff_timeout, clock, on_event, for_each)
        self._measured_clock = clock
        self._held: Callable[[], set[LeaseKey]] = holdings.keys
        self._tell = tell

    def step(self) -> RenewalReport:
        began = self._measured_clock.monotonic()
        report = super().step()
        if report.renewed or report.lost or report.failed or report.transferred:
            self._tell(report, self._measured_clock.monotonic() - began, len(self._held()))
        return report


@contextmanager
def open_telemetry(
    application: Application,
    identity: Identity,
    runtime: Runtime,
    client: Callable[[str], aws.Client],
    log: Any,
    traces: "BatchTraces | None" = None,
) -> Iterator[WorkerTelemetry]:
    """Open the telemetry that the application configures, as long as the block lasts. If one kind of telemetry
    cannot start, it is left out with a warning, because a worker can work without it. `client` makes the clients
    for `cloudwatch` and `dynamodb`, if they are needed. `log`: the log of the run."""
    settings = application.telemetry
    names = {
        "application": application.name,
        "worker": str(identity.worker),
        **({} if identity.slot is None else {"slot": identity.slot}),
    }
    registry = MetricsRegistry(names)
    registry.declare(RECORDS, BYTES, BROKEN, BATCHES, LEASES, WAITING, STOPPED, HUNG)
    registry.set(BUILD, 1, version=kcl_dagster.__version__, run=identity.run_id or "")
    with ExitStack() as stack:
        if settings.json_logs:
            stack.enter_context(json_lines(sys.stderr, names))
        endpoint = cloudwatch = None
        if settings.openmetrics_port is not None:
            try:
                port = settings.openmetrics_port
                if settings.openmetrics_port_by_slot:
                    port = _port(port, identity.slot)
                endpoint = stack.enter_context(MetricsEndpoint(registry.render, settings.openmetrics_host, port))
                log.info("metrics at %s", endpoint.url)
            except KclError as error:
                log.warning("%s", error)
        if settings.cloudwatch is not MetricsLevel.NONE:
            try:
                cloudwatch = CloudWatchMetrics(
                    client("cloudwatch"),
                    settings.cloudwatch_namespace or application.name,
                    runtime,
                    is_detailed=settings.cloudwatch is MetricsLevel.DETAILED,
                )
                stack.enter_context(Flusher(cloudwatch))
            except KclError as error:
                log.warning("metrics do not go to CloudWatch: %s", error)
        if endpoint is not None or settings.opentelemetry_metrics:
            try:
                stack.enter_context(counted_units(client("dynamodb"), registry))
            except KclError as error:
                log.warning("units of DynamoDB are not counted: %s", error)
        on_failure = partial(registry.add, EXPORTS_FAILED, 1)
        stack.enter_context(sent_metrics(application, identity, registry, FAMILIES, on_failure, log))
        yield WorkerTelemetry(identity, registry, cloudwatch, endpoint, traces)


def _telling(is_ready: Ready, started: Callable[[], object]) -> Ready:
    def told() -> bool:
        ready = is_ready()
        if ready:
            started()
        return ready

    return told


def _port(first: int, slot: str | None) -> int:
    """Return the port of a worker. Workers on one machine use different ports: `worker-003` uses the first port
    plus 3."""
    number = re.search(r"(\d+)$", slot or "")
    return first if first == 0 or number is None else first + int(number[1])
