"""Sessions: the clicks of one visitor with no long pause between them, window by window."""

from collections.abc import Iterator
from datetime import datetime, timedelta

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import kcl_dagster as kcl
from resources.lake import table
from resources.partitions import days, windows

PAUSE_SECONDS = 30  # ends a session
BOUNDARY = timedelta(seconds=PAUSE_SECONDS)
HOUR_FOLDERS = "%Y-%m-%d-%H"
POOL = "downstream"  # one at a time, by dagster.yaml: each run starts a Spark session
CLICKS = dg.AssetKey("clicks")


def sessions_of(clicks: DataFrame, start: datetime, end: datetime) -> DataFrame:
    """The part of each session that lies in the window from `start` to `end`, one row each. `continues`: the
    session began in an earlier window. So the sessions of any time are the rows that do not continue.

    Looks at the clicks of the window, and at those that arrived within `BOUNDARY` before it. A visitor's clicks are
    ordered by their number, not by clocks.
    """
    of_user = Window.partitionBy("user").orderBy("number")
    pause = F.unix_timestamp("at") - F.unix_timestamp(F.lag("at").over(of_user))
    starts = F.when(pause.isNull() | (pause > PAUSE_SECONDS), 1).otherwise(0)
    is_in = F.col("arrival_timestamp") >= F.lit(start)
    numbered = clicks.where(_within(start - BOUNDARY, end)).withColumn("session", F.sum(starts).over(of_user))
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
    """Spark opens the folders of these hours, and of others not even one file."""
    arrived, folder = F.col("arrival_timestamp"), F.col("arrival_timestamp_hour").cast("string")
    hours = {moment.strftime(HOUR_FOLDERS) for moment in (start, end - timedelta(microseconds=1))}
    between = folder.between(min(hours), max(hours))
    return (arrived >= F.lit(start)) & (arrived < F.lit(end)) & between


def declared_rows(context: dg.AssetExecutionContext, partition: str) -> int | None:
    """The rows that the clicks of a window have as Dagster was told; None where it was not told."""
    chosen = dg.AssetRecordsFilter(CLICKS, asset_partitions=[partition])
    for record in context.instance.fetch_materializations(chosen, limit=1).records:
        told = record.asset_materialization
        rows = None if told is None else told.metadata.get("dagster/row_count")
        return None if rows is None else int(str(rows.value))
    return None


@dg.asset(
    deps=[CLICKS],
    partitions_def=windows(),
    group_name="clicks_to_lake",
    kinds={"pyspark", "parquet"},
    owners=["team:web"],
    pool=POOL,
    automation_condition=kcl.on_complete(),
    check_specs=[
        dg.AssetCheckSpec(
            "clicks_are_those_declared",
            asset="sessions",
            description="The lake has as many clicks of a window as the leader declared, all in sessions.",
        )
    ],
)
def sessions(
    context: dg.AssetExecutionContext, pyspark: LazyPySparkResource
) -> Iterator[dg.MaterializeResult[None]]:
    """The parts of sessions that lie in one window; made once, when the window's clicks are complete.

    The window before is complete then, too, so the clicks just before the boundary are there.
    """
    spark: SparkSession = pyspark.spark_session
    window, place = context.partition_time_window, table("sessions")
    start, end = window.start, window.end
    clicks = spark.read.parquet(table("clicks"))
    made = sessions_of(clicks, start, end)
    folder = f"{place}/window={start:%Y-%m-%d-%H-%M}"
    made.coalesce(1).write.mode("overwrite").parquet(folder)
    counts = (
        spark.read.schema(made.schema)
        .parquet(folder)
        .agg(
            F.count("*"),
            F.coalesce(F.sum("clicks"), F.lit(0)),
            F.count(F.when(~F.col("continues"), True)),
            F.count(F.when(F.col("bought"), True)),
        )
        .first()
    )
    parts, rows, began, bought = counts if counts is not None else (0, 0, 0, 0)
    landed = clicks.where(_within(start, end)).count()
    spark.stop()
    declared = declared_rows(context, context.partition_key)
    yield dg.MaterializeResult(
        metadata={
            "dagster/row_count": parts,
            "clicks": rows,
            "sessions begun": began,
            "sessions that bought": bought,
            "path": dg.MetadataValue.path(folder),
        },
        check_results=[
            dg.AssetCheckResult(
                passed=rows == landed and declared in (None, landed),
                check_name="clicks_are_those_declared",
                description=f"{context.partition_key}: {declared} declared, {landed} stored, {rows} in sessions",
            )
        ],
    )


@dg.asset(
    deps=[sessions],
    partitions_def=days(),
    group_name="clicks_to_lake",
    kinds={"pyspark", "parquet"},
    owners=["team:web"],
    pool=POOL,
    automation_condition=kcl.on_complete(),
)
def sessions_per_day(
    context: dg.AssetExecutionContext, pyspark: LazyPySparkResource
) -> Iterator[dg.MaterializeResult[None]]:
    """Sessions of a day, and how many clicks they had; made once, when all of its windows are."""
    spark: SparkSession = pyspark.spark_session
    day = context.partition_time_window.start
    parts = spark.read.parquet(table("sessions")).where(
        F.col("window").cast("string").startswith(f"{day:%Y-%m-%d}")
    )
    found = parts.agg(F.count(F.when(~F.col("continues"), True)), F.coalesce(F.sum("clicks"), F.lit(0))).first()
    began, clicks = found if found is not None else (0, 0)
    spark.stop()
    yield dg.MaterializeResult(metadata={"sessions begun": began, "clicks": clicks})
