"""What a leader lets others see: the KCL's metrics of its lease assignment, in CloudWatch."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from kcl_dagster import aws
from kcl_dagster.application import Application, MetricsLevel
from kcl_dagster.errors import KclError
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.runtime import Runtime
from kcl_dagster.telemetry import kcl_names
from kcl_dagster.telemetry.cloudwatch import CloudWatchMetrics, Flusher

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaderTelemetry:
    """Receives the report of every tick. Never raises, never waits."""

    cloudwatch: CloudWatchMetrics | None = None

    def tick(self, report: TickReport) -> None:
        if self.cloudwatch is not None:
            self.cloudwatch.put(kcl_names.of_tick(report))


def open_leader_telemetry(
    application: Application, runtime: Runtime, client: Callable[[str], aws.Client]
) -> LeaderTelemetry:
    """Open the telemetry that the application configures, for the rest of the process: there is no event at which a
    sensor could close it. `client` makes the client for `cloudwatch`."""
    settings = application.telemetry
    if settings.cloudwatch is MetricsLevel.NONE:
        return LeaderTelemetry()
    try:
        metrics = CloudWatchMetrics(
            client("cloudwatch"),
            settings.cloudwatch_namespace or application.name,
            runtime,
            is_detailed=settings.cloudwatch is MetricsLevel.DETAILED,
        )
    except KclError as error:
        log.warning("metrics do not go to CloudWatch: %s", error)
        return LeaderTelemetry()
    Flusher(metrics).start()
    return LeaderTelemetry(metrics)
