"""What a worker's Spark does before it counts as ready, so that the first batch does not wait for it.

The first job with a Python function takes seconds: the JVM loads Spark's planner, starts the Python daemon and a
worker, and that worker imports what a fetch needs.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession


def warm_up(spark: SparkSession, tasks: int = 1) -> None:
    """Run a job like a fetch, which reads nothing. Raises what Spark raises."""
    spark.range(0, tasks, 1, tasks).mapInArrow(_import, "id long").collect()


def _import(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import kcl_dagster.spark.fetch  # noqa: F401 - what every batch will need

    yield from batches
