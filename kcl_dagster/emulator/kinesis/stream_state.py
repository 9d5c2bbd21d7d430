"""One stream: its shards, settings, status and consumers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from enum import StrEnum

from kcl_dagster.emulator.kinesis import service_errors
from kcl_dagster.emulator.kinesis.hashkey import uniform
from kcl_dagster.emulator.kinesis.limits import Limits
from kcl_dagster.emulator.kinesis.registered_consumer import RegisteredConsumer
from kcl_dagster.emulator.kinesis.shard_state import ShardState

HOUR = 3600.0
DEFAULT_RETENTION_HOURS = 24
LONGEST_RETENTION_HOURS = 8760  # 365 days
DEFAULT_RECORD_KIB = 1024
LARGEST_RECORD_KIB = 10_240
EXPIRY_GRAIN_SECONDS = 1.0  # seconds between checks for expired records; enough for a retention in hours


class StreamStatus(StrEnum):
    CREATING = "CREATING"
    ACTIVE = "ACTIVE"
    UPDATING = "UPDATING"
    DELETING = "DELETING"


class Mode(StrEnum):
    PROVISIONED = "PROVISIONED"
    ON_DEMAND = "ON_DEMAND"


class Stream:
    """A mutable stream. The service serves only one call at a time, so the stream needs no lock.

    A change of status takes `transition_seconds`. Its effect, such as new shards, begins when the change ends.
    """

    def __init__(
        self,
        name: str,
        arn: str,
        created_at: float,
        shard_count: int,
        mode: Mode,
        limits: Limits,
        transition_seconds: float,
    ) -> None:
        self.name = name
        self.arn = arn
        self.created_at = created_at
        self.mode = mode
        self.limits = limits
        self.retention_hours = DEFAULT_RETENTION_HOURS
        self.record_kib = DEFAULT_RECORD_KIB
        self.tags: dict[str, str] = {}
        self.consumers: dict[str, RegisteredConsumer] = {}
        self.shard_metrics: list[str] = []
        self._transition_seconds = transition_seconds
        self._status = StreamStatus.ACTIVE
        self._due: tuple[float, Callable[[float], None]] | None = None
        self._shards: dict[str, ShardState] = {}
        self._next_index = 0
        self._open: list[ShardState] = []
        self._starts: list[int] = []
        self._next_expiry = 0.0
        self.begin(StreamStatus.CREATING, created_at, lambda _at: self._create_shards(shard_count, created_at))

    # status

    @property
    def status(self) -> StreamStatus:
        return self._status

    def begin(self, status: StreamStatus, now: float, effect: Callable[[float], None]) -> None:
        """Enter a transitional status. When it ends, `effect` is called with the time of its end."""
        self._status = status
        self._due = (now + self._transition_seconds, effect)
        if self._transition_seconds == 0:
            self.settle(now)

    def settle(self, now: float) -> None:
        """Bring the stream to the time `now`: finish a transition that is due, and delete expired records and
        shards."""
        if self._due is not None and self._due[0] <= now:
            at, effect = self._due
            self._due = None
            if self._status is not StreamStatus.DELETING:
                self._status = StreamStatus.ACTIVE
            effect(at)
        if now >= self._next_expiry:
            self.expire(now)

    def require_active(self) -> None:
        if self._status is not StreamStatus.ACTIVE:
            raise service_errors.in_use(f"Stream {self.arn} is not ACTIVE, instead in state {self._status}.")

    def require_provisioned(self, operation: str) -> None:
        if self.mode is not Mode.PROVISIONED:
            raise service_errors.validation(f"{operation} is only supported for streams in PROVISIONED mode.")

    # shards

    @property
    def shards(self) -> list[ShardState]:
        """All shards that are open or can still have records, the oldest first."""
        return list(self._shards.values())

    @property
    def open_shards(self) -> list[ShardState]:
        """The open shards, in the order of their hash ranges."""
        return self._open

    def shard(self, shard_id: str) -> ShardState:
        shard = self._shards.get(shard_id)
        if shard is None:
            raise service_errors.not_found(
                f"Shard {shard_id} in stream {self.name} under {self.arn} does not exist"
            )
        return shard

    def shard_for(self, hash_key: int) -> ShardState:
        return self._open[bisect_right(self._starts, hash_key) - 1]

    def add_shard(self, shard: ShardState) -> None:
        self._shards[shard.id] = shard
        self._next_index = shard.index + 1

    @property
    def next_index(self) -> int:
        return self._next_index

    def shards_changed(self) -> None:
        """Update the list of open shards. Must be called after shards were added or closed."""
        self._open = sorted((s for s in self._shards.values() if s.is_open), key=lambda s: s.hash_range.start)
        self._starts = [shard.hash_range.start for shard in self._open]

    def _create_shards(self, count: int, at: float) -> None:
        for index, hash_range in enumerate(uniform(count)):
            self.add_shard(ShardState(index, hash_range, at, self.limits))
        self.shards_changed()

    # retention

    def horizon(self, now: float) -> float:
        """Return the arrival time of the oldest records that are kept."""
        return now - self.retention_hours * HOUR

    def expire(self, now: float) -> None:
        """Delete the records that arrived before the horizon, and the shards that were closed before it."""
        self._next_expiry = now + EXPIRY_GRAIN_SECONDS
        horizon = self.horizon(now)
        gone = []
        for shard in self._shards.values():
            shard.log.trim(horizon)
            if shard.closed_at is not None and shard.closed_at < horizon:
                gone.append(shard.id)
        for shard_id in gone:
            del self._shards[shard_id]
