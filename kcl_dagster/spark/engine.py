"""The driver's side of a fetch: runs its tasks, keeps the records that they read, and reads ahead.

Implements `worker.batch.Engine` with Spark DataFrames. The engine stores no progress; checkpoints are in the
leases.
"""

import logging
import os
import re
import threading
from collections.abc import Callable, Sequence
from math import ceil
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from kcl_dagster.errors import BatchError
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.spark.ahead import ReadAhead
from kcl_dagster.spark.fetch import Connection, FetchPlan, FetchTask
from kcl_dagster.spark.fetched_batch import FetchedBatch, FetchedRanges
from kcl_dagster.spark.frozen import FrozenRanges
from kcl_dagster.spark.frozen_rows import FROZEN_TYPE
from kcl_dagster.spark.health import SessionHealth
from kcl_dagster.spark.interruption import limited_jobs, tag_jobs
from kcl_dagster.spark.plans import EngineSettings, Plans
from kcl_dagster.spark.reader_processes import FetchTasks, SubscribedLeases, merges_tasks, reader_process
from kcl_dagster.spark.row_types import RECORD_TYPE
from kcl_dagster.spark.session_kind import is_classic
from kcl_dagster.spark.staged_ranges import FetchStaging, ReadAgain, StagedRanges
from kcl_dagster.spark.task_slices import FetchSize, Work, Workload
from kcl_dagster.spark.warm_up import interpreted_if_new, warm_up
from kcl_dagster.streams.pacing import MAX_PAGE_BYTES
from kcl_dagster.worker.batch import Budget, Range
from kcl_dagster.worker.settings import TASK_BYTES

__all__ = ["EngineSettings", "SparkEngine", "local_slots"]

log = logging.getLogger(__name__)

# A task reads all its shards at the same time. So more tasks use more cores, but do not read more shards at a time.
# Each task writes its own files. To avoid small files, one task reads a whole batch of less than TASK_BYTES.
FETCH_TASKS: Final = 2
RANGES_OF_TASK: Final = 100
# The seconds that a fetch has after its reads to stage its records (write the files of the batch). If this is not
# enough, the fetch is cancelled and repeated without staging, and another job writes the files. The worker reports
# the other job if it is slow, and can limit its time.
STAGING_SECONDS: Final = 60.0


StagingOfFetches = Callable[[], FetchStaging | None]
"""A function that returns the object with which the next fetch stages its records. Each call returns a new object.
The function returns None if the fetch must not stage its records, for example because the chain of the batch (the
worker's log of its batches) is not known yet. The threads that fetch call this function.
"""


def no_staging() -> FetchStaging | None:
    """Return None: fetches stage nothing. For sinks that get their records from the driver."""
    return None


class SparkEngine:
    """Reads ranges in the executors. Used on the worker's main thread. `close` stops the engine's own thread, which
    reads ahead."""

    def __init__(
        self,
        spark: SparkSession,
        connection: Connection,
        settings: EngineSettings | None = None,
        *,
        staging: StagingOfFetches = no_staging,
        runtime: Runtime | None = None,
    ) -> None:
        """Open the engine. `staging`: returns the object with which the next fetch stages the records that it
        reads, see `kcl_dagster.spark.staged_ranges`."""
        self._spark = spark
        settings, runtime = settings or EngineSettings(), runtime or system()
        self._connection, self._next_staging, self._runtime = connection, staging, runtime
        self._are_tasks_fixed = settings.tasks is not None
        self._is_fanout = settings.consumer_name is not None and is_classic(spark)
        self._most_tasks = settings.tasks or _fitting_tasks(spark)
        if self._is_fanout and merges_tasks(spark):
            self._most_tasks = 1  # a second task would read only after the first one
        self._plans = Plans(connection, settings, runtime)
        self._subscribed = SubscribedLeases()
        self._most_slices = settings.tasks_per_shard
        self._work = Workload(self._slots_for_slices)
        self._size = FetchSize(0, 0.0)
        self._ahead = ReadAhead(spark, self._read_once, f"kcl-prefetch-{runtime.new_id()}")
        self.health = SessionHealth(spark)
        self._tagged: int | None = None
        self._bytes_of_range: float | None = None

    def warm_up(self) -> None:
        """Run a job that reads nothing, but starts Python processes and makes clients as a fetch does. The first
        fetch then takes less time. Called once, before the first fetch."""
        warm_up(self._spark, self._connection)
        if self._is_fanout:  # fetches by fan-out have separate Python processes
            with reader_process(self._spark, 0):
                warm_up(self._spark, self._connection)

    def fetch(self, ranges: Sequence[Range], budget: Budget) -> FetchedBatch:
        """Implements `worker.batch.Engine.fetch`."""
        try:
            self._tag()
            with interpreted_if_new(self._spark):
                return self._fetch(ranges, budget)
        except Exception as error:
            self.health.failed(error)
            raise

    def _tag(self) -> None:
        """Tag the jobs of the calling thread, if this was not done yet, so that the worker can cancel them. The
        constructor cannot tag them, because the worker opens the engine on one thread and fetches on another."""
        if self._tagged != threading.get_ident():
            self._tagged = threading.get_ident()
            tag_jobs(self._spark)

    def _fetch(self, ranges: Sequence[Range], budget: Budget) -> FetchedBatch:
        parts: list[tuple[FetchedRanges, set[LeaseKey]]] = []
        missing = list(ranges)
        ahead = self._ahead.take(ranges)
        if ahead is not None:
            # If the last batch of a lease failed, the range of that batch is requested again, but `ahead` has read
            # the range after it. The requested range is then missing.
            parts.append((ahead, {range_.lease for range_ in ranges if range_ in ahead.ranges}))
            missing = [range_ for range_ in ranges if range_ not in ahead.ranges]
            held = ahead.outcome.progress.values()
            records, bytes_ = sum(found.records for found in held), sum(found.bytes for found in held)
            budget = budget.beside(records, bytes_, len(missing), len(ranges))
        if missing:
            parts.append((self._read(missing, budget), {range_.lease for range_ in missing}))
        return FetchedBatch(parts, None if ahead is None else (ahead, self._ahead.began), self._work.worked)

    def prefetch(self, ranges: Sequence[Range], budget: Budget) -> None:
        """Implements `worker.batch.Engine.prefetch`."""
        self._ahead.start(ranges, budget, self._runtime.clock.monotonic())

    def close(self) -> None:
        """Discard the records that were read ahead. The session remains open."""
        self._ahead.close()

    def _read(self, ranges: Sequence[Range], budget: Budget) -> FetchedRanges:
        """Fetch with staging. If this fails and the session is lost, raise the error. If the session still works,
        fetch again without staging. If the consumer's code was the cause, it fails again when the batch is
        written."""
        staging = self._staging(ranges)
        if staging is not None:
            try:
                return self._staged(ranges, budget, staging)
            except BatchError as error:
                self.health.failed(error)
                if self.health.why_lost() is not None:
                    raise
                log.warning("a fetch that stages what it reads has failed, and is repeated without: %s", error)
        return self._kept(ranges, budget)

    def _read_once(self, ranges: Sequence[Range], budget: Budget) -> FetchedRanges:
        """Fetch for reading ahead. If this fails, the ranges are read again when the worker requests them."""
        staging = self._staging(ranges)
        return self._kept(ranges, budget) if staging is None else self._staged(ranges, budget, staging)

    def _staging(self, ranges: Sequence[Range]) -> FetchStaging | None:
        """The staging of a fetch. None if a range is pinned, that is, must be read up to a given end. A range is
        pinned if it must be read exactly as before, or if its batch has failed and is searched for the record that
        fails. Also None if the consumer's function takes so long that more tasks than those of a fetch have to call
        it."""
        if any(range_.is_pinned for range_ in ranges) or self._work.is_heavy(self._size):
            return None
        return self._next_staging()

    def _staged(self, ranges: Sequence[Range], budget: Budget, staging: FetchStaging) -> FetchedRanges:
        tasks, plan = self._tasks(ranges, budget)

        def again(pinned: Sequence[Range]) -> DataFrame:
            tasks_of_pinned, plan_of_pinned = self._tasks(pinned, budget)
            return tasks_of_pinned.map(ReadAgain(plan_of_pinned), RECORD_TYPE)

        tag = f"kcl-staging-{self._runtime.new_id()}"
        began = self._runtime.clock.monotonic()
        with limited_jobs(self._spark, budget.seconds + STAGING_SECONDS, tag):
            read = StagedRanges(ranges, tasks, plan, staging, again)
        self._remember(plan, read, began)
        self._work.worked(Work(read.seconds), sum(found.bytes for found in read.outcome.progress.values()))
        return read

    def _kept(self, ranges: Sequence[Range], budget: Budget) -> FetchedRanges:
        tasks, plan = self._tasks(ranges, budget)
        began = self._runtime.clock.monotonic()
        read = FrozenRanges(plan.ranges, tasks.map(FetchTask(plan), FROZEN_TYPE))
        size = self._remember(plan, read, began)
        read.slices = lambda: self._work.divide(size)
        return read

    def _remember(self, plan: FetchPlan, read: FetchedRanges, began: float) -> FetchSize:
        """Keep what later fetches need to know of a fetch that has ended. Returns its size. `began`: the time at
        which the fetch began."""
        self._plans.remember(plan.ranges, read.outcome.trailers)
        found = {lease: progress.bytes for lease, progress in read.outcome.progress.items()}
        self._bytes_of_range = sum(found.values()) / len(plan.ranges)
        of_tasks = [sum(found.get(shard.range.lease, 0) for shard in shards) for shards in plan.tasks]
        self._size = FetchSize(max(of_tasks), self._runtime.clock.monotonic() - began)
        return self._size

    def _tasks(self, ranges: Sequence[Range], budget: Budget) -> tuple[FetchTasks, FetchPlan]:
        """The tasks of a fetch, and its plan."""
        # Each task's part of the budget is at least a page, because a task cannot know how much a page will
        # contain.
        wanted = max(1, min(self._worthwhile_tasks(len(ranges)), budget.bytes // MAX_PAGE_BYTES))
        if self._is_fanout and ranges:
            shares = self._subscribed.divide(ranges, wanted)
            plan = self._plans.plan(list(shares.values()), budget)
            return FetchTasks(self._spark, len(shares), tuple(shares)), plan
        count = max(1, min(len(ranges), wanted))
        plan = self._plans.plan([ranges[task::count] for task in range(count)], budget)
        return FetchTasks(self._spark, count), plan

    def _slots_for_slices(self) -> int:
        """The number of slices that can be processed on separate cores. With Spark Connect it is not known, and
        nothing is divided."""
        if not is_classic(self._spark):
            return 1
        slots = _slots(self._spark)
        return slots if self._most_slices is None else min(slots, self._most_slices)

    def _worthwhile_tasks(self, ranges: int) -> int:
        """The number of tasks for this number of ranges. If the last fetch had little to read, this is less than
        the maximum.

        The first fetch has one task. Only if it reads by polling and there are more than RANGES_OF_TASK ranges, it
        has more. A second task could read more, but would have to wait for the start of another Python process. By
        fan-out, a lease that changes its task also has to subscribe again.
        """
        if self._are_tasks_fixed:
            return self._most_tasks
        if self._bytes_of_range is None and self._is_fanout:
            return 1
        share = max((self._bytes_of_range or 0.0) * ranges / TASK_BYTES, ranges / RANGES_OF_TASK)
        return min(self._most_tasks, max(1, ceil(share)))


def local_slots(spark: SparkSession) -> int | None:
    """The number of task slots of a local session; None for any other session."""
    local = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?", spark.conf.get("spark.master", None) or "")
    if local is None:
        return None
    if local[1] == "*":
        return os.cpu_count() or 1
    return int(local[1] or 1)


def _slots(spark: SparkSession) -> int:
    """The number of tasks that the session can run at the same time, each with a core of its own.

    Spark's default parallelism is not this number: users set it, and it does not respect `spark.task.cpus`. In a
    container, `os.cpu_count` returns the cores of the machine, but Java returns those of the container.
    """
    context: Any = spark.sparkContext
    try:
        scala = context._jsc.sc()  # noqa: SLF001
        slots = int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))
        cores = int(context._jvm.java.lang.Runtime.getRuntime().availableProcessors())  # noqa: SLF001
    except (Py4JError, AttributeError, TypeError):  # a platform can restrict access to the JVM
        slots = cores = int(context.defaultParallelism)
    if local_slots(spark) is not None:
        slots = min(slots, cores, os.cpu_count() or 1)
    return max(1, slots)


def _fitting_tasks(spark: SparkSession) -> int:
    slots = local_slots(spark)
    return FETCH_TASKS if slots is None else max(1, min(FETCH_TASKS, slots // 2))
