"""Exports ticks of a leader as traces of OpenTelemetry. Imported only if an application configures traces.

If this process leads, launches workers or fails in a tick, the tick becomes a trace: a span `tick`, with a child
span for each stage. The spans are made from the report when the tick has ended, so no stage waits for them. The
span `tick` begins on the thread of the tick, because the runs that the tick launches get the id of this span. A
separate thread does the rest, so that span processors and exporters delay no tick. If the separate thread is stuck,
spans are dropped.
"""

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kcl_dagster.leader.tick_report import StageOutcome, TickReport
from kcl_dagster.runtime import Clock
from kcl_dagster.worker.delivery import Offer
from kcl_dagster.worker.error_text import brief

log = logging.getLogger(__name__)

TICK: Final = "tick"
MOST_EVENTS: Final = 32  # a span has at most this many events of one kind; the counts in it include all
NANOSECONDS: Final = 1_000_000_000

Fact = str | int | bool | tuple[str, ...]


class TickTraces:
    """Makes the spans of a leader's ticks. Not safe for two threads at once."""

    def __init__(self, tracer: Tracer, facts: Mapping[str, str], clock: Clock, offer: Offer) -> None:
        """`facts`: facts about the leader, for the first span of each trace. `offer`: adds a call to a queue, from
        which a separate thread makes the call."""
        self._tracer = tracer
        self._facts = dict(facts)
        self._clock = clock
        self._offer = offer
        self._has_complained = False

    def tick(self, report: TickReport) -> str | None:
        """Make the trace of a tick that has ended. Never raises, never waits.

        Returns the `traceparent` of the tick, for the runs that the tick launches; None if there is no trace.
        """
        if not (report.leading or len(report.stages) > 1 or not report.ok):
            return None
        try:
            # A tick is a trace of its own, even if another span is current. The times in a report are monotonic.
            epoch = self._clock.now() - self._clock.monotonic()
            began = _at(epoch, report.began)
            tick = self._tracer.start_span(TICK, context=Context(), attributes=self._facts, start_time=began)
            carrier: dict[str, str] = {}
            TraceContextTextMapPropagator().inject(carrier, trace.set_span_in_context(tick, Context()))
        except Exception as error:  # the consumer's own providers, samplers and processors may raise any error
            if not self._has_complained:
                self._has_complained = True
                log.warning("ticks cannot be traced: %s", brief(error))
            return None
        self._offer("span", partial(self._describe, tick, report, epoch))
        return carrier.get("traceparent")

    def _describe(self, tick: trace.Span, report: TickReport, epoch: float) -> None:
        """Add facts, events and stages to the span of a tick, and end the span. Any error is ignored, because a
        leader must not fail because of a span."""
        with suppress(Exception):
            ended = _at(epoch, report.ended)
            if tick.is_recording():
                tick.set_attributes(_facts(report))
                for name, about in _events(report):
                    tick.add_event(name, about, ended)
                failed = "; ".join(report.problems)
                if failed:
                    tick.set_status(StatusCode.ERROR, failed.partition("\n")[0])
            above = trace.set_span_in_context(tick, Context())
            for stage in report.stages:
                self._describe_stage(stage, above, epoch)
            tick.end(ended)

    def _describe_stage(self, stage: StageOutcome, above: Context, epoch: float) -> None:
        span = self._tracer.start_span(stage.name, context=above, start_time=_at(epoch, stage.began))
        if stage.error is not None:
            span.set_status(StatusCode.ERROR, stage.error.partition("\n")[0])
        span.end(_at(epoch, stage.began + stage.seconds))


def _facts(report: TickReport) -> Mapping[str, Fact]:
    streams = sorted(stream.name for stream in report.streams)
    found: dict[str, Fact] = {
        "kcl.leading": report.leading,
        "kcl.lease_count": len(report.leases),
        "kcl.unserved_count": len(report.unserved),
        "kcl.worker_count": sum(seen.alive for seen in report.workers),
        "kcl.move_count": len(report.moves),
        "kcl.launch_count": len(report.launches),
    }
    if streams:
        found["aws.kinesis.stream_name"] = streams[0] if len(streams) == 1 else tuple(streams)
    if report.target_workers is not None:
        found["kcl.target_workers"] = report.target_workers
    if report.lag_ms is not None:
        found["kcl.millis_behind"] = report.lag_ms
    return found


def _events(report: TickReport) -> Iterable[tuple[str, Mapping[str, str | int]]]:
    """Yield the decisions of the tick as events of a span, each with its reason."""
    for move in report.moves[:MOST_EVENTS]:
        about = {"kcl.lease": str(move.lease), "kcl.worker": str(move.to), "kcl.kind": move.kind}
        yield "move", {**about, "kcl.reason": move.because}
    for launch in report.launches[:MOST_EVENTS]:
        yield "launch", {"kcl.slot": launch.slot, "kcl.reason": launch.because}
    for slot, because in list(report.retire.items())[:MOST_EVENTS]:
        yield "retire", {"kcl.slot": slot, "kcl.reason": because}
    for loss in report.data_loss[:MOST_EVENTS]:
        yield "data loss", {"kcl.lease": str(loss.lease), "kcl.reason": loss.what}


def _at(epoch: float, monotonic: float) -> int:
    return round((epoch + monotonic) * NANOSECONDS)
