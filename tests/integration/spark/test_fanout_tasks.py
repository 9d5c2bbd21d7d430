"""The tasks of a fetch by fan-out, in a session that this package starts."""

import pytest
from pyspark.sql import SparkSession

from kcl_dagster.spark.reader_processes import FetchTasks, merges_tasks

pytestmark = pytest.mark.spark


def test_tasks_of_a_fetch_by_fanout_run_at_the_same_time(spark: SparkSession) -> None:
    """Since Spark 4.1, a union of inputs with one partition each has one partition by default. Its inputs are then
    read one after another, in one task."""
    tasks = FetchTasks(spark, 2, (0, 1)).map(lambda batches: batches, spark.range(1).schema)
    assert tasks.rdd.getNumPartitions() == 2
    assert not merges_tasks(spark)
