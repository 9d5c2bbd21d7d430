"""The job that makes few large files out of the many small ones that an application's batches leave."""

from typing import Any, Final

from dagster import (
    Config,
    DefaultScheduleStatus,
    Failure,
    JobDefinition,
    OpExecutionContext,
    RunRequest,
    RunsFilter,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SkipReason,
    in_process_executor,
    job,
    op,
    schedule,
)
from pydantic import Field

from kcl_dagster.errors import ConfigurationError, TurnTaken
from kcl_dagster.orchestration.catch_up import ACTIVE
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.run_storage import APPLICATION_TAG
from kcl_dagster.orchestration.translator import identifier

MEBIBYTE: Final = 1024 * 1024
COMPACTION_TAG: Final = "kcl/compaction"
"""The application. Of two compactions of one, the second does nothing: it fails, unless a schedule has launched it.
With the tag limited to one in `dagster.yaml`, it waits."""

SCHEDULE_TAG: Final = "dagster/schedule_name"
"""Dagster's own, of runs that a schedule has launched."""

NAMED_AT_MOST: Final = 10  # of what failed, in the error of the run

COMPACTED: Final = frozenset({"parquet", "deltalake"})
"""Kinds of sinks whose files are ours to merge."""

_WHAT_TO_DO: Final = {
    "iceberg": "files of an Iceberg table are merged by an engine that reads it, such as Spark's "
    "system.rewrite_data_files or Athena's OPTIMIZE, and not by a job of ours"
}


class CompactionConfig(Config):
    """What the launchpad asks."""

    target_mebibytes: int = Field(default=128, ge=1, description="Size of the files to aim at.")
    min_age_seconds: float = Field(
        default=3600.0, ge=0, description="Parquet only: files younger than this may still be written again."
    )


def build_kcl_compaction_job(consumer: Consumer, *, kcl_key: str = "kcl") -> JobDefinition:
    """`<application>_compaction`, which may run beside the workers and needs no Spark. `build_kcl_definitions`
    makes it, with a schedule, where `compaction` gives its times.

    Raises ConfigurationError for a sink that is neither a Parquet folder nor a Delta table.

    Example:
        .. code-block:: python

            compaction = kcl.build_kcl_compaction_job(clicks)
            nightly = dg.ScheduleDefinition(job=compaction, cron_schedule="30 2 * * *")
    """
    application, choice = consumer.application, consumer.sink
    if choice.kind not in COMPACTED:
        raise ConfigurationError(
            f"application {application.name}: {_WHAT_TO_DO.get(choice.kind, 'its sink keeps its files itself')}"
        )
    name = f"{identifier(application.name)}_compaction"

    @op(name=f"merge_{name}", required_resource_keys={kcl_key})
    def merge(context: OpExecutionContext, config: CompactionConfig) -> None:
        from kcl_dagster.spark.sinks.compaction import compact
        from kcl_dagster.spark.sinks.delta_compaction import compact_delta
        from kcl_dagster.spark.storage import S3Options

        connection: dict[str, Any] = getattr(context.resources, kcl_key).connection("s3", application.name)
        s3, target = S3Options(**connection), config.target_mebibytes * MEBIBYTE
        by = f"the compaction in run {context.run_id}"
        try:
            if choice.kind == "parquet":
                age = config.min_age_seconds
                done = compact(choice.place, target_bytes=target, min_age_seconds=age, s3=s3, by=by)
            else:
                options = choice.delta_options()
                done = compact_delta(choice.place, target_bytes=target, s3=s3, storage_options=options, by=by)
        except TurnTaken as error:
            if SCHEDULE_TAG not in context.run.tags:
                raise
            context.log.info("skipped: %s", error)  # the schedule comes again
            return
        context.log.info("merged %d files into %d, %d bytes", done.merged, done.into, done.bytes)
        context.add_output_metadata({"merged": done.merged, "into": done.into, "bytes": done.bytes})
        if done.failed:
            raise Failure(
                f"{len(done.failed)} could not be merged, all else was: {'; '.join(done.failed[:NAMED_AT_MOST])}",
                allow_retries=False,
            )

    @job(
        name=name,
        executor_def=in_process_executor,
        description=f"Makes few large files out of the many small ones that {application.name} leaves.",
        tags={APPLICATION_TAG: application.name, COMPACTION_TAG: application.name, "dagster/max_retries": "0"},
    )
    def compaction() -> None:
        merge()

    return compaction


def build_kcl_compaction_schedule(job: JobDefinition, cron: str) -> ScheduleDefinition:
    """Runs, in UTC, as soon as the definitions are loaded. Skips while a run of the job waits or is at work."""

    @schedule(
        name=f"{job.name}_schedule",
        job=job,
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=DefaultScheduleStatus.RUNNING,
        description="Merges small files.",
    )
    def scheduled(context: ScheduleEvaluationContext) -> RunRequest | SkipReason:
        going_on = context.instance.get_runs(RunsFilter(job_name=job.name, statuses=ACTIVE), limit=1)
        if going_on:
            return SkipReason(f"run {going_on[0].run_id} is not over")
        return RunRequest()

    return scheduled
