"""The checks as Dagster definitions: the leader evaluates them, and users can execute them in the UI."""

from collections.abc import Iterator, Mapping
from typing import Any

from dagster import AssetCheckExecutionContext, AssetCheckResult, AssetChecksDefinition, multi_asset_check

from kcl_dagster.application import Application
from kcl_dagster.leader.application_completeness import Completeness
from kcl_dagster.leader.kinesis_streams import KinesisStreams
from kcl_dagster.leader.memory import starts_given_up
from kcl_dagster.leader.unread import UnreadWatch
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.operations.status import OBSERVER
from kcl_dagster.orchestration import asset_checks
from kcl_dagster.orchestration.application_state import Observation
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.resources import KclResource
from kcl_dagster.orchestration.translator import KclTranslator, identifier
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.streams.listing import retentions
from kcl_dagster.tables.completeness_row import CompletenessRow
from kcl_dagster.tables.control import ControlRow
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.lock import LeaderLock
from kcl_dagster.tables.memory_row import MemoryRow
from kcl_dagster.tables.starts import StartTable
from kcl_dagster.tables.table_layout import detect_layout
from kcl_dagster.tables.workers import WorkerTable
from kcl_dagster.worker.leader_watch import LockWatch

LOOK_SECONDS = 1.0  # between two reads of the lock: a leader changes it every five seconds


def build_kcl_checks(
    consumer: Consumer, translator: KclTranslator, *, kcl_key: str = "kcl"
) -> AssetChecksDefinition:
    """Build one definition with all checks of an application. The leader evaluates the checks at its ticks. If a
    user executes them, they are evaluated from the tables alone. Problems that only a running leader knows, such as
    the failed stages of its tick, are not detected then."""

    @multi_asset_check(
        specs=asset_checks.specs(consumer, translator),
        name=f"{identifier(consumer.application.name)}_checks",
        required_resource_keys={kcl_key},
        can_subset=True,
    )
    def evaluate(context: AssetCheckExecutionContext) -> Iterator[AssetCheckResult]:
        wanted = {key.name for key in context.selected_asset_check_keys}
        patient = asset_checks.LEADS.name in wanted
        seen = look(consumer.application, getattr(context.resources, kcl_key), patient=patient)
        evaluations = [
            asset_checks.evaluation(check, problem, consumer, translator, seen)
            for check, problem in asset_checks.evaluate(seen, consumer)
            if check.name in wanted
        ]
        for told in evaluations:
            yield AssetCheckResult(
                passed=told.passed,
                asset_key=told.asset_key,
                check_name=told.check_name,
                severity=told.severity,
                description=told.description,
            )
        for told in evaluations:
            # As soon as the leader materializes the asset again, Dagster disregards the result of this run. An
            # evaluation that is reported outside of runs remains valid; see `asset_checks`.
            context.instance.report_runless_asset_event(told)

    return evaluate


def look(
    application: Application, kcl: KclResource, runtime: Runtime | None = None, *, patient: bool = True
) -> Observation:
    """Read the application's state from the tables, without the memory of a running leader. `patient`: whether to
    find out if the holder of the leader lock is alive. The function then blocks until it observes a renewal of the
    lock, usually for some seconds. If there is no renewal, it blocks for the time after which the lock expires."""
    dynamodb: Any = kcl.client("dynamodb", application)
    runtime = runtime or system()
    layout = detect_layout(dynamodb, application)
    kinesis: Any = kcl.client("kinesis", application)
    scan = LeaseTable(dynamodb, application, layout, runtime).scan()
    workers = WorkerTable(dynamodb, application, layout, runtime).list()
    alive = {row.id for row in workers}
    control = ControlRow(dynamodb, application, layout, runtime).load()
    unserved = [lease.key for lease in scan.leases if not lease.is_finished and lease.actual_owner not in alive]
    resting: Mapping[LeaseKey, float] = {}
    if application.fleet.min_workers == 0:
        watch = UnreadWatch(
            application,
            StartTable(dynamodb, application, layout, runtime),
            KinesisStreams(kinesis, runtime),
            runtime.clock,
        )
        free = [lease for lease in scan.leases if lease.key in unserved and lease.actual_owner is None]
        waited = watch.waited([lease for lease in free if not control.pauses(lease.key)])
        resting = {key: seconds for key, seconds in waited.items() if seconds <= application.fleet.scale_up_lag}
    written = CompletenessRow(dynamodb, application, layout, runtime).load()
    names = [stream.name for stream in application.streams]
    kept = retentions(kinesis, names, runtime)
    leader = LeaderLock(dynamodb, application, layout, runtime, OBSERVER).peek()
    return Observation(
        leases=scan.leases,
        workers=workers,
        leader=leader,
        leader_is_silent=patient
        and leader is not None
        and _is_silent(LockWatch(dynamodb, layout, runtime), runtime, application.timings.leader_lock),
        unserved=[key for key in unserved if not control.pauses(key) and key not in resting],
        resting=resting,
        paused=[key for key in unserved if control.pauses(key)],
        paused_by=control.paused_by,
        starts_given_up=starts_given_up(
            MemoryRow(dynamodb, application, layout, runtime).load(), runtime.clock.now()
        ),
        completeness=Completeness(written.through, epoch=written.epoch, back_to=written.back_to),
        retention=kept,
        unknown_retention=[name for name in names if name not in kept],
        now=runtime.clock.now(),
        lag_seconds=max((row.lag_ms / 1000 for row in workers if row.lag_ms is not None), default=None),
    )


def _is_silent(watch: LockWatch, runtime: Runtime, patience: float) -> bool:
    until = runtime.clock.monotonic() + patience
    watch.silent_for()
    while runtime.clock.monotonic() < until:
        runtime.clock.sleep(LOOK_SECONDS)
        if watch.silent_for() == 0.0:
            return False
    return True
