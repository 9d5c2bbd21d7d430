"""Clicks: from the stream to the lake, each exactly once."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import kcl_dagster as kcl
from assets import APPLICATION
from resources.embedded import STREAM
from resources.lake import table
from resources.partitions import freshness, windows

CLICK = "user string, number bigint, page string, at timestamp"


@kcl.kcl_consumer(
    application=APPLICATION,
    stream=STREAM,
    sink=kcl.parquet(table("clicks"), partition_by=["hour(arrival_timestamp)"]),
    partitions=windows(),
    workers=2,
    # Short, so that a demo shows a takeover; production is well served with the defaults.
    timings=kcl.Timings(lease_duration=10, heartbeat=2, handoff_timeout=15, leader_lock=20, shard_audit=20),
    batch=kcl.BatchSettings(max_seconds=2),
    owners=["team:web"],
    lag_target=30,
    freshness=freshness(),
)
def clicks(records: DataFrame) -> DataFrame:
    """Every click of every visitor, in the order in which its shard received them."""
    click = F.from_json(F.col("data").cast("string"), CLICK)
    kept = ("lease_key", "shard_id", "sequence_number", "arrival_timestamp")
    return records.select(*kept, click.alias("click")).select(*kept, "click.*")
