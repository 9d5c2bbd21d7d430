"""A batch whose executor dies with every attempt. A program of its own: it needs a cluster. Says what was raised.

python lost_run.py FOLDER
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.spark.session import SparkSettings, start_session
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.worker.batch import Batch, Part
from tests.doubles.parts import Parts


def kill_executor(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The Python process of a task is started by a daemon, and that by the executor's JVM."""
    daemon = os.getppid()
    status = dict(line.split(":", 1) for line in Path(f"/proc/{daemon}/status").read_text().splitlines())
    os.kill(int(status["PPid"]), signal.SIGKILL)
    yield from batches


def transform(records: DataFrame) -> DataFrame:
    return records.mapInArrow(kill_executor, records.schema)


def main(folder: str) -> str:
    conf = {"spark.ui.enabled": "false", "spark.executor.memory": "512m", "spark.task.maxFailures": "2"}
    conf["spark.pyspark.python"] = sys.executable  # the executor runs on this machine
    spark = start_session(
        SparkSettings(mode="cluster", url="local-cluster[1,1,1024]", conf=conf | {"spark.log.level": "OFF"}), "lost"
    )
    lease = LeaseKey("shardId-000000000000")
    part = Part("app", lease, StreamIdentifier("clicks"), lease, TRIM_HORIZON, Checkpoint("9"), 1, 1, 1)
    records = spark.createDataFrame([("9", lease)], "sequence_number string, lease_key string")
    try:
        Parts(ParquetSink(folder, transform=transform)).write(records, Batch("app", WorkerId("w"), (part,)))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        spark.stop()
    return "nothing"


if __name__ == "__main__":
    sys.stdout.write(main(sys.argv[1]))
