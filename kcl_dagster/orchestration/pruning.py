"""Deleting old worker runs of an application, with their events: only where a deployment asks for it.

Dagster purges ticks but no runs. It has no public way to delete events that belong to no run, as the leader's do:
docs/production.md says how much they are.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from dagster import (
    Config,
    DagsterInstance,
    DagsterRunStatus,
    DefaultScheduleStatus,
    JobDefinition,
    OpExecutionContext,
    RunConfig,
    RunsFilter,
    ScheduleDefinition,
    in_process_executor,
    job,
    op,
)
from pydantic import Field

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.run_storage import APPLICATION_TAG
from kcl_dagster.orchestration.translator import identifier

OVER: Final = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]
RUNS_AT_ONCE: Final = 500  # deleting a run takes some milliseconds; the next day continues


def prune(instance: DagsterInstance, application: str, before: datetime, *, dry_run: bool = False) -> list[str]:
    """Delete finished worker runs of the application that were created before `before`. Returns their ids."""
    old = instance.get_run_records(
        RunsFilter(statuses=OVER, tags={APPLICATION_TAG: application}, created_before=before), limit=RUNS_AT_ONCE
    )
    ids = [record.dagster_run.run_id for record in old]
    if not dry_run:
        for run_id in ids:
            instance.delete_run(run_id)
    return ids


class PruneConfig(Config):
    """What the launchpad asks."""

    days: int = Field(ge=1, description="Keep this many days.")
    dry_run: bool = Field(default=True, description="Only count.")


def build_kcl_prune_job(consumer: Consumer, days: int) -> JobDefinition:
    """A job that deletes finished runs of an application; launched by hand, it only counts unless told otherwise.

    Raises ConfigurationError for less than a day.
    """
    if days < 1:
        raise ConfigurationError(f"prune_after_days is {days}: runs are kept for one day at least")
    name = consumer.application.name
    op_name = f"{identifier(name)}_delete_runs"

    @op(name=op_name)
    def delete_runs(context: OpExecutionContext, config: PruneConfig) -> None:
        before = datetime.now(UTC) - timedelta(days=config.days)
        ids = prune(context.instance, name, before, dry_run=config.dry_run)
        verb = "would delete" if config.dry_run else "deleted"
        context.log.info("%s %d runs from before %s", verb, len(ids), before)
        context.add_output_metadata({"runs": len(ids), "dry run": config.dry_run})

    @job(
        name=f"{identifier(name)}_prune",
        executor_def=in_process_executor,
        config=RunConfig({op_name: PruneConfig(days=days)}),
        description=f"Deletes finished runs of {name} that are older than {days} days.",
    )
    def pruning() -> None:
        delete_runs()

    return pruning


def build_kcl_prune_schedule(consumer: Consumer, pruning: JobDefinition, days: int) -> ScheduleDefinition:
    """Every night at a quarter past three."""
    name = identifier(consumer.application.name)
    return ScheduleDefinition(
        name=f"{name}_prune_nightly",
        job=pruning,
        cron_schedule="15 3 * * *",
        run_config=RunConfig({f"{name}_delete_runs": PruneConfig(days=days, dry_run=False)}),
        default_status=DefaultScheduleStatus.RUNNING,
    )
