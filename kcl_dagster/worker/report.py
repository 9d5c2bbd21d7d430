"""The report of a round, with the outcome for each lease."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier


class Outcome(StrEnum):
    COMMITTED = "committed"
    IDLE = "idle"
    """The shard has no new records."""

    DELIVERED = "delivered"
    """Delivered to the shard's processor, which checkpoints by itself."""

    FINISHED = "finished"
    """Committed, and the shard is read to its end."""

    NOT_READ = "not read"
    DROPPED = "dropped"
    """The lease was lost before the write; nothing was written for it."""

    FAILED = "failed"
    UNCOMMITTED = "uncommitted"
    """Written, but not recorded in the lease's row, because the lease was lost or the table did not respond. The
    next owner of the lease repeats the batch under the same identity."""

    NARROWED = "narrowed"
    """The batch failed. Its first half is tried next."""

    WITHDRAWN = "withdrawn"
    """A worker of an earlier version had begun the batch. The records of the batch are read again, like any others.
    """

    SET_ASIDE = "set aside"
    """The only record of the batch was dead-lettered or skipped, according to the policy."""

    ABANDONED = "abandoned"
    """The worker was asked to stop before anything was written."""


@dataclass(frozen=True, slots=True)
class LeaseReport:
    lease: LeaseKey
    stream: StreamIdentifier
    shard_id: str
    outcome: Outcome
    number: int
    after: Checkpoint
    through: Checkpoint | None = None
    records: int = 0
    bytes: int = 0
    broken_aggregates: int = 0
    millis_behind: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The report of one round of the protocol. Times in seconds, by stage."""

    leases: tuple[LeaseReport, ...] = ()
    fetch_seconds: float = 0.0
    prepare_seconds: float = 0.0
    write_seconds: float = 0.0
    commit_seconds: float = 0.0
    error: str | None = None
    held: int = 0
    """Leases of unfinished shards that this worker held when the batch was planned."""

    blocked: int = 0
    """Leases that wait for their parents."""

    stopped: tuple[LeaseKey, ...] = field(default=())
    """Shards that keep failing and are stopped."""

    why_stopped: Mapping[LeaseKey, str] = field(default_factory=dict)
    """The error of each stopped shard, in one line."""

    failing: tuple[LeaseKey, ...] = field(default=())
    """Shards whose last attempt failed, including stopped shards."""

    why_failing: Mapping[LeaseKey, str] = field(default_factory=dict)
    """For failing shards that are not stopped: the error of the last attempt, in one line."""

    attempts: Mapping[LeaseKey, str] = field(default_factory=dict)
    """For failing shards that are not stopped: the number of the failed attempt and the limit, as "3 of 5"."""

    fatal: ConfigurationError | None = None
    """Set if the settings cannot work, so that the worker has to end."""

    @property
    def records(self) -> int:
        return sum(lease.records for lease in self.leases if lease.outcome in _STORED)

    @property
    def bytes(self) -> int:
        return sum(lease.bytes for lease in self.leases if lease.outcome in _STORED)

    @property
    def broken_aggregates(self) -> int:
        """Aggregates that were stored as raw records. If a batch is retried, they are counted once."""
        return sum(lease.broken_aggregates for lease in self.leases if lease.outcome in _STORED)

    @property
    def is_idle(self) -> bool:
        """Whether the round made no progress. Another round at once would then not be useful."""
        return all(lease.outcome not in PROGRESS for lease in self.leases)

    @property
    def millis_behind(self) -> int | None:
        """The lag of the shard that is furthest behind. None if no shard reported a lag."""
        return max((x.millis_behind for x in self.leases if x.millis_behind is not None), default=None)


_STORED = frozenset({Outcome.COMMITTED, Outcome.DELIVERED, Outcome.FINISHED})
PROGRESS = _STORED | {Outcome.NARROWED, Outcome.SET_ASIDE, Outcome.WITHDRAWN}
