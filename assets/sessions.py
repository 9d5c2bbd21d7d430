"""Sessions: the clicks of one visitor with no long pause between them."""

from collections.abc import Iterator

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from resources.lake import table

PAUSE_SECONDS = 30  # ends a session


def sessions_of(clicks: DataFrame) -> DataFrame:
    """One row per session. A visitor's clicks are ordered by their number, not by clocks."""
    of_user = Window.partitionBy("user").orderBy("number")
    pause = F.unix_timestamp("at") - F.unix_timestamp(F.lag("at").over(of_user))
    starts = F.when(pause.isNull() | (pause > PAUSE_SECONDS), 1).otherwise(0)
    numbered = clicks.withColumn("session", F.sum(starts).over(of_user))
    return numbered.groupBy("user", "session").agg(
        F.min("at").alias("started"),
        F.max("at").alias("ended"),
        F.count("*").alias("clicks"),
        F.max(F.col("page") == "/thanks").alias("bought"),
    )


@dg.asset(
    deps=["clicks"],
    group_name="clicks_to_lake",
    kinds={"pyspark", "parquet"},
    owners=["team:web"],
    automation_condition=dg.AutomationCondition.on_cron("*/5 * * * *"),
)
def sessions(pyspark: LazyPySparkResource) -> Iterator[dg.MaterializeResult[None]]:
    """Sessions over all clicks that have landed; made anew every five minutes in which some did."""
    spark: SparkSession = pyspark.spark_session
    made = sessions_of(spark.read.parquet(table("clicks")))
    made.write.mode("overwrite").parquet(table("sessions"))
    stored = spark.read.parquet(table("sessions"))
    counts = stored.agg(F.count("*"), F.avg("clicks"), F.avg(F.col("bought").cast("double"))).first()
    number, clicks, bought = counts if counts is not None else (0, 0.0, 0.0)
    spark.stop()
    yield dg.MaterializeResult(
        metadata={
            "dagster/row_count": number,
            "clicks per session": round(clicks or 0.0, 2),
            "sessions that bought": round(bought or 0.0, 4),
            "path": dg.MetadataValue.path(table("sessions")),
        }
    )
