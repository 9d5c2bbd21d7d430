"""The settings of an application: its name, its streams, its tables, and its behaviour.

The settings are frozen pydantic values. All of them except the name and the streams have defaults that work. A
value that cannot work raises an error, which names the field.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.folder import misspelt

Seconds = Annotated[float, Field(gt=0)]

# Every five seconds, Dagster's sensor loop starts a tick if the interval has passed since the last tick started.
# With an interval of 10 seconds, for example, ticks are alternately 10 and 15 seconds apart. With an interval of 9
# seconds, they are always 10 seconds apart.
_SENSOR_LOOP_SECONDS = 5


def refusal(error: ValidationError) -> str:
    """Return the errors of pydantic as one line for an operator, with the field, the rule and the value of each
    error."""
    return "; ".join(
        f"{'.'.join(map(str, one['loc']))}: {one['msg']}, and is {one['input']!r}"
        if one["loc"]
        else one["msg"].removeprefix("Value error, ")
        for one in error.errors(include_url=False)
    )


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Position(StrEnum):
    """The position at which a shard without a checkpoint starts."""

    TRIM_HORIZON = "TRIM_HORIZON"
    LATEST = "LATEST"
    AT_TIMESTAMP = "AT_TIMESTAMP"


class StartAt(_Settings):
    """The initial position of shards without a checkpoint. It is decided once, when the application first reads the
    stream, and then stored.

    Example:
        .. code-block:: python

            kcl.StartAt(position="AT_TIMESTAMP", timestamp=datetime(2026, 11, 1, tzinfo=UTC))
    """

    position: Position = Position.TRIM_HORIZON
    """TRIM_HORIZON: the oldest record that the stream still has. LATEST: records that arrive from the first tick
    on. AT_TIMESTAMP: records that arrive from `timestamp` on."""

    timestamp: datetime | None = None
    """The time for AT_TIMESTAMP, with a time zone. The other positions must not have a time."""

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
    """The name of the stream in Kinesis. The ARN of the stream can be given instead. `arn` is then set to this ARN,
    and `name` to the name in it."""

    arn: str | None = None
    """The ARN of the stream, if it is in another account or region. Every request then names the stream by its ARN,
    and is sent to the region in the ARN. If left out, the stream is in the account and the region of the
    connection."""

    consumer_arn: str | None = None
    """The ARN of a fan-out consumer that the owner of the stream has registered for this application. Workers then
    neither look for a consumer nor register one. Has no effect if the application polls."""

    account: Annotated[str, Field(pattern=r"^\d{12}$")] | None = None
    """The account of the stream, a part of the lease keys of a multi-stream application; looked up if left out."""

    creation_epoch: Annotated[int, Field(gt=0)] | None = None
    """A part of the lease keys, like `account`. It distinguishes a stream from an earlier one with the same name.
    Default: the second in which the stream was created. A Java application may have chosen another number."""

    start: StartAt = StartAt()
    """The position at which a shard without a checkpoint begins."""

    @model_validator(mode="before")
    @classmethod
    def _arn_names_the_stream(cls, values: Any) -> Any:
        """Take the name from the ARN, which can be given in place of the name."""
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
        """The region in the ARN; None without an ARN."""
        found = _STREAM_ARN.fullmatch(self.arn or "")
        return None if found is None else found["region"]


# A lease duration is divided into `renewals_per_lease` renewal intervals. The last interval is shorter than the
# others by this fraction. There is no renewal at its end, because that would be too late.
LAST_RENEWAL: Final = 0.15


class Timings(_Settings):
    """Intervals and time limits, all in seconds.

    Example:
        .. code-block:: python

            kcl.Timings(lease_duration=10, heartbeat=2)  # beside Java workers with their default of 10 s
    """

    lease_duration: Seconds = 30.0
    """If the counter of a lease was unchanged for this long, another worker can get the lease. The Java KCL calls
    this failoverTimeMillis. In a fleet with Java workers, all workers must use the same value."""

    renewals_per_lease: Annotated[int, Field(ge=2, le=10)] = 3
    """The number of renewals per lease duration. The lease is kept if at least one of them succeeds."""

    tick_interval: Annotated[int, Field(ge=4)] = 4
    """The leader sensor's minimum interval. Must be one less than a multiple of five."""

    tick_budget: Annotated[float, Field(gt=0, le=45)] = 20.0
    """A tick stops after this time, and the next tick continues its work. Dagster would abandon a tick after 60 s,
    without stopping it."""

    handoff_timeout: Seconds = 30.0
    """The time that the old owner of a lease has to finish its batch before the leader forces the handoff."""

    arrival_margin: Annotated[float, Field(ge=0)] = 10.0
    """The leases record the moment through which all records are stored. This margin is subtracted from it to get
    the moment through which the application counts as complete. The margin is needed because arrival times are
    approximate, and the records of a shard are not strictly in the order of their arrival times."""

    leader_lock: Seconds = 60.0
    """If the leader lock was unchanged for this long, another process can take it and lead."""

    shard_audit: Seconds = 60.0
    """How often the leader compares the leases with the shards of the stream if nothing indicates a change."""

    heartbeat: Seconds = 5.0
    """How often a worker writes its row. A fleet with Java workers needs 30 or less."""

    leaderless: Seconds = 120.0
    """If workers have observed no leader for this long, they take leases by themselves."""

    @property
    def renewal_interval(self) -> float:
        """The seconds between two renewals. The last interval of a lease duration is shorter by the fraction
        `LAST_RENEWAL`, and no renewal takes place at its end."""
        return self.lease_duration / (self.renewals_per_lease - LAST_RENEWAL)

    @field_validator("tick_interval")
    @classmethod
    def _fits_the_sensor_loop(cls, value: int) -> int:
        if (value + 1) % _SENSOR_LOOP_SECONDS:
            msg = f"tick_interval {value} is not one less than a multiple of {_SENSOR_LOOP_SECONDS}: 4, 9, 14, ..."
            raise ValueError(msg)
        return value


# IAM policies can name a key only by its ARN, not by its id or an alias.
KMS_KEY: Final = r"^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[a-zA-Z0-9-]+$"


class Billing(StrEnum):
    PAY_PER_REQUEST = "PAY_PER_REQUEST"
    PROVISIONED = "PROVISIONED"


class TableSettings(_Settings):
    """The names of the tables and options for creating them. Options are applied to tables that kcl-dagster
    creates, never to existing ones.

    Example:
        .. code-block:: python

            kcl.TableSettings(point_in_time_recovery=True, deletion_protection=True, tags={"team": "web"})
    """

    lease_table: str | None = None
    """The name of the lease table. Default: the name of the application, as in the KCL."""

    billing: Billing = Billing.PAY_PER_REQUEST
    """Pay per request, or for provisioned capacity."""

    read_capacity: Annotated[int, Field(ge=1)] = 10
    """Read units per second, with PROVISIONED."""

    write_capacity: Annotated[int, Field(ge=1)] = 10
    """Write units per second, with PROVISIONED."""

    point_in_time_recovery: bool = False
    """Keep 35 days of backups."""

    deletion_protection: bool = False
    """Refuse to delete the table until this is switched off."""

    kms_key: Annotated[str, Field(pattern=KMS_KEY)] | None = None
    """The ARN of the KMS key that encrypts the tables; if left out, DynamoDB's own key does."""

    tags: dict[str, str] = {}
    """Tags of the tables."""

    create: bool = True
    """Set to False if the tables are created by other tools: a missing table is then an error."""

    owner_index: bool = True
    """Create the KCL's index on leaseOwner with the table. Java workers need the index; workers of kcl_dagster can
    work without it."""

    scan_segments: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """The number of segments in which the lease table is scanned in parallel. 0: the size of the table determines
    it."""


class PolicySettings(_Settings):
    """The rules by which leases are assigned to workers.

    Example:
        .. code-block:: python

            kcl.PolicySettings(name="throughput", max_leases_per_worker=50)
    """

    name: Literal["balanced", "count", "throughput", "kcl", "taker"] = "balanced"
    """What is distributed evenly. `balanced`: CPU if workers publish it, otherwise throughput. `count`: the number
    of leases. `throughput`: throughput. `kcl`: as KCL 3.5.1 does it, including its defects. `taker`: by the rules
    of KCL 2.x."""

    max_leases_per_worker: Annotated[int, Field(ge=1)] | None = None
    """The most leases that a worker is given."""

    max_throughput_kbps_per_worker: Annotated[float, Field(gt=0)] | None = None
    """The most throughput that a worker is given, in KB/s. If all workers have reached it, the fleet grows."""
    moves_per_tick: Annotated[int, Field(ge=1)] = 50
    """The most balancing handoffs that are started in one tick. This limit does not delay unserved leases."""

    imbalance: Annotated[float, Field(gt=0, lt=1)] = 0.10
    """A worker is balanced if its load differs from the mean by no more than this fraction."""

    graceful: bool = True
    """Ask the old owner to finish its batch before a lease moves. If False, the lease moves at once, and later
    writes of the old owner are refused."""


class FleetSettings(_Settings):
    """The number of workers, and their lifetime.

    Example:
        .. code-block:: python

            kcl.FleetSettings(min_workers=2, max_workers=20, shards_per_worker=8)
    """

    min_workers: Annotated[int, Field(ge=0)] = 1
    """The smallest number of workers, as long as there are shards for them. With 0, the fleet rests when everything
    is read: the last worker ends according to `scale_down_lag` and `cooldown`, and the first one starts when a
    record has waited for longer than `scale_up_lag`."""

    max_workers: Annotated[int, Field(ge=1, le=1000)] = 4
    """The largest number of workers. Dagster must allow as many concurrent runs, and some for other jobs."""

    scale_up_lag: Seconds = 60.0
    """If a stream is further behind than this, a worker is added."""

    scale_down_lag: Seconds = 5.0
    """A worker is removed only if the stream is at most this far behind."""

    shards_per_worker: Annotated[int, Field(ge=1)] = 16
    """The number of open shards for each worker. If the stream gets more shards, the fleet grows."""

    cooldown: Seconds = 120.0
    """The shortest time between two changes of the number of workers."""

    lifetime: Seconds = 12 * 3600.0
    """A worker is replaced after this time, to use new libraries and to limit its logs and events. The leader
    replaces one worker at a time. If `max_workers` allows another worker, the old one ends only when its successor
    runs. A worker that no leader replaces ends by itself after two to three lifetimes."""

    zone: str | None = None
    """The availability zone of the workers, which they write into their rows. When a lease moves, a worker in the
    zone of the lease's owner is preferred, if the load of this worker is about as low as that of other workers."""

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
    """The treatment of batches that fail: first retries with backoff, then the action.

    Example:
        .. code-block:: python

            kcl.FailurePolicy(action="dead_letter", dead_letter_path="s3://lake/dead", attempts=3)
    """

    action: FailureAction = FailureAction.STOP
    """`stop`: stop the shard. The other actions first look for the failing record. Then `bisect` stops the shard,
    `dead_letter` stores the record elsewhere, and `skip` leaves it out."""

    attempts: Annotated[int, Field(ge=1)] = 5
    """How many times a shard's batch is tried before the action applies."""

    outage_attempts: Annotated[int, Field(ge=1)] = 10
    """How many times a batch that fails because of the sink, AWS or Spark is tried before its shard is shown as
    stopped. From then on, it is tried once per minute, and the shard continues by itself when the outage ends. An
    outage never causes a record to be skipped or stored as a dead letter."""

    max_age: Seconds | None = None
    """If a batch has been failing for longer than this, the action applies even before `attempts` is reached. The
    time begins with the first failure of the batch, and leaves out outages. It begins anew for each piece into
    which the batch is split. After an outage of this length, the shard is shown as stopped."""

    dead_letter_path: str | None = None
    """A directory or `s3://bucket/prefix`, for the action `dead_letter`."""

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
    """The limits of a batch, and how its records are read. A batch is closed when it reaches `max_seconds`,
    `max_records` or `max_bytes`.

    Example:
        .. code-block:: python

            kcl.BatchSettings(max_seconds=30, retrieval="fanout")
    """

    max_seconds: Seconds = 5.0
    """How long a batch reads records. A longer time makes fewer and larger batches, which cost less and make larger
    files. Default: 5, or 6.5 for a folder in S3."""

    max_records: Annotated[int, Field(ge=1)] = 100_000
    """The most records of all shards of the worker together. Each record inside an aggregate counts, so a batch can
    end inside an aggregate."""

    max_bytes: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    """The most bytes of payloads and keys of all shards of the worker together; exceeded only by a single larger
    record. The driver's heap should be five times as large."""

    idle_seconds: Seconds = 1.0
    """The shortest time from the beginning of one batch to that of the next, while every shard is at its tip."""

    linger_seconds: Seconds | None = None
    """A batch is closed this long after its first records, even before `max_seconds`. Records are then stored
    sooner, in more batches. The limit does not apply while all shards of a worker are more than a second behind.
    Default for record processors: 0.05 s with fan-out, and 1 s with polling. All other consumers have no such limit
    by default, because each of their batches costs a Spark job."""

    retrieval: Retrieval = Retrieval.POLLING
    """`polling`: GetRecords, with at most four calls per second per shard. `fanout`: enhanced fan-out, where the
    stream pushes the records. A subscription continues from one batch to the next as long as the same process reads
    the shard. Another process can subscribe five seconds after the last subscription at the earliest."""

    consumer_name: str | None = None
    """The name of the fan-out consumer; if left out, the application's name."""

    deaggregate: bool = True
    """Open the aggregates into which the Kinesis Producer Library packs records. This setting can be changed at any
    time. An aggregate that was partly stored before the change is still opened to its end. An aggregate that was
    stored unopened remains unopened."""

    prefetch: bool = True
    """Read the next batch while this one is written."""

    tasks_per_shard: Annotated[int, Field(ge=1)] | None = None
    """If a Spark task would need seconds to process the records of a shard, several tasks process them, each a
    part. The order of the records is kept. This is the most tasks for each task of the fetch, of which there are
    one or two. Default: the number of cores of the session. With 1, one task gets all records of a shard. Not used
    for `foreach_batch` and record processors, and not with Spark Connect."""

    on_data_loss: Literal["stop", "continue"] = "stop"
    """What happens to a shard if records left the stream before they were read."""

    max_process_seconds: Seconds | None = None
    """The time that your code has for one batch. A batch that takes longer is cancelled, and the failure policy
    applies as if your code had raised an error. Without a limit, a batch can run without end, and an event reports
    it."""

    failure: FailurePolicy = FailurePolicy()
    """What to do with records that your code cannot process."""


class MetricsLevel(StrEnum):
    """The level of detail of metrics in CloudWatch, as in the KCL."""

    NONE = "NONE"
    SUMMARY = "SUMMARY"
    DETAILED = "DETAILED"


class TelemetrySettings(_Settings):
    """Logs, metrics and traces of workers and leaders, in addition to Dagster's. All of it is off by default.

    Example:
        .. code-block:: python

            kcl.TelemetrySettings(openmetrics_port=9400, cloudwatch="SUMMARY")
    """

    json_logs: bool = False
    """Write the logs of `kcl_dagster` in a worker to standard error, one JSON object per line."""

    openmetrics_port: Annotated[int, Field(ge=0, le=65_535)] | None = None
    """Serve OpenMetrics at this port: worker-000 at the port itself, worker-001 at the next one, and so on. 0: any
    free port."""

    openmetrics_port_by_slot: bool = True
    """Set to False if each worker has an address of its own, as in a pod. All workers then use `openmetrics_port`
    itself."""

    openmetrics_host: str = "127.0.0.1"
    """The address to listen at; `0.0.0.0` for scrapers on other machines. Every client that reaches the port gets
    the metrics."""

    cloudwatch: MetricsLevel = MetricsLevel.NONE
    """Publish the metrics of the KCL to CloudWatch, under the names that the KCL uses. AWS charges for them. Needs
    cloudwatch:PutMetricData."""

    cloudwatch_namespace: str | None = None
    """The namespace of the metrics in CloudWatch. Default: the name of the application, as in the KCL."""

    opentelemetry_traces: bool = False
    """Record each batch, and each tick of the leader, as a trace of OpenTelemetry. Like `opentelemetry_metrics`,
    needs the extra `otel`."""

    opentelemetry_metrics: bool = False
    """Send by OpenTelemetry the same metrics that `openmetrics_port` serves. The port need not be set."""

    otlp_endpoint: str | None = None
    """The address of the collector for OTLP over HTTP, such as `http://127.0.0.1:4318`, without `/v1/traces`.
    Default: the providers that the process has set globally, or else the environment variables
    `OTEL_EXPORTER_OTLP_ENDPOINT` and similar."""

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_the_base_of_addresses(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if re.search(r"[@?#;]", value):
            # Not a ValueError: pydantic would show the value, which may contain a secret.
            raise ConfigurationError(
                "telemetry.otlp_endpoint must be only a scheme, a host, a port and a path, because all who can "
                "read the code see it: give the headers with a secret to the workers in the environment variable "
                "OTEL_EXPORTER_OTLP_HEADERS"
            )
        if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", value):
            msg = "must be the address of a collector, such as http://127.0.0.1:4318"
            raise ValueError(msg)
        if re.search(r"/v1/(traces|metrics|logs)/*$", value):
            msg = "must not end with the path of traces or metrics, such as /v1/traces, which is appended to it"
            raise ValueError(msg)
        return value


class Application(_Settings):
    """One consumer application.

    Example:
        .. code-block:: python

            kcl.Application(name="clicks-to-lake", streams=("clicks", "taps"), multi_stream=True)
    """

    name: Annotated[str, Field(min_length=3, max_length=200, pattern=r"^[a-zA-Z0-9_.-]+$")]
    """The name of the application. By default, the lease table and the fan-out consumer have the same name."""

    streams: Annotated[tuple[StreamSettings, ...], Field(min_length=1)]
    """The names or settings of the streams; several require `multi_stream`."""

    multi_stream: bool = False
    """Include the stream in lease keys. Required for several streams, allowed for one."""

    timings: Timings = Timings()
    """Intervals and time limits."""

    tables: TableSettings = TableSettings()
    """Names and options of the tables."""

    policy: PolicySettings = PolicySettings()
    """The rules by which leases are assigned to workers."""

    fleet: FleetSettings = FleetSettings()
    """The number of workers, and their lifetime."""

    batch: BatchSettings = BatchSettings()
    """How records are read and processed."""

    telemetry: TelemetrySettings = TelemetrySettings()
    """Logs and metrics in addition to Dagster's."""

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
        """The region and the ARNs of the streams for the connection to Kinesis, as fields of
        `kcl_dagster.aws.Access`. Empty if no stream has an ARN."""
        arns = [stream.arn for stream in self.streams if stream.arn is not None]
        region = next((stream.region for stream in self.streams if stream.region is not None), None)
        return {} if region is None else {"region": region, "stream_arns": " ".join(arns)}

    @property
    def lease_table(self) -> str:
        return self.tables.lease_table or self.name

    @property
    def coordinator_table(self) -> str:
        """The name of the table of coordinator rows, which exists only in the layout of KCL 3.0 to 3.4."""
        return f"{self.name}-CoordinatorState"

    @property
    def metrics_table(self) -> str:
        """The name of the table of worker rows, which exists only in the layout of KCL 3.0 to 3.4."""
        return f"{self.name}-WorkerMetricStats"
