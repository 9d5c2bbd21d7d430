"""What an application is: a name, its streams, its tables, and how it behaves.

Frozen pydantic values. Everything has a default that works; what cannot work is refused here, by name.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Seconds = Annotated[float, Field(gt=0)]

# Dagster's sensor loop wakes every five seconds and compares with the start of the last tick, so an interval
# of 5k alternates between 5k and 5k+5. One second less gives exactly 5k.
_SENSOR_LOOP_SECONDS = 5


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Position(StrEnum):
    """Where a shard without a checkpoint starts."""

    TRIM_HORIZON = "TRIM_HORIZON"
    LATEST = "LATEST"
    AT_TIMESTAMP = "AT_TIMESTAMP"


class StartAt(_Settings):
    """An initial position. `timestamp` belongs to AT_TIMESTAMP and only to it; it must carry a zone."""

    position: Position = Position.TRIM_HORIZON
    timestamp: datetime | None = None

    @model_validator(mode="after")
    def _timestamp_fits(self) -> Self:
        if (self.position is Position.AT_TIMESTAMP) != (self.timestamp is not None):
            msg = f"position {self.position} and timestamp {self.timestamp} do not fit together"
            raise ValueError(msg)
        if self.timestamp is not None and self.timestamp.tzinfo is None:
            msg = f"timestamp {self.timestamp} has no time zone"
            raise ValueError(msg)
        return self


class StreamSettings(_Settings):
    """One stream of an application. `account` and `creation_epoch` are needed with several streams only;
    when they are left out they are looked up."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.-]+$")]
    account: Annotated[str, Field(pattern=r"^\d{12}$")] | None = None
    creation_epoch: Annotated[int, Field(gt=0)] | None = None
    start: StartAt = StartAt()


class Timings(_Settings):
    """How often, and how long until. All in seconds."""

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
        return self.lease_duration / self.renewals_per_lease

    @field_validator("tick_interval")
    @classmethod
    def _fits_the_sensor_loop(cls, value: int) -> int:
        if (value + 1) % _SENSOR_LOOP_SECONDS:
            msg = f"tick_interval {value} is not one less than a multiple of {_SENSOR_LOOP_SECONDS}: 4, 9, 14, ..."
            raise ValueError(msg)
        return value


class Billing(StrEnum):
    PAY_PER_REQUEST = "PAY_PER_REQUEST"
    PROVISIONED = "PROVISIONED"


class TableSettings(_Settings):
    """Names and creation options. Options are applied to tables we create, never to existing ones."""

    lease_table: str | None = None
    """The application's name when left out, as in the KCL."""

    billing: Billing = Billing.PAY_PER_REQUEST
    read_capacity: Annotated[int, Field(ge=1)] = 10
    write_capacity: Annotated[int, Field(ge=1)] = 10
    point_in_time_recovery: bool = False
    deletion_protection: bool = False
    tags: dict[str, str] = {}
    create: bool = True
    """False where tables are made by others: a missing table is then an error, never created."""

    owner_index: bool = True
    """Create the KCL's index on leaseOwner with the table. Java workers need it; ours do not depend on it."""

    scan_segments: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Parallel scan segments; 0 lets the table's size decide."""


class PolicySettings(_Settings):
    """Which worker gets which lease."""

    name: Literal["balanced", "count", "throughput", "kcl", "taker"] = "balanced"
    max_leases_per_worker: Annotated[int, Field(ge=1)] | None = None
    max_throughput_kbps_per_worker: Annotated[float, Field(gt=0)] | None = None
    moves_per_tick: Annotated[int, Field(ge=1)] = 50
    """Balancing handoffs started in one tick; unserved leases are never held back by it."""

    imbalance: Annotated[float, Field(gt=0, lt=1)] = 0.10
    """A worker within this fraction of the mean load is balanced."""

    graceful: bool = True


class FleetSettings(_Settings):
    """How many workers there are, and for how long each lives."""

    min_workers: Annotated[int, Field(ge=0)] = 1
    max_workers: Annotated[int, Field(ge=1, le=1000)] = 4
    scale_up_lag: Seconds = 60.0
    """A stream further behind than this asks for another worker."""

    scale_down_lag: Seconds = 5.0
    """Only a stream that is at most this far behind lets a worker go."""

    shards_per_worker: Annotated[int, Field(ge=1)] = 16
    """Open shards one worker is meant to read; the fleet grows with the stream."""

    cooldown: Seconds = 120.0
    lifetime: Seconds = 6 * 3600.0
    """A worker is drained and relaunched after this: new code, bounded logs, bounded event log."""

    zone: str | None = None

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
    """Retries come first, with backoff; then the action."""

    action: FailureAction = FailureAction.STOP
    attempts: Annotated[int, Field(ge=1)] = 5
    max_age: Seconds | None = None
    dead_letter_path: str | None = None

    @model_validator(mode="after")
    def _has_a_place(self) -> Self:
        if self.action is FailureAction.DEAD_LETTER and not self.dead_letter_path:
            msg = "action dead_letter needs dead_letter_path"
            raise ValueError(msg)
        return self


class BatchSettings(_Settings):
    """When a batch is closed: whichever comes first."""

    max_seconds: Seconds = 5.0
    max_records: Annotated[int, Field(ge=1)] = 100_000
    max_bytes: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    idle_seconds: Seconds = 1.0
    """Pause between batches when every shard is at its tip."""

    retrieval: Retrieval = Retrieval.POLLING
    consumer_name: str | None = None
    """Fan-out consumer; the application's name when left out."""

    deaggregate: bool = True
    prefetch: bool = True
    on_data_loss: Literal["stop", "continue"] = "stop"
    failure: FailurePolicy = FailurePolicy()


class Application(_Settings):
    """One consumer application. Its name is the lease table's name and the fan-out consumer's."""

    name: Annotated[str, Field(min_length=3, max_length=200, pattern=r"^[a-zA-Z0-9_.-]+$")]
    streams: Annotated[tuple[StreamSettings, ...], Field(min_length=1)]
    multi_stream: bool = False
    """Lease keys carry the stream. Must be set with several streams, may be set with one."""

    timings: Timings = Timings()
    tables: TableSettings = TableSettings()
    policy: PolicySettings = PolicySettings()
    fleet: FleetSettings = FleetSettings()
    batch: BatchSettings = BatchSettings()

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
        if len(names) > 1 and not self.multi_stream:
            msg = f"{len(names)} streams need multi_stream=True: lease keys must then carry the stream"
            raise ValueError(msg)
        return self

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
