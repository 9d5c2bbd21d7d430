"""The first job of a session.

The first job with a Python function takes seconds: the JVM loads and compiles the planner, and starts Spark's
Python processes. These processes import the modules of a fetch and make their Kinesis clients. In a local session,
the engine of a worker without leases runs such a job before the worker counts as ready to read. If the worker has
leases, its first fetch is this first job.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final
from weakref import WeakSet

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kcl_dagster.spark.failures import first_line
from kcl_dagster.spark.fetch import Connection

log = logging.getLogger(__name__)

INTERPRETED: Final = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""The configuration with which Spark interprets the plans of queries instead of compiling them."""

_SPARK_ERRORS: Final = (PySparkException, Py4JError, OSError)
_new: Final[WeakSet[SparkSession]] = WeakSet()


def warm_up(spark: SparkSession, connection: Connection | None = None) -> None:
    """Run a job that is like a fetch of one task but reads nothing. Does not raise Spark's errors: if their cause
    persists, the first batch fails, and is repeated and reported like any other batch."""
    take_first_job(spark)
    try:
        spark.range(0, 1, 1, 1).mapInArrow(_WarmUp(connection), "id long").collect()
    except _SPARK_ERRORS as error:
        log.warning("the first job of Spark has failed, before there was anything to read: %s", first_line(error))


def mark_new(spark: SparkSession) -> None:
    """Note that this process has just started a local session for itself, so that no other code uses it yet."""
    _new.add(spark)


def take_first_job(spark: SparkSession) -> bool:
    """Return True if the session is new: the caller then runs its first job. From then on, the session is no longer
    new."""
    try:
        _new.remove(spark)
    except KeyError:
        return False
    return True


@contextmanager
def interpreted_if_new(spark: SparkSession) -> Iterator[None]:
    """A context for the first fetch of a new session, in which Spark compiles no plans. To compile the plan of a
    fetch takes longer than to interpret it once. Does nothing for any other session: the context changes the
    configuration of the session, which other threads or the user's code could use or change meanwhile."""
    before: dict[str, str | None] = {}
    with suppress(*_SPARK_ERRORS):
        if take_first_job(spark):
            before = {name: spark.conf.get(name) for name in INTERPRETED}
            for name, value in INTERPRETED.items():
                spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, former in before.items():
            with suppress(*_SPARK_ERRORS):  # if the JVM has ended, the fetch has raised an error
                spark.conf.set(name, str(former))


@dataclass(frozen=True, slots=True)
class _WarmUp:
    """The function for `mapInArrow`, with the imports and the client of a fetch."""

    connection: Connection | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from kcl_dagster.spark import fetch  # imported by name: the module keeps the client for later tasks

        if self.connection is not None:
            fetch.client_of(self.connection)
        yield from batches
