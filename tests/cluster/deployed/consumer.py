"""The code location on the driver's machine. SCENARIO and the rest of the environment say what it is."""

import os

import readers  # type: ignore[import-not-found]  # beside this file where it is deployed
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import kcl_dagster as kcl

CLICK = "user string, number bigint, page string, at timestamp"
KEPT = ("lease_key", "shard_id", "sequence_number", "arrival_timestamp")


def clicks(records: DataFrame) -> DataFrame:
    """Every click, with a number that no second evaluation would make again."""
    click = F.from_json(F.col("data").cast("string"), CLICK)
    return records.select(*KEPT, click.alias("click")).select(
        *KEPT, "click.*", F.rand().alias("chance"), F.lit(1).alias("release")
    )


is_processor = os.environ["CLUSTER_SCENARIO"] == "processors"
consumer = kcl.kcl_consumer(
    application=os.environ["CLUSTER_APPLICATION"],
    stream=os.environ["CLUSTER_STREAM"],
    sink=None if is_processor else kcl.parquet(os.environ["KCL_LAKE"]),
    processes=2 if is_processor else None,
    fleet=kcl.FleetSettings(min_workers=1, max_workers=2),
    timings=kcl.Timings(lease_duration=10, heartbeat=2, handoff_timeout=15, leader_lock=20, shard_audit=20),
    batch=kcl.BatchSettings(max_seconds=2),
)(readers.Clicks if is_processor else clicks)

SETTINGS = dict(line.split("=", 1) for line in os.environ["CLUSTER_SPARK"].splitlines())
defs = kcl.build_kcl_definitions(
    consumer,
    resources={
        "kcl": kcl.KclResource(),
        "spark": kcl.KclSparkResource(
            mode=os.environ["CLUSTER_MODE"], url=os.environ["CLUSTER_URL"], conf=SETTINGS
        ),
    },
    compaction=None,  # the verdict goes by the order in which files were written
)
