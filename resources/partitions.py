"""The windows of time by which the deployment's assets are partitioned: hours, and minutes on the embedded AWS."""

import os
from datetime import datetime, timedelta

import dagster as dg

from resources import embedded

HOURS = dg.HourlyPartitionsDefinition(start_date="2026-11-01-00:00")
"""Since the day on which the application began."""


def windows() -> dg.TimeWindowPartitionsDefinition:
    """Minutes since the embedded stream was made, so that a newcomer sees partitions turn green."""
    began = _began()
    if began is None:
        return HOURS
    start = began.replace(second=0, microsecond=0, tzinfo=None)
    return dg.TimeWindowPartitionsDefinition(cron_schedule="* * * * *", start=start, fmt="%Y-%m-%d-%H:%M")


def days() -> dg.DailyPartitionsDefinition:
    """Days of which all windows exist: not the one in which the embedded stream was made."""
    first = windows().start
    return dg.DailyPartitionsDefinition((first + timedelta(days=1) - timedelta(seconds=1)).strftime("%Y-%m-%d"))


def freshness() -> timedelta:
    """Longer than a window, and than the time for which workers are away while a deployment restarts."""
    return timedelta(minutes=15) if _began() is not None else timedelta(hours=3)


def _began() -> datetime | None:
    if os.environ.get("KCL_AWS", "embedded") != "embedded":
        return None
    if "KCL_AWS_ENDPOINT" not in os.environ:
        embedded.endpoint_under_dev()
    return embedded.began()
