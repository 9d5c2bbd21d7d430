"""A code location of the production test. `releases` writes copies of this file with other constants."""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import kcl_dagster as kcl

APPLICATION = "clicks-to-lake"
STREAM = "clickstream"
RELEASE = 1
LEASE_SECONDS = 10.0

CLICK = "user string, number bigint, page string, at timestamp"


@kcl.kcl_consumer(
    application=APPLICATION,
    stream=STREAM,
    name=APPLICATION.replace("-", "_"),
    sink=kcl.parquet(f"{os.environ['KCL_LAKE']}/{APPLICATION}"),
    # A third worker is launched only to replace one of the two.
    fleet=kcl.FleetSettings(min_workers=2, max_workers=3),
    timings=kcl.Timings(
        lease_duration=LEASE_SECONDS, heartbeat=2, handoff_timeout=15, leader_lock=20, shard_audit=20
    ),
    batch=kcl.BatchSettings(max_seconds=2),
)
def clicks(records: DataFrame) -> DataFrame:
    """Every click, and which release of this file stored it."""
    click = F.from_json(F.col("data").cast("string"), CLICK)
    kept = ("lease_key", "shard_id", "sequence_number", "arrival_timestamp")
    return records.select(*kept, click.alias("click"), F.lit(RELEASE).alias("release")).select(
        *kept, "click.*", "release"
    )


defs = kcl.build_kcl_definitions(
    clicks,
    resources={
        "kcl": kcl.KclResource(),
        "spark": kcl.KclSparkResource(
            slots=2, memory="512m", java_options="-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        ),
    },
    compaction=None,  # the verdict goes by the order in which files were written
)
