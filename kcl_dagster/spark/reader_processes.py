"""Python processes in the executors that only read by fan-out, so that subscriptions last from batch to batch.

Spark assigns a task to the idle Python process that has waited longest, and uses separate processes for functions
with another environment. A subscription belongs to a process: if fetches shared the processes of all other
functions, each of them would have to subscribe, which Kinesis allows only every five seconds.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import SparkSession

from kcl_dagster.spark.session import is_classic

VARIABLE: Final = "KCL_DAGSTER_READER"
_changing: Final = threading.Lock()


@contextmanager
def reader_processes(spark: SparkSession, *, is_fanout: bool) -> Iterator[None]:
    """Functions that are passed to Spark within the block run in those processes, unless the session's driver is
    elsewhere.

    The environment of the context is replaced, and never changed: another thread that passes a function to Spark,
    of the user or of a batch that is read ahead, may be iterating over it.
    """
    if not (is_fanout and is_classic(spark)):
        yield
        return
    context: Any = spark.sparkContext
    with _changing:
        context.environment = {**context.environment, VARIABLE: "fan-out"}
        try:
            yield
        finally:
            remaining = dict(context.environment)  # keeps what other threads have added meanwhile
            del remaining[VARIABLE]
            context.environment = remaining
