"""Measures what traces cost the main thread of a worker: `make bench-tracing`.

The benchmark makes the seven spans of a batch as a worker makes them, without the work of the batch: once with
traces switched off, and once with traces switched on. If they are on, the spans go through the SDK of OpenTelemetry
to an exporter that accepts all spans. The figure is the CPU time of the main thread for each batch, the lowest of
some rounds. Takes seconds.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from kcl_dagster.runtime import SystemClock
from kcl_dagster.telemetry.batch_traces import BatchTraces
from kcl_dagster.worker.delivery import DeliveryQueue, DeliveryThread
from kcl_dagster.worker.spans import BATCH, DECIDE, FETCH, NO_SPANS, PUBLISH, TRANSFORM, Spans

ROUNDS: Final = 7
BATCHES: Final = 100  # batches in a round; the spans of all of them fit into the queue
MOST_MICROSECONDS: Final = {"off": 10.0, "on": 2000.0}  # a batch takes a second or more


class TakesAll(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002
        return SpanExportResult.SUCCESS


def batch(spans: Spans) -> None:
    with spans.span(BATCH):
        with spans.span(FETCH):
            pass
        with spans.span("write"), spans.span(TRANSFORM):
            pass
        with spans.span("commit"):
            with spans.span(DECIDE) as span:
                span.note("kcl.entry", 1)
            with spans.span(PUBLISH):
                pass


def microseconds(spans: Spans, settled: Callable[[], object]) -> float:
    """The CPU time of a batch, in microseconds: the lowest of some rounds. The first round only warms up. `settled`
    is called after each round."""
    found = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        for _ in range(BATCHES):
            batch(spans)
        found.append((time.thread_time() - began) / BATCHES * 1e6)
        settled()
    return min(found[1:])


def main() -> int:
    clock, queue = SystemClock(), DeliveryQueue()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(TakesAll()))
    with DeliveryThread(queue, "spans"):
        facts = dict.fromkeys(("kcl.application", "kcl.worker", "kcl.slot", "dagster.run.id"), "x" * 20)
        traces = BatchTraces(provider.get_tracer("benchmark"), facts, clock, queue.offer)
        found = {
            "off": microseconds(NO_SPANS, lambda: None),
            "on": microseconds(traces, lambda: clock.sleep(0.5)),
        }
    provider.shutdown()
    assert not traces.lost, f"{traces.lost} spans were dropped"
    for name, value in found.items():
        print(f"traces {name}: {value:.1f} CPU-microseconds of the main thread a batch")
        figure = {"figure": f"spans of a batch, {name}", "value": round(value, 1), "unit": "microseconds"}
        print(json.dumps({**figure, "bar": MOST_MICROSECONDS[name], "ok": value <= MOST_MICROSECONDS[name]}))
    return 0 if all(value <= MOST_MICROSECONDS[name] for name, value in found.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
