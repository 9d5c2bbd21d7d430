"""Sessions, computed window by window. A session is the clicks of one visitor without a long pause between them."""

from collections.abc import Iterator
from datetime import datetime, timedelta

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import kcl_dagster as kcl
from resources.deployment import DEPLOYMENT
from resources.lake import table

PAUSE = timedelta(seconds=30)  # ends a session
HOUR_FOLDERS = "%Y-%m-%d-%H"
POOL = "downstream"  # dagster.yaml allows one run of this pool at a time: each run starts a Spark session
CLICKS = dg.AssetKey("clicks")
DECLARED = "The lake has as many clicks of a window as the leader declared, all in sessions."


def sessions_of(clicks: DataFrame, start: datetime, end: datetime) -> DataFrame:
    """One row for the part of each session that lies in the window from `start` to `end`. `continues`: whether the
    session began in an earlier window. So each session has one row whose `continues` is false.

    Reads the clicks of the window, and those that arrived within `PAUSE` before it. A visitor's clicks are ordered
    by their number, not by clocks.
    """
    of_user = Window.partitionBy("user").orderBy("number")
    pause = F.unix_timestamp("at") - F.unix_timestamp(F.lag("at").over(of_user))
    starts = F.when(pause.isNull() | (pause > PAUSE.total_seconds()), 1).otherwise(0)
    is_in = F.col("arrival_timestamp") >= F.lit(start)
    numbered = clicks.where(_within(start - PAUSE, end)).withColumn("session", F.sum(starts).over(of_user))
    return (
        numbered.groupBy("user", "session")
        .agg(
            F.min(F.when(is_in, F.col("at"))).alias("started"),
            F.max(F.when(is_in, F.col("at"))).alias("ended"),
            F.count(F.when(is_in, True)).alias("clicks"),
            F.max(is_in & (F.col("page") == "/thanks")).alias("bought"),
            (~F.min(is_in)).alias("continues"),
        )
        .where("clicks > 0")
        .drop("session")
    )


def _within(start: datetime, end: datetime) -> Column:
    """The condition that a click arrived in this time. It also names the folders, so Spark opens no others."""
    arrived, folder = F.col("arrival_timestamp"), F.col("arrival_timestamp_hour").cast("string")
    hours = {moment.strftime(HOUR_FOLDERS) for moment in (start, end - timedelta(microseconds=1))}
    between = folder.between(min(hours), max(hours))
    return (arrived >= F.lit(start)) & (arrived < F.lit(end)) & between


def declared_rows(context: dg.AssetExecutionContext) -> int | None:
    """The number of clicks in the window that the leader has declared to Dagster. None if it has declared none."""
    chosen = dg.AssetRecordsFilter(CLICKS, asset_partitions=[context.partition_key])
    for record in context.instance.fetch_materializations(chosen, limit=1).records:
        event = record.asset_materialization
        rows = None if event is None else event.metadata.get("dagster/row_count")
        return None if rows is None else int(str(rows.value))
    return None


@dg.asset(
    deps=[CLICKS],
    partitions_def=DEPLOYMENT.windows,
    group_name="clicks_to_lake",
    kinds={"pyspark", "parquet"},
    owners=["team:web"],
    pool=POOL,
    automation_condition=kcl.on_complete(),
    check_specs=[dg.AssetCheckSpec("clicks_are_those_declared", asset="sessions", description=DECLARED)],
)
def sessions(
    context: dg.AssetExecutionContext, pyspark: LazyPySparkResource
) -> Iterator[dg.MaterializeResult[None]]:
    """The parts of sessions that lie in one window. They are computed once, when the window's clicks are complete.

    By then, the window before is complete as well, so all clicks just before the boundary are stored.
    """
    spark: SparkSession = pyspark.spark_session
    start, end = context.partition_time_window.start, context.partition_time_window.end
    folder = f"{table('sessions')}/window={start:%Y-%m-%d-%H-%M}"
    clicks = spark.read.parquet(table("clicks"))
    computed = sessions_of(clicks, start, end)
    computed.coalesce(1).write.mode("overwrite").parquet(folder)
    begun, bought = F.count(F.when(~F.col("continues"), True)), F.count(F.when(F.col("bought"), True))
    totals = (F.count("*"), F.coalesce(F.sum("clicks"), F.lit(0)), begun, bought)
    names = ("dagster/row_count", "clicks", "sessions begun", "sessions that bought")
    counts = spark.read.schema(computed.schema).parquet(folder).agg(*totals).first() or (0, 0, 0, 0)
    found = dict(zip(names, counts, strict=True))
    stored = clicks.where(_within(start, end)).count()
    spark.stop()
    declared = declared_rows(context)
    yield dg.MaterializeResult(
        metadata={**found, "path": dg.MetadataValue.path(folder)},
        check_results=[
            dg.AssetCheckResult(
                passed=found["clicks"] == stored and declared in (None, stored),
                check_name="clicks_are_those_declared",
                description=f"{declared} declared, {stored} stored, {found['clicks']} in sessions",
            )
        ],
    )


@dg.asset(
    deps=[sessions],
    partitions_def=DEPLOYMENT.days,
    group_name="clicks_to_lake",
    kinds={"pyspark", "parquet"},
    owners=["team:web"],
    pool=POOL,
    automation_condition=kcl.on_complete(),
)
def sessions_per_day(
    context: dg.AssetExecutionContext, pyspark: LazyPySparkResource
) -> Iterator[dg.MaterializeResult[None]]:
    """The numbers of sessions and clicks of a day, computed once, when all windows of the day are computed."""
    spark: SparkSession = pyspark.spark_session
    day = context.partition_time_window.start
    parts = spark.read.parquet(table("sessions")).where(
        F.col("window").cast("string").startswith(f"{day:%Y-%m-%d}")
    )
    found = parts.agg(F.count(F.when(~F.col("continues"), True)), F.coalesce(F.sum("clicks"), F.lit(0))).first()
    began, clicks = found if found is not None else (0, 0)
    spark.stop()
    yield dg.MaterializeResult(metadata={"sessions begun": began, "clicks": clicks})
