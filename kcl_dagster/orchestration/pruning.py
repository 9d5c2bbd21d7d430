"""The operation `prune`, which deletes old runs of an application with their events, and its schedule: only where a
deployment asks for it.

Dagster purges ticks but no runs. It has no public way to delete events that belong to no run, as the leader's do:
docs/production.md says how much they are.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from dagster import (
    DagsterInstance,
    DagsterRunStatus,
    DefaultScheduleStatus,
    JobDefinition,
    RunsFilter,
    ScheduleDefinition,
)
from pydantic import Field

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.orchestration.admin_job import config_of
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.operation_jobs.answers import Answer
from kcl_dagster.orchestration.operation_jobs.catalogue import Operation
from kcl_dagster.orchestration.operation_jobs.forms import Settings
from kcl_dagster.orchestration.operation_jobs.worktop import Worktop
from kcl_dagster.orchestration.run_storage import APPLICATION_TAG
from kcl_dagster.orchestration.translator import identifier

OVER: Final = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]
RUNS_AT_ONCE: Final = 500  # deleting a run takes some milliseconds; the next day continues


def prune(instance: DagsterInstance, application: str, before: datetime, *, dry_run: bool = False) -> list[str]:
    """Delete finished runs of the application that were created before `before`. Returns their ids."""
    old = instance.get_run_records(
        RunsFilter(statuses=OVER, tags={APPLICATION_TAG: application}, created_before=before), limit=RUNS_AT_ONCE
    )
    ids = [record.dagster_run.run_id for record in old]
    if not dry_run:
        for run_id in ids:
            instance.delete_run(run_id)
    return ids


def prune_operation(days: int) -> Operation:
    """Deletes finished runs of an application. Launched by hand, it only counts unless told otherwise.

    Raises ConfigurationError for less than a day.
    """
    if days < 1:
        raise ConfigurationError(f"prune_after_days is {days}: runs are kept for one day at least")

    kept = days

    class Prune(Settings):
        """What the launchpad asks."""

        days: int = Field(default=kept, ge=1, description="Keep this many days.")
        dry_run: bool = Field(default=True, description="Only count.")

    def run(top: Worktop, form: Prune) -> Answer:
        before = datetime.now(UTC) - timedelta(days=form.days)
        ids = prune(top.instance, top.application.name, before, dry_run=form.dry_run)
        verb = "would delete" if form.dry_run else "deleted"
        return Answer([f"{verb} {len(ids)} runs from before {before}"], {"runs": len(ids), "dry run": form.dry_run})

    return Operation("prune", Prune, run, "delete finished runs, with their events")


def build_kcl_prune_schedule(consumer: Consumer, job: JobDefinition, days: int) -> ScheduleDefinition:
    """Every night at a quarter past three."""
    return ScheduleDefinition(
        name=f"{identifier(consumer.application.name)}_prune_nightly",
        job=job,
        cron_schedule="15 3 * * *",
        run_config=config_of(consumer, "prune", days=days, dry_run=False),
        default_status=DefaultScheduleStatus.RUNNING,
    )
