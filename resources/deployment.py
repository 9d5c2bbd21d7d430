"""The settings that differ between production and the demo. The demo sets KCL_DEMO_SINCE to its first minute."""

import os
from dataclasses import dataclass
from datetime import timedelta

import dagster as dg

import kcl_dagster as kcl

MINUTE = "%Y-%m-%d-%H:%M"


@dataclass(frozen=True)
class Deployment:
    """`windows`: the partitions of the stored clicks. `freshness`: longer than a window and a restart together."""

    windows: dg.TimeWindowPartitionsDefinition
    freshness: timedelta
    timings: kcl.Timings
    batch: kcl.BatchSettings
    java_options: str

    @property
    def days(self) -> dg.DailyPartitionsDefinition:
        """The days of which all windows exist. The day on which the windows begin counts only if they begin at
        midnight."""
        return dg.DailyPartitionsDefinition(f"{self.windows.start + timedelta(days=1, seconds=-1):%Y-%m-%d}")


def production() -> Deployment:
    return Deployment(
        windows=dg.HourlyPartitionsDefinition(start_date="2026-11-01-00:00"),
        freshness=timedelta(hours=3),
        timings=kcl.Timings(),
        batch=kcl.BatchSettings(),
        java_options="-XX:+UseSerialGC",
    )


def demo(since: str) -> Deployment:
    """The settings of the demo. With the short times, a takeover and a complete window are seen soon. With these
    `java_options`, Java compiles less and starts in two thirds of the time."""
    return Deployment(
        windows=dg.TimeWindowPartitionsDefinition(cron_schedule="* * * * *", start=since, fmt=MINUTE),
        freshness=timedelta(minutes=15),
        timings=kcl.Timings(lease_duration=10, heartbeat=2, handoff_timeout=15, leader_lock=20, shard_audit=20),
        batch=kcl.BatchSettings(max_seconds=2),
        java_options="-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    )


DEPLOYMENT = demo(os.environ["KCL_DEMO_SINCE"]) if "KCL_DEMO_SINCE" in os.environ else production()
