"""What executors are told to read: where each shard was left, and under which name it is read.

What is remembered here (iterators, consumers) only saves time; losing it changes nothing.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

from kcl_dagster.application import Application, Retrieval
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.fetch import Connection, FetchPlan, ShardPlan, Trailer
from kcl_dagster.streams.consumers import ensure_consumer
from kcl_dagster.streams.pacing import ShardLimits
from kcl_dagster.streams.polling import Bookmark
from kcl_dagster.worker.batch import Budget, Range

# Kinesis forgets an iterator after 300 s; one that is about to expire would cost a wasted call.
BOOKMARK_SECONDS: Final = 240.0


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How a fetch is spread and paced."""

    tasks: int | None = None
    """Spark tasks of a fetch; when left out two, or what leaves half the slots of a local session to the batch
    that is written meanwhile. Of record processors: the processes they are spread over."""

    limits: ShardLimits = field(default_factory=ShardLimits)
    consumer_name: str | None = None
    """Read by enhanced fan-out under this name, which is registered with each stream; by polling when left out."""

    opens_aggregates: bool = True

    @classmethod
    def of(cls, application: Application) -> Self:
        """As the application asks for."""
        batch = application.batch
        by_fanout = batch.retrieval is Retrieval.FANOUT
        return cls(
            consumer_name=(batch.consumer_name or application.name) if by_fanout else None,
            opens_aggregates=batch.deaggregate,
        )


@dataclass(frozen=True, slots=True)
class _Left:
    """Where a shard was left, and when."""

    after: Checkpoint
    bookmark: Bookmark
    at: float


class Plans:
    """May be used by two threads: one that reads, and one that reads ahead."""

    def __init__(self, connection: Connection, settings: EngineSettings, runtime: Runtime) -> None:
        self._connection = connection
        self._settings = settings
        self._runtime = runtime
        self._left: dict[LeaseKey, _Left] = {}
        self._consumers: dict[str, str] = {}
        self._lock = threading.Lock()

    def plan(self, tasks: Sequence[Sequence[Range]], budget: Budget) -> FetchPlan:
        """A fetch of these ranges, task by task. Registers consumers, and may raise a ServiceError for it."""
        return FetchPlan(
            self._connection,
            tuple(
                tuple(
                    ShardPlan(range_, self._bookmark(range_), self._consumer(range_.stream.name))
                    for range_ in ranges
                )
                for ranges in tasks
            ),
            budget,
            self._settings.limits,
            self._settings.opens_aggregates,
        )

    def remember(self, ranges: Sequence[Range], trailers: Mapping[LeaseKey, Trailer]) -> None:
        """What a fetch of these ranges said."""
        now = self._runtime.clock.monotonic()
        with self._lock:
            for range_ in ranges:
                trailer = trailers[range_.lease]
                after = Checkpoint(*trailer.through) if trailer.through else range_.after
                if trailer.bookmark is not None and not range_.is_pinned:
                    self._left[range_.lease] = _Left(after, trailer.bookmark, now)
                else:
                    self._left.pop(range_.lease, None)

    def _consumer(self, stream: str) -> str | None:
        """The consumer's ARN. Registered with the first fetch of a stream, and never removed by workers."""
        name = self._settings.consumer_name
        if name is None:
            return None
        with self._lock:
            if stream not in self._consumers:
                self._consumers[stream] = ensure_consumer(self._connection.kinesis(), stream, name, self._runtime)
            return self._consumers[stream]

    def _bookmark(self, range_: Range) -> Bookmark | None:
        """The iterator that stands at the beginning of this range, if the last fetch ended there."""
        with self._lock:
            left = self._left.get(range_.lease)
        if left is None or range_.is_pinned or left.after != range_.after or range_.after.is_initial_position:
            return None
        age = self._runtime.clock.monotonic() - left.at
        if age > BOOKMARK_SECONDS:
            return None
        return replace(left.bookmark, wait_seconds=max(0.0, left.bookmark.wait_seconds - age))
