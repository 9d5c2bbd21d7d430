"""The consumer of the clickstream, which stores each click in the lake exactly once."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import kcl_dagster as kcl
from assets import APPLICATION, STREAM
from resources.deployment import DEPLOYMENT
from resources.lake import table

CLICK = "user string, number bigint, page string, at timestamp"


@kcl.kcl_consumer(
    application=APPLICATION,
    stream=STREAM,
    sink=kcl.parquet(table("clicks"), partition_by=["hour(arrival_timestamp)"]),
    partitions=DEPLOYMENT.windows,
    workers=2,
    timings=DEPLOYMENT.timings,
    batch=DEPLOYMENT.batch,
    owners=["team:web"],
    lag_target=30,
    freshness=DEPLOYMENT.freshness,
)
def clicks(records: DataFrame) -> DataFrame:
    """Every click of every visitor, in the order in which its shard received them."""
    click = F.from_json(F.col("data").cast("string"), CLICK)
    kept = ("lease_key", "shard_id", "sequence_number", "arrival_timestamp")
    return records.select(*kept, click.alias("click")).select(*kept, "click.*")
