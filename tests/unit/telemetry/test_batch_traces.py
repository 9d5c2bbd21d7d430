"""Workers over tables in memory, and what a collector of OpenTelemetry receives from them."""

import logging
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler, SamplingResult

from kcl_dagster.application import TelemetrySettings
from kcl_dagster.telemetry import otlp, units, worker_metrics
from kcl_dagster.telemetry.openmetrics import Family
from kcl_dagster.telemetry.otlp import complaints, open_traces
from kcl_dagster.telemetry.worker_metrics import EXPORTS_FAILED, FAMILIES, WorkerTelemetry, open_telemetry
from kcl_dagster.worker.claims import Claims
from kcl_dagster.worker.spans import BATCH, NO_SPANS
from tests.doubles.otlp import Collector, ReceivedSpan, collecting, default_collector, exporters_end
from tests.unit.telemetry.openmetrics import parse
from tests.unit.worker.chains import A, B, ChainWorld, TableWorld, put
from tests.unit.worker.kit import Data, Run, World

pytestmark = pytest.mark.slow

log = logging.getLogger("tests.run")
SECRET = "4111-1111-1111-1111"
PROMPT_SECONDS = 2.0  # a worker that waited for a collector would take ten


@pytest.fixture
def exporters() -> Iterator[None]:
    with exporters_end():
        yield


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with default_collector(monkeypatch) as found:
        yield found


@contextmanager
def traced(world: World, run: Run, settings: TelemetrySettings | None = None) -> Iterator[WorkerTelemetry]:
    """The worker of `run` is replaced by one that is traced, and has all leases."""
    on = settings or TelemetrySettings(opentelemetry_traces=True)
    application = world.application.model_copy(update={"telemetry": on})
    identity = run.worker.identity
    with (
        open_traces(application, identity, "clicks_worker", world.runtime, log) as traces,
        open_telemetry(application, identity, world.runtime, lambda _: None, log, traces) as telemetry,
    ):
        run.worker = telemetry.worker(run.worker._around, world.runtime)
        run.worker.start()
        world.assign(run)
        yield telemetry
        run.worker.protocol.close()
        run.worker.shut_down()


def names(spans: Sequence[ReceivedSpan]) -> list[str]:
    return [span.name for span in spans]


def test_a_batch_is_a_trace_of_its_stages(collector: Collector) -> None:
    world = ChainWorld()
    put(world, records=3)
    run = world.chain_worker("worker-001")
    with traced(world, run):
        run.until_idle()
    [batch] = collector.named("batch")
    assert batch.parent_id == b""
    assert names(collector.children(batch)) == ["fetch", "write", "commit"]
    fetch, write, commit = collector.children(batch)
    decide, publish = collector.children(commit)
    assert names([decide, publish]) == ["decide", "publish"]
    assert decide.attributes["kcl.entry"] == 1
    assert decide.attributes["kcl.chain"].startswith("clicks")
    assert publish.attributes["kcl.visible"] is True
    for span in (fetch, write, commit, decide, publish):
        assert span.trace_id == batch.trace_id
        assert batch.began <= span.began <= span.ended <= batch.ended
        assert span.error is None
    assert batch.began / 1e9 == pytest.approx(world.clock.now(), abs=3600)


def test_a_batch_names_its_run_its_leases_and_what_came_of_it(collector: Collector) -> None:
    world = ChainWorld(shards=2)
    put(world, A, 3)
    put(world, B, 2)
    run = world.chain_worker("worker-001")
    with traced(world, run):
        run.until_idle()
    [batch] = collector.named("batch")
    assert batch.attributes == {
        "kcl.application": "clicks",
        "kcl.worker": "worker-001",
        "kcl.slot": "worker-001",
        "dagster.run.id": "run-worker-001",
        "dagster.job.name": "clicks_worker",
        "aws.kinesis.stream_name": world.application.streams[0].name,
        "kcl.records": 5,
        "kcl.bytes": 40,
        "kcl.lease_count": 2,
        "kcl.leases": [A, B],
        "kcl.outcome.committed": 2,
        "kcl.millis_behind": 0,
    }
    starts = collector.named("start worker")
    assert batch.links == [(starts[-1].trace_id, starts[-1].span_id)]
    assert starts[-1].error is None


@pytest.mark.parametrize(
    ("launched_by", "links"),
    [
        (f"00-{'ab' * 16}-{'cd' * 8}-01", [(b"\xab" * 16, b"\xcd" * 8)]),
        ("of another format", []),
        (None, []),
    ],
)
def test_the_start_of_a_worker_is_linked_to_the_tick_that_launched_it(
    launched_by: str | None, links: list[tuple[bytes, bytes]], collector: Collector
) -> None:
    world = World()
    application = world.application.model_copy(update={"telemetry": TelemetrySettings(opentelemetry_traces=True)})
    identity = world.worker("w").worker.identity
    with open_traces(application, identity, None, world.runtime, log, launched_by) as traces:
        assert traces is not None
        traces.started()
    [start] = collector.named("start worker")
    assert start.links == links
    assert (start.parent_id, start.error) == (b"", None)


def test_rounds_that_find_nothing_are_no_traces(collector: Collector) -> None:
    world = ChainWorld()
    run = world.chain_worker("worker-001")
    with traced(world, run):
        for _ in range(5):
            run.round()
    assert names(collector.spans) == ["start worker"]


def test_a_commit_of_a_table_is_a_span(collector: Collector) -> None:
    world = TableWorld()
    put(world, records=9)
    run = world.chain_worker("worker-001")
    with traced(world, run):
        run.until_idle()
    assert len(collector.named("batch")) >= 3
    commits = collector.named("commit table")
    assert sum(span.attributes["kcl.entries"] for span in commits) == 3
    assert [span.attributes["kcl.commit"] for span in commits] == list(range(1, len(commits) + 1))
    assert all(not span.attributes["kcl.visible"] for span in collector.named("publish"))
    first, last = commits[0], commits[-1]
    assert first.parent_id in {span.span_id for span in collector.named("batch")}
    assert last.parent_id == b"", "when the worker ends there is no batch"


def test_a_failed_write_is_a_span_with_an_error_and_without_values_of_records(collector: Collector) -> None:
    world = ChainWorld()
    world.stream.put(A, SECRET)
    run = world.chain_worker("worker-001")

    def refuse(data: Data) -> None:
        raise ValueError(f"cannot parse '{data[0][2]}' of {SECRET}")

    with traced(world, run):
        world.sinks["worker-001"].refuses = refuse
        run.round()
    [batch] = collector.named("batch")
    [write] = collector.named("write")
    assert write.error is not None
    assert write.error.startswith("ValueError: cannot parse")
    [event] = write.events
    assert event.name == "exception"
    assert event.attributes["exception.type"] == "ValueError"
    assert "in refuse" in event.attributes["exception.stacktrace"]
    assert batch.error is not None
    [lease] = batch.events
    assert (lease.attributes["kcl.lease"], lease.attributes["kcl.outcome"]) == (A, "failed")
    assert not any(SECRET.encode() in text for text in collector.texts)


def test_batches_that_are_decided_in_leases_are_traces_too(collector: Collector) -> None:
    world = World(shards=1)
    world.stream.put(A, *"abc")
    run = world.worker("worker-001")
    with traced(world, run):
        run.until_idle()
    [batch] = collector.named("batch")
    assert names(collector.children(batch)) == ["fetch", "prepare", "write", "commit"]


def test_a_fetch_that_fails_is_a_trace(collector: Collector) -> None:
    world = ChainWorld()
    put(world, records=1)
    run = world.chain_worker("worker-001")

    def fail() -> None:
        raise OSError("no route")

    with traced(world, run):
        run.engine.hooks.append(fail)
        run.round()
    [batch] = collector.named("batch")
    [fetch] = collector.children(batch)
    assert fetch.error is not None
    assert fetch.error.startswith("OSError: no route")


def test_a_worker_that_never_could_read_says_so(collector: Collector) -> None:
    world = World()
    application = world.application.model_copy(update={"telemetry": TelemetrySettings(opentelemetry_traces=True)})
    with open_traces(application, world.worker("w").worker.identity, None, world.runtime, log):
        pass
    [start] = collector.named("start worker")
    assert start.error == "the worker ended before it could read"


# Where it goes


def test_the_environment_says_where_and_under_which_name(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = ChainWorld()
    put(world)
    run = world.chain_worker("worker-001")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "lake")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=prod,service.instance.id=seven")
    with traced(world, run):
        run.until_idle()
    for span in collector.spans:
        assert span.resource["service.name"] == "lake"
        assert span.resource["deployment.environment.name"] == "prod"
        assert span.resource["service.instance.id"] == "seven"
    assert set(collector.paths) == {"/v1/traces"}


def test_a_setting_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    world = ChainWorld()
    put(world)
    run = world.chain_worker("worker-001")
    with collecting() as collector:
        settings = TelemetrySettings(
            opentelemetry_traces=True, opentelemetry_metrics=True, otlp_endpoint=f"{collector.url}/"
        )
        with traced(world, run, settings):
            run.until_idle()
    assert collector.named("batch")[0].resource["service.name"] == "clicks"
    assert collector.named("batch")[0].resource["service.instance.id"] == "worker-001"
    assert set(collector.paths) == {"/v1/traces", "/v1/metrics"}


@contextmanager
def global_providers(
    monkeypatch: pytest.MonkeyPatch, *processors: SpanProcessor, sampler: Sampler | None = None
) -> Iterator[InMemoryMetricReader]:
    """As the consumer's code sets them."""
    tracers, reader = TracerProvider(sampler, shutdown_on_exit=False), InMemoryMetricReader()
    for processor in processors:
        tracers.add_span_processor(processor)
    meters = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", tracers)
    monkeypatch.setattr(metrics._internal, "_METER_PROVIDER", meters)
    yield reader
    meters.shutdown()


def test_global_providers_of_the_consumer_are_used_and_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    world = ChainWorld()
    put(world)
    run = world.chain_worker("worker-001")
    both = TelemetrySettings(opentelemetry_traces=True, opentelemetry_metrics=True)

    def use(data: Data) -> None:
        with trace.get_tracer("consumer").start_as_current_span("look up"):
            pass

    with global_providers(monkeypatch, SimpleSpanProcessor(exporter)) as reader:
        with traced(world, run, both):
            world.sinks["worker-001"].refuses = use
            run.until_idle()
            assert "kcl_records" in metrics_of(reader)
        assert metrics_of(reader) == set(), "of a worker that has ended"
        spans = exporter.get_finished_spans()
        [write, *_] = [span for span in spans if span.name == "write"]
        [inner, *_] = [span for span in spans if span.name == "look up"]
        assert inner.parent is not None
        assert write.context is not None
        assert inner.parent.span_id == write.context.span_id
        with trace.get_tracer("consumer").start_as_current_span("afterwards"):
            pass
        afterwards = exporter.get_finished_spans()[-1]
        assert (afterwards.name, afterwards.parent) == ("afterwards", None), "it was not shut down"


def metrics_of(reader: InMemoryMetricReader) -> set[str]:
    data = reader.get_metrics_data()
    resources = [] if data is None else data.resource_metrics
    return {
        metric.name
        for resource in resources
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.data.data_points
    }


# Nothing waits for it


class HangingExporter(SpanExporter):
    def __init__(self) -> None:
        self.over = threading.Event()
        self.has_begun = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.has_begun.set()
        self.over.wait()
        return SpanExportResult.SUCCESS


class RaisingProcessor(SpanProcessor):
    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise RuntimeError("not today")

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("not today")


class RaisingSampler(Sampler):
    def should_sample(self, *_: Any, **__: Any) -> SamplingResult:
        raise RuntimeError("not today")

    def get_description(self) -> str:
        return "raises"


def works(world: ChainWorld, run: Run, telemetry: WorkerTelemetry) -> float:
    """Five batches and a renewal; returns how long it took in real seconds."""
    began = time.monotonic()
    for _ in range(5):
        put(world, records=3)
        assert run.round().records == 3
    world.clock.advance(11)
    run.worker.step_renewal()
    page = parse(telemetry.registry.render())
    assert page.value("kcl_renewals_total", result="renewed") >= 1
    world.check()
    return time.monotonic() - began


def test_a_worker_does_not_wait_for_an_exporter_that_hangs_on_the_thread_that_ends_a_span(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A `SimpleSpanProcessor`, which exports within the end of a span."""
    world, exporter = ChainWorld(), HangingExporter()
    run = world.chain_worker("worker-001")
    with global_providers(monkeypatch, SimpleSpanProcessor(exporter)):
        with traced(world, run) as telemetry:
            assert works(world, run, telemetry) < PROMPT_SECONDS
            assert exporter.has_begun.wait(PROMPT_SECONDS)
            assert telemetry.traces is not None
            while not telemetry.traces.lost:
                put(world, records=1)
                run.round()
            run.round()
            assert parse(telemetry.registry.render()).value("kcl_spans_lost_total") > 0
        exporter.over.set()
    world.check()


@pytest.mark.parametrize(
    "given", [{"processors": [RaisingProcessor()]}, {"sampler": RaisingSampler()}], ids=["processor", "sampler"]
)
def test_a_worker_goes_on_where_the_consumers_tracing_raises(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = ChainWorld()
    run = world.chain_worker("worker-001")
    with (
        global_providers(monkeypatch, *given.get("processors", ()), sampler=given.get("sampler")),
        traced(world, run) as telemetry,
    ):
        works(world, run, telemetry)


@pytest.mark.usefixtures("exporters")
@pytest.mark.parametrize("trouble", ["hangs", "refuses", "is away"])
def test_a_worker_does_not_wait_for_a_collector(
    trouble: str, monkeypatch: pytest.MonkeyPatch, collector: Collector
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "10")
    if trouble == "is away":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(otlp, "SHUTDOWN_SECONDS", 0.5)
    collector.hangs = trouble == "hangs"
    collector.status = 400
    world = ChainWorld()
    run = world.chain_worker("worker-001")
    both = TelemetrySettings(opentelemetry_traces=True, opentelemetry_metrics=True)
    with traced(world, run, both) as telemetry:
        assert works(world, run, telemetry) < PROMPT_SECONDS
        if trouble != "is away":
            assert collector.has_request.wait(10)
        assert works(world, run, telemetry) < PROMPT_SECONDS
        ended = time.monotonic()
    assert time.monotonic() - ended < 2 * PROMPT_SECONDS
    assert all(lease.actual_owner is None for lease in world.leases.scan().leases), "released before the last wait"


def test_spans_that_a_collector_refuses_are_counted(monkeypatch: pytest.MonkeyPatch, collector: Collector) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    collector.status = 400
    world = ChainWorld()
    run = world.chain_worker("worker-001")
    with traced(world, run) as telemetry:
        works(world, run, telemetry)
        traces = telemetry.traces
        assert traces is not None
        until = time.monotonic() + 10
        while not traces.lost and time.monotonic() < until:
            put(world, records=1)
            run.round()
        run.round()
        assert parse(telemetry.registry.render()).value("kcl_spans_lost_total") > 0


def test_exports_of_metrics_that_a_collector_refuses_are_counted(
    monkeypatch: pytest.MonkeyPatch, collector: Collector
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "10")
    collector.status = 400
    world = ChainWorld()
    run = world.chain_worker("worker-001")
    with traced(world, run, TelemetrySettings(opentelemetry_metrics=True)) as telemetry:
        samples = telemetry.registry.samples
        until = time.monotonic() + 30
        while not samples(EXPORTS_FAILED) and time.monotonic() < until:
            run.round()
        assert parse(telemetry.registry.render()).value("kcl_metric_exports_failed_total") > 0
        collector.status = 200
        while not collector.metrics and time.monotonic() < until:
            run.round()
    received = {name: value for (name, _), value in collector.samples().items()}
    assert received["kcl_metric_exports_failed_total"] > 0


BOTH = "OTEL_EXPORTER_OTLP_"


@pytest.mark.parametrize(
    ("endpoint", "environment", "words"),
    [
        ("http://h:4318", {}, []),
        ("http://h:4317", {}, ["4317"]),
        ("http://h:4317/otel", {}, ["4317"]),
        ("http://h:43170", {}, []),
        ("http://h4317/a:43179", {}, []),
        (None, {}, []),
        (None, {f"{BOTH}ENDPOINT": "http://h:4317"}, ["4317"]),
        (None, {f"{BOTH}ENDPOINT": "http://h:4317", f"{BOTH}TRACES_ENDPOINT": "http://h:4318/v1/traces"}, []),
        ("http://h:4318", {f"{BOTH}ENDPOINT": "http://h:4317"}, []),
        ("http://h:4318", {f"{BOTH}PROTOCOL": "grpc"}, ["protocol grpc"]),
        (None, {f"{BOTH}PROTOCOL": "http/protobuf"}, []),
        (None, {f"{BOTH}TRACES_PROTOCOL": "http/json"}, ["protocol http/json"]),
        (None, {f"{BOTH}METRICS_PROTOCOL": "grpc"}, []),
        (None, {f"{BOTH}ENDPOINT": "http://h:4317", f"{BOTH}PROTOCOL": "grpc"}, ["4317", "protocol grpc"]),
    ],
)
def test_what_needs_another_protocol_is_known(
    endpoint: str | None, environment: dict[str, str], words: list[str]
) -> None:
    found = complaints(endpoint, "traces", environment)
    assert len(found) == len(words)
    assert all(word in complaint for word, complaint in zip(words, found, strict=True))


@pytest.mark.parametrize("has_provider", [False, True])
def test_another_protocol_is_a_warning_unless_a_provider_is_given(
    has_provider: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, collector: Collector
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    world = ChainWorld()
    both = TelemetrySettings(opentelemetry_traces=True, opentelemetry_metrics=True)
    with ExitStack() as stack:
        if has_provider:
            stack.enter_context(global_providers(monkeypatch))
        stack.enter_context(traced(world, world.chain_worker("worker-001"), both))
    said = [record.getMessage() for record in caplog.records if "the protocol grpc" in record.getMessage()]
    assert [line.split()[0] for line in said] == ([] if has_provider else ["traces", "metrics"])


def test_wrong_variables_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, collector: Collector
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "1")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "-1")
    world = ChainWorld()
    run = world.chain_worker("worker-001")
    both = TelemetrySettings(opentelemetry_traces=True, opentelemetry_metrics=True)
    with traced(world, run, both) as telemetry:
        works(world, run, telemetry)
    assert "batches are not traced: " in caplog.text
    assert "metrics are not sent by OpenTelemetry: " in caplog.text


def test_a_worker_without_the_extra_works(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    # A test before this one may have imported it, with what is missing now.
    monkeypatch.delitem(sys.modules, "kcl_dagster.telemetry.counting_exporter", raising=False)
    world = ChainWorld()
    run = world.chain_worker("worker-001")
    both = TelemetrySettings(opentelemetry_traces=True, opentelemetry_metrics=True)
    with traced(world, run, both) as telemetry:
        works(world, run, telemetry)
    assert caplog.text.count("pip install 'kcl-dagster[otel]'") == 2


# Metrics


def test_metrics_are_those_of_the_page(collector: Collector) -> None:
    world = ChainWorld(shards=2)
    put(world, A, 3)
    run = world.chain_worker("worker-001")
    settings = TelemetrySettings(opentelemetry_metrics=True)
    with traced(world, run, settings) as telemetry:
        run.until_idle()
        world.clock.advance(11)
        run.worker.step_renewal()
        telemetry.registry.add(next(one for one in FAMILIES if one.name == "kcl_dynamodb_units"), 1.5, kind="read")
        run.worker.protocol.close()
        run.worker.shut_down()
        page = parse(telemetry.registry.render())
    shown = {(name, frozenset(labels)): value for (name, labels), value in page.samples.items()}
    assert collector.samples() == shown
    assert ("kcl_renewals_total", "renewed") in {(name, dict(of).get("result")) for name, of in shown}


def test_every_metric_of_the_package_is_among_the_families() -> None:
    declared = [*vars(units).values(), *vars(worker_metrics).values()]
    assert {one for one in declared if isinstance(one, Family)} == set(FAMILIES)


# Off


def test_nothing_of_opentelemetry_is_imported_unless_it_is_asked_for() -> None:
    program = """
import sys
import kcl_dagster.telemetry.leader_metrics, kcl_dagster.telemetry.worker_metrics
assert not [name for name in sys.modules if name.startswith("opentelemetry")], "imported"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_spans_that_are_not_kept_take_no_memory() -> None:
    def a_batch() -> None:
        with NO_SPANS.span(BATCH):
            for _ in range(6):
                with NO_SPANS.span("write") as span:
                    span.note("kcl.entry", 7)

    a_batch()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(1000):
            a_batch()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Threads of the session that other tests share may allocate meanwhile. A span takes hundreds of bytes.
    assert after - before < 20_000, "less than 20 bytes for each batch"
    assert peak - before < 20_000


def test_a_worker_that_is_not_traced_has_no_spans() -> None:
    run = ChainWorld().chain_worker("w")
    assert run.worker._around.spans is NO_SPANS
    protocol: Any = run.worker.protocol
    claims: Claims = protocol.claims
    assert protocol.reading.spans is NO_SPANS
    assert claims.spans is NO_SPANS
