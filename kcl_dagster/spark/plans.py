"""What executors are told to read: where each shard was left, and under which name it is read.

What is remembered here (iterators, consumers) only saves time; losing it changes nothing.
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

# Kinesis forgets an iterator after 300 s; one that is about to expire would cost a wasted call.
BOOKMARK_SECONDS: Final = 240.0
# For which a batch waits until new consumers are active, all of them together: its other shards wait with it. AWS
# takes some seconds. What is not ready by then fails, and is tried again when the failure policy says so.
CONSUMERS_SECONDS: Final = 5.0
# What says that a consumer which was known is none any more.
_CONSUMER_IS_GONE: Final = frozenset({ConsumerNotFound.__name__, StreamNotFound.__name__})


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How a fetch is spread and paced."""

    tasks: int | None = None
    """Spark tasks of each fetch; when left out at most two, or what leaves half the slots of a local session to the
    batch that is written meanwhile, and one where the last fetch had little to read. Of record processors: the
    processes they are spread over."""

    limits: ShardLimits = field(default_factory=ShardLimits)
    consumer_name: str | None = None
    """Read by enhanced fan-out under this name, which is registered with each stream; by polling when left out."""

    consumer_arns: Mapping[str, str] = field(default_factory=dict)
    """By stream: consumers that the owners of the streams have registered. They are taken as they are."""

    opens_aggregates: bool = True

    @classmethod
    def of(cls, application: Application) -> Self:
        """As the application asks for."""
        batch = application.batch
        by_fanout = batch.retrieval is Retrieval.FANOUT
        return cls(
            consumer_name=(batch.consumer_name or application.name) if by_fanout else None,
            consumer_arns={one.name: one.consumer_arn for one in application.streams if one.consumer_arn},
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
        """A fetch of these ranges, task by task. Registers consumers. Where a stream has none for us, its ranges
        fail, and no other."""
        consumers = self._consumers_of({range_.stream.name for ranges in tasks for range_ in ranges})
        return FetchPlan(
            self._connection,
            tuple(tuple(self._shard(range_, consumers) for range_ in ranges) for ranges in tasks),
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
                if trailer.failure is not None and trailer.failure[0] in _CONSUMER_IS_GONE:
                    self._consumers.pop(range_.stream.name, None)  # the next plan registers it again

    def _shard(self, range_: Range, consumers: Mapping[str, str | KclError]) -> ShardPlan:
        consumer = consumers.get(range_.stream.name)
        if isinstance(consumer, KclError):
            return ShardPlan(range_, failure=said_of(consumer))
        return ShardPlan(range_, self._bookmark(range_), consumer)

    def _consumers_of(self, streams: Collection[str]) -> Mapping[str, str | KclError]:
        """The ARN of the consumer for each stream, or the reason why there is none. Empty without fan-out. The
        consumer is registered with the first fetch of a stream; workers never remove it."""
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
        # Without the lock, so that threads which read other streams do not wait.
        left = max(0.0, until - self._runtime.clock.monotonic())
        try:
            found = ensure_consumer(self._connection.kinesis(), stream, name, self._runtime, left)
        except KclError as error:
            return error
        with self._lock:
            self._consumers[stream] = found
        return found

    def _bookmark(self, range_: Range) -> Bookmark | None:
        """The iterator at the beginning of this range, if the last fetch ended there."""
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
            failing_seconds=failing + age if failing else 0.0,
        )
        # Where nothing was read yet, reading begins at the beginning; the shard's pace is the same.
        return replace(bookmark, iterator=None) if range_.after.is_initial_position else bookmark
