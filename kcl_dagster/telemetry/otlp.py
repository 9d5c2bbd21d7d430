"""Opens the OpenTelemetry exports of an application. OpenTelemetry is imported only if an export is configured.

The first of these providers that exists is used:

- If `telemetry.otlp_endpoint` is set, this module makes a provider for this address.
- If the consumer's code or `opentelemetry-instrument` has set a global provider, it is used and not changed.
- Otherwise, this module makes a provider. The environment variables of OpenTelemetry (such as
  `OTEL_EXPORTER_OTLP_ENDPOINT`) configure it.

The providers that this module makes send OTLP over HTTP.

Exporters have their own threads and bounded queues. If a collector hangs, a worker that ends waits a few seconds
for the collector. At this time, the worker has already released its leases.
"""

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

import kcl_dagster
from kcl_dagster.application import Application
from kcl_dagster.runtime import Runtime
from kcl_dagster.telemetry.openmetrics import Family, MetricsRegistry
from kcl_dagster.worker.delivery import DeliveryQueue, DeliveryThread
from kcl_dagster.worker.error_text import brief
from kcl_dagster.worker.heartbeat import Identity

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import TracerProvider

    from kcl_dagster.telemetry.batch_traces import BatchTraces
    from kcl_dagster.telemetry.tick_traces import TickTraces

LAST_SPANS_SECONDS: Final = 2.0  # when a worker ends, the queued spans have this time to reach their provider
GRPC_PORT: Final = 4317  # the usual port of OTLP over gRPC
SCOPE: Final = "kcl_dagster"
SHUTDOWN_SECONDS: Final = 5.0  # the time for the shutdown of a provider, which sends its last data
MISSING: Final = "OpenTelemetry is not installed in this environment: pip install 'kcl-dagster[otel]'"


@contextmanager
def open_traces(
    application: Application,
    identity: Identity,
    job: str | None,
    runtime: Runtime,
    log: Any,
    launched_by: str | None = None,
) -> Iterator["BatchTraces | None"]:
    """Open the traces of a worker for the time of the block. Yields None if the application configures no traces,
    or if they cannot be opened. In the second case, `log`, the log of the run, gets a warning. `job`: the job of
    the run. `launched_by`: the `traceparent` of the tick that launched the worker."""
    with ExitStack() as stack:
        traces = None
        if application.telemetry.opentelemetry_traces:
            with _warning("batches are not traced", log):
                traces = stack.enter_context(_traces(application, identity, job, runtime, log, launched_by))
                log.info("batches are traced; the trace of this worker's start is %s", traces.start_trace)
        yield traces


@contextmanager
def open_tick_traces(
    application: Application, leader: str, runtime: Runtime, log: Any
) -> Iterator["TickTraces | None"]:
    """Open the traces of a leader for the time of the block. Yields None if the application configures no traces,
    or if they cannot be opened. In the second case, `log` gets a warning. `leader`: the name of the leader in the
    leader lock."""
    with ExitStack() as stack:
        traces = None
        if application.telemetry.opentelemetry_traces:
            with _warning("ticks of the leader are not traced", log):
                traces = stack.enter_context(_tick_traces(application, leader, runtime, log))
        yield traces


@contextmanager
def sent_metrics(
    application: Application,
    identity: Identity,
    registry: MetricsRegistry,
    families: Sequence[Family],
    on_failure: Callable[[], object],
    log: Any,
) -> Iterator[None]:
    """Send the metrics of a worker for the time of the block, if the application configures this. `on_failure` is
    called for each export that failed, on a thread of the exporter."""
    with ExitStack() as stack:
        if application.telemetry.opentelemetry_metrics:
            with _warning("metrics are not sent by OpenTelemetry", log):
                stack.enter_context(_sending(application, identity, registry, families, on_failure, log))
        yield


def _complain(application: Application, signal: str, log: Any) -> None:
    """Write a warning for each setting of OpenTelemetry that will probably not work; see `complaints`."""
    for complaint in complaints(application.telemetry.otlp_endpoint, signal, os.environ):
        log.warning("%s by OpenTelemetry: %s", signal, complaint)


def complaints(endpoint: str | None, signal: str, environment: Mapping[str, str]) -> list[str]:
    """Return a text about each setting that will probably not work, because this package sends OTLP over HTTP only.
    `signal`: `traces` or `metrics`. `environment`: the environment variables."""

    def given(setting: str) -> str:
        own = environment.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_{setting}", "").strip()
        return own or environment.get(f"OTEL_EXPORTER_OTLP_{setting}", "").strip()

    found = []
    address = given("ENDPOINT") if endpoint is None else endpoint
    if re.search(rf":{GRPC_PORT}(/|$)", address):
        found.append(
            f"port {GRPC_PORT} is usually that of OTLP over gRPC, and this package sends OTLP over HTTP, whose "
            "usual port is 4318"
        )
    protocol = given("PROTOCOL")
    if protocol not in ("", "http/protobuf"):
        found.append(
            f"the environment asks for the protocol {protocol}, and this package sends http/protobuf. For another "
            "one, set a global provider in the module of the definitions"
        )
    return found


@contextmanager
def _warning(what: str, log: Any) -> Iterator[None]:
    """Log an error of the block as a warning instead of raising it. Workers and leaders also work without
    telemetry, for example if an environment variable is wrong. `what`: the effect of the error."""
    try:
        yield
    except ImportError as error:
        log.warning("%s: %s (%s)", what, MISSING, error)
    except Exception as error:
        log.warning("%s: %s", what, brief(error))


@contextmanager
def _traces(
    application: Application,
    identity: Identity,
    job: str | None,
    runtime: Runtime,
    log: Any,
    launched_by: str | None,
) -> Iterator["BatchTraces"]:
    from kcl_dagster.telemetry.batch_traces import BatchTraces

    facts = {
        "kcl.application": application.name,
        "kcl.worker": str(identity.worker),
        "kcl.slot": identity.slot,
        "dagster.run.id": identity.run_id,
        "dagster.job.name": job,
    }
    queue = DeliveryQueue(runtime.clock)
    provider, failed, shut_down = _tracer_provider(application, str(identity.worker), log)
    try:
        with DeliveryThread(queue, "kcl-spans", LAST_SPANS_SECONDS):
            tracer = provider.get_tracer(SCOPE, kcl_dagster.__version__)
            known = {name: value for name, value in facts.items() if value is not None}
            traces = BatchTraces(tracer, known, runtime.clock, queue.offer, failed, launched_by)
            try:
                yield traces
            finally:
                traces.close()
    finally:
        _within(SHUTDOWN_SECONDS, shut_down)


@contextmanager
def _tick_traces(application: Application, leader: str, runtime: Runtime, log: Any) -> Iterator["TickTraces"]:
    from kcl_dagster.telemetry.tick_traces import TickTraces

    queue = DeliveryQueue(runtime.clock)
    provider, _, shut_down = _tracer_provider(application, leader, log)
    with DeliveryThread(queue, "kcl-tick-spans", SHUTDOWN_SECONDS):
        tracer = provider.get_tracer(SCOPE, kcl_dagster.__version__)
        facts = {"kcl.application": application.name, "kcl.leader": leader}
        try:
            yield TickTraces(tracer, facts, runtime.clock, queue.offer)
        finally:
            # The provider is shut down on the thread of the queue, because a process that exits can start no
            # thread.
            queue.offer("end", shut_down, important=True)


def _tracer_provider(
    application: Application, instance: str, log: Any
) -> tuple["TracerProvider", Callable[[], int], Callable[[], object]]:
    """Return the provider, a function that returns how many spans its exporter has given up, and a function that
    shuts the provider down. If the provider is a global one, this number is not known, and the first function
    returns 0. A global provider is not shut down: the second function does nothing."""
    from opentelemetry import trace

    given, endpoint = trace.get_tracer_provider(), application.telemetry.otlp_endpoint
    if endpoint is None and not isinstance(given, trace.ProxyTracerProvider):
        return given, lambda: 0, lambda: None
    _complain(application, "traces", log)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from kcl_dagster.telemetry.counting_exporter import CountingExporter

    exporter = CountingExporter(OTLPSpanExporter(_url(endpoint, "traces")))
    provider = TracerProvider(resource=_resource(application, instance), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider, lambda: exporter.failed, provider.shutdown


@contextmanager
def _sending(
    application: Application,
    identity: Identity,
    registry: MetricsRegistry,
    families: Sequence[Family],
    on_failure: Callable[[], object],
    log: Any,
) -> Iterator[None]:
    from opentelemetry import metrics

    from kcl_dagster.telemetry.observed_metrics import observed_by

    given, endpoint = metrics.get_meter_provider(), application.telemetry.otlp_endpoint
    if endpoint is None and type(given).__name__ != "_ProxyMeterProvider":
        with observed_by(given, SCOPE, families).observing(registry):
            yield
        return
    _complain(application, "metrics", log)
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    from kcl_dagster.telemetry.counting_exporter import CountingMetricExporter

    exporter = CountingMetricExporter(_url(endpoint, "metrics"), on_failure)
    reader = PeriodicExportingMetricReader(exporter)
    provider = MeterProvider([reader], _resource(application, str(identity.worker)), shutdown_on_exit=False)
    with observed_by(provider, SCOPE, families).observing(registry):
        try:
            yield
        finally:
            _within(SHUTDOWN_SECONDS, provider.shutdown)  # sends the last values


def _url(endpoint: str | None, signal: str) -> str | None:
    """Return the URL for one signal, `traces` or `metrics`; None if the environment variables apply."""
    return None if endpoint is None else f"{endpoint.rstrip('/')}/v1/{signal}"


def _resource(application: Application, instance: str) -> "Resource":
    """Return the resource of a provider. Attributes in environment variables override those that are set here."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    known = {
        "service.name": application.name,
        "service.namespace": "kcl_dagster",
        "service.instance.id": instance,
    }
    return Resource.create({**known, **OTELResourceDetector().detect().attributes})


def _within(seconds: float, shut_down: Callable[[], object]) -> None:
    """Call `shut_down`, and wait for it for at most `seconds`. An exporter may hang for longer than its own
    timeout."""
    thread = threading.Thread(target=shut_down, name="kcl-otlp-end", daemon=True)
    thread.start()
    thread.join(seconds)
