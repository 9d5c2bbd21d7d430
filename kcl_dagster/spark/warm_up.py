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

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kcl_dagster.spark.failures import first_line
from kcl_dagster.spark.fetch import Connection

log = logging.getLogger(__name__)

INTERPRETED: Final = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""The configuration with which Spark interprets the plans of queries instead of compiling them."""


def warm_up(spark: SparkSession, connection: Connection | None = None) -> None:
    """Run a job that is like a fetch of one task but reads nothing. Does not raise Spark's errors: if their cause
    persists, the first batch fails, and is repeated and reported like any other batch."""
    try:
        spark.range(0, 1, 1, 1).mapInArrow(_WarmUp(connection), "id long").collect()
    except (PySparkException, Py4JError, OSError) as error:
        log.warning("the first job of Spark has failed, before there was anything to read: %s", first_line(error))


@contextmanager
def interpreted(spark: SparkSession) -> Iterator[None]:
    """A context in which Spark compiles no plans. To compile the plan of a fetch takes longer than to interpret it
    once. The context changes the configuration of the session. So it is used only for the first job of a local
    session, while no other thread uses the session."""
    before = {name: spark.conf.get(name) or "" for name in INTERPRETED}
    for name, value in INTERPRETED.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        with suppress(PySparkException, Py4JError, OSError):  # if the JVM has ended, the job has raised an error
            for name, value in before.items():
                spark.conf.set(name, value)


@dataclass(frozen=True, slots=True)
class _WarmUp:
    """The function for `mapInArrow`, with the imports and the client of a fetch."""

    connection: Connection | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from kcl_dagster.spark import fetch  # imported by name: the module keeps the client for later tasks

        if self.connection is not None:
            fetch.client_of(self.connection)
        yield from batches
