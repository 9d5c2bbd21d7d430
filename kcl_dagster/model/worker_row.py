"""A worker as its row in the table describes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kcl_dagster.model.lease import LeaseKey, WorkerId

# Metric short names of the KCL.
CPU = "C"
MEMORY = "M"
NETWORK_IN = "NI"
NETWORK_OUT = "NO"
THROUGHPUT = "T"

SHARDS_TOLD = 12  # of a worker's shards, in its row: what a table of Dagster's shows, and half a KB at most
STOPPED_TOLD = (
    400  # shards that have stopped are named so that none is taken for a healthy one; 10 to 30 KB at most
)


BOUNDED_SLOT = "catch-up"  # of every bounded run: no slot of the fleet, so that the leader counts on none of them


class WorkerState(StrEnum):
    """What the worker says of itself. Rows written by the KCL have none and count as RUNNING."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A row of worker metrics. `averages` and `operating_range` are the KCL's `sts` and `opr`.

    Everything from `slot` to `lease_ms` is ours; the KCL ignores and preserves it.
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
    lag_ms: int | None = None  # furthest behind of its shards
    behind: Mapping[LeaseKey, int] | None = None
    """Milliseconds, of the SHARDS_TOLD shards furthest behind."""

    stopped: tuple[LeaseKey, ...] | None = None
    """Shards that keep failing and do not go on, STOPPED_TOLD at most."""

    why_stopped: Mapping[LeaseKey, str] | None = None
    """The errors of the first SHARDS_TOLD shards in `stopped`, in a line each, without values of records."""

    failing: tuple[LeaseKey, ...] | None = None
    """Shards whose last attempt failed, stopped ones included, SHARDS_TOLD at most."""

    attempts: Mapping[LeaseKey, str] | None = None
    """Of shards in `failing` that are not stopped: which attempt failed last, as "3 of 5". SHARDS_TOLD at most."""

    slow_since: Mapping[LeaseKey, int] | None = None
    """Since when, in epoch seconds, the consumer's code has been working on a batch of these shards, where it works
    for long. SHARDS_TOLD at most."""

    held_since: Mapping[str, int] | None = None
    """Background threads of the worker that do not go on with their steps, and since when, in epoch seconds. While
    its renewals do not go on, its leases expire."""

    lease_ms: int | None = None
    """The lease duration by which the worker renews, in milliseconds."""

    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_bounded(self) -> bool:
        """It stops by itself when it has read what was there."""
        return self.slot == BOUNDED_SLOT

    @property
    def passes_over_claims(self) -> bool:
        """It is a worker of version 0.1, whose rows do not say by which lease duration it renews."""
        return self.slot is not None and self.lease_ms is None


def slot_name(index: int) -> str:
    """The partition key of the index-th slot."""
    return f"worker-{index:03d}"


def worker_id(slot: str, run_id: str) -> WorkerId:
    """One incarnation of a slot: a relaunched slot is another worker."""
    return WorkerId(f"{slot}:{run_id[:8]}")
