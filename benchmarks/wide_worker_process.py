"""The worker of `benchmarks.wide_worker` and `benchmarks.large_records`, which runs until SIGTERM. It has a process
of its own, because the memory of this process is measured."""

import argparse
import json
import logging
import os
import signal
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from dagster import AssetKey
from pyspark.sql import DataFrame, functions

import kcl_dagster as kcl
from kcl_dagster.application import Application, FleetSettings
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.run_event_log import RunEventLog
from kcl_dagster.orchestration.worker_run import WorkerRun
from kcl_dagster.runtime import system
from kcl_dagster.spark.session import SparkSettings, start_session
from kcl_dagster.testing import EmulatorResource
from kcl_dagster.worker.report import BatchReport
from kcl_dagster.worker.stop import StopReason, StopSignal

STREAM: Final = "wide"
SLOT: Final = "worker-000"


def as_read(records: DataFrame) -> DataFrame:
    return records


def in_frame(records: DataFrame) -> DataFrame:
    return records.withColumn("length", functions.length("data"))


def in_tables(records: pa.Table) -> pa.Table:
    return records.append_column("length", pc.binary_length(records["data"]))


WAYS: Final[dict[str, Any]] = {"as read": as_read, "Arrow": in_tables, "DataFrame": in_frame}
"""The functions that a consumer can have. Each of them stores the whole payload of every record."""


def consumer_of(folder: str, shards: int, way: str = "as read") -> Consumer:
    """The consumer. All settings have their defaults, except the number of workers and of shards for each worker.
    `folder`: the folder of the records. Its name is also the name of the application. `way`: see `WAYS`."""
    make = kcl.kcl_consumer(
        application=Application(
            name=Path(folder).name, streams=STREAM, fleet=FleetSettings(max_workers=1, shards_per_worker=shards)
        ),
        sink=kcl.parquet(folder),
        name="records",
        arrow=way == "Arrow",
    )
    return make(WAYS[way])


@dataclass
class BatchLog(RunEventLog):
    """An event log that also appends a JSON line to a file for each batch: its records, the bytes of their
    payloads, and its error."""

    path: Path = Path(os.devnull)

    def batch(self, report: BatchReport) -> None:
        super().batch(report)
        # The properties of the report count only what was stored. These sums also count batches that failed.
        records, size = sum(one.records for one in report.leases), sum(one.bytes for one in report.leases)
        error = next(filter(None, [report.error, *(one.error for one in report.leases)]), None)
        if records or error:
            with self.path.open("a") as file:
                file.write(json.dumps({"records": records, "bytes": size, "error": error}) + "\n")


def work(endpoint: str, kinesis: str, folder: str, shards: int, way: str, batches: Path) -> None:
    """Run the worker until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    stop, log = StopSignal(), logging.getLogger("worker")
    signal.signal(signal.SIGTERM, lambda *_: stop.request(StopReason.ASKED, "enough was measured"))
    event_log = BatchLog(AssetKey("records"), SLOT, lambda _: None, log, lambda *_: None, path=batches)
    WorkerRun(
        consumer_of(folder, shards, way),
        EmulatorResource(endpoint_url=endpoint, kinesis_endpoint_url=kinesis),
        lambda: start_session(SparkSettings(), "bench-scale"),
        SLOT,
        system().new_id(),
        event_log,
        watches=(partial(why_orphaned, os.getppid()),),
    ).work(stop)


def why_orphaned(parent: int) -> str | None:
    """Return why the worker has to end: the benchmark was killed. None while the benchmark runs."""
    return None if os.getppid() == parent else "the bench has ended"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("endpoint")
    parser.add_argument("kinesis")
    parser.add_argument("folder")
    parser.add_argument("shards", type=int)
    parser.add_argument("--way", choices=WAYS, default="as read")
    parser.add_argument("--batches", type=Path, default=Path(os.devnull), help="the file of `BatchLog`")
    options = parser.parse_args()
    work(options.endpoint, options.kinesis, options.folder, options.shards, options.way, options.batches)
