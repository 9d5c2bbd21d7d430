"""Clicks of a window of time, read from the stream again, for example by a backfill after the code was fixed."""

from datetime import UTC, datetime, timedelta

import dagster as dg

import kcl_dagster as kcl
from assets.clicks import clicks
from resources.lake import table

# Kinesis keeps the stream's records for a day, so older windows cannot be replayed.
YESTERDAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)

WINDOWS = dg.TimeWindowPartitionsDefinition(
    cron_schedule="*/5 * * * *", start=YESTERDAY.replace(tzinfo=None), fmt="%Y-%m-%d-%H:%M"
)

clicks_replayed = kcl.build_kcl_replay_asset(
    clicks, partitions_def=WINDOWS, sink=kcl.parquet(table("clicks_replayed"))
)
