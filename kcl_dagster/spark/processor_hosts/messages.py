"""The messages between a worker and a host, over one connection, one call at a time.

The worker sends an order. The host answers with any number of questions, each of which is answered, and one end.
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
    """Read the shards of task `task`, in place of everything that was read before. Ends in `WasRead`."""

    plan: FetchPlan
    task: int


@dataclass(frozen=True, slots=True)
class Release:
    """Discard what was read."""


@dataclass(frozen=True, slots=True)
class Initialize:
    """A new processor for a shard, in place of the one that may be there."""

    lease: LeaseKey
    shard_id: str
    start: Checkpoint


@dataclass(frozen=True, slots=True)
class ProcessRecords:
    """Call the shard's processor with the records that were read. Ends in `Returned` with the last one's place."""

    lease: LeaseKey
    millis_behind: int | None
    one_by_one: bool


@dataclass(frozen=True, slots=True)
class ShardEnded:
    lease: LeaseKey


@dataclass(frozen=True, slots=True)
class CallLeaseLost:
    """The host discards the processor after this call, as after the two that follow."""

    lease: LeaseKey


@dataclass(frozen=True, slots=True)
class ShutdownRequested:
    lease: LeaseKey


@dataclass(frozen=True, slots=True)
class Discard:
    lease: LeaseKey


@dataclass(frozen=True, slots=True)
class Close:
    """The task ends. Has no end of its own."""


Order = (
    Fetch | Release | Initialize | ProcessRecords | ShardEnded | CallLeaseLost | ShutdownRequested | Discard | Close
)


@dataclass(frozen=True, slots=True)
class EndRead:
    """No order, and without an answer. Sent while a `Fetch` is carried out: other hosts have records to deliver.
    Has no effect later."""


# Questions, and their answers


@dataclass(frozen=True, slots=True)
class WantsCheckpoint:
    """See `instance.ProcessorContext.checkpoint`. Answered by None, or the KCL's name for why it was refused."""

    at: Checkpoint | None
    delivered: Checkpoint | None


@dataclass(frozen=True, slots=True)
class WantsSetAside:
    """See `instance.ProcessorContext.set_aside`. Answered by a truth value."""

    record: PoisonRecord
    error_type: str
    error: str


Question = WantsCheckpoint | WantsSetAside
Answer = str | bool | None

# Ends


@dataclass(frozen=True, slots=True)
class WasRead:
    """`trailers`: see `fetch.Trailer`, as JSON."""

    trailers: Mapping[LeaseKey, bytes]


@dataclass(frozen=True, slots=True)
class Returned:
    """What was ordered is done."""

    last: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class Raised:
    """User code raised; the host discards the processor, unless the call was `shard_ended`."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Absent:
    """The host has no such processor or records: they were in a host that is gone."""


End = WasRead | Returned | Raised | Absent


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a host."""

    host: int
