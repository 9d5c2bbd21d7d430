"""An asset whose partitions are windows of a stream. Dagster's backfills of the asset read these windows again."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    AssetsDefinition,
    BackfillPolicy,
    Config,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    Failure,
    MetadataValue,
    RunsFilter,
    TimeWindowPartitionsDefinition,
    multi_asset,
)
from pydantic import Field

from kcl_dagster.errors import ConfigurationError, DataLoss, KclError
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.operations.operation import Row
from kcl_dagster.operations.replay import (
    DEFAULT_SHARE,
    LEAST_SHARE,
    Replay,
    ReplayWindow,
    ShardReplay,
    limits_of,
    refuse_unreadable,
    report_of,
)
from kcl_dagster.orchestration.answer_metadata import table
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.resources import KclResource
from kcl_dagster.orchestration.several_tables_choice import several_tables
from kcl_dagster.orchestration.sink_choices import SinkChoice, open_for_parts
from kcl_dagster.orchestration.translator import KclAsset, KclTranslator, Role, identifier
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.streams.listing import describe, list_shards

REPLAY_TAG: Final = "kcl/replay"
"""The tag of a replay's run. Its value is the application's name. Replays of one application run one after another,
because they share the allowed rate of reads of its shards.
"""

# Seconds between two checks whether a replay has ended. A replay takes minutes, and each check queries Dagster's
# database.
POLL_SECONDS: Final = 5.0


class ReplayConfig(Config):
    """The settings in the launchpad."""

    edition: str = Field(
        default="",
        description="Each edition of a window is stored once. Give another one to store windows anew, such as "
        "after the function was mended and their rows were removed.",
    )

    share: float = Field(
        default=DEFAULT_SHARE,
        ge=LEAST_SHARE,
        le=1,
        description="Part of each shard's five reads and two megabytes a second that the replay may use.",
    )


def build_kcl_replay_asset(
    consumer: Consumer,
    *,
    partitions_def: TimeWindowPartitionsDefinition,
    sink: SinkChoice | Mapping[str, SinkChoice],
    name: str | None = None,
    translator: KclTranslator | None = None,
    kcl_key: str = "kcl",
    spark_key: str = "spark",
) -> AssetsDefinition:
    """Build an asset whose partitions are windows of a consumer's stream, read again through the consumer's code.

    A partition contains the records that arrived at the stream within the window. It contains each of them once,
    even if its replay is interrupted or repeated. Leases are neither read nor written, so the live consumer
    continues. A backfill is one run, which reads window after window.

    Args:
        partitions_def: `dagster.HourlyPartitionsDefinition`, `DailyPartitionsDefinition` or any other.
        sink: Where windows are stored. If the consumer stores into several tables: a mapping with the same names.
            If you give the consumer's own sink, remove the rows of the windows from it first. Otherwise, it
            contains the records stored live *and* the replayed ones.
        name: The asset's key, after the consumer's `key_prefix`; by default the consumer's name with `_replayed`.

    Example:
        .. code-block:: python

            replayed = kcl.build_kcl_replay_asset(
                clicks,
                partitions_def=dg.HourlyPartitionsDefinition(start_date="2026-11-01-00:00"),
                sink=kcl.parquet("s3://lake/clicks-replayed"),
            )
    """
    if consumer.sink.processors is not None:
        raise ConfigurationError(
            f"application {consumer.application.name}: record processors checkpoint by themselves and cannot be "
            "replayed; reset the application instead (kcl-dagster reset)"
        )
    chosen = several_tables(sink) if isinstance(sink, Mapping) else sink
    if chosen.tables.keys() != consumer.sink.tables.keys():
        wanted = ", ".join(consumer.sink.tables)
        raise ConfigurationError(
            f"application {consumer.application.name}: the function of {consumer.name} returns "
            + (f"a DataFrame for each of {wanted}" if wanted else "one DataFrame")
            + f", and the sink of its replay has {', '.join(chosen.tables) or 'one table'}"
        )
    key = AssetKey([*consumer.key_prefix, name or f"{consumer.name}_replayed"])
    application = consumer.application
    replayed = replace(consumer, sink=chosen, freshness=None)
    spec = (translator or KclTranslator()).get_asset_spec(KclAsset(Role.RECORDS, replayed))
    spec = spec.replace_attributes(
        key=key,
        description=f"Windows of the stream, read again through the code of `{consumer.name}`. Backfill to replay.",
        partitions_def=partitions_def,
        skippable=True,  # each window is reported as soon as it is stored, not at the end
    )

    @multi_asset(
        specs=[spec],
        name=f"{identifier(application.name)}_{identifier(key.path[-1])}",
        partitions_def=partitions_def,
        backfill_policy=BackfillPolicy.single_run(),
        required_resource_keys={kcl_key, spark_key, *consumer.resources},
        pool=f"{identifier(application.name)}_replay",
    )
    def replay(context: AssetExecutionContext, config: ReplayConfig) -> Iterator[Any]:
        kcl: KclResource = getattr(context.resources, kcl_key)
        runtime = system()
        windows = [_window(partitions_def, partition) for partition in context.partition_keys]
        try:
            _refuse_early(consumer, kcl, windows, runtime)
            with _after_older_replays(context, application.name, runtime):
                spark = getattr(context.resources, spark_key).spark_session
                ours = consumer.bound(context, context.resources)
                for window in windows:
                    _refuse_early(consumer, kcl, [window], runtime)
                    states = _replay_window(context, ours, chosen, kcl, spark, window, config, runtime)
                    context.log_event(AssetMaterialization(key, partition=window.name, metadata=_metadata(states)))
        except KclError as error:
            is_final = isinstance(error, (ConfigurationError, DataLoss))  # any other error can be temporary
            raise Failure(" ".join(str(error).split()), allow_retries=not is_final) from error
        yield from ()

    return replay


def _window(partitions_def: TimeWindowPartitionsDefinition, partition: str) -> ReplayWindow:
    found = partitions_def.time_window_for_partition_key(partition)
    return ReplayWindow(partition, round(found.start.timestamp() * 1000), round(found.end.timestamp() * 1000))


def _refuse_early(consumer: Consumer, kcl: KclResource, windows: Sequence[ReplayWindow], runtime: Runtime) -> None:
    """Raise an error for unreadable windows, before Spark is started and anything is read."""
    for settings in consumer.application.streams:
        facts = describe(kcl.client("kinesis", consumer.application), settings.name, runtime=runtime)
        for window in windows:
            refuse_unreadable(window, facts, runtime.clock.now())


def _replay_window(
    context: AssetExecutionContext,
    consumer: Consumer,
    choice: SinkChoice,
    kcl: KclResource,
    spark: Any,
    window: ReplayWindow,
    config: ReplayConfig,
    runtime: Runtime,
) -> list[ShardReplay]:
    # Importing Spark is slow, and the code server imports this module without using it.
    from kcl_dagster.spark.engine import EngineSettings, SparkEngine
    from kcl_dagster.spark.fetch import Connection

    application = consumer.application
    kinesis = kcl.client("kinesis", application)
    settings = EngineSettings(
        limits=limits_of(config.share),
        opens_aggregates=application.batch.deaggregate,
        tasks_per_shard=application.batch.tasks_per_shard,
    )
    engine = SparkEngine(spark, Connection(**kcl.connection("kinesis", application)), settings, runtime=runtime)
    s3 = kcl.connection("s3", application)
    since = {"Type": "FROM_TIMESTAMP", "Timestamp": window.start_ms / 1000}
    states: list[ShardReplay] = []
    try:
        for stream in application.streams:
            replay = Replay(
                application.name,
                _identifier(kinesis, application.multi_stream, stream.name, runtime),
                window,
                list_shards(kinesis, stream.name, shard_filter=since, runtime=runtime),
                engine,
                open_for_parts(
                    choice,
                    consumer.stored_transform,
                    s3,
                    owner=f"{application.name}/replay",
                    name=f"{window.name} {config.edition}".strip(),
                    runtime=runtime,
                ),
                lambda batch: context.log.debug(
                    "%s: %s records of %s shards", window.name, batch.records, len(batch.parts)
                ),
            )
            states += replay.run()
    finally:
        engine.close()
    context.log.info("replayed %s: %s", window, report_of(states))
    return states


def _identifier(kinesis: Any, is_multi: bool, stream: str, runtime: Runtime) -> StreamIdentifier:
    if not is_multi:
        return StreamIdentifier.single(stream)
    facts = describe(kinesis, stream, runtime=runtime)
    return StreamIdentifier(stream, facts.account, int(facts.created))


def _metadata(states: Sequence[ShardReplay]) -> dict[str, Any]:
    rows: list[Row] = [
        {"shard": s.shard.id, "records": s.records, "bytes": s.bytes, "pieces": s.pieces}
        for s in sorted(states, key=lambda state: -state.records)
    ]
    totals = report_of(states)
    return {
        "dagster/row_count": MetadataValue.int(totals.pop("records")),
        **totals,
        "by shard": table(rows, ("shard", "records", "bytes", "pieces")),
    }


@contextmanager
def _after_older_replays(context: AssetExecutionContext, application: str, runtime: Runtime) -> Iterator[None]:
    """Wait until no older replay of the application is running. There can be one only if the limit of the pool
    allows several replays. A waiting run occupies one of the places in the pool."""
    instance, run = context.instance, context.run
    # This run must not have the tag of the application's worker runs. Runs with that tag are pruned, and the
    # materializations of this run would be deleted with it.
    instance.add_run_tags(run.run_id, {REPLAY_TAG: application})
    reported: str | None = None
    while (before := older(instance, application, run)) is not None:
        if before != reported:
            context.log.info("waiting for run %s, which replays the application already", before)
            reported = before
        runtime.clock.sleep(POLL_SECONDS)
    yield


def older(instance: DagsterInstance, application: str, run: DagsterRun) -> str | None:
    """The run id of the oldest active replay, or None if that is this run."""
    active = [DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]
    records = instance.get_run_records(RunsFilter(tags={REPLAY_TAG: application}, statuses=active), ascending=True)
    first = next((record.dagster_run.run_id for record in records), run.run_id)
    return None if first == run.run_id else first
