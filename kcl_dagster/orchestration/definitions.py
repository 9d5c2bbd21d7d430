"""`build_kcl_definitions`: all Dagster definitions of a consumer in one call."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dagster import AssetKey, DefaultSensorStatus, Definitions, SensorDefinition

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.folder import misspelt
from kcl_dagster.orchestration.admin_job import build_admin_job
from kcl_dagster.orchestration.assets import build_kcl_asset_specs
from kcl_dagster.orchestration.catch_up import build_kcl_catch_up_job, build_kcl_catch_up_schedule
from kcl_dagster.orchestration.check_definitions import build_kcl_checks
from kcl_dagster.orchestration.compact_operation import (
    AUTO,
    CompactOperation,
    build_kcl_compaction_schedule,
    cron_of,
)
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.dead_letter_job import build_kcl_dead_letter_job
from kcl_dagster.orchestration.leader_sensor import build_kcl_leader_sensor
from kcl_dagster.orchestration.pruning import build_kcl_prune_schedule, prune_operation
from kcl_dagster.orchestration.records_asset import build_records_asset
from kcl_dagster.orchestration.remote_launch import Launch
from kcl_dagster.orchestration.resources import KclResource
from kcl_dagster.orchestration.spark_resource import KclSparkResource
from kcl_dagster.orchestration.translator import KclAsset, KclTranslator, Role, identifier
from kcl_dagster.orchestration.worker_job import build_worker_job

log = logging.getLogger(__name__)


def build_kcl_definitions(
    *consumers: Consumer,
    resources: Mapping[str, Any] | None = None,
    translator: KclTranslator | None = None,
    kcl_key: str = "kcl",
    spark_key: str = "spark",
    streams: bool = True,
    exports: str | None = None,
    prune_after_days: int | None = None,
    compaction: str | None = AUTO,
    catch_up: str | None = None,
    launch: Launch | None = None,
) -> Definitions:
    """Build the leader sensor, worker job, assets, checks and operations of each consumer.

    Args:
        consumers: Functions decorated with `kcl_consumer`.
        resources: A `KclResource` under `kcl_key`, unless you merge the result with definitions that have one.
            Under `spark_key`, optionally a `KclSparkResource` or another object that has a `spark_session`; by
            default a local session.
        translator: How assets appear; see `KclTranslator`.
        kcl_key: The name of the `KclResource`. Applications in other accounts or regions need another `KclResource`
            under another name.
        spark_key: The name of the resource with the Spark session.
        streams: False if the assets of the streams are defined elsewhere.
        exports: The folder for the operations `export` and `import`: a local path or `s3://bucket/prefix`. These
            operations use no other folder. Default: a folder in the storage of the Dagster instance, on the machine
            of the run.
        prune_after_days: Delete finished worker runs of this age, with their events, every night. By default, none
            are deleted.
        compaction: When the small files of Parquet folders and Delta tables are merged: a cron expression (UTC)
            such as `17 * * * *`; `auto`: once an hour; None: never, for example because readers of the folder
            follow new files. Files of an Iceberg table have to be merged by an engine.
        catch_up: Read the streams at the times of this cron expression (UTC), such as `0 * * * *`, instead of
            continuously: a schedule launches the job `<application>_catch_up`, and the leader sensor, which
            launches workers, is stopped until you start it.
        launch: A function that starts a Spark driver elsewhere, in which the job `<application>_catch_up` reads;
            see `build_kcl_catch_up_job`. By default, the job reads in its own process.

    Merge the result with your own definitions: `Definitions.merge(defs, ours)`.

    Example:
        .. code-block:: python

            defs = kcl.build_kcl_definitions(clicks, resources={"kcl": kcl.KclResource(region_name="eu-west-1")})
    """
    if not consumers:
        raise ConfigurationError("build_kcl_definitions needs at least one consumer: @kcl_consumer makes one")
    whatever: Sequence[Any] = consumers
    others = [one for one in whatever if not isinstance(one, Consumer)]
    if others:
        name = getattr(others[0], "__qualname__", repr(others[0]))
        raise ConfigurationError(f"{name} is not a consumer: decorate it with @kcl_consumer(...)")
    _refuse_clashes(consumers)
    reason = None if exports is None else misspelt(exports)
    if reason is not None:
        raise ConfigurationError(f"exports: {reason}")
    translator = translator or KclTranslator()
    # Two applications can read the same stream, which is one asset.
    specs = {spec.key: spec for consumer in consumers for spec in build_kcl_asset_specs(consumer, translator)}
    _refuse_shared_keys(consumers, translator, specs)
    if not streams:
        specs = {key: spec for key, spec in specs.items() if key not in _streams(consumers, translator)}
    keys = {"kcl_key": kcl_key, "spark_key": spark_key}
    jobs = {consumer.application.name: build_worker_job(consumer, translator, **keys) for consumer in consumers}
    pruning = [] if prune_after_days is None else [prune_operation(prune_after_days)]
    compacted = [] if compaction is None else _compacted(consumers, is_auto=compaction == AUTO)
    admin = {
        c.application.name: build_admin_job(
            c,
            more=[*pruning, *([CompactOperation] if c in compacted else [])],
            kcl_key=kcl_key,
            exports=exports,
        )
        for c in consumers
    }
    bounded = {
        c.application.name: build_kcl_catch_up_job(c, translator=translator, launch=launch, **keys)
        for c in consumers
    }
    schedules = []
    if prune_after_days is not None:
        schedules += [build_kcl_prune_schedule(c, admin[c.application.name], prune_after_days) for c in consumers]
    if compaction is not None:
        schedules += [
            build_kcl_compaction_schedule(c, admin[c.application.name], cron_of(c.application.name, compaction))
            for c in compacted
        ]
    if catch_up is not None:
        schedules += [
            build_kcl_catch_up_schedule(c, job=bounded[c.application.name], cron=catch_up) for c in consumers
        ]
    leads = DefaultSensorStatus.RUNNING if catch_up is None else DefaultSensorStatus.STOPPED
    letters = [
        build_kcl_dead_letter_job(consumer, kcl_key=kcl_key, spark_key=spark_key)
        for consumer in consumers
        if consumer.application.batch.failure.dead_letter_path is not None
    ]
    given = {spark_key: _LOCAL_SPARK, **(resources or {})}
    sensors = {
        c.application.name: build_kcl_leader_sensor(
            c, job=jobs[c.application.name], translator=translator, kcl_key=kcl_key, default_status=leads
        )
        for c in consumers
    }
    for consumer in consumers:
        _BUILT[sensors[consumer.application.name]] = Built(
            consumer, given.get(kcl_key), given, kcl_key, spark_key, translator, exports, catch_up is not None
        )
    return Definitions(
        assets=[
            *specs.values(),
            *(build_records_asset(consumer, translator, **keys) for consumer in consumers),
        ],
        asset_checks=[build_kcl_checks(c, translator, kcl_key=kcl_key) for c in consumers],
        jobs=[
            *jobs.values(),
            *bounded.values(),
            *admin.values(),
            *letters,
        ],
        schedules=schedules,
        sensors=list(sensors.values()),
        resources=given,
    )


@dataclass(frozen=True, slots=True)
class Built:
    """A consumer for which `build_kcl_definitions` built definitions in this process, and the arguments of the
    call."""

    consumer: Consumer
    resource: KclResource | None
    resources: Mapping[str, Any] = field(default_factory=dict)
    """All resources of these definitions."""

    kcl_key: str = "kcl"
    spark_key: str = "spark"
    translator: KclTranslator = field(default_factory=KclTranslator)
    exports: str | None = None
    is_bounded: bool = False
    """Whether a schedule of bounded runs reads the streams, and not a fleet."""


# The keys are leader sensors. An application's name does not identify definitions, because a module can have
# several definitions of one application, for several accounts or regions.
_BUILT: dict[SensorDefinition, Built] = {}


def built_of(definitions: Definitions) -> Mapping[str, Built]:
    """The arguments from which these definitions were built, by the name of the application. The command line needs
    the arguments, because `Definitions` does not contain them.

    The arguments are found by the sensor object, which a merge of definitions does not change. If Dagster has
    copied the sensor, as when it loads the definitions of a component, they are found by the sensor's name.

    Raises ConfigurationError if sensors of this name were built for different consumers. The name then does not
    identify the arguments.
    """
    by_name: dict[str, list[Built]] = {}
    for known, made in _BUILT.items():
        by_name.setdefault(known.name, []).append(made)
    found: dict[str, Built] = {}
    for sensor in definitions.sensors or ():
        candidates = [_BUILT[sensor]] if sensor in _BUILT else by_name.get(sensor.name, [])
        if not candidates:
            continue
        newest = candidates[-1]
        name = newest.consumer.application.name
        if any(one.consumer != newest.consumer or one.kcl_key != newest.kcl_key for one in candidates):
            raise ConfigurationError(
                f"application {name} was built several times, of consumers that differ, and these definitions do "
                "not say which of them they have: name the result of build_kcl_definitions"
            )
        found[name] = newest
    return found


def built_with(consumer: Consumer) -> Sequence[Built]:
    return [one for one in _BUILT.values() if one.consumer is consumer]


def _streams(consumers: Sequence[Consumer], translator: KclTranslator) -> set[AssetKey]:
    return {
        translator.get_asset_key(KclAsset(Role.STREAM, consumer, stream.name))
        for consumer in consumers
        for stream in consumer.application.streams
    }


# A single object, because Dagster merges definitions only if a resource name means the same object in all of them.
_LOCAL_SPARK = KclSparkResource()


def _refuse_clashes(consumers: Sequence[Consumer]) -> None:
    names = [consumer.application.name for consumer in consumers]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"applications {names}: two consumers cannot share an application")
    if len({identifier(name) for name in names}) < len(names):
        raise ConfigurationError(
            f"applications {names}: two of them differ in punctuation only, which Dagster drops"
        )
    assets = ["/".join([*consumer.key_prefix, consumer.name]) for consumer in consumers]
    if len(set(assets)) < len(assets):
        raise ConfigurationError(f"assets {assets}: two consumers cannot make one asset; give one another name=")


def _refuse_shared_keys(
    consumers: Sequence[Consumer], translator: KclTranslator, reported: Collection[AssetKey]
) -> None:
    """Raise ConfigurationError if a table has the asset key of another asset."""
    owners = {
        translator.get_asset_key(KclAsset(Role.RECORDS, one)): f"the records of {one.name}" for one in consumers
    }
    owners |= dict.fromkeys(reported, "an asset of the application")
    for consumer in consumers:
        for name in consumer.sink.tables:
            key = translator.get_asset_key(KclAsset(Role.TABLE, consumer, table=name))
            if key in owners:
                raise ConfigurationError(
                    f"the table {name} of {consumer.name} has the asset key {key.to_user_string()}, and so has "
                    f"{owners[key]}: give the table another name, or let the translator look at asset.role and "
                    "asset.table"
                )
            owners[key] = f"the table {name} of {consumer.name}"


def _compacted(consumers: Sequence[Consumer], *, is_auto: bool) -> list[Consumer]:
    """The consumers whose small files are merged.

    Raises ConfigurationError if the folder of a consumer contains the folder of another consumer. With `is_auto`,
    the consumer of the outer folder is left out instead. The reason: a compaction of the outer folder skips the
    inner folder only after the first batch of the inner sink has marked the inner folder.
    """
    from kcl_dagster.spark.storage import open_store

    chosen = [c for c in consumers if c.sink.compacted]
    for consumer in () if is_auto else consumers:
        if consumer not in chosen:
            log.warning(
                "compaction: no files of %s are merged. This is done for Parquet folders and for Delta tables at a "
                "path; an engine has to merge those of other tables",
                consumer.application.name,
            )
    roots = [
        (consumer, sink, open_store(sink.place).root)
        for consumer in chosen
        for sink in consumer.sink.compacted.values()
    ]
    for outer, sink, above in roots:
        for inner, _, below in roots:
            if sink.kind != "parquet" or not below.startswith(f"{above.rstrip('/')}/"):
                continue
            problem = (
                f"compaction: {inner.application.name} stores at {below}, which is below the folder of "
                f"{outer.application.name}, {above}. Give each a folder of its own"
            )
            if not is_auto:
                raise ConfigurationError(problem)
            log.warning("%s, or the small files of %s are not merged", problem, outer.application.name)
            chosen = [consumer for consumer in chosen if consumer is not outer]
    return chosen
