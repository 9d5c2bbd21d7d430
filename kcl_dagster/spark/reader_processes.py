"""Python processes of the executors that only read by fan-out, so that subscriptions go on from batch to batch.

Spark gives a task whichever idle Python process has waited longest, and functions with another environment get
processes of their own. A subscription belongs to a process: if fetches shared the processes of all other functions,
each would have to subscribe, which Kinesis allows every five seconds.
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
    """Functions that are handed to Spark within run in those processes, unless the driver of a session is
    elsewhere.

    The environment of the context is replaced, never changed: another thread that hands a function to Spark, the
    user's own or that of a batch which is read ahead, may be iterating over it.
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
            remaining = dict(context.environment)  # what others have added meanwhile stays
            del remaining[VARIABLE]
            context.environment = remaining
