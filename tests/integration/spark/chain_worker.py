"""A worker of a fleet whose batches are decided in chains. A program of its own: it is killed.

python chain_worker.py KIND ENDPOINT STREAM PLACE SLOT RUN_ID. The environment has the catalog of Iceberg.
"""

import logging
import signal
import sys
import tempfile

from dagster import AssetKey
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import kcl_dagster as kcl
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.run_event_log import RunEventLog
from kcl_dagster.orchestration.worker_run import WorkerRun
from kcl_dagster.spark.session import SparkSettings, start_session, stop_session
from kcl_dagster.testing import EmulatorResource
from kcl_dagster.worker.stop import StopReason, StopSignal

LEASE_SECONDS = 6.0
REGION = "us-east-1"
COMMIT_SECONDS = 3.0  # of a table
TABLE = "lake.clicks"  # of Iceberg


def transform(records: DataFrame) -> DataFrame:
    """Not deterministic, and its rows do not say which lease they are of."""
    number = F.col("data").cast("string").cast("int").alias("n")
    kind = F.when(F.rand() < 0.5, "a").otherwise("b").alias("kind")
    return records.select(number, F.rand().alias("chance"), F.current_timestamp().alias("at"), kind)


def consumer(kind: str, stream: str, place: str) -> Consumer:
    application = kcl.Application(
        name=f"{stream}-app",
        streams=stream,
        timings={"lease_duration": LEASE_SECONDS, "heartbeat": 1.0, "handoff_timeout": 5.0},
        batch={"max_seconds": 1.0, "idle_seconds": 0.1},
    )
    if kind == "parquet":
        sink = kcl.parquet(place, partition_by=["kind"])
    elif kind == "iceberg":
        sink = kcl.iceberg(TABLE, partition_by=["kind"], commit_seconds=COMMIT_SECONDS)
    else:
        sink = kcl.delta(place, partition_by=["kind"], commit_seconds=COMMIT_SECONDS)
    return kcl.kcl_consumer(application=application, sink=sink, name="records")(transform)


def main(kind: str, endpoint: str, stream: str, place: str, slot: str, run_id: str) -> None:
    logging.basicConfig(level=logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        conf = {
            "spark.ui.enabled": "false",
            "spark.local.dir": folder,
            "spark.sql.warehouse.dir": f"{folder}/warehouse",
            "spark.log.level": "ERROR",
        }
        spark = start_session(SparkSettings(slots=2, memory="512m", conf=conf), slot)
        stop = StopSignal()
        signal.signal(signal.SIGTERM, lambda *_: stop.request(StopReason.ASKED, "the test is over"))
        resource = EmulatorResource(endpoint_url=endpoint, region_name=REGION)
        log = logging.getLogger(slot)
        event_log = RunEventLog(
            AssetKey("records"), slot, lambda event: log.info("%s", event), log, lambda *_: None
        )
        WorkerRun(consumer(kind, stream, place), resource, lambda: spark, slot, run_id, event_log).work(stop)
        stop_session(spark)


if __name__ == "__main__":
    main(*sys.argv[1:])
