"""A collector of OpenTelemetry: receives what is sent by OTLP over HTTP, and decodes it as its protobuf."""

import gzip
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2

EXPORTER_SECONDS = 60.0  # an exporter gives up after ten, and a worker has one for spans and one for metrics
PROMETHEUS_UNITS = {"s": "seconds", "By": "bytes", "": ""}


@dataclass(frozen=True)
class ReceivedEvent:
    name: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class ReceivedSpan:
    name: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    began: int
    ended: int
    attributes: Mapping[str, Any]
    events: Sequence[ReceivedEvent]
    links: Sequence[tuple[bytes, bytes]]
    """Trace and span."""

    error: str | None
    """The description of its status, if that is an error."""

    resource: Mapping[str, Any]


@dataclass
class Collector:
    """`url` is what `OTEL_EXPORTER_OTLP_ENDPOINT` says. `paths`: of all requests, decoded or not."""

    url: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)
    metrics: list[ExportMetricsServiceRequest] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    status: int = 200
    hangs: bool = False
    has_request: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def receive(self, path: str, body: bytes) -> int:
        self.paths.append(path)
        self.has_request.set()
        if self.hangs:
            self.over.wait()
        if self.status != 200:
            return self.status
        self.texts.append(body)
        if path == "/v1/metrics":
            self.metrics.append(ExportMetricsServiceRequest.FromString(body))
        else:
            self.spans += _spans(ExportTraceServiceRequest.FromString(body))
        return 200

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]

    def children(self, parent: ReceivedSpan) -> list[ReceivedSpan]:
        """The oldest first."""
        found = [s for s in self.spans if s.parent_id == parent.span_id and s.trace_id == parent.trace_id]
        return sorted(found, key=lambda span: span.began)

    def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """The last request's values, under the names that Prometheus gives them when it receives OTLP."""
        found = {}
        for resource in self.metrics[-1].resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    unit = PROMETHEUS_UNITS[metric.unit]
                    name = metric.name if unit in metric.name.split("_") or not unit else f"{metric.name}_{unit}"
                    is_sum = metric.HasField("sum")
                    for point in (metric.sum if is_sum else metric.gauge).data_points:
                        labels = frozenset((key, str(value)) for key, value in _values(point.attributes).items())
                        found[f"{name}_total" if is_sum else name, labels] = point.as_double or point.as_int
        return found


def _spans(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            assert scope.scope.name == "kcl_dagster" or scope.scope.name.startswith("consumer")
            for span in scope.spans:
                is_error = span.status.code == trace_pb2.Status.STATUS_CODE_ERROR
                yield ReceivedSpan(
                    span.name,
                    span.trace_id,
                    span.span_id,
                    span.parent_span_id,
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    _values(span.attributes),
                    [ReceivedEvent(event.name, _values(event.attributes)) for event in span.events],
                    [(link.trace_id, link.span_id) for link in span.links],
                    span.status.message if is_error else None,
                    _values(resource.resource.attributes),
                )


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def default_collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """The collector of a process that has set no providers: its address is in the environment."""
    with collecting() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
        monkeypatch.setattr(metrics._internal, "_METER_PROVIDER", None)
        yield found


@contextmanager
def exporters_end() -> Iterator[None]:
    """Waits at the end for the threads of exporters that began meanwhile. Where a collector does not answer, they
    would log, and draw random numbers, during the tests that follow."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("Otel"):
            thread.join(EXPORTER_SECONDS)
            assert not thread.is_alive(), f"{thread.name} is still sending"


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            status = collector.receive(self.path, body)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
