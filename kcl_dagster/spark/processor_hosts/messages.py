"""The messages between a worker and a host, over one connection, one order at a time.

The worker sends an order. The host can send questions, and the worker answers each of them. Finally, the host sends
one end, which is the result of the order.
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
    """Read the shards of task `task`, and discard all records that were read before. The end is `WasRead`."""

    plan: FetchPlan
    task: int


@dataclass(frozen=True, slots=True)
class Release:
    """Discard the records that were read."""


@dataclass(frozen=True, slots=True)
class Initialize:
    """Make a new processor for a shard. If the host already has a processor for this lease, it is replaced."""

    lease: LeaseKey
    shard_id: str
    start: Checkpoint


@dataclass(frozen=True, slots=True)
class ProcessRecords:
    """Call the shard's processor with the records that were read. The end is `Returned` with the position of the
    last record."""

    lease: LeaseKey
    millis_behind: int | None
    one_by_one: bool


@dataclass(frozen=True, slots=True)
class ShardEnded:
    lease: LeaseKey


@dataclass(frozen=True, slots=True)
class CallLeaseLost:
    """Call the processor's `lease_lost`, and discard the processor. The orders `ShutdownRequested` and `Discard`
    discard the processor, too."""

    lease: LeaseKey


@dataclass(frozen=True, slots=True)
class ShutdownRequested:
    lease: LeaseKey


@dataclass(frozen=True, slots=True)
class Discard:
    lease: LeaseKey


@dataclass(frozen=True, slots=True)
class Close:
    """End the task of the host. The host does not respond."""


Order = (
    Fetch | Release | Initialize | ProcessRecords | ShardEnded | CallLeaseLost | ShutdownRequested | Discard | Close
)


@dataclass(frozen=True, slots=True)
class EndRead:
    """End the running `Fetch`, because other hosts have records to deliver. This is no order, and the host does not
    answer it. Without a running `Fetch` it has no effect."""


# Questions, and their answers


@dataclass(frozen=True, slots=True)
class WantsCheckpoint:
    """The processor calls `instance.ProcessorContext.checkpoint`. The answer is None, or the KCL's name for the
    reason of the rejection."""

    at: Checkpoint | None
    delivered: Checkpoint | None


@dataclass(frozen=True, slots=True)
class WantsSetAside:
    """The processor calls `instance.ProcessorContext.set_aside`. The answer is a boolean."""

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
    """User code, or the host's own request for records, raised an error. After an error of `shard_ended` the host
    keeps the processor. After errors of other methods it discards the processor."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Absent:
    """This process of the host does not have the processor or the records; a former process had them."""


End = WasRead | Returned | Raised | Absent


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a host after it has connected. `host`: its number."""

    host: int
