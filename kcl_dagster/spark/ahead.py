"""Reads ahead: runs one fetch while the worker writes the previous batch."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kcl_dagster.errors import KclError
from kcl_dagster.spark.fetched_batch import FetchedRanges
from kcl_dagster.spark.session_kind import is_classic
from kcl_dagster.worker.batch import Budget, Range

STOP_ATTEMPTS: Final = 20  # requests to cancel the jobs of a read
STOP_SECONDS: Final = 0.25  # between two requests; a task reacts within a few hundredths of a second

Read = Callable[[Sequence[Range], Budget], FetchedRanges]


class ReadAhead:
    """Runs at most one read at a time, on a separate thread. Its methods are called on the worker's main thread."""

    def __init__(self, spark: SparkSession, read: Read, name: str) -> None:
        """Create the thread. `name`: the tag of the Spark jobs of this object. The tag must be unique in the
        session, because jobs are cancelled by their tag."""
        self._spark = spark
        self._read = read
        self._name = name
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="kcl-prefetch")
        self._planned: tuple[Range, ...] = ()
        self._future: Future[FetchedRanges] | None = None
        self.began = 0.0
        """When the latest read began, by the caller's clock."""

    def start(self, ranges: Sequence[Range], budget: Budget, now: float) -> None:
        """Begin to read. Does nothing without ranges, or if the result of the previous read was not taken yet."""
        if self._future is None and ranges:
            self.began = now
            self._planned = tuple(ranges)
            self._future = self._pool.submit(self._tagged, self._planned, budget)

    def take(self, ranges: Sequence[Range]) -> FetchedRanges | None:
        """Wait for the read and return its result. If the read has none of these ranges, stop and discard the read.

        Returns None if there is no result: no read was started, or the read was discarded, or the read failed. The
        caller then reads the ranges itself, and gets an error only if its own read fails, too.
        """
        future, self._future = self._future, None
        if future is None:
            return None
        if not set(self._planned) & set(ranges):
            self._drop(future)
            return None
        try:
            return future.result()
        except (KclError, PySparkException, RuntimeError, OSError):
            return None

    def close(self) -> None:
        self.take(())
        self._pool.shutdown(wait=True)

    def _tagged(self, ranges: Sequence[Range], budget: Budget) -> FetchedRanges:
        if is_classic(self._spark):
            self._spark.sparkContext.addJobTag(self._name)
        else:
            self._spark.addTag(self._name)
        return self._read(ranges, budget)

    def _interrupt(self) -> None:
        # SparkSession.interruptTag does not reach the jobs of a Classic session's collect().
        with suppress(PySparkException, Py4JError, RuntimeError, OSError):
            if is_classic(self._spark):
                self._spark.sparkContext.cancelJobsWithTag(self._name)
            else:
                self._spark.interruptTag(self._name)

    def _drop(self, future: Future[FetchedRanges]) -> None:
        """Stop a read, and release its result when the read ends. Blocks until then, but at most for 5 seconds. If
        the next read of a shard began earlier, both reads would share the limits of the shard."""
        future.add_done_callback(_release)
        if future.cancel():
            return
        for _ in range(STOP_ATTEMPTS):
            # Spark does not cancel a job that is just being started, so the request is repeated.
            self._interrupt()
            if wait([future], STOP_SECONDS).done:
                return


def _release(future: Future[FetchedRanges]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().release()
