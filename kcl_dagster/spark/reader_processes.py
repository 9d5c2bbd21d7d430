"""Python processes in the executors that only read by fan-out, so that subscriptions last from batch to batch.

Spark assigns a task to the idle Python process that has waited longest. A subscription belongs to one process. If
fetches shared their processes with other functions, a fetch would often get a process without its subscription, and
would have to subscribe again. Kinesis allows this only every five seconds. Spark uses separate processes for
functions with another environment, so fetches get an environment of their own.
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
    """A context in which functions that are passed to Spark run in the processes for fan-out. It has no effect
    if `is_fanout` is False, or if the session is one of Spark Connect, whose driver is elsewhere.

    The environment of the SparkContext is replaced by a copy and never changed in place. Otherwise a thread of the
    user, or the thread that reads ahead, could fail while it iterates over the environment.
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
