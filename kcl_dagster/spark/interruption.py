"""Interrupts the consumer's code: first its Spark jobs, then the main thread."""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kcl_dagster.errors import ProcessingTimeout
from kcl_dagster.spark.session_kind import is_classic
from kcl_dagster.worker.processing_watch import Attempt, may_interrupt

log = logging.getLogger(__name__)

TAG: Final = "kcl-dagster-batch"
"""The tag of every Spark job that the worker's main thread starts."""

SIGNAL: Final = getattr(signal, "SIGUSR2", None)


def tag_jobs(spark: SparkSession) -> None:
    """Tag the Spark jobs that the calling thread starts from now on, so that `cancel_jobs` finds them."""
    if is_classic(spark):
        # With `SparkSession.addTag`, no other thread could cancel the jobs.
        spark.sparkContext.addJobTag(TAG)
    else:
        spark.addTag(TAG)


def cancel_jobs(spark: SparkSession) -> None:
    """Cancel the jobs of the thread that called `tag_jobs`. Any thread can call `cancel_jobs`."""
    if is_classic(spark):
        spark.sparkContext.cancelJobsWithTag(TAG)
    else:
        spark.interruptTag(TAG)


@contextmanager
def limited_jobs(spark: SparkSession, seconds: float, tag: str) -> Iterator[None]:
    """A context for Spark jobs of the calling thread. If the block has not ended after `seconds`, its jobs are
    cancelled. `tag`: a tag that no other jobs of the session have."""
    add, remove, cancel = (
        (spark.sparkContext.addJobTag, spark.sparkContext.removeJobTag, spark.sparkContext.cancelJobsWithTag)
        if is_classic(spark)
        else (spark.addTag, spark.removeTag, spark.interruptTag)
    )

    def stop() -> None:
        with suppress(PySparkException, Py4JError, RuntimeError, OSError):  # the jobs may have ended
            cancel(tag)

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    add(tag)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        remove(tag)


class Interruption:
    """Interrupts the consumer's code in a batch. The worker sets `session` when it has opened its Spark session.
    `installed` is used on the main thread of the process."""

    def __init__(self) -> None:
        self.session: SparkSession | None = None
        self._attempt: Attempt | None = None
        self._main: int | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """A context in which code that blocks the main thread can be interrupted. Outside of this context, only
        Spark jobs can be interrupted."""
        if SIGNAL is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(SIGNAL, self._raise)
        self._main = threading.get_ident()
        try:
            yield
        finally:
            self._main = None
            signal.signal(SIGNAL, before)

    def __call__(self, attempt: Attempt) -> None:
        """Interrupt the code, see `processing_watch.Interrupt`.

        The first attempt only cancels Spark jobs, whose errors then end the code on the main thread. Later attempts
        also raise an exception on the main thread. The first attempt does not, because an exception that is raised
        while a response of the JVM arrives would break the connection to the JVM.
        """
        self._attempt = attempt
        if self.session is not None:
            try:
                cancel_jobs(self.session)
            except (PySparkException, Py4JError, OSError) as error:
                log.warning("Spark jobs could not be cancelled: %s", error)
        if attempt.number > 1 and self._main is not None and SIGNAL is not None:
            signal.pthread_kill(self._main, SIGNAL)

    def _raise(self, _number: int, _frame: FrameType | None) -> None:
        # The condition is checked on the thread that runs the code, so that neither a commit nor code after the
        # batch is interrupted.
        if self._attempt is not None and may_interrupt() and self._attempt.is_running():
            raise ProcessingTimeout("the consumer's code was interrupted")
