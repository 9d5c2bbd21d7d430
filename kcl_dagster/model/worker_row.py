"""A worker's row in the table, as a value."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kcl_dagster.model.lease import LeaseKey, WorkerId

# The KCL's short names of metrics.
CPU = "C"
MEMORY = "M"
NETWORK_IN = "NI"
NETWORK_OUT = "NO"
THROUGHPUT = "T"

SHARDS_TOLD = 12  # the most shards in a field, as many as Dagster's UI shows in a table; they take about 500 bytes
ERRORS_TOLD = 3  # the most failing shards in a row's `why_failing`; each heartbeat writes their errors, up to 1 KB
STOPPED_TOLD = 400  # enough to name all stopped shards: a shard that is left out looks healthy; 10 to 30 KB


# The slot in the row of every bounded run. The fleet has no such slot, so the leader does not count these workers
# as part of the fleet.
BOUNDED_SLOT = "catch-up"


class WorkerState(StrEnum):
    """The state that a worker reports. Rows written by the KCL have none and count as RUNNING."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A row of worker metrics. `averages` and `operating_range` are the KCL's attributes `sts` and `opr`.

    The field `slot` and all fields after it are additions of kcl_dagster. The KCL ignores their attributes in the
    row, and does not remove them.
    """

    id: WorkerId
    last_update: int | None  # epoch seconds
    averages: Mapping[str, tuple[float, ...]] | None = None
    operating_range: Mapping[str, tuple[int, ...]] | None = None
    support_code: int | None = None
    support_update: int | None = None
    slot: str | None = None
    run_id: str | None = None
    state: WorkerState = WorkerState.RUNNING
    beat: int = 0
    zone: str | None = None
    drain_requested: bool = False
    lag_ms: int | None = None  # the lag of the shard that is furthest behind
    behind: Mapping[LeaseKey, int] | None = None
    """The lag in milliseconds of the SHARDS_TOLD shards that are furthest behind."""

    stopped: tuple[LeaseKey, ...] | None = None
    """Shards that keep failing and have stopped, at most STOPPED_TOLD."""

    why_stopped: Mapping[LeaseKey, str] | None = None
    """The errors of the first SHARDS_TOLD shards in `stopped`, one line each, without values of records."""

    failing: tuple[LeaseKey, ...] | None = None
    """Shards whose last attempt failed, including stopped shards, at most SHARDS_TOLD."""

    why_failing: Mapping[LeaseKey, str] | None = None
    """The errors of the first ERRORS_TOLD shards in `failing` that have not stopped, in the form of
    `why_stopped`."""

    attempts: Mapping[LeaseKey, str] | None = None
    """For shards in `failing` that have not stopped: which attempt failed last, such as "3 of 5". At most
    SHARDS_TOLD."""

    slow_since: Mapping[LeaseKey, int] | None = None
    """For shards on whose batch the consumer's code has been working for a long time: when this work began, in
    epoch seconds. At most SHARDS_TOLD."""

    held_since: Mapping[str, int] | None = None
    """For background threads of the worker that make no progress: since when, in epoch seconds. If the thread that
    renews leases is among them, the worker's leases expire."""

    lease_ms: int | None = None
    """The lease duration, in milliseconds, on which the worker bases its renewals."""

    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_bounded(self) -> bool:
        """Whether the worker is a bounded run. It ends when the records that arrived before its bound are
        stored."""
        return self.slot == BOUNDED_SLOT

    @property
    def passes_over_claims(self) -> bool:
        """Whether the worker ignores claims, because it is of version 0.1. The row of such a worker has a slot, but
        no lease duration."""
        return self.slot is not None and self.lease_ms is None


def slot_name(index: int) -> str:
    """The partition key of the index-th slot."""
    return f"worker-{index:03d}"


def worker_id(slot: str, run_id: str) -> WorkerId:
    """The id of the worker that runs in this slot in this run. If the slot is launched again, the id is another."""
    return WorkerId(f"{slot}:{run_id[:8]}")
