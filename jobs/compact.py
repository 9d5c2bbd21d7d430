"""Merging the small files that batches leave into large ones, once an hour."""

import dagster as dg

from kcl_dagster.spark.sinks.compaction import compact
from resources.lake import table


@dg.op
def compact_clicks(context: dg.OpExecutionContext) -> None:
    """Merge the files of `clicks` that have been left alone for an hour. Needs no Spark."""
    done = compact(table("clicks"))
    context.log.info("merged %s files into %s, %s bytes", done.merged, done.into, done.bytes)
    context.add_output_metadata({"merged": done.merged, "into": done.into, "bytes": done.bytes})


@dg.job(
    executor_def=dg.in_process_executor,
    # Two at once would merge the same files twice; dagster.yaml keeps them apart.
    tags={"kcl/compaction": "clicks"},
    description="Makes few large Parquet files out of many small ones. May run beside the workers.",
)
def compaction() -> None:
    """See compact_clicks."""
    compact_clicks()


hourly_compaction = dg.ScheduleDefinition(
    job=compaction, cron_schedule="17 * * * *", default_status=dg.DefaultScheduleStatus.RUNNING
)
