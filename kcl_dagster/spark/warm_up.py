"""Warms up Spark before a worker counts as ready to read, so that the first batch is not delayed.

The first job with a Python function takes seconds: the JVM loads and compiles the planner, and starts the Python
daemon and its workers. The workers import the modules of a fetch and make their clients.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kcl_dagster.spark.failures import first_line
from kcl_dagster.spark.fetch import Connection

log = logging.getLogger(__name__)


def warm_up(spark: SparkSession, connection: Connection | None = None) -> None:
    """Run a job that is like a fetch of one task but reads nothing. Does not raise Spark's errors: if their cause
    persists, the first batch fails, and is repeated and reported like any other batch."""
    try:
        spark.range(0, 1, 1, 1).mapInArrow(_WarmUp(connection), "id long").collect()
    except (PySparkException, Py4JError, OSError) as error:
        log.warning("the first job of Spark has failed, before there was anything to read: %s", first_line(error))


@dataclass(frozen=True, slots=True)
class _WarmUp:
    """The function for `mapInArrow`, with the imports and the client of a fetch."""

    connection: Connection | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from kcl_dagster.spark import fetch  # by name, so that the client stays in the process

        if self.connection is not None:
            fetch.client_of(self.connection)
        yield from batches
