"""Exporters that count or report failed exports. Imported only if an application configures OpenTelemetry."""

from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult


class CountingExporter(SpanExporter):
    """Passes spans to another exporter, and counts the spans that the other exporter failed to export. Called on a
    thread of the span processor."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self.failed = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            if result is not SpanExportResult.SUCCESS:
                self.failed += len(spans)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class CountingMetricExporter(OTLPMetricExporter):
    """Exports metrics, and calls `on_failure` for each export that failed. Called on the thread of the metric
    reader."""

    def __init__(self, endpoint: str | None, on_failure: Callable[[], object]) -> None:
        super().__init__(endpoint)
        self._on_failure = on_failure

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **more: Any
    ) -> MetricExportResult:
        result = MetricExportResult.FAILURE
        try:
            result = super().export(metrics_data, timeout_millis, **more)
        finally:
            if result is not MetricExportResult.SUCCESS:
                self._on_failure()
        return result
