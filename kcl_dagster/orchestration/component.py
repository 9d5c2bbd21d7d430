"""`KclApplicationComponent`: an application described in YAML."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta
from enum import Enum
from functools import cache
from importlib import import_module
from inspect import signature
from typing import Any, Literal, TypeVar
from zoneinfo import ZoneInfoNotFoundError

import dagster as dg
from dagster.components import Component, ComponentLoadContext, Resolvable, scaffold_with
from pydantic import BaseModel, create_model, model_validator

from kcl_dagster.application import (
    BatchSettings,
    FailureAction,
    FailurePolicy,
    FleetSettings,
    MetricsLevel,
    Position,
    Retrieval,
    StartAt,
    TelemetrySettings,
)
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.model.evolution import Evolve
from kcl_dagster.orchestration import sink_choices
from kcl_dagster.orchestration.compact_operation import AUTO
from kcl_dagster.orchestration.consumer import Consumer, kcl_consumer
from kcl_dagster.orchestration.definitions import build_kcl_definitions
from kcl_dagster.orchestration.docstrings import field_docstrings
from kcl_dagster.orchestration.resources import SECRETS, KclResource
from kcl_dagster.orchestration.scaffolding import KclApplicationScaffolder
from kcl_dagster.orchestration.sink_choices import SinkChoice, Transform
from kcl_dagster.orchestration.translator import identifier
from kcl_dagster.worker.kclpy import install_stand_in

M = TypeVar("M", bound=Enum)

_KEYS = frozenset({"aws_access_key_id", *SECRETS})
_BATCH, _FAILURE = BatchSettings(), FailurePolicy()  # what is left out in YAML is as in Python


class Described(Resolvable):
    """Its fields' docstrings are the descriptions in the JSON schema, which editors show while YAML is written."""

    @classmethod
    def model(cls) -> type[BaseModel]:
        derived: type[BaseModel] = super().model()
        meanings = field_docstrings(cls)
        undescribed = [name for name, known in derived.model_fields.items() if known.description is None]
        for name in undescribed:
            derived.model_fields[name].description = meanings.get(name)
        if undescribed:
            derived.model_rebuild(force=True)
        return derived


@dataclass
class SinkModel(Described):
    """Where records go."""

    path: str
    """A directory, `s3://bucket/prefix`, or for iceberg `database.table`."""

    kind: Literal["parquet", "delta", "iceberg"] = "parquet"
    """What is stored there."""

    partition_by: list[str] = field(default_factory=list)
    """Columns of the output, or windows of time of them, such as `day(arrival_timestamp)`."""

    storage_options: dict[str, str] | None = None
    """delta-rs' own; for delta only. Secrets cannot be among them."""

    catalog: dict[str, str] | None = None
    """pyiceberg's properties; for iceberg only. Secrets cannot be among them."""

    catalog_name: str = "default"
    """Name of the catalog in pyiceberg's configuration; for iceberg only."""

    commit_seconds: float | None = None
    """How long a batch waits for the next commit of the table at most; for delta and iceberg. Left out: 30 s, or as
    follows from `visible_within`."""

    evolve: Evolve | None = None
    """What becomes of columns that the table or folder does not have: `refuse`, `add` or `ignore`. Left out: `add`
    for parquet, and `refuse` for delta and iceberg."""

    merge_on: list[str] = field(default_factory=list)
    """The columns of the key, if the output is change rows; for delta and iceberg."""

    delete_when: str | None = None
    """SQL over a change row: where it is true, the rows with its key are deleted; for delta and iceberg."""

    order_by: str | None = None
    """The column that says which change of a key is later; for delta and iceberg. Left out: the order of the
    shard."""

    chains_path: str | None = None
    """Where the chains are, if not below the location of the table; for iceberg only."""

    def choice(self) -> SinkChoice:
        """The sink that Python code would make.

        Raises ConfigurationError for what this kind of sink does not take.
        """
        make = SINKS.get(self.kind)
        if make is None:  # Dagster does not insist on a Literal
            raise ConfigurationError(f"sink.kind: {self.kind!r} is none of {', '.join(SINKS)}")
        taken = signature(make).parameters.keys()
        settings = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("path", "kind")}
        for name in sorted(settings.keys() - taken):
            if settings[name] != getattr(_AS_LEFT_OUT, name):
                raise ConfigurationError(f"sink.{name}: kcl.{self.kind} takes none")
        given = {name: value for name, value in settings.items() if name in taken and value is not None}
        return make(self.path, **given)


SINKS: dict[str, Callable[..., SinkChoice]] = {
    "parquet": sink_choices.parquet,
    "delta": sink_choices.delta,
    "iceberg": sink_choices.iceberg,
}
"""The functions that `sink.kind` names."""

_AS_LEFT_OUT = SinkModel("")


@dataclass
class ConnectionModel(Described):
    """How to reach AWS; left out, as boto3 finds it."""

    @classmethod
    @cache
    def model(cls) -> type[BaseModel]:
        """A model that refuses keys with a message of its own: pydantic would say that they are not permitted, and
        nothing about where they belong."""
        derived = super().model()
        validators: dict[str, Any] = {"without_keys": model_validator(mode="before")(_without_keys)}
        return create_model(derived.__name__, __base__=derived, __validators__=validators)

    region_name: str | None = None
    """Region of all services; for Kinesis, the region of an ARN comes first."""

    kinesis_region_name: str | None = None
    """Another region for Kinesis only."""

    dynamodb_region_name: str | None = None
    """Another region for DynamoDB only."""

    cloudwatch_region_name: str | None = None
    """Another region for CloudWatch only."""

    s3_region_name: str | None = None
    """Another region for S3 only, and for Iceberg catalogs in AWS Glue."""

    endpoint_url: str | None = None
    """Another endpoint for all services, such as an emulator's."""

    kinesis_endpoint_url: str | None = None
    """Another endpoint for Kinesis only."""

    dynamodb_endpoint_url: str | None = None
    """Another endpoint for DynamoDB only."""

    cloudwatch_endpoint_url: str | None = None
    """Another endpoint for CloudWatch only."""

    s3_endpoint_url: str | None = None
    """Another endpoint for S3 only."""

    sts_endpoint_url: str | None = None
    """Another endpoint for STS only."""

    profile_name: str | None = None
    """Profile of the shared AWS configuration."""

    role_arn: str | None = None
    """Role to assume for Kinesis, DynamoDB and CloudWatch. S3 has one of its own."""

    kinesis_role_arn: str | None = None
    """Another role for Kinesis only."""

    dynamodb_role_arn: str | None = None
    """Another role for DynamoDB only."""

    cloudwatch_role_arn: str | None = None
    """Another role for CloudWatch only."""

    external_id: str | None = None
    """External id that these roles ask for."""

    s3_role_arn: str | None = None
    """Role to assume for the lake; left out, the credentials of the run itself."""

    s3_external_id: str | None = None
    """External id that the role of the lake asks for."""

    s3_kms_key: str | None = None
    """ARN of the key in KMS that encrypts what is written to S3; left out, the bucket decides."""


@dataclass
class BatchModel(Described):
    """What a batch is made of. It is closed by the first of its three limits that is reached."""

    max_seconds: float | None = None
    """Time for reading. Fewer, larger batches cost less and make larger files. Left out: 5 s, or as follows from
    `visible_within`."""

    max_records: int = _BATCH.max_records
    """Of all shards of the worker together."""

    max_bytes: int = _BATCH.max_bytes
    """Of all shards of the worker together. The driver's heap should be five times this."""

    idle_seconds: float | None = None
    """The shortest time from one batch to the next while every shard is at its tip. Left out: 1 s, or less as
    follows from `visible_within`."""

    linger_seconds: float | None = _BATCH.linger_seconds
    """A batch is closed so long after its first records. Left out: for record processors 0.05 s by fan-out and 1 s
    by polling."""

    consumer_name: str | None = _BATCH.consumer_name
    """Fan-out consumer; the application's name when left out."""

    deaggregate: bool = _BATCH.deaggregate
    """Open what the Kinesis Producer Library packed into one record."""

    prefetch: bool = _BATCH.prefetch
    """Read the next batch while this one is written."""

    on_data_loss: Literal["stop", "continue"] = _BATCH.on_data_loss
    """What a shard does when records left the stream before they were read."""

    max_process_seconds: float | None = _BATCH.max_process_seconds
    """How long your code may work on one batch, before it is cancelled and counts as failed."""


@dataclass
class FailureModel(Described):
    """What to do with records that your code cannot process. Retries come first, with backoff; then the action."""

    action: Literal["stop", "bisect", "dead_letter", "skip"] = _FAILURE.action.value
    """Stop the shard; or look for the failing record, and then stop, store it elsewhere, or leave it out."""

    attempts: int = _FAILURE.attempts
    """How often a shard's batch is tried before the action."""

    outage_attempts: int = _FAILURE.outage_attempts
    """How often a batch is tried that the sink, AWS or Spark fails, before its shard is shown as stopped."""

    max_age: float | None = _FAILURE.max_age
    """Seconds; the action comes when the batch has failed for longer than this, counted from its first failure."""

    dead_letter_path: str | None = _FAILURE.dead_letter_path
    """A directory or `s3://bucket/prefix`, for dead_letter."""

    def policy(self) -> FailurePolicy:
        return FailurePolicy(
            action=_member(FailureAction, "failure.action", self.action),
            attempts=self.attempts,
            outage_attempts=self.outage_attempts,
            max_age=self.max_age,
            dead_letter_path=self.dead_letter_path,
        )


@dataclass
class PartitionsModel(Described):
    """Partitions of the records asset: windows of time, each materialized when it is complete."""

    start: str
    """The day on which the application begins, such as 2026-11-22. Dagster needs a fixed one."""

    every: str = "hour"
    """hour, day, week or month; or a cron expression, whose ticks are where partitions begin."""

    timezone: str = "UTC"
    """Where days begin."""

    def definition(self) -> dg.TimeWindowPartitionsDefinition:
        """Raises ConfigurationError for what is neither a name nor a cron expression, and for a start that is no
        day."""
        cron = _EVERY.get(self.every, self.every)
        hourly_or_less = self.every not in _DAYS
        try:
            return dg.TimeWindowPartitionsDefinition(
                start=datetime.fromisoformat(str(self.start)),
                cron_schedule=cron,
                timezone=self.timezone,
                fmt="%Y-%m-%d-%H:%M" if hourly_or_less else "%Y-%m-%d",
            )
        except (ValueError, dg.DagsterInvalidDefinitionError, ZoneInfoNotFoundError) as error:
            raise ConfigurationError(f"partitions: {error}") from None


_EVERY = {"hour": "0 * * * *", "day": "0 0 * * *", "week": "0 0 * * 0", "month": "0 0 1 * *"}
_DAYS = ("day", "week", "month")


@dataclass
class TelemetryModel(Described):
    """What workers and leaders let others see, beside Dagster."""

    json_logs: bool = False
    """Write log lines to standard error as JSON, one object a line."""

    openmetrics_port: int | None = None
    """Serve OpenMetrics there: worker-000 at this port, worker-001 at the next one, and so on."""

    openmetrics_port_by_slot: bool = True
    """False where each worker has an address of its own, such as a pod: all are at `openmetrics_port`."""

    openmetrics_host: str = "127.0.0.1"
    """Where to listen; `0.0.0.0` for scrapers on other machines."""

    cloudwatch: Literal["NONE", "SUMMARY", "DETAILED"] = "NONE"
    """Publish the KCL's metrics under its names. Needs cloudwatch:PutMetricData, and is not free."""

    cloudwatch_namespace: str | None = None
    """The application's name when left out, as in the KCL."""

    opentelemetry_traces: bool = False
    """Make each batch a trace of OpenTelemetry. Needs the extra `otel`, as `opentelemetry_metrics` does."""

    opentelemetry_metrics: bool = False
    """Send what `openmetrics_port` would serve by OpenTelemetry, too."""

    otlp_endpoint: str | None = None
    """The collector, such as `http://127.0.0.1:4318`. When left out: the providers that the process has
    set globally, or else what `OTEL_EXPORTER_OTLP_ENDPOINT` and its like say."""

    def settings(self) -> TelemetrySettings:
        return TelemetrySettings(
            json_logs=self.json_logs,
            openmetrics_port=self.openmetrics_port,
            openmetrics_port_by_slot=self.openmetrics_port_by_slot,
            openmetrics_host=self.openmetrics_host,
            cloudwatch=_member(MetricsLevel, "telemetry.cloudwatch", self.cloudwatch),
            cloudwatch_namespace=self.cloudwatch_namespace,
            opentelemetry_traces=self.opentelemetry_traces,
            opentelemetry_metrics=self.opentelemetry_metrics,
            otlp_endpoint=self.otlp_endpoint,
        )


@scaffold_with(KclApplicationScaffolder)
@dataclass
class KclApplicationComponent(Component, Described):
    """A KCL application: leader sensor, worker job, assets and checks.

    Example:
        .. code-block:: yaml

            type: kcl_dagster.KclApplicationComponent
            attributes:
              application: clicks-to-lake
              stream: clicks
              transform: my_project.clicks.parse
              sink: {path: "s3://lake/clicks"}
              max_workers: 8
              failure: {action: dead_letter, dead_letter_path: "s3://lake/dead"}
              connection: {region_name: eu-west-1}

    Subclass it and override `transform_records` or `consumer` for what YAML cannot say.
    """

    application: str
    """The KCL application's name, which is also its lease table's."""

    stream: str
    """Name of the stream."""

    sink: SinkModel | None = None
    """Where records go; a record processor has none."""

    sinks: dict[str, SinkModel] = field(default_factory=dict)
    """Instead of `sink`, several tables by name, each batch in all of them or in none. The function then returns a
    dict with a DataFrame for each name."""

    transform: str | None = None
    """`package.module.function`, from a DataFrame of records to one of rows, or `package.module.Class`, a record
    processor; left out, records are stored as they are."""

    processes: int | None = None
    """Of record processors: how many Python processes of the executors they are spread over."""

    name: str | None = None
    """Asset key of the records; the stream's name when left out."""

    key_prefix: list[str] = field(default_factory=list)
    """Of the keys of all assets of the application, except those of the streams."""

    min_workers: int = 1
    """The leader launches more when the stream grows or lags."""

    max_workers: int = 4
    """Never more than this."""

    owners: list[str] = field(default_factory=list)
    """Of all assets of the application: `team:web`, or e-mail addresses."""

    lag_target: float = 60.0
    """Seconds behind the tip of the stream above which a check warns."""

    freshness_minutes: float | None = None
    """The records asset is stale when no partition became complete for this long."""

    partitions: PartitionsModel | None = None
    """Partitions of the records asset; left out, hours of UTC since November 2026."""

    event_time: str | None = None
    """A timestamp column of the output by which rows belong to partitions; left out, the time of arrival."""

    allowed_lateness_minutes: float = 0.0
    """With event_time: a partition is complete this long after its end."""

    start: Literal["TRIM_HORIZON", "LATEST"] = "TRIM_HORIZON"
    """Where to begin when there is no checkpoint: with the oldest record, or with what comes from now on."""

    retrieval: Literal["polling", "fanout"] = "polling"
    """How records are read; fanout, which costs extra, has a throughput of its own per shard."""

    batch: BatchModel = field(default_factory=BatchModel)
    """What a batch is made of."""

    visible_within: float | None = None
    """Seconds after its arrival within which readers are to see a record. How long a batch is read follows from it,
    and how often a table is committed to; `batch.max_seconds` and `sink.commit_seconds` win where given."""

    failure: FailureModel = field(default_factory=FailureModel)
    """What to do with records that your code cannot process; left out, their shard stops."""

    telemetry: TelemetryModel | None = None
    """Log lines, OpenMetrics and CloudWatch; left out, none."""

    exports: str | None = None
    """The folder of the operations `export` and `import`: a path or `s3://bucket/prefix`."""

    prune_after_days: int | None = None
    """Delete finished worker runs that are that old, every night; left out, none."""

    compaction: str | None = AUTO
    """When small files are merged, as a cron expression (UTC); `auto`: once an hour; null: never. Not for Iceberg
    tables."""

    catch_up: str | None = None
    """Read the stream at the times of this cron expression (UTC), such as `0 * * * *`, instead of always."""

    connection: ConnectionModel | None = None
    """Left out, another component or definition must bring the resource `kcl`."""

    def transform_records(self) -> Transform:
        """The function that `transform` names."""
        if self.transform is None:
            return _unchanged
        module, dot, function = self.transform.rpartition(".")
        if not dot:
            raise ConfigurationError(f"transform {self.transform} is not of the form package.module.function")
        install_stand_in()  # here, because it has to be done before that module is imported
        try:
            found: Transform = getattr(import_module(module), function)
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(f"transform {self.transform} cannot be loaded: {error}") from None
        if not callable(found):
            raise ConfigurationError(f"transform {self.transform} is neither a function nor a class")
        return found

    def consumer(self) -> Consumer:
        """The consumer that Python code would make with `kcl_consumer`."""
        return kcl_consumer(
            application=self.application,
            stream=self.stream,
            sink=self._sink(),
            name=self.name or self.stream,
            key_prefix=self.key_prefix,
            fleet=FleetSettings(min_workers=self.min_workers, max_workers=self.max_workers),
            owners=self.owners,
            lag_target=self.lag_target,
            freshness=None if self.freshness_minutes is None else timedelta(minutes=self.freshness_minutes),
            start=StartAt(position=_member(Position, "start", self.start, ("TRIM_HORIZON", "LATEST"))),
            visible_within=self.visible_within,
            batch=BatchSettings(
                **{name: value for name, value in asdict(self.batch).items() if value is not None},
                retrieval=_member(Retrieval, "retrieval", self.retrieval),
                failure=self.failure.policy(),
            ),
            telemetry=None if self.telemetry is None else self.telemetry.settings(),
            processes=self.processes,
            partitions=None if self.partitions is None else self.partitions.definition(),
            event_time=self.event_time,
            allowed_lateness=timedelta(minutes=self.allowed_lateness_minutes),
        )(self.transform_records())

    def _sink(self) -> SinkChoice | Mapping[str, SinkChoice] | None:
        if self.sink is not None and self.sinks:
            raise ConfigurationError(f"application {self.application}: give sink or sinks, not both")
        if self.sinks:
            return {name: one.choice() for name, one in self.sinks.items()}
        return None if self.sink is None else self.sink.choice()

    def build_defs(self, context: ComponentLoadContext) -> dg.Definitions:
        # Dagster notes on every asset which component it is from, so one only may describe a stream that many read.
        others = context.component_tree.get_all_components(KclApplicationComponent)
        first = min((other.application for other in others if other.stream == self.stream), default=None)
        streams = first in (None, self.application)
        common: dict[str, Any] = {
            "streams": streams,
            "exports": self.exports,
            "prune_after_days": self.prune_after_days,
            "compaction": self.compaction,
            "catch_up": self.catch_up,
        }
        if self.connection is None:
            return build_kcl_definitions(self.consumer(), **common)
        # A name of its own: the components of a project share their resources, and need not share a connection.
        kcl_key = f"{identifier(self.application)}_kcl"
        connection = KclResource(**asdict(self.connection))
        return build_kcl_definitions(self.consumer(), resources={kcl_key: connection}, kcl_key=kcl_key, **common)


def _without_keys(values: Any) -> Any:
    """Raises ConfigurationError, which pydantic lets through, and does not show the value."""
    keys = sorted(_KEYS & set(values)) if isinstance(values, Mapping) else []
    if keys:
        variables = ", ".join(key.upper() for key in keys)
        fields = ", ".join(f'{key}=EnvVar("{key.upper()}")' for key in keys)
        raise ConfigurationError(
            f"connection: {', '.join(keys)} cannot be in YAML, where all who can read the code see it. Set "
            f"{variables} in the environment of Dagster's processes, or name a profile with profile_name or a role "
            "with role_arn: boto3 finds the keys. If only this application has such keys, leave out "
            f"connection and define the resource kcl in Python: KclResource({fields})"
        )
    return values


def _member(kind: type[M], attribute: str, value: str, allowed: Sequence[str] = ()) -> M:
    """A member of an enumeration by its value. Dagster does not insist on a Literal."""
    names = allowed or [str(one.value) for one in kind]
    if value not in names:
        raise ConfigurationError(f"{attribute}: {value!r} is none of {', '.join(names)}")
    return kind(value)


def _unchanged(records: Any) -> Any:
    """Records as they were read."""
    return records
