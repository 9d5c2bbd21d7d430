"""Plans what the executors read. Keeps the shard iterators at which fetches ended, and the fan-out consumers.

This state only saves time. If it is lost, a fetch reads the same records.
"""

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

from kcl_dagster.application import Application, Retrieval
from kcl_dagster.errors import ConsumerNotFound, KclError, StreamNotFound
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.fetch import Connection, FetchPlan, ShardPlan, Trailer, said_of
from kcl_dagster.streams.consumers import ensure_consumer
from kcl_dagster.streams.pacing import ShardLimits
from kcl_dagster.streams.polling import Bookmark
from kcl_dagster.worker.batch import Budget, Range

# Kinesis iterators expire after 300 s; using one that is about to expire would waste a request.
BOOKMARK_SECONDS: Final = 240.0
# AWS needs some seconds to make a new consumer active. This is the longest time that a batch waits for it. The
# other shards of the batch wait, too. If a consumer is not active by then, the ranges of its stream fail, and are
# retried according to the failure policy.
CONSUMERS_SECONDS: Final = 5.0
# Errors that show that a known consumer does not exist any more.
_CONSUMER_IS_GONE: Final = frozenset({ConsumerNotFound.__name__, StreamNotFound.__name__})


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How a fetch is distributed and limited."""

    tasks: int | None = None
    """The number of Spark tasks of each fetch. By default, a fetch has one or two tasks, and only one after a fetch
    that had little to read. In a local session, the default is at most half of the slots: the other half is for the
    batch that is written at the same time. For record processors: the number of processes that run them."""

    limits: ShardLimits = field(default_factory=ShardLimits)
    consumer_name: str | None = None
    """The name under which a consumer is registered with each stream for enhanced fan-out. None: polling."""

    consumer_arns: Mapping[str, str] = field(default_factory=dict)
    """The ARNs of consumers that the owners of streams have registered, by the name of the stream. For these
    streams, no other consumer is registered."""

    opens_aggregates: bool = True
    tasks_per_shard: int | None = None
    """See `application.BatchSettings.tasks_per_shard`."""

    @classmethod
    def of(cls, application: Application) -> Self:
        """The settings according to the application."""
        batch = application.batch
        by_fanout = batch.retrieval is Retrieval.FANOUT
        return cls(
            consumer_name=(batch.consumer_name or application.name) if by_fanout else None,
            consumer_arns={one.name: one.consumer_arn for one in application.streams if one.consumer_arn},
            opens_aggregates=batch.deaggregate,
            tasks_per_shard=batch.tasks_per_shard,
        )


@dataclass(frozen=True, slots=True)
class _Left:
    """The end of the last fetch of a shard: the checkpoint and the bookmark (shard iterator and waiting times).
    `at`: when it was recorded, in monotonic seconds."""

    after: Checkpoint
    bookmark: Bookmark
    at: float


class Plans:
    """Makes the plans of fetches. Used by two threads: one that reads, and one that reads ahead."""

    def __init__(self, connection: Connection, settings: EngineSettings, runtime: Runtime) -> None:
        self._connection = connection
        self._settings = settings
        self._runtime = runtime
        self._left: dict[LeaseKey, _Left] = {}
        self._consumers: dict[str, str] = {}
        self._lock = threading.Lock()

    def plan(self, tasks: Sequence[Sequence[Range]], budget: Budget) -> FetchPlan:
        """Plan a fetch. `tasks`: the ranges of each task. Registers missing consumers. If a registration fails,
        only the ranges of its stream fail."""
        consumers = self._consumers_of({range_.stream.name for ranges in tasks for range_ in ranges})
        return FetchPlan(
            self._connection,
            tuple(tuple(self._shard(range_, consumers) for range_ in ranges) for ranges in tasks),
            budget,
            self._settings.limits,
            self._settings.opens_aggregates,
        )

    def remember(self, ranges: Sequence[Range], trailers: Mapping[LeaseKey, Trailer]) -> None:
        """Record the results of a fetch of these ranges."""
        now = self._runtime.clock.monotonic()
        with self._lock:
            for range_ in ranges:
                trailer = trailers[range_.lease]
                after = Checkpoint(*trailer.through) if trailer.through else range_.after
                if trailer.bookmark is not None and not range_.is_pinned:
                    self._left[range_.lease] = _Left(after, trailer.bookmark, now)
                else:
                    self._left.pop(range_.lease, None)
                if trailer.failure is not None and trailer.failure[0] in _CONSUMER_IS_GONE:
                    self._consumers.pop(range_.stream.name, None)  # the next plan registers the consumer again

    def _shard(self, range_: Range, consumers: Mapping[str, str | KclError]) -> ShardPlan:
        consumer = consumers.get(range_.stream.name)
        if isinstance(consumer, KclError):
            return ShardPlan(range_, failure=said_of(consumer))
        return ShardPlan(range_, self._bookmark(range_), consumer)

    def _consumers_of(self, streams: Collection[str]) -> Mapping[str, str | KclError]:
        """For each stream, the ARN of its consumer, or the reason why there is none. Empty without fan-out. The
        first fetch of a stream registers the consumer; workers never remove it."""
        name = self._settings.consumer_name
        if name is None:
            return {}
        until = self._runtime.clock.monotonic() + CONSUMERS_SECONDS
        return {stream: self._consumer(stream, name, until) for stream in sorted(streams)}

    def _consumer(self, stream: str, name: str, until: float) -> str | KclError:
        with self._lock:
            known = self._settings.consumer_arns.get(stream) or self._consumers.get(stream)
        if known is not None:
            return known
        # The request is sent outside of the lock, so that threads that read other streams do not wait.
        left = max(0.0, until - self._runtime.clock.monotonic())
        try:
            found = ensure_consumer(self._connection.kinesis(), stream, name, self._runtime, left)
        except KclError as error:
            return error
        with self._lock:
            self._consumers[stream] = found
        return found

    def _bookmark(self, range_: Range) -> Bookmark | None:
        """The bookmark (shard iterator and waiting times) at the beginning of this range, if the last fetch ended
        there and the bookmark is not too old."""
        with self._lock:
            left = self._left.get(range_.lease)
        if left is None or range_.is_pinned or left.after != range_.after:
            return None
        age = self._runtime.clock.monotonic() - left.at
        if age > BOOKMARK_SECONDS:
            return None
        failing = left.bookmark.failing_seconds
        bookmark = replace(
            left.bookmark,
            wait_seconds=max(0.0, left.bookmark.wait_seconds - age),
            quiet_seconds=max(0.0, left.bookmark.quiet_seconds - age),
            failing_seconds=failing + age if failing else 0.0,
        )
        # If nothing of the shard was read yet, reading begins at the start position, without the iterator. The
        # bookmark is still needed for the rate limit of the shard.
        return replace(bookmark, iterator=None) if range_.after.is_initial_position else bookmark
