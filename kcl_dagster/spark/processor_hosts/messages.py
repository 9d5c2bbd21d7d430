"""The messages between a worker and a host, over one connection, one call at a time.

The worker sends an order. The host sends any number of questions, each of which the worker answers, and finally one
end.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.fetch import FetchPlan
from kcl_dagster.worker.batch import PoisonRecord

# Orders


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read the shards of task `task`, and discard everything that was read before. Ends in `WasRead`."""

    plan: FetchPlan
    task: int


@dataclass(frozen=True, slots=True)
class Release:
    """Discard what was read."""


@dataclass(frozen=True, slots=True)
class Initialize:
    """Make a new processor for a shard. It replaces one that may exist."""

    lease: LeaseKey
    shard_id: str
    start: Checkpoint


@dataclass(frozen=True, slots=True)
class ProcessRecords:
    """Call the shard's processor with the records that were read. Ends in `Returned` with the position of the
    last one."""

    lease: LeaseKey
    millis_behind: int | None
    one_by_one: bool


@dataclass(frozen=True, slots=True)
class ShardEnded:
    lease: LeaseKey


@dataclass(frozen=True, slots=True)
class CallLeaseLost:
    """Call the processor's `lease_lost`. The host discards the processor after this call, and after the two that
    follow here."""

    lease: LeaseKey


@dataclass(frozen=True, slots=True)
class ShutdownRequested:
    lease: LeaseKey


@dataclass(frozen=True, slots=True)
class Discard:
    lease: LeaseKey


@dataclass(frozen=True, slots=True)
class Close:
    """End the task. The host sends no end."""


Order = (
    Fetch | Release | Initialize | ProcessRecords | ShardEnded | CallLeaseLost | ShutdownRequested | Discard | Close
)


@dataclass(frozen=True, slots=True)
class EndRead:
    """End the running `Fetch`, because other hosts have records to deliver. It is no order and gets no answer.
    Without a running `Fetch` it has no effect."""


# Questions, and their answers


@dataclass(frozen=True, slots=True)
class WantsCheckpoint:
    """See `instance.ProcessorContext.checkpoint`. The answer is None, or the KCL's name for the reason of the
    rejection."""

    at: Checkpoint | None
    delivered: Checkpoint | None


@dataclass(frozen=True, slots=True)
class WantsSetAside:
    """See `instance.ProcessorContext.set_aside`. The answer is a boolean."""

    record: PoisonRecord
    error_type: str
    error: str


Question = WantsCheckpoint | WantsSetAside
Answer = str | bool | None

# Ends


@dataclass(frozen=True, slots=True)
class WasRead:
    """The fetch has ended. `trailers`: see `fetch.Trailer`, as JSON."""

    trailers: Mapping[LeaseKey, bytes]


@dataclass(frozen=True, slots=True)
class Returned:
    """The order was carried out."""

    last: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class Raised:
    """User code raised an error. The host discards the processor, unless the call was `shard_ended`."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Absent:
    """The host does not have the processor or the records: they were in a former process."""


End = WasRead | Returned | Raised | Absent


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a host."""

    host: int
