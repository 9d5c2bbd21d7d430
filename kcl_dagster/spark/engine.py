"""The driver's side of a fetch: plan the tasks, run them, remember where each shard was left.

Implements `worker.batch.Engine` with Spark DataFrames. All progress is in the leases: what the engine remembers
(iterators, a batch read ahead) only saves time, and losing it changes nothing.
"""

import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

from pyspark.sql import SparkSession

from kcl_dagster.application import Application, Retrieval
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.spark.ahead import ReadAhead
from kcl_dagster.spark.fetch import Connection, FetchPlan, FetchTask, ShardPlan
from kcl_dagster.spark.frozen import Batch, FrozenRanges
from kcl_dagster.spark.health import SessionHealth
from kcl_dagster.spark.schema import SPARK_SCHEMA
from kcl_dagster.streams.consumers import ensure_consumer
from kcl_dagster.streams.pacing import ShardLimits
from kcl_dagster.streams.polling import Bookmark
from kcl_dagster.worker.batch import Budget, Range

# A task reads all its shards at once, so tasks add cores, not shards.
FETCH_TASKS: Final = 2
# Kinesis forgets an iterator after 300 s; one that is about to expire would cost a wasted call.
BOOKMARK_SECONDS: Final = 240.0


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How a fetch is spread and paced."""

    tasks: int | None = None
    """Spark tasks of a fetch; when left out two, or what leaves half the slots of a local session to the batch
    that is written meanwhile."""

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


class SparkEngine:
    """Reads ranges in the executors. Used on the worker's main thread; `close` stops its one thread."""

    def __init__(
        self,
        spark: SparkSession,
        connection: Connection,
        settings: EngineSettings | None = None,
        *,
        runtime: Runtime | None = None,
    ) -> None:
        self._spark = spark
        self._connection = connection
        self._settings = settings or EngineSettings()
        self._most_tasks = self._settings.tasks or _fitting_tasks(spark)
        self._runtime = runtime or system()
        self._left: dict[LeaseKey, _Left] = {}
        self._consumers: dict[str, str] = {}
        self._lock = threading.Lock()
        self._ahead = ReadAhead(spark, self._read, f"kcl-prefetch-{self._runtime.new_id()}")
        self.health = SessionHealth(spark)

    def fetch(self, ranges: Sequence[Range], budget: Budget) -> Batch:
        """See `worker.batch.Engine.fetch`."""
        try:
            return self._fetch(ranges, budget)
        except Exception as error:
            self.health.failed(error)
            raise

    def _fetch(self, ranges: Sequence[Range], budget: Budget) -> Batch:
        parts: list[tuple[FrozenRanges, set[LeaseKey]]] = []
        missing = list(ranges)
        ahead = self._ahead.take(ranges)
        if ahead is not None:
            # A lease whose last batch failed is asked for again and stands in there with the range after it.
            parts.append((ahead, {range_.lease for range_ in ranges if range_ in ahead.ranges}))
            missing = [range_ for range_ in ranges if range_ not in ahead.ranges]
        if missing:
            parts.append((self._read(missing, budget), {range_.lease for range_ in missing}))
        return Batch(parts)

    def prefetch(self, ranges: Sequence[Range], budget: Budget) -> None:
        """See `worker.batch.Engine.prefetch`."""
        self._ahead.start(ranges, budget)

    def close(self) -> None:
        """Throw away what was read ahead. The session stays."""
        self._ahead.close()

    def _read(self, ranges: Sequence[Range], budget: Budget) -> FrozenRanges:
        plan = FetchPlan(
            self._connection,
            self._tasks(
                [ShardPlan(range_, self._bookmark(range_), self._consumer(range_.stream.name)) for range_ in ranges]
            ),
            budget,
            self._settings.limits,
            self._settings.opens_aggregates,
        )
        tasks = len(plan.tasks)
        frame = self._spark.range(0, tasks, 1, tasks).mapInArrow(FetchTask(plan), SPARK_SCHEMA)
        frozen = FrozenRanges(ranges, frame)
        self._remember(frozen)
        return frozen

    def _tasks(self, shards: Sequence[ShardPlan]) -> tuple[tuple[ShardPlan, ...], ...]:
        count = min(len(shards), self._most_tasks)
        return tuple(tuple(shards[task::count]) for task in range(count))

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

    def _remember(self, frozen: FrozenRanges) -> None:
        now = self._runtime.clock.monotonic()
        with self._lock:
            for range_ in frozen.ranges:
                trailer = frozen.trailers[range_.lease]
                after = Checkpoint(*trailer.through) if trailer.through else range_.after
                if trailer.bookmark is not None and not range_.is_pinned:
                    self._left[range_.lease] = _Left(after, trailer.bookmark, now)
                else:
                    self._left.pop(range_.lease, None)


def _fitting_tasks(spark: SparkSession) -> int:
    local = re.match(r"local(?:\[(\d+|\*))?", spark.conf.get("spark.master", None) or "")
    if local is None:
        return FETCH_TASKS
    slots = int(local[1]) if local[1] and local[1] != "*" else (os.cpu_count() or 1) if local[1] else 1
    return max(1, min(FETCH_TASKS, slots // 2))
