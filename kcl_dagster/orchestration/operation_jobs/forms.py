"""What the launchpad asks for each operation.

What writes is dry unless told otherwise: a launchpad is one click away from everybody who sees the UI, and the
first click should show what would happen.
"""

from enum import Enum

from pydantic import BaseModel, ConfigDict, Field

from kcl_dagster.operations.cost import READ_PRICE, WRITE_PRICE
from kcl_dagster.operations.doctor.diagnosis import WATCH_SECONDS


class Scope(Enum):
    """What is paused or resumed."""

    application = "application"
    shards = "shards"
    workers = "workers"


class PeekPlace(Enum):
    """Which end of a shard."""

    last = "last"
    first = "first"


class Settings(BaseModel):
    """What the launchpad asks for an operation. As it is, of one that is only named."""

    model_config = ConfigDict(extra="forbid")


class Doctor(Settings):
    watch_seconds: float = Field(
        default=WATCH_SECONDS, gt=0, description="How long to watch whether the leader writes its lock."
    )
    fail_when_ill: bool = Field(
        default=True, description="Let the run fail when a check fails, so that an alert on runs tells you."
    )


class Pausing(Settings):
    scope: Scope = Field(
        default=Scope.application, description="All of the application, or only what is named below."
    )
    shards: list[str] = Field(default=[], description="Shard ids or lease keys; with scope shards.")
    workers: list[str] = Field(default=[], description="Names of workers, or their slots; with scope workers.")
    dry_run: bool = Field(default=True, description="Say what would be done, and do not do it.")


class Drain(Settings):
    worker: str = Field(default="worker-000", description="A worker's name, or its slot.")
    undo: bool = Field(default=False, description="Take the request back.")
    dry_run: bool = Field(default=True, description="Say what would be done, and do not do it.")


class Reset(Settings):
    to: str = Field(
        default="trim_horizon",
        description="trim_horizon, latest, a moment like 2027-01-31T12:00:00Z, or a sequence number of one shard.",
    )
    shards: list[str] = Field(default=[], description="Only these shards; empty for all.")
    streams: list[str] = Field(default=[], description="Of several streams only these; empty for all.")
    wait_for_dead: bool = Field(
        default=False, description="Watch owned leases for a lease duration and take those that are not renewed."
    )
    dry_run: bool = Field(default=True, description="Say what would be done, and do not do it.")


class Export(Settings):
    path: str = Field(
        default="",
        description="A name for the file, in the folder of exports that the deployment configures; empty for one "
        "with the time in it. A file that is there is not replaced.",
    )


class Import(Settings):
    path: str = Field(
        default="",
        description="The name of a file in the folder of exports that the deployment configures.",
    )
    force: bool = Field(default=False, description="Replace existing leases that differ, if they have no owner.")
    dry_run: bool = Field(default=True, description="Say what would be done, and do not do it.")


class Deregister(Settings):
    consumer: str = Field(default="", description="The consumer's name; empty for the application's.")
    streams: list[str] = Field(default=[], description="Of several streams only these; empty for all.")
    force: bool = Field(default=False, description="Remove it although a worker may be reading under it.")
    dry_run: bool = Field(default=True, description="Say what would be done, and do not do it.")


class Forget(Settings):
    former: list[str] = Field(
        default=[], description="Only these former streams, as account:name:epoch; empty for all."
    )
    path: str = Field(
        default="",
        description="A name for the export of what is deleted, in the folder of exports that the deployment "
        "configures; empty for one with the time in it. A file that is there is not replaced.",
    )
    dry_run: bool = Field(default=True, description="Say what would be done, and do not do it.")


class CostForm(Settings):
    busy: float = Field(
        default=1.0, ge=0, le=1, description="For the estimate: the part of the time in which shards have records."
    )
    hours: float = Field(
        default=24.0, ge=0, description="Measure this long a time, by CloudWatch; 0 for the estimate alone."
    )
    write_price: float = Field(default=WRITE_PRICE, ge=0, description="Dollars for a million write units.")
    read_price: float = Field(default=READ_PRICE, ge=0, description="Dollars for a million read units.")


class Peek(Settings):
    shard: str = Field(default="shardId-000000000000", description="Which shard to look into.")
    stream: str = Field(default="", description="Of several streams this one; empty for the first.")
    limit: int = Field(default=10, ge=1, le=100, description="How many records.")
    place: PeekPlace = Field(
        default=PeekPlace.last, description="The last records, or the first the stream still has."
    )
