"""The leader as a Dagster sensor. At each evaluation, the sensor reads the runs from Dagster, makes one tick of the
leader, requests runs, and reports what the tick observed."""

import json
import logging
import socket
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from dagster import (
    AssetCheckKey,
    AssetMaterialization,
    DagsterInstance,
    DefaultSensorStatus,
    RunRequest,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
    sensor,
)

from kcl_dagster.application import Application
from kcl_dagster.errors import KclError
from kcl_dagster.leader.construction import open_leader
from kcl_dagster.leader.run_view import LoadedCode
from kcl_dagster.leader.tick import Leader
from kcl_dagster.leader.tick_report import Launch, StreamSight, TickReport
from kcl_dagster.model.counting import counted
from kcl_dagster.orchestration import application_state, asset_checks
from kcl_dagster.orchestration.asset_reporting import SHARDS_TAG, Reporter, shards_of
from kcl_dagster.orchestration.complete_windows import CompleteWindows
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.lock_process import lock_process
from kcl_dagster.orchestration.metadata import KclDecisionsMetadataSet
from kcl_dagster.orchestration.resources import KclResource
from kcl_dagster.orchestration.run_storage import (
    APPLICATION_TAG,
    CODE_TAG,
    LAUNCHED_BY_TAG,
    WORKER_TAG,
    report_failed,
    run_view,
    worker_tag,
)
from kcl_dagster.orchestration.statement import Row
from kcl_dagster.orchestration.translator import KclAsset, KclTranslator, Role, identifier, slots_of
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.streams.listing import created_within_retention, retentions
from kcl_dagster.tables.lock import DEPLOYMENT
from kcl_dagster.telemetry.leader_metrics import LeaderTelemetry, open_leader_telemetry

RETENTION_ASKED_SECONDS = 600.0  # between two reads; the retention changes rarely
UNKNOWN_RETENTION_ASKED_SECONDS = 30.0  # between two reads while a retention is unknown; a check warns then
TICK_HELD_SECONDS = 120.0  # if a tick takes longer, a warning is logged; a large application takes ten seconds

NO_TELEMETRY = LeaderTelemetry()  # until the first tick that can reach the tables

log = logging.getLogger(__name__)


@dataclass
class _LeaderState:
    """A leader and what it has reported, kept as long as the process runs. Dagster calls the sensor on several
    threads, and can start a tick while a tick that timed out is still running. So each tick must hold `lock`."""

    application: Application
    reporter: Reporter
    declared: CompleteWindows
    runtime: Runtime
    leader: Leader | None = None
    telemetry: LeaderTelemetry = NO_TELEMETRY
    lock: threading.Lock = field(default_factory=threading.Lock)
    began: float = 0.0
    """When the current tick began; monotonic."""

    epoch: int = 0
    ticks: int = 0
    kept: dict[str, float] = field(default_factory=dict)
    retention_due: float = 0.0

    def retention(self, kcl: KclResource) -> dict[str, float]:
        """Seconds for which each stream keeps its records. The values are read rarely, and cached. A stream whose
        retention could never be read is missing."""
        now = self.runtime.clock.monotonic()
        if now >= self.retention_due:
            names = [stream.name for stream in self.application.streams]
            self.kept |= retentions(kcl.client("kinesis", self.application), names, self.runtime)
            is_known = not self.unknown_retention()
            self.retention_due = now + (RETENTION_ASKED_SECONDS if is_known else UNKNOWN_RETENTION_ASKED_SECONDS)
        return self.kept

    def unknown_retention(self) -> list[str]:
        return [stream.name for stream in self.application.streams if stream.name not in self.kept]

    def cursor(self, before: str | None) -> str:
        """The new cursor: how many leaders have started in this sensor, and how many ticks this leader has made.
        The cursor is short, because Dagster copies it into every tick."""
        if not self.epoch:
            self.epoch = 1 + (json.loads(before)["epoch"] if before else 0)
        self.ticks += 1
        return json.dumps({"epoch": self.epoch, "tick": self.ticks})

    def open(self, kcl: KclResource, deployment: str) -> Leader:
        """The leader. The first tick that can reach the tables creates it. Before that, this method raises a
        KclError."""
        if self.leader is None:
            client = partial(kcl.client, application=self.application)
            # The identity names the deployment, not the process. So a reloaded code server is still the holder of
            # the leader lock, and leads without waiting.
            identity = f"{DEPLOYMENT}{deployment[:12]}"
            self.leader = open_leader(
                self.application,
                dynamodb=client("dynamodb"),
                kinesis=client("kinesis"),
                runtime=self.runtime,
                identity=identity,
                process=lock_process(),
            )
            if self.telemetry is NO_TELEMETRY:
                self.telemetry = open_leader_telemetry(self.application, self.runtime, client, identity)
        return self.leader


_leader_states: dict[str, _LeaderState] = {}
_loaded: dict[str, LoadedCode] = {}
_states_lock = threading.Lock()


def build_kcl_leader_sensor(
    consumer: Consumer,
    *,
    job: Any,
    translator: KclTranslator | None = None,
    kcl_key: str = "kcl",
    name: str | None = None,
    default_status: DefaultSensorStatus = DefaultSensorStatus.RUNNING,
) -> SensorDefinition:
    """Build a sensor that leads the consumer's application: it finds shards, assigns leases, starts and retires
    workers.

    Args:
        job: The worker job, partitioned by slot. It must be among the jobs of the definitions.
            `build_kcl_definitions` makes both the job and the sensor.
        default_status: Running by default, because an application without a leader does not replace workers.

    It is safe to evaluate the sensor by hand ("Preview tick result"). This makes an ordinary tick.

    Example:
        .. code-block:: python

            kcl.build_kcl_leader_sensor(clicks, job=worker_job, default_status=dg.DefaultSensorStatus.STOPPED)
    """
    translator = translator or KclTranslator()
    application = consumer.application
    slots = slots_of(application)
    # The version is read once, when the process has just imported the code. The process does not load later changes
    # of the files.
    code = loaded_code(consumer)

    @sensor(
        name=name or f"{identifier(application.name)}_leader",
        # The job is given by its name. Otherwise Dagster would warn when it binds resources to the sensor's job.
        job_name=job.name,
        minimum_interval_seconds=application.timings.tick_interval,
        default_status=default_status,
        required_resource_keys={kcl_key},
        description=f"Leads {application.name}: shards, leases, workers.",
        tags={APPLICATION_TAG: application.name},
    )
    def lead(context: SensorEvaluationContext) -> SensorResult | SkipReason:
        instance = context.instance
        kcl: KclResource = getattr(context.resources, kcl_key)
        state = _leader_state(consumer, kcl, translator, instance)
        if not state.lock.acquire(blocking=False):
            return SkipReason(_still_going_on(state))
        state.began = state.runtime.clock.monotonic()
        try:
            leader = state.open(kcl, _deployment(instance))
        except KclError as error:
            state.lock.release()
            return SkipReason(f"cannot lead yet: {error}")
        try:
            runs = run_view(instance, application, code)
            report = leader.tick(runs)
            if report.refused is not None:
                state.leader = None  # the next tick determines which tables the application has now
            traceparent = state.telemetry.tick(report)
            if report.skipped is not None:
                return SkipReason(report.skipped)
            for slot in report.retire:
                run = runs.slots.get(slot)
                if run is not None and run.status == "queued":
                    instance.run_coordinator.cancel_run(run.run_id)
            for run_id in report.abandoned:
                report_failed(instance, run_id)
            seen = application_state.of_tick(report, runs.slots, state.runtime.clock.now(), state.retention(kcl))
            now = state.runtime.clock.monotonic()
            seen = replace(
                seen,
                decisions=state.reporter.news(seen.decisions, now),
                unknown_retention=state.unknown_retention(),
            )
            for decision in seen.decisions:
                context.log.info(str(decision))
            known = set(instance.get_dynamic_partitions(slots.name or ""))
            requests = [_request(application, launch, code, traceparent) for launch in report.launches]
            failing = state.reporter.failing(now)
            state.reporter.repeat(_superseded(failing, consumer, translator, instance))
            changed = []
            for stream in state.reporter.new_shards(seen, now):
                if _is_told(stream, consumer, translator, instance):
                    state.reporter.settle(stream)
                else:
                    changed.append(stream)
            declarations = _declarations(state, instance, kcl, report)
            new = sorted({launch.slot for launch in report.launches} - known)
            return SensorResult(
                run_requests=requests or None,
                skip_reason=None if requests else SkipReason(_summary(report)),
                dynamic_partitions_requests=[slots.build_add_request(new)] if new else None,
                asset_events=[*declarations, *state.reporter.events(seen, now, changed)],
                cursor=state.cursor(context.cursor),
            )
        finally:
            state.lock.release()

    return lead


def loaded_code(consumer: Consumer, runtime: Runtime | None = None) -> LoadedCode:
    """The version of the consumer's code in this process, and when the process loaded this version. If definitions
    are made again from the same code, the time stays that of the first load."""
    code = LoadedCode(consumer.code_version, (runtime or system()).clock.now())
    with _states_lock:
        return _loaded.setdefault(f"{consumer.application.name}/{code.version}", code)


def _leader_state(
    consumer: Consumer, kcl: KclResource, translator: KclTranslator, instance: DagsterInstance
) -> _LeaderState:
    """The state of the leader. Clients, tables and observations are kept between ticks. A changed application gets
    a new leader."""
    application = consumer.application
    deployment = _deployment(instance)
    connections = [sorted(kcl.connection(service, application).items()) for service in ("kinesis", "dynamodb")]
    key = json.dumps([application.model_dump(mode="json"), connections, deployment])
    with _states_lock:
        state = _leader_states.get(key)
        if state is None:
            reporter = Reporter(consumer, translator)
            reporter.recall(_evaluated(consumer, translator, instance), _decided(consumer, translator, instance))
            state = _leader_states[key] = _LeaderState(
                application, reporter, CompleteWindows(consumer, translator, kcl), system()
            )
        return state


def _evaluated(consumer: Consumer, translator: KclTranslator, instance: DagsterInstance) -> list[str]:
    keys = [spec.key for spec in asset_checks.specs(consumer, translator)]
    latest = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    return [key.name for key in latest]


def _declarations(
    state: _LeaderState, instance: DagsterInstance, kcl: KclResource, report: TickReport
) -> list[AssetMaterialization]:
    """Declarations of windows that became complete. Empty if this process does not lead, so that no two processes
    declare the same window."""
    if report.completeness is None or not report.leading:
        return []
    kinesis = kcl.client("kinesis", state.application)
    created = partial(created_within_retention, kinesis, state.application, state.runtime)
    found = state.declared.events(
        instance, report.completeness, report.leases, created, report.resets, report.lives
    )
    return state.declared.with_tables(instance, found)


def _superseded(
    names: Iterable[str], consumer: Consumer, translator: KclTranslator, instance: DagsterInstance
) -> list[str]:
    """The names of those checks on the records that were evaluated before the newest materialization of the
    records.

    Compares the same two timestamps as Dagster's `AssetCheckExecutionRecord.targets_latest_materialization`.
    """
    records = translator.get_asset_key(KclAsset(Role.RECORDS, consumer))
    keys = [AssetCheckKey(records, name) for name in names]
    event = instance.get_latest_materialization_event(records) if keys else None
    if event is None:
        return []
    latest = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    return [key.name for key, record in latest.items() if record.create_timestamp <= event.timestamp]


def _is_told(stream: StreamSight, consumer: Consumer, translator: KclTranslator, instance: DagsterInstance) -> bool:
    """Whether the stream's newest materialization has the same open shards as `stream`. A materialization without
    the tag of kcl_dagster comes from a project that defines the asset itself, and counts as up to date."""
    key = translator.get_asset_key(KclAsset(Role.STREAM, consumer, stream.name))
    event = instance.get_latest_materialization_event(key)
    if event is None or event.asset_materialization is None:
        return False
    return (event.asset_materialization.tags or {}).get(SHARDS_TAG, shards_of(stream)) == shards_of(stream)


def _decided(consumer: Consumer, translator: KclTranslator, instance: DagsterInstance) -> list[Row]:
    """The decisions in Dagster's storage, the newest first."""
    event = instance.get_latest_materialization_event(translator.get_asset_key(KclAsset(Role.DECISIONS, consumer)))
    if event is None or event.asset_materialization is None:
        return []
    told = KclDecisionsMetadataSet.extract(event.asset_materialization.metadata).decisions
    return [] if told is None else [record.data for record in told.records]


def _deployment(instance: DagsterInstance) -> str:
    """A name for this Dagster instance: that of its run storage, or that of this machine if the storage has no
    name."""
    storage_id = getattr(instance.run_storage, "get_run_storage_id", socket.gethostname)
    return str(storage_id())


def _request(application: Application, launch: Launch, code: LoadedCode, traceparent: str | None) -> RunRequest:
    """The request of a run. Dagster drops a request whose key it has received before, so a repeated tick launches
    nothing twice."""
    return RunRequest(
        run_key=f"{application.name}/{launch.slot}/{launch.generation}",
        partition_key=launch.slot,
        tags={
            APPLICATION_TAG: application.name,
            WORKER_TAG: worker_tag(application, launch.slot),
            CODE_TAG: code.version,
            **({} if traceparent is None else {LAUNCHED_BY_TAG: traceparent}),
        },
    )


def _still_going_on(state: _LeaderState) -> str:
    """The reason why a tick is skipped while the previous tick has not ended. If that tick takes very long, this is
    also logged, because skipped ticks are easily overlooked."""
    seconds = state.runtime.clock.monotonic() - state.began
    text = f"the previous tick is still going on, for {seconds:.0f} s"
    if seconds < TICK_HELD_SECONDS:
        return text
    log.warning("the leader of %s: %s; nothing is led meanwhile", state.application.name, text)
    return f"{text}: see what holds it, or restart the code location"


def _summary(report: TickReport) -> str:
    if report.skipped:
        return report.skipped
    if report.missing_table is not None:
        return report.missing_table
    if not report.leading:
        return f"the leader is {report.leader or 'none'}"
    unfinished = sum(not lease.is_finished for lease in report.leases)
    workers = sum(sight.alive for sight in report.workers)
    calm = f"{counted(unfinished, 'lease')}, {counted(workers, 'worker')}, {counted(len(report.moves), 'move')}"
    return "; ".join([calm, *report.problems])
