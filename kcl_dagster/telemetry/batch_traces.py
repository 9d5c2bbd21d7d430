"""Exports batches as traces of OpenTelemetry. Imported only if an application configures traces.

A round of a worker is one pass over its leases. If a round read records or failed, it becomes a trace: a span
`batch` with a child span for each stage. Other rounds make no span. While a transform runs, its span is the current
span, so that spans of the consumer's own instrumentation are its children.

Spans begin on the worker's main thread. This takes microseconds. They end on a separate thread, so that a span
processor or an exporter never delays a worker. If the separate thread is stuck, spans are dropped and counted.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Final, Self

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Link, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kcl_dagster.runtime import Clock
from kcl_dagster.worker.delivery import Offer
from kcl_dagster.worker.error_text import brief, full, kind_of
from kcl_dagster.worker.processing_watch import uninterrupted
from kcl_dagster.worker.report import BatchReport, LeaseReport, Outcome
from kcl_dagster.worker.spans import BATCH, FETCH

log = logging.getLogger(__name__)

START: Final = "start worker"
MOST_LEASES: Final = 32  # a span names at most this many leases; the number in it includes all leases
NANOSECONDS: Final = 1_000_000_000
_LATE: Final = frozenset({BATCH, FETCH})  # these spans are made when it is known that the round becomes a trace

Facts = dict[str, str | int | tuple[str, ...]]


@dataclass(slots=True)
class BatchSpan:
    """A span of a batch or of a stage, see `worker.spans.TracedWork`. `made`: the span in OpenTelemetry, None until
    it is made. `began` and `ended` are monotonic times."""

    traces: "BatchTraces"
    name: str
    parent: "BatchSpan | None" = None
    began: float = 0.0
    ended: float = 0.0
    facts: Facts = field(default_factory=dict)
    error: BaseException | None = None
    failure: str | None = None
    """The error of a batch, without values of records, if the batch did not end with an exception."""

    leases: list[LeaseReport] = field(default_factory=list)
    """The results of leases with an error, each of which becomes an event."""

    is_kept: bool = False
    """For the first span of a trace: whether this span is made in OpenTelemetry even if none of its children
    was."""

    late: list["BatchSpan"] = field(default_factory=list)
    """Child spans that have ended and were not made in OpenTelemetry yet."""

    made: trace.Span | None = None
    token: object = None

    def __enter__(self) -> Self:
        self.traces.begin(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.traces.end(self, error)

    def note(self, key: str, value: str | int) -> None:
        self.facts[key] = value


class BatchTraces:
    """Makes the spans of a worker, see `worker.spans.Spans`. Any thread can call `started`."""

    def __init__(
        self,
        tracer: Tracer,
        facts: Mapping[str, str],
        clock: Clock,
        offer: Offer,
        failed: Callable[[], int] = lambda: 0,
        launched_by: str | None = None,
    ) -> None:
        """Begin the span of the worker's start.

        - `facts`: facts about the worker, for the first span of each trace.
        - `offer`: adds a call to a queue, from which a separate thread makes the call.
        - `failed`: returns the number of spans that an exporter has given up.
        - `launched_by`: the `traceparent` of the leader's tick that launched the worker.
        """
        self._tracer = tracer
        self._facts = dict(facts)
        self._clock = clock
        self._offer = offer
        self._failed = failed
        self._epoch = clock.now() - clock.monotonic()
        self._open: list[BatchSpan] = []
        self._complained = False
        self._dropped = 0
        self._start: trace.Span | None = None
        with suppress(Exception):  # the consumer's own providers may raise any error
            began = self._at(clock.monotonic())
            links = _links(launched_by)
            self._start = tracer.start_span(START, attributes=self._facts, links=links, start_time=began)

    @property
    def start_trace(self) -> str | None:
        """The id of the trace of the worker's start, to which all batches are linked; None if there is no trace."""
        found = None if self._start is None else self._start.get_span_context()
        return trace.format_trace_id(found.trace_id) if found is not None and found.is_valid else None

    @property
    def lost(self) -> int:
        """The number of spans that were dropped from the full queue, or that an exporter has given up."""
        return self._dropped + self._failed()

    def span(self, name: str) -> BatchSpan:
        return BatchSpan(self, name)

    def started(self) -> None:
        """End the span of the worker's start, because the worker can read now."""
        self._end_start(None)

    def close(self) -> None:
        """End the span of the worker's start as failed, if the worker ended before it could read."""
        self._end_start("the worker ended before it could read")

    def report(self, report: BatchReport) -> None:
        """Add the results of a batch to its open span."""
        batch = self._open[0] if self._open else None
        if batch is None or batch.name != BATCH:
            return
        outcomes = Counter(lease.outcome for lease in report.leases)
        batch.is_kept = batch.is_kept or report.error is not None or bool(outcomes.keys() - {Outcome.IDLE})
        batch.failure = report.error
        batch.leases = [lease for lease in report.leases if lease.error is not None][:MOST_LEASES]
        streams = sorted({lease.stream.name for lease in report.leases})
        batch.facts |= {
            "kcl.records": report.records,
            "kcl.bytes": report.bytes,
            "kcl.lease_count": len(report.leases),
            "kcl.leases": tuple(str(lease.lease) for lease in report.leases[:MOST_LEASES]),
            "aws.kinesis.stream_name": streams[0] if len(streams) == 1 else tuple(streams),
            **{f"kcl.outcome.{outcome.value.replace(' ', '_')}": count for outcome, count in outcomes.items()},
        }
        if report.millis_behind is not None:
            batch.facts["kcl.millis_behind"] = report.millis_behind

    # Called by spans

    def begin(self, span: BatchSpan) -> None:
        if span.name == BATCH:
            self._open.clear()  # an interrupted round may have left open spans
        span.parent = self._open[-1] if self._open else None
        span.began = self._clock.monotonic()
        self._open.append(span)
        if span.name not in _LATE:
            self._guarded(self._make, span)

    def end(self, span: BatchSpan, error: BaseException | None) -> None:
        span.ended, span.error = self._clock.monotonic(), error
        while self._open and self._open.pop() is not span:
            pass  # children that were interrupted before they could end
        parent = span.parent
        if span.made is None and parent is not None and parent.made is None:
            parent.late.append(span)
            parent.is_kept = parent.is_kept or span.is_kept or error is not None
        elif span.made is not None or parent is not None or span.is_kept or error is not None:
            self._guarded(self._finish, span)

    def _guarded(self, step: Callable[[BatchSpan], None], span: BatchSpan) -> None:
        """Run `step`. Log errors once instead of raising: providers, samplers and processors may be the
        consumer's own."""
        try:
            with uninterrupted():  # the error of an interruption must reach the worker
                step(span)
        except Exception as error:
            if not self._complained:
                self._complained = True
                log.warning("spans cannot be made: %s", brief(error))

    def _make(self, span: BatchSpan) -> None:
        """Begin the span in OpenTelemetry, after the spans above it, and finish its children that have ended."""
        parent = span.parent
        if parent is not None and parent.made is None:
            self._make(parent)
        is_batch = span.name == BATCH
        above = otel_context.Context()  # an empty context: a batch is a trace of its own
        if parent is not None and parent.made is not None:
            above = trace.set_span_in_context(parent.made, above)
        links = [] if parent is not None or self._start is None else [Link(self._start.get_span_context())]
        span.made = self._tracer.start_span(
            span.name,
            context=above,
            kind=SpanKind.CONSUMER if is_batch else SpanKind.INTERNAL,
            attributes=self._facts if parent is None else None,
            links=links,
            start_time=self._at(span.began),
        )
        if not span.ended:
            span.token = otel_context.attach(trace.set_span_in_context(span.made))
        for child in span.late:
            self._finish(child)
        span.late.clear()

    def _finish(self, span: BatchSpan) -> None:
        if span.made is None:
            self._make(span)
        made, ended = span.made, self._at(span.ended)
        if span.token is not None:
            otel_context.detach(span.token)  # type: ignore[arg-type]  # what `attach` returned
        if made is None:
            return
        if made.is_recording():
            self._describe(made, span, ended)
        if not self._offer("span", partial(_end, made, ended)):
            self._dropped += 1

    def _describe(self, made: trace.Span, span: BatchSpan, ended: int) -> None:
        made.set_attributes(span.facts)
        if span.error is not None:
            text = {"exception.message": brief(span.error), "exception.stacktrace": full(span.error)}
            made.add_event("exception", {"exception.type": kind_of(span.error), **text}, ended)
            made.set_status(StatusCode.ERROR, brief(span.error))
        elif span.failure is not None:
            made.set_status(StatusCode.ERROR, span.failure.partition("\n")[0])
        for lease in span.leases:
            about = {
                "kcl.lease": str(lease.lease),
                "kcl.outcome": lease.outcome.value,
                "kcl.error": lease.error or "",
            }
            made.add_event("lease", about, ended)

    def _end_start(self, why_failed: str | None) -> None:
        start = self._start
        if start is None or not start.is_recording():
            return
        ended = self._at(self._clock.monotonic())

        def end() -> None:
            if start.is_recording():
                if why_failed is not None:
                    start.set_status(StatusCode.ERROR, why_failed)
                _end(start, ended)

        self._offer("span", end, important=True)

    def _at(self, monotonic: float) -> int:
        return round((self._epoch + monotonic) * NANOSECONDS)


def _links(traceparent: str | None) -> list[Link]:
    if traceparent is None:
        return []
    above = TraceContextTextMapPropagator().extract({"traceparent": traceparent}, otel_context.Context())
    found = trace.get_current_span(above).get_span_context()
    return [Link(found)] if found.is_valid else []


def _end(span: trace.Span, at: int) -> None:
    """End a span. This passes the span to its exporter. An error is ignored, because the worker must not fail
    because of a span."""
    with suppress(Exception):
        span.end(at)
