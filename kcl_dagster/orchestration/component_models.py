"""The models of the parts of a component's YAML. Each part is converted into settings or a resource."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import Enum
from functools import cache
from inspect import signature
from typing import Any, Literal, TypeVar
from zoneinfo import ZoneInfoNotFoundError

import dagster as dg
from dagster.components import Resolvable
from pydantic import BaseModel, Field, ValidationError, create_model, model_validator

from kcl_dagster.application import (
    BatchSettings,
    FailureAction,
    FailurePolicy,
    MetricsLevel,
    TelemetrySettings,
    refusal,
)
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.model.evolution import Evolve
from kcl_dagster.orchestration import sink_choices
from kcl_dagster.orchestration.docstrings import field_docstrings
from kcl_dagster.orchestration.resources import SECRETS
from kcl_dagster.orchestration.sink_choices import DeltaWriter, SinkChoice

M = TypeVar("M", bound=Enum)
S = TypeVar("S", bound=BaseModel)

_KEYS = frozenset({"aws_access_key_id", *SECRETS})
# The defaults in YAML are those of Python.
_BATCH, _FAILURE = BatchSettings(), FailurePolicy()


class Described(Resolvable):
    """A model whose fields' docstrings become descriptions in the JSON schema, which editors show while YAML is
    written."""

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
    """Where records are stored."""

    path: str
    """A directory or `s3://bucket/prefix`. For iceberg: `database.table`. For delta with the writer `spark`:
    `catalog.schema.table`."""

    kind: Literal["parquet", "delta", "iceberg"] = "parquet"
    """The format of the sink."""

    partition_by: list[str] = field(default_factory=list)
    """Columns of the output, or time windows of a column, such as `day(arrival_timestamp)`."""

    storage_options: dict[str, str] | None = None
    """Options of delta-rs; for delta only. They cannot contain secrets."""

    catalog: dict[str, str] | None = None
    """Properties of pyiceberg; for iceberg only. They cannot contain secrets."""

    catalog_name: str = "default"
    """The name of the catalog in pyiceberg's configuration; for iceberg only."""

    commit_seconds: float | None = None
    """The longest time for which a batch waits for the next commit of the table; for delta and iceberg. Default:
    30 s, or a value derived from `visible_within`."""

    evolve: Evolve | None = None
    """What becomes of columns that the table or folder does not have: `refuse`, `add` or `ignore`. Default: `add`
    for parquet, and `refuse` for delta and iceberg."""

    merge_on: list[str] = field(default_factory=list)
    """The columns of the key, if the output is change rows; for delta and iceberg."""

    delete_when: str | None = None
    """An SQL condition on change rows. If it is true, the rows with the same key are deleted; for delta and
    iceberg."""

    order_by: str | None = None
    """The column that says which change of a key is later; for delta and iceberg. Default: the order of the
    shard."""

    chains_path: str | None = None
    """Where the chains (logs of committed batches) are stored, if not below the location of the table; for
    iceberg, and for delta with the writer `spark`, which needs it."""

    writer: DeltaWriter | None = None
    """What commits to the table, `delta-rs` or `spark`; for delta only. Default: `delta-rs`."""

    def choice(self) -> SinkChoice:
        """The sink that these settings describe.

        Raises ConfigurationError for a setting that this kind of sink does not have.
        """
        make = SINKS.get(self.kind)
        if make is None:  # Dagster does not validate a Literal
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
"""The functions for the values of `sink.kind`."""

_AS_LEFT_OUT = SinkModel("")


@dataclass
class ConnectionModel(Described):
    """The connection to AWS. By default, boto3's configuration applies."""

    @classmethod
    @cache
    def model(cls) -> type[BaseModel]:
        """A model that rejects access keys, with a message that says where to put them. Without this, pydantic
        would only report that they are not permitted."""
        derived = super().model()
        validators: dict[str, Any] = {"without_keys": model_validator(mode="before")(_without_keys)}
        return create_model(derived.__name__, __base__=derived, __validators__=validators)

    region_name: str | None = None
    """The region of all services; for Kinesis, the region in a stream's ARN takes precedence."""

    kinesis_region_name: str | None = None
    """Another region for Kinesis only."""

    dynamodb_region_name: str | None = None
    """Another region for DynamoDB only."""

    cloudwatch_region_name: str | None = None
    """Another region for CloudWatch only."""

    s3_region_name: str | None = None
    """Another region for S3 and for Iceberg catalogs in AWS Glue."""

    endpoint_url: str | None = None
    """Another endpoint for all services, such as that of an emulator."""

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
    """The profile in the shared AWS configuration."""

    role_arn: str | None = None
    """The role to assume for Kinesis, DynamoDB and CloudWatch. The role for S3 is `s3_role_arn`."""

    kinesis_role_arn: str | None = None
    """Another role for Kinesis only."""

    dynamodb_role_arn: str | None = None
    """Another role for DynamoDB only."""

    cloudwatch_role_arn: str | None = None
    """Another role for CloudWatch only."""

    external_id: str | None = None
    """The external id that the roles require, except for `s3_role_arn`."""

    s3_role_arn: str | None = None
    """The role to assume for S3. Default: the run's own credentials."""

    s3_external_id: str | None = None
    """The external id that `s3_role_arn` requires."""

    s3_kms_key: str | None = None
    """The ARN of the KMS key for objects written to S3. Default: the bucket's setting."""


@dataclass
class BatchModel(Described):
    """The limits of a batch. It is closed when the first of `max_seconds`, `max_records` and `max_bytes` is
    reached."""

    max_seconds: float | None = None
    """The time for reading a batch. Fewer, larger batches cost less and make larger files. Default: 5 s, or a
    value derived from `visible_within`."""

    max_records: int = _BATCH.max_records
    """The highest number of records, for all shards of the worker together."""

    max_bytes: int = _BATCH.max_bytes
    """The highest number of bytes, for all shards of the worker together. The driver's heap should be five times
    as large."""

    idle_seconds: float | None = None
    """The shortest time from the beginning of one batch to that of the next, while every shard is at its tip.
    Default: 1 s, or a smaller value derived from `visible_within`."""

    linger_seconds: float | None = _BATCH.linger_seconds
    """A batch is closed this long after its first records were read. Default: for record processors 0.05 s by
    fan-out and 1 s by polling."""

    consumer_name: str | None = _BATCH.consumer_name
    """The name of the fan-out consumer. Default: the application's name."""

    deaggregate: bool = _BATCH.deaggregate
    """Unpack aggregates of the Kinesis Producer Library."""

    prefetch: bool = _BATCH.prefetch
    """Read the next batch while the current one is written."""

    tasks_per_shard: int | None = _BATCH.tasks_per_shard
    """The most Spark tasks that process the records of one shard, if one task would need seconds. Default: the
    number of cores of the session."""

    on_data_loss: Literal["stop", "continue"] = _BATCH.on_data_loss
    """What to do with a shard if records left the stream before they were read."""

    max_process_seconds: float | None = _BATCH.max_process_seconds
    """The longest time for which your code works on one batch. After that, the batch is cancelled and counts as
    failed."""


@dataclass
class FailureModel(Described):
    """What to do with records that your code cannot process: first retry them with backoff, then take the
    action."""

    action: Literal["stop", "bisect", "dead_letter", "skip"] = _FAILURE.action.value
    """Stop the shard; or find the failing record, and then stop (`bisect`), store it elsewhere (`dead_letter`),
    or leave it out (`skip`)."""

    attempts: int = _FAILURE.attempts
    """How often a batch of a shard is tried before the action is taken."""

    outage_attempts: int = _FAILURE.outage_attempts
    """If a batch fails because of the sink, AWS or Spark: how often it is tried before its shard is reported as
    stopped."""

    max_age: float | None = _FAILURE.max_age
    """Seconds after the first failure of a batch. When they have passed, the action is taken."""

    dead_letter_path: str | None = _FAILURE.dead_letter_path
    """A directory or `s3://bucket/prefix` for the action `dead_letter`."""

    def policy(self) -> FailurePolicy:
        return FailurePolicy(
            action=member_of(FailureAction, "failure.action", self.action),
            attempts=self.attempts,
            outage_attempts=self.outage_attempts,
            max_age=self.max_age,
            dead_letter_path=self.dead_letter_path,
        )


@dataclass
class PartitionsModel(Described):
    """The partitions of the records asset: windows of time, each materialized when it is complete."""

    start: str
    """The day on which the application begins, such as 2026-11-22. Dagster requires a fixed day."""

    every: str = "hour"
    """`hour`, `day`, `week` or `month`; or a cron expression, at whose times partitions begin."""

    timezone: str = "UTC"
    """The time zone in which days begin."""

    def definition(self) -> dg.TimeWindowPartitionsDefinition:
        """The partitions. Raises ConfigurationError if `every` is neither a name nor a cron expression, or
        `start` is no day."""
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
    """The telemetry of workers and leaders outside of Dagster."""

    json_logs: bool = False
    """Write log lines to standard error as JSON, one object per line."""

    openmetrics_port: int | None = None
    """Serve OpenMetrics: `worker-000` at this port, `worker-001` at the next one, and so on."""

    openmetrics_port_by_slot: bool = True
    """False if each worker has its own address, as in a pod. Then all workers use `openmetrics_port`."""

    openmetrics_host: str = "127.0.0.1"
    """The address to listen at; `0.0.0.0` for scrapers on other machines."""

    cloudwatch: Literal["NONE", "SUMMARY", "DETAILED"] = "NONE"
    """Publish the KCL's metrics under the KCL's names. Needs cloudwatch:PutMetricData, and AWS charges for it."""

    cloudwatch_namespace: str | None = None
    """The namespace of the metrics in CloudWatch. Default: the application's name, as in the KCL."""

    opentelemetry_traces: bool = False
    """Make each batch a trace of OpenTelemetry. Needs the extra `otel`, as `opentelemetry_metrics` does."""

    opentelemetry_metrics: bool = False
    """Send the metrics of `openmetrics_port` by OpenTelemetry, too."""

    otlp_endpoint: str | None = None
    """The collector, such as `http://127.0.0.1:4318`. Default: the global providers of the process, or if there
    are none, `OTEL_EXPORTER_OTLP_ENDPOINT` and the related environment variables."""

    def settings(self) -> TelemetrySettings:
        return TelemetrySettings(
            json_logs=self.json_logs,
            openmetrics_port=self.openmetrics_port,
            openmetrics_port_by_slot=self.openmetrics_port_by_slot,
            openmetrics_host=self.openmetrics_host,
            cloudwatch=member_of(MetricsLevel, "telemetry.cloudwatch", self.cloudwatch),
            cloudwatch_namespace=self.cloudwatch_namespace,
            opentelemetry_traces=self.opentelemetry_traces,
            opentelemetry_metrics=self.opentelemetry_metrics,
            otlp_endpoint=self.otlp_endpoint,
        )


def made(kind: type[S], where: str, given: Mapping[str, Any]) -> S:
    """Make an object of the settings class `kind` from `given`. Raises ConfigurationError for values that the class
    refuses; `where` is the beginning of the message."""
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise ConfigurationError(f"{where}: {refusal(error)}") from None


def settings_of(kind: type[BaseModel]) -> dg.Resolver:
    """The resolver that makes an object of the settings class `kind` from YAML. Settings have the same names and
    meanings in YAML as in Python. Each value can be a template.

    In `Annotated["FleetSettings | None", settings_of(FleetSettings)]`, the type must be in quotes: Dagster would
    refuse the class itself, because it is a model of pydantic whose fields have limits.
    """
    meanings = field_docstrings(kind)
    written: dict[str, Any] = {
        # The limits of a number are left out, because a template cannot be compared with them.
        name: (known.annotation | str, Field(default=known.default, description=meanings.get(name)))
        for name, known in kind.model_fields.items()
    }
    model = create_model(f"{kind.__name__}Model", __base__=dg.Model, **written)

    def resolve(context: dg.ResolutionContext, given: BaseModel | None) -> BaseModel | None:
        if given is None:
            return None
        said = {name: context.resolve_value(getattr(given, name)) for name in given.model_fields_set}
        return made(kind, kind.__name__, said)

    return dg.Resolver(resolve, model_field_type=model | None)


def member_of(kind: type[M], attribute: str, value: str) -> M:
    """The member of an enumeration with this value. Raises ConfigurationError if there is none. The value comes
    from a field whose type is a Literal, and Dagster does not validate such a field."""
    names = [str(one.value) for one in kind]
    if value not in names:
        raise ConfigurationError(f"{attribute}: {value!r} is none of {', '.join(names)}")
    return kind(value)


def _without_keys(values: Any) -> Any:
    """Return the values. Raises ConfigurationError if they contain access keys. The message of this error contains
    only the names of these settings. A message of pydantic would contain the access keys themselves."""
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
