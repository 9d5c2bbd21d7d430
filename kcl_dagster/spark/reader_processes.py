"""Runs fetches by fan-out in separate Python processes, so that subscriptions last from batch to batch.

Spark assigns a task to the idle Python process that has waited longest. A subscription belongs to one process. A
fetch that gets another process has to subscribe again, and Kinesis allows this only every five seconds. If the
environment variables of two functions differ, Spark runs the functions in separate processes. So each task of a
fetch gets a variable with the number of its process, and `SubscribedLeases` gives a lease to the same task in each
fetch.

This works where one executor runs all tasks, as in a local session.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from math import ceil
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.batch import Range

VARIABLE: Final = "KCL_DAGSTER_READER"
# Leases are divided anew if fewer processes were enough for this number of fetches in a row, or if the shares were
# unequal in this number of fetches in a row. With a small number, leases would often change their process.
FETCHES_UNTIL_CHANGE: Final = 20
UNEQUAL: Final = 1.5  # shares are unequal if the largest one exceeds the mean number of ranges by this factor
_changing: Final = threading.Lock()

InArrow = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@contextmanager
def reader_process(spark: SparkSession, number: int) -> Iterator[None]:
    """A context in which functions that are passed to Spark run in the process for fan-out with this number.

    The environment of the SparkContext is replaced by a copy and never changed in place. Otherwise a thread of the
    user, or the thread that reads ahead, could fail while it iterates over the environment.
    """
    context: Any = spark.sparkContext
    with _changing:
        context.environment = {**context.environment, VARIABLE: str(number)}
        try:
            yield
        finally:
            remaining = dict(context.environment)  # keeps what other threads have added meanwhile
            del remaining[VARIABLE]
            context.environment = remaining


def merges_tasks(spark: SparkSession) -> bool:
    """Whether Spark makes one task of the tasks of a fetch by fan-out, as it does by default since 4.1. Sessions
    that this package starts are configured otherwise, see `KEEPS_TASKS_APART`."""
    return (spark.conf.get("spark.sql.unionOutputPartitioning", "false") or "").lower() == "true"


@dataclass(frozen=True, slots=True)
class FetchTasks:
    """The tasks of a fetch. `processes`: for fan-out, the number of the process of each task. None: a task runs in
    any Python process."""

    spark: SparkSession
    count: int
    processes: tuple[int, ...] | None = None

    def map(self, function: InArrow, schema: StructType) -> DataFrame:
        """Return the output of `function` for all tasks. Its input in each task is a row with the task's number."""
        if self.processes is None:
            return self.spark.range(0, self.count, 1, self.count).mapInArrow(function, schema)
        outputs = []
        for task, process in enumerate(self.processes):
            with reader_process(self.spark, process):
                outputs.append(self.spark.range(task, task + 1, 1, 1).mapInArrow(function, schema))
        return reduce(lambda one, other: one.unionAll(other), outputs)


@dataclass(slots=True)
class SubscribedLeases:
    """Divides the ranges of a fetch among reader processes. A lease stays with its process until all leases are
    divided anew. If more processes are wanted, this happens at once. If fewer processes are wanted, or if the
    shares are unequal, it happens after FETCHES_UNTIL_CHANGE such fetches in a row.

    Thread-safe: the worker's main thread and the thread that reads ahead both divide ranges.
    """

    _count: int = 1
    _fetches_with_less: int = 0
    _fetches_unequal: int = 0
    _process_of: dict[LeaseKey, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def divide(self, ranges: Sequence[Range], wanted: int) -> dict[int, list[Range]]:
        """Return the ranges of each process that has any. `wanted`: the number of processes that is worthwhile for
        this fetch."""
        with self._lock:
            return self._divide(ranges, wanted)

    def _divide(self, ranges: Sequence[Range], wanted: int) -> dict[int, list[Range]]:
        self._fetches_with_less = self._fetches_with_less + 1 if wanted < self._count else 0
        if wanted > self._count or self._fetches_with_less >= FETCHES_UNTIL_CHANGE:
            self._count = wanted
            self._forget()
        shares = self._shares(ranges)
        is_unequal = max(map(len, shares.values())) > UNEQUAL * ceil(len(ranges) / self._count)
        self._fetches_unequal = self._fetches_unequal + 1 if is_unequal else 0
        if self._fetches_unequal >= FETCHES_UNTIL_CHANGE:  # the worker has lost most leases of the other processes
            self._forget()
            shares = self._shares(ranges)
        return shares

    def _forget(self) -> None:
        self._process_of.clear()
        self._fetches_with_less = self._fetches_unequal = 0

    def _shares(self, ranges: Sequence[Range]) -> dict[int, list[Range]]:
        counts = Counter(dict.fromkeys(range(self._count), 0))
        counts.update(self._process_of[range_.lease] for range_ in ranges if range_.lease in self._process_of)
        shares: dict[int, list[Range]] = {}
        for range_ in ranges:
            process = self._process_of.get(range_.lease)
            if process is None:
                process = min(counts, key=lambda one: (counts[one], one))
                self._process_of[range_.lease] = process
                counts[process] += 1
            shares.setdefault(process, []).append(range_)
        return dict(sorted(shares.items()))
