"""The telemetry of a leader: traces of its ticks, and the KCL's metrics of its lease assignment."""

import atexit
import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kcl_dagster import aws
from kcl_dagster.application import Application, MetricsLevel
from kcl_dagster.errors import KclError
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.runtime import Runtime
from kcl_dagster.telemetry import kcl_names
from kcl_dagster.telemetry.cloudwatch import CloudWatchMetrics, Flusher
from kcl_dagster.telemetry.otlp import open_tick_traces

if TYPE_CHECKING:
    from kcl_dagster.telemetry.tick_traces import TickTraces

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaderTelemetry:
    """Receives the report of every tick. Never raises and never waits."""

    cloudwatch: CloudWatchMetrics | None = None
    traces: "TickTraces | None" = None

    def tick(self, report: TickReport) -> str | None:
        """Publish the report of a tick. Returns the `traceparent` of the tick, for the runs that the tick launches;
        None if the tick is not traced."""
        if self.cloudwatch is not None:
            self.cloudwatch.put(kcl_names.of_tick(report))
        return None if self.traces is None else self.traces.tick(report)


def open_leader_telemetry(
    application: Application, runtime: Runtime, client: Callable[[str], aws.Client], leader: str
) -> LeaderTelemetry:
    """Open the telemetry that the application configures, for the rest of the process. It remains open, because
    there is no event at which a sensor could close it. `client` makes the client for `cloudwatch`. `leader`: the
    name of the leader in the leader lock."""
    stack = ExitStack()
    traces = stack.enter_context(open_tick_traces(application, leader, runtime, log))
    if traces is not None:
        atexit.register(stack.close)
    return LeaderTelemetry(_open_cloudwatch(application, runtime, client), traces)


def _open_cloudwatch(
    application: Application, runtime: Runtime, client: Callable[[str], aws.Client]
) -> CloudWatchMetrics | None:
    settings = application.telemetry
    if settings.cloudwatch is MetricsLevel.NONE:
        return None
    try:
        metrics = CloudWatchMetrics(
            client("cloudwatch"),
            settings.cloudwatch_namespace or application.name,
            runtime,
            is_detailed=settings.cloudwatch is MetricsLevel.DETAILED,
        )
    except KclError as error:
        log.warning("metrics do not go to CloudWatch: %s", error)
        return None
    Flusher(metrics).start()
    return metrics
