"""The Spark sessions: a small local one for each run. For a cluster: KclSparkResource(mode="cluster", url=...)."""

import os
import shutil

from dagster_pyspark import LazyPySparkResource

import kcl_dagster as kcl
from kcl_dagster.spark.java import find_java
from kcl_dagster.spark.session import LOCAL
from resources.deployment import DEPLOYMENT

MEMORY = "512m"  # enough for batches of some 50 MB


def worker_spark() -> kcl.KclSparkResource:
    """The Spark session of a worker, which runs for hours."""
    return kcl.KclSparkResource(slots=2, memory=MEMORY, java_options=DEPLOYMENT.java_options)


def pyspark() -> LazyPySparkResource:
    """The Spark session of downstream assets. It starts when it is first used, not when the run starts."""
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        home = find_java(os.environ).home
        if home is not None:
            os.environ["JAVA_HOME"] = str(home)
    return LazyPySparkResource(
        spark_config={
            **LOCAL,
            "spark.master": "local[2]",
            "spark.driver.memory": MEMORY,
            "spark.driver.extraJavaOptions": DEPLOYMENT.java_options,
        }
    )
