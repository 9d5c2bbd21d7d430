"""The operation `prune` and its schedule. The operation deletes old runs of an application, with their events. Only
for deployments that configure it.

Dagster purges ticks, but no runs. It has no public way to delete events that belong to no run, such as those of the
leader. docs/production.md states how much space they take.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from dagster import (
    DagsterInstance,
    DefaultScheduleStatus,
    JobDefinition,
    RunsFilter,
    ScheduleDefinition,
)
from pydantic import Field

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.model.counting import counted
from kcl_dagster.operations.operation import Answer, Operation, OperationContext, dry_run
from kcl_dagster.orchestration.admin_job import config_of, job_context
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.run_storage import APPLICATION_TAG, OVER
from kcl_dagster.orchestration.translator import identifier

RUNS_AT_ONCE: Final = 500  # deleting a run takes some milliseconds; the rest is deleted the next day


def prune(instance: DagsterInstance, application: str, before: datetime, *, dry_run: bool = False) -> list[str]:
    """Delete finished runs of the application that were created before `before`. Returns their ids."""
    old = instance.get_run_records(
        RunsFilter(statuses=list(OVER), tags={APPLICATION_TAG: application}, created_before=before),
        limit=RUNS_AT_ONCE,
    )
    ids = [record.dagster_run.run_id for record in old]
    if not dry_run:
        for run_id in ids:
            instance.delete_run(run_id)
    return ids


def prune_operation(after_days: int) -> type[Operation]:
    """Make the operation that deletes finished runs of an application. Launched by hand, it is a dry run by
    default.

    Raises ConfigurationError for less than a day.
    """
    if after_days < 1:
        raise ConfigurationError(f"prune_after_days is {after_days}: runs are kept for one day at least")

    class PruneOperation(Operation):
        name = "prune"
        title = "delete finished runs, with their events"
        days: int = Field(default=after_days, ge=1, description="number of days whose runs are kept")
        dry_run: bool = dry_run()

        def run(self, context: OperationContext) -> Answer:
            before = datetime.now(UTC) - timedelta(days=self.days)
            ids = prune(job_context(context).instance, context.application.name, before, dry_run=self.dry_run)
            verb = "would delete" if self.dry_run else "deleted"
            line = f"{verb} {counted(len(ids), 'run')} from before {before:%Y-%m-%d %H:%M} UTC"
            return Answer([line], {"runs": len(ids), "dry run": self.dry_run})

    return PruneOperation


def build_kcl_prune_schedule(consumer: Consumer, job: JobDefinition, days: int) -> ScheduleDefinition:
    """Build a schedule that prunes every night at 03:15."""
    return ScheduleDefinition(
        name=f"{identifier(consumer.application.name)}_prune_nightly",
        job=job,
        cron_schedule="15 3 * * *",
        run_config=config_of(consumer, "prune", days=days, dry_run=False),
        default_status=DefaultScheduleStatus.RUNNING,
    )
