"""What an application is: a name, its streams, its tables, and how it behaves.

Frozen pydantic values. Everything has a default that works; what cannot work is refused here, by name.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from kcl_dagster.folder import misspelt

Seconds = Annotated[float, Field(gt=0)]

# Dagster's sensor loop wakes every five seconds and compares with the start of the last tick, so an interval
# of 5k alternates between 5k and 5k+5. One second less gives exactly 5k.
_SENSOR_LOOP_SECONDS = 5


def refusal(error: ValidationError) -> str:
    """What pydantic refused, as a line for an operator: the field, the rule and the value of each."""
    return "; ".join(
        f"{'.'.join(map(str, one['loc']))}: {one['msg']}, and is {one['input']!r}"
        if one["loc"]
        else one["msg"].removeprefix("Value error, ")
        for one in error.errors(include_url=False)
    )


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Position(StrEnum):
    """Where a shard without a checkpoint starts."""

    TRIM_HORIZON = "TRIM_HORIZON"
    LATEST = "LATEST"
    AT_TIMESTAMP = "AT_TIMESTAMP"


class StartAt(_Settings):
    """An initial position, for shards that have no checkpoint. Resolved once, when the application first sees the
    stream, and then written down.

    Example:
        .. code-block:: python

            kcl.StartAt(position="AT_TIMESTAMP", timestamp=datetime(2026, 11, 1, tzinfo=UTC))
    """

    position: Position = Position.TRIM_HORIZON
    """The oldest record that the stream still has; or what arrives from the first tick on; or a moment."""

    timestamp: datetime | None = None
    """Belongs to AT_TIMESTAMP and only to it; must carry a zone."""

    @model_validator(mode="after")
    def _timestamp_fits(self) -> Self:
        if (self.position is Position.AT_TIMESTAMP) != (self.timestamp is not None):
            msg = f"position {self.position} and timestamp {self.timestamp} do not fit together"
            raise ValueError(msg)
        if self.timestamp is not None and self.timestamp.tzinfo is None:
            msg = f"timestamp {self.timestamp} has no time zone"
            raise ValueError(msg)
        return self


_STREAM_ARN = re.compile(
    r"arn:aws[^:]*:kinesis:(?P<region>[-a-z0-9]+):(?P<account>\d{12}):stream/(?P<name>[^:/]+)", re.ASCII
)
_CONSUMER_ARN = re.compile(r"(?P<stream>.+)/consumer/(?P<name>[a-zA-Z0-9_.-]+):\d+", re.ASCII)


class StreamSettings(_Settings):
    """One stream of an application.

    Example:
        .. code-block:: python

            kcl.StreamSettings(name="clicks", start=kcl.StartAt(position="LATEST"))
    """

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.-]+$")]
    """As Kinesis knows it, or its ARN, which then is `arn`."""

    arn: str | None = None
    """Of a stream in another account or region. Every request names the stream by it, and goes to its region. Left
    out, the stream is in the account and the region of the connection."""

    consumer_arn: str | None = None
    """Of a fan-out consumer that the owner of the stream has registered for this application. Workers then neither
    look for a consumer nor register one. Has no effect while the application polls."""

    account: Annotated[str, Field(pattern=r"^\d{12}$")] | None = None
    """Part of the lease keys of an application of several streams; looked up when left out."""

    creation_epoch: Annotated[int, Field(gt=0)] | None = None
    """As `account`: tells a stream from another one of its name that came before it. The second in which the stream
    was created when left out; a Java application may have chosen another number."""

    start: StartAt = StartAt()
    """Where a shard without a checkpoint begins."""

    @model_validator(mode="before")
    @classmethod
    def _arn_names_the_stream(cls, values: Any) -> Any:
        """The ARN says the name, and may be given in its place."""
        if not isinstance(values, Mapping):
            return values
        name, arn = values.get("name"), values.get("arn")
        if isinstance(name, str) and name.startswith("arn:"):
            arn, name = name, None
        if not isinstance(arn, str):
            return values
        found = _STREAM_ARN.fullmatch(arn)
        if found is None:
            msg = f"{arn!r} is not the ARN of a Kinesis stream"
            raise ValueError(msg)
        for field, value in (("name", name), ("account", values.get("account"))):
            if value is not None and value != found[field]:
                msg = f"stream {arn} has the {field} {found[field]}, and not {value}"
                raise ValueError(msg)
        return {**values, "name": found["name"], "arn": arn}

    @model_validator(mode="after")
    def _consumer_is_of_the_stream(self) -> Self:
        if self.consumer_arn is None:
            return self
        found = _CONSUMER_ARN.fullmatch(self.consumer_arn)
        stream = None if found is None else _STREAM_ARN.fullmatch(found["stream"])
        if found is None or stream is None:
            msg = f"{self.consumer_arn!r} is not the ARN of a consumer of a Kinesis stream"
            raise ValueError(msg)
        if stream["name"] != self.name or (self.arn is not None and found["stream"] != self.arn):
            msg = f"the consumer {self.consumer_arn} is not one of stream {self.arn or self.name}"
            raise ValueError(msg)
        return self

    @property
    def region(self) -> str | None:
        """That of the ARN."""
        found = _STREAM_ARN.fullmatch(self.arn or "")
        return None if found is None else found["region"]


# Of a renewal interval: how long before the end of the lease duration the last renewal but one is still in time.
LAST_RENEWAL: Final = 0.15


class Timings(_Settings):
    """How often, and how long until. All in seconds.

    Example:
        .. code-block:: python

            kcl.Timings(lease_duration=10, heartbeat=2)  # beside Java workers with their default of 10 s
    """

    lease_duration: Seconds = 30.0
    """A lease whose counter stood still this long is up for taking. Java's name: failoverTimeMillis; a fleet
    that mixes both must use one value."""

    renewals_per_lease: Annotated[int, Field(ge=2, le=10)] = 3
    """Renewals in a lease duration; all but one may fail before the lease is lost."""

    tick_interval: Annotated[int, Field(ge=4)] = 4
    """The leader sensor's minimum interval. Must be one less than a multiple of five."""

    tick_budget: Annotated[float, Field(gt=0, le=45)] = 20.0
    """A tick stops and resumes next time after this. Dagster abandons, but does not stop, a tick after 60 s."""

    handoff_timeout: Seconds = 30.0
    """How long the old owner of a lease may take to finish its batch before the leader forces the move."""

    arrival_margin: Annotated[float, Field(ge=0)] = 10.0
    """Arrival times are approximate, and a shard's records are not strictly in their order. The application counts
    as complete through a moment that is this much earlier than what its leases say."""

    leader_lock: Seconds = 60.0
    """A leader whose lock did not change for this long has lost it."""

    shard_audit: Seconds = 60.0
    """How often the leader compares leases with the stream although nothing asks for it."""

    heartbeat: Seconds = 5.0
    """How often a worker writes its row; Java fleets need 30 or less."""

    leaderless: Seconds = 120.0
    """Workers that have seen no leader for this long take leases by themselves."""

    @property
    def renewal_interval(self) -> float:
        """A renewal at the very end of the lease duration would come too late, so the others share the time."""
        return self.lease_duration / (self.renewals_per_lease - LAST_RENEWAL)

    @field_validator("tick_interval")
    @classmethod
    def _fits_the_sensor_loop(cls, value: int) -> int:
        if (value + 1) % _SENSOR_LOOP_SECONDS:
            msg = f"tick_interval {value} is not one less than a multiple of {_SENSOR_LOOP_SECONDS}: 4, 9, 14, ..."
            raise ValueError(msg)
        return value


# Policies name a key by its ARN only: neither by its id nor by an alias.
KMS_KEY: Final = r"^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[a-zA-Z0-9-]+$"


class Billing(StrEnum):
    PAY_PER_REQUEST = "PAY_PER_REQUEST"
    PROVISIONED = "PROVISIONED"


class TableSettings(_Settings):
    """Names and creation options. Options are applied to tables we create, never to existing ones.

    Example:
        .. code-block:: python

            kcl.TableSettings(point_in_time_recovery=True, deletion_protection=True, tags={"team": "web"})
    """

    lease_table: str | None = None
    """The application's name when left out, as in the KCL."""

    billing: Billing = Billing.PAY_PER_REQUEST
    """On demand, or with a capacity of its own."""

    read_capacity: Annotated[int, Field(ge=1)] = 10
    """Read units a second, with PROVISIONED."""

    write_capacity: Annotated[int, Field(ge=1)] = 10
    """Write units a second, with PROVISIONED."""

    point_in_time_recovery: bool = False
    """Keep 35 days of backups."""

    deletion_protection: bool = False
    """Refuse to delete the table until this is switched off."""

    kms_key: Annotated[str, Field(pattern=KMS_KEY)] | None = None
    """ARN of the key in KMS that encrypts the tables; left out, the key is DynamoDB's own."""

    tags: dict[str, str] = {}
    """Put on the tables."""

    create: bool = True
    """False where tables are made by others: a missing table is then an error, never created."""

    owner_index: bool = True
    """Create the KCL's index on leaseOwner with the table. Java workers need it; ours do not depend on it."""

    scan_segments: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Parallel scan segments; 0 lets the table's size decide."""


class PolicySettings(_Settings):
    """Which worker gets which lease.

    Example:
        .. code-block:: python

            kcl.PolicySettings(name="throughput", max_leases_per_worker=50)
    """

    name: Literal["balanced", "count", "throughput", "kcl", "taker"] = "balanced"
    """What is made even: CPU where workers publish it, else throughput; the number of leases; throughput. Or as
    KCL 3.5.1 does it, mistakes included; or by the rules of KCL 2.x."""

    max_leases_per_worker: Annotated[int, Field(ge=1)] | None = None
    """A worker is never given more."""

    max_throughput_kbps_per_worker: Annotated[float, Field(gt=0)] | None = None
    """A worker is never given more than it reads with, in KB/s; the fleet grows when it would have to be."""
    moves_per_tick: Annotated[int, Field(ge=1)] = 50
    """Balancing handoffs started in one tick; unserved leases are never held back by it."""

    imbalance: Annotated[float, Field(gt=0, lt=1)] = 0.10
    """A worker within this fraction of the mean load is balanced."""

    graceful: bool = True
    """Ask the old owner to finish its batch before a lease moves; otherwise it is fenced off at once."""


class FleetSettings(_Settings):
    """How many workers there are, and for how long each lives.

    Example:
        .. code-block:: python

            kcl.FleetSettings(min_workers=2, max_workers=20, shards_per_worker=8)
    """

    min_workers: Annotated[int, Field(ge=0)] = 1
    """Never fewer, as long as there are shards for them. With 0, the fleet rests when everything is read: the last
    worker goes as `scale_down_lag` and `cooldown` say, and the first one starts when a record has waited for longer
    than `scale_up_lag`."""

    max_workers: Annotated[int, Field(ge=1, le=1000)] = 4
    """Never more. Dagster must allow as many runs at once, and some for other jobs."""

    scale_up_lag: Seconds = 60.0
    """A stream further behind than this asks for another worker."""

    scale_down_lag: Seconds = 5.0
    """Only a stream that is at most this far behind lets a worker go."""

    shards_per_worker: Annotated[int, Field(ge=1)] = 16
    """Open shards one worker is meant to read; the fleet grows with the stream."""

    cooldown: Seconds = 120.0
    """From one change of the number of workers to the next."""

    lifetime: Seconds = 12 * 3600.0
    """A worker is replaced after this: new libraries, bounded logs, bounded events. The leader replaces one worker
    at a time, once its successor runs if `max_workers` allows one. A worker that no leader replaces ends by itself,
    after two to three lifetimes."""

    zone: str | None = None
    """Availability zone of the workers, in their rows. A lease stays in its zone where that is as good as any."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_workers > self.max_workers:
            msg = f"min_workers {self.min_workers} is above max_workers {self.max_workers}"
            raise ValueError(msg)
        return self


class Retrieval(StrEnum):
    POLLING = "polling"
    FANOUT = "fanout"


class FailureAction(StrEnum):
    """What to do with a batch that keeps failing."""

    STOP = "stop"
    BISECT = "bisect"
    DEAD_LETTER = "dead_letter"
    SKIP = "skip"


class FailurePolicy(_Settings):
    """Retries come first, with backoff; then the action.

    Example:
        .. code-block:: python

            kcl.FailurePolicy(action="dead_letter", dead_letter_path="s3://lake/dead", attempts=3)
    """

    action: FailureAction = FailureAction.STOP
    """Stop the shard; or look for the failing record, and then stop, store it elsewhere, or leave it out."""

    attempts: Annotated[int, Field(ge=1)] = 5
    """How often a shard's batch is tried before the action."""

    outage_attempts: Annotated[int, Field(ge=1)] = 10
    """How often a batch is tried that the sink, AWS or Spark fails, before its shard is shown as stopped. It is
    tried once a minute from then on, and goes on by itself when the outage ends; no record is set aside for it."""

    max_age: Seconds | None = None
    """The action comes, whatever `attempts` is, when the batch has failed for longer than this, counted from its
    first failure without the time of outages, and anew for each piece that it is cut into. After an outage of this
    length the shard is shown as stopped."""

    dead_letter_path: str | None = None
    """A directory or `s3://bucket/prefix`, for dead_letter."""

    @model_validator(mode="after")
    def _has_a_place(self) -> Self:
        if self.action is FailureAction.DEAD_LETTER and not self.dead_letter_path:
            msg = "action dead_letter needs dead_letter_path"
            raise ValueError(msg)
        reason = None if self.dead_letter_path is None else misspelt(self.dead_letter_path)
        if reason is not None:
            msg = f"dead_letter_path: {reason}"
            raise ValueError(msg)
        return self


class BatchSettings(_Settings):
    """What a batch is made of. It is closed by the first of its three limits that is reached.

    Example:
        .. code-block:: python

            kcl.BatchSettings(max_seconds=30, retrieval="fanout")
    """

    max_seconds: Seconds = 5.0
    """Time for reading. Fewer, larger batches cost less and make larger files. Left out: 5, and 6.5 for a folder in
    S3."""

    max_records: Annotated[int, Field(ge=1)] = 100_000
    """Of all shards of the worker together. Records inside of aggregates count: a batch may end inside of one."""

    max_bytes: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    """Payloads and keys of all shards of the worker together; exceeded only by a single record that is larger. The
    driver's heap should be five times this."""

    idle_seconds: Seconds = 1.0
    """The shortest time from one batch to the next while every shard is at its tip."""

    linger_seconds: Seconds | None = None
    """A batch is closed so long after its first records, although `max_seconds` are not over: records are seen
    sooner, and there are more batches. While all shards of a worker are more than a second behind, batches are
    large all the same. Left out: for record processors 0.05 s by fan-out and 1 s by polling, and no limit for other
    batches, which cost a Spark job each."""

    retrieval: Retrieval = Retrieval.POLLING
    """GetRecords, with at most four calls a second and shard; or enhanced fan-out, where the stream pushes what
    arrives. A subscription goes on from one batch to the next as long as the same process reads the shard. Another
    process subscribes five seconds after the last subscription at the earliest."""

    consumer_name: str | None = None
    """Fan-out consumer; the application's name when left out."""

    deaggregate: bool = True
    """Open what the Kinesis Producer Library packed into one record. It may be changed at any time. Afterwards, an
    aggregate of which a part was stored is opened to its end, and one that was stored unopened stays unopened."""

    prefetch: bool = True
    """Read the next batch while this one is written."""

    on_data_loss: Literal["stop", "continue"] = "stop"
    """What a shard does when records left the stream before they were read."""

    max_process_seconds: Seconds | None = None
    """How long your code may work on one batch. A batch that takes longer is cancelled, and the failure policy
    applies as if your code had raised an error. Without a limit a batch may take for ever; an event tells of it."""

    failure: FailurePolicy = FailurePolicy()
    """What to do with records that your code cannot process."""


class MetricsLevel(StrEnum):
    """How much goes to CloudWatch: the KCL's levels."""

    NONE = "NONE"
    SUMMARY = "SUMMARY"
    DETAILED = "DETAILED"


class TelemetrySettings(_Settings):
    """What workers and leaders let others see, beside Dagster. All of it is off unless asked for.

    Example:
        .. code-block:: python

            kcl.TelemetrySettings(openmetrics_port=9400, cloudwatch="SUMMARY")
    """

    json_logs: bool = False
    """Write what `kcl_dagster` logs in a worker to standard error, one JSON object a line."""

    openmetrics_port: Annotated[int, Field(ge=0, le=65_535)] | None = None
    """Serve OpenMetrics there: worker-000 at this port, worker-001 at the next one, and so on. 0: any free one."""

    openmetrics_port_by_slot: bool = True
    """False where each worker has an address of its own, such as a pod: all are at `openmetrics_port`."""

    openmetrics_host: str = "127.0.0.1"
    """Where to listen; `0.0.0.0` for scrapers on other machines. Every client that reaches the port gets the
    metrics."""

    cloudwatch: MetricsLevel = MetricsLevel.NONE
    """Publish the KCL's metrics under its names. Needs cloudwatch:PutMetricData, and is not free."""

    cloudwatch_namespace: str | None = None
    """The application's name when left out, as in the KCL."""

    opentelemetry_traces: bool = False
    """Make each batch, and each tick of the leader, a trace of OpenTelemetry. Needs the extra `otel`, as
    `opentelemetry_metrics` does."""

    opentelemetry_metrics: bool = False
    """Send what `openmetrics_port` would serve by OpenTelemetry, too."""

    otlp_endpoint: Annotated[str, Field(pattern=r"^https?://[^\s]+$")] | None = None
    """The collector, such as `http://127.0.0.1:4318`. When left out: the providers that the process has
    set globally, or else what `OTEL_EXPORTER_OTLP_ENDPOINT` and its like say."""


class Application(_Settings):
    """One consumer application.

    Example:
        .. code-block:: python

            kcl.Application(name="clicks-to-lake", streams=("clicks", "taps"), multi_stream=True)
    """

    name: Annotated[str, Field(min_length=3, max_length=200, pattern=r"^[a-zA-Z0-9_.-]+$")]
    """Also the name of the lease table and of the fan-out consumer, unless those are named."""

    streams: Annotated[tuple[StreamSettings, ...], Field(min_length=1)]
    """Names, or their settings; several with `multi_stream`."""

    multi_stream: bool = False
    """Lease keys carry the stream. Must be set with several streams, may be set with one."""

    timings: Timings = Timings()
    """How often, and how long until."""

    tables: TableSettings = TableSettings()
    """Names and options of the tables."""

    policy: PolicySettings = PolicySettings()
    """Which worker gets which lease."""

    fleet: FleetSettings = FleetSettings()
    """How many workers."""

    batch: BatchSettings = BatchSettings()
    """How records are read and processed."""

    telemetry: TelemetrySettings = TelemetrySettings()
    """Logs and metrics beside Dagster's."""

    @field_validator("streams", mode="before")
    @classmethod
    def _names_are_streams(cls, value: object) -> object:
        if isinstance(value, str):
            value = (value,)
        if isinstance(value, (list, tuple)):
            return tuple(StreamSettings(name=s) if isinstance(s, str) else s for s in value)
        return value

    @model_validator(mode="after")
    def _streams_fit(self) -> Self:
        names = [s.name for s in self.streams]
        if len(set(names)) != len(names):
            msg = f"streams {names} name one stream twice"
            raise ValueError(msg)
        regions = sorted({stream.region for stream in self.streams if stream.region is not None})
        if len(regions) > 1:
            msg = f"streams {names} are in the regions {regions}: an application reads from one region"
            raise ValueError(msg)
        if len(names) > 1 and not self.multi_stream:
            msg = f"{len(names)} streams need multi_stream=True: lease keys must then carry the stream"
            raise ValueError(msg)
        return self

    @property
    def kinesis_access(self) -> dict[str, str]:
        """What the ARNs of the streams say of the connection to Kinesis, as fields of `kcl_dagster.aws.Access`."""
        arns = [stream.arn for stream in self.streams if stream.arn is not None]
        region = next((stream.region for stream in self.streams if stream.region is not None), None)
        return {} if region is None else {"region": region, "stream_arns": " ".join(arns)}

    @property
    def lease_table(self) -> str:
        return self.tables.lease_table or self.name

    @property
    def coordinator_table(self) -> str:
        """Exists only in the legacy layout of KCL 3.0-3.4."""
        return f"{self.name}-CoordinatorState"

    @property
    def metrics_table(self) -> str:
        """Exists only in the legacy layout of KCL 3.0-3.4."""
        return f"{self.name}-WorkerMetricStats"
