"""Forgetting what Dagster would keep for ever: old events of an application's assets, and its old worker runs.

Dagster purges ticks but neither events nor runs. Leader and workers of an application write some five to ten
megabytes a day.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from dagster import (
    AssetKey,
    Config,
    DagsterInstance,
    DagsterRunStatus,
    DefaultScheduleStatus,
    JobDefinition,
    OpExecutionContext,
    RunsFilter,
    ScheduleDefinition,
    in_process_executor,
    job,
    op,
)
from pydantic import Field

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.runs import APPLICATION_TAG
from kcl_dagster.orchestration.translator import KclAsset, KclTranslator, Role, identifier

DEFAULT_DAYS = 14
EVENT_TYPES = ("ASSET_OBSERVATION", "ASSET_MATERIALIZATION")
EVALUATION = "ASSET_CHECK_EVALUATION"
OVER = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]
RUNS_AT_ONCE = 500  # deleting a run takes some milliseconds; the next day continues


@dataclass(frozen=True, slots=True)
class Pruned:
    """How much was forgotten, or would be."""

    events: int
    runs: int


def prune(
    instance: DagsterInstance,
    application: str,
    keys: Collection[AssetKey],
    before: datetime,
    *,
    dry_run: bool = False,
) -> Pruned:
    """Forget events of `keys` that belong to no run, and finished runs of the application, older than `before`.

    The latest event of each asset and check survives as far as Dagster keeps it apart. The file of a sqlite
    storage does not shrink; its pages are used again. Raises ConfigurationError where the storage is not one of
    Dagster's SQL ones.
    """
    events = _events(instance, keys, before, dry_run=dry_run)
    old = instance.get_runs(
        RunsFilter(statuses=OVER, tags={APPLICATION_TAG: application}, created_before=before), limit=RUNS_AT_ONCE
    )
    if not dry_run:
        for run in old:
            instance.delete_run(run.run_id)
    return Pruned(events, len(old))


def _events(instance: DagsterInstance, keys: Collection[AssetKey], before: datetime, *, dry_run: bool) -> int:
    # Dagster has no public way; these names have stood for years. The test of this module notices when they fall.
    from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable as Checks
    from dagster._core.storage.event_log.schema import SqlEventLogStorageTable as Events
    from sqlalchemy import func, or_, select

    storage: Any = instance.event_log_storage
    storage = getattr(storage, "event_log_storage", storage)
    if not hasattr(storage, "index_connection"):
        raise ConfigurationError(f"events cannot be pruned in {type(storage).__name__}: use what its vendor offers")
    # Sqlite keeps events that belong to no run in a database of their own beside the index.
    connections = [storage.index_connection()]
    if hasattr(storage, "run_connection"):
        connections.append(storage.run_connection(""))
    moment = before.astimezone(UTC).replace(tzinfo=None)
    names = [key.to_string() for key in keys]
    # An evaluation of a check names its asset in its body only.
    of_checks = or_(*(Events.c.event.contains(f'"path": {json.dumps(key.path)}', autoescape=True) for key in keys))
    which = (
        (Events.c.timestamp < moment)
        & (Events.c.run_id == "")
        & (
            (Events.c.dagster_event_type.in_(EVENT_TYPES) & Events.c.asset_key.in_(names))
            | ((Events.c.dagster_event_type == EVALUATION) & of_checks)
        )
    )
    latest = select(func.max(Checks.c.id)).group_by(Checks.c.asset_key, Checks.c.check_name)
    executions = (Checks.c.create_timestamp < moment) & Checks.c.asset_key.in_(names)
    counts = []
    for connection in connections:
        with connection as open_connection:
            counts.append(open_connection.execute(select(func.count()).where(which)).scalar_one())
            if not dry_run:
                open_connection.execute(Events.delete().where(which))
                kept = open_connection.execute(latest).scalars().all()
                open_connection.execute(Checks.delete().where(executions & Checks.c.id.not_in(kept)))
    return int(counts[0])


class PruneConfig(Config):
    """What the launchpad asks."""

    days: int = Field(default=DEFAULT_DAYS, ge=1, description="Keep this many days.")
    dry_run: bool = Field(default=False, description="Only count.")


def told_about(consumer: Consumer, translator: KclTranslator) -> list[AssetKey]:
    """The assets of which the leader tells; of the records, their checks. Workers' events go with their runs."""
    assets = [KclAsset(role, consumer) for role in Role if role is not Role.STREAM]
    assets += [KclAsset(Role.STREAM, consumer, stream.name) for stream in consumer.application.streams]
    return [translator.get_asset_key(asset) for asset in assets]


def build_kcl_prune_job(consumer: Consumer, translator: KclTranslator | None = None) -> JobDefinition:
    """A job that forgets old events and runs of an application. `build_kcl_prune_schedule` runs it every night."""
    translator = translator or KclTranslator()
    keys = told_about(consumer, translator)
    name = consumer.application.name

    @op(name=f"{identifier(name)}_forget")
    def forget(context: OpExecutionContext, config: PruneConfig) -> None:
        before = datetime.now(UTC) - timedelta(days=config.days)
        done = prune(context.instance, name, keys, before, dry_run=config.dry_run)
        verb = "would forget" if config.dry_run else "forgot"
        context.log.info("%s %s events and %s runs from before %s", verb, done.events, done.runs, before)
        context.add_output_metadata({"events": done.events, "runs": done.runs})

    @job(
        name=f"{identifier(name)}_prune",
        executor_def=in_process_executor,
        description=f"Forgets events and worker runs of {name} that are older than {DEFAULT_DAYS} days.",
    )
    def pruning() -> None:
        forget()

    return pruning


def build_kcl_prune_schedule(consumer: Consumer, pruning: JobDefinition) -> ScheduleDefinition:
    """Every night at a quarter past three."""
    return ScheduleDefinition(
        name=f"{identifier(consumer.application.name)}_prune_nightly",
        job=pruning,
        cron_schedule="15 3 * * *",
        default_status=DefaultScheduleStatus.RUNNING,
    )
