"""A worker in a process of its own, because its CPU and memory are measured. It runs until SIGTERM."""

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from dagster import AssetKey
from pyspark.sql import DataFrame, functions

import kcl_dagster as kcl
from kcl_dagster.application import BatchSettings, FleetSettings, Position, Retrieval
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.run_event_log import RunEventLog
from kcl_dagster.orchestration.worker_run import WorkerRun
from kcl_dagster.runtime import system
from kcl_dagster.spark.session import SparkSettings, start_session
from kcl_dagster.testing import EmulatorResource
from kcl_dagster.worker.report import BatchReport
from kcl_dagster.worker.stop import StopReason, StopSignal

SLOT: Final = "worker-000"
STOP_SECONDS: Final = 90.0


def as_read(records: DataFrame) -> DataFrame:
    return records


def in_frame(records: DataFrame) -> DataFrame:
    return records.withColumn("length", functions.length("data"))


def in_tables(records: pa.Table) -> pa.Table:
    return records.append_column("length", pc.binary_length(records["data"]))


WAYS: Final[dict[str, Any]] = {"as read": as_read, "Arrow": in_tables, "DataFrame": in_frame}
"""The functions that a consumer can have. Each of them stores the whole payload of every record."""


@dataclass(frozen=True)
class Folder:
    """An application that stores the records of a stream in a Parquet folder, with one worker. All other settings
    have their defaults.

    - `shards`: the number of shards of the stream.
    - `way`: the name of the function, see `WAYS`.
    - `batches`: the file of `BatchLog`; None if batches are not recorded.
    """

    application: str
    stream: str
    path: str
    shards: int
    start: str = "TRIM_HORIZON"
    retrieval: str = "polling"
    visible_within: float | None = None
    way: str = "as read"
    batches: str | None = None

    def consumer(self) -> Consumer:
        make = kcl.kcl_consumer(
            application=self.application,
            stream=self.stream,
            start=kcl.StartAt(position=Position(self.start)),
            batch=BatchSettings(retrieval=Retrieval(self.retrieval)),
            fleet=FleetSettings(max_workers=1, shards_per_worker=self.shards),
            sink=kcl.parquet(self.path),
            name="records",
            visible_within=self.visible_within,
            arrow=self.way == "Arrow",
        )
        return make(WAYS[self.way])


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


@contextmanager
def working(resource: EmulatorResource, folder: Folder, log: Path) -> Iterator[int]:
    """Run a worker process until the end of the block. Yields its process id."""
    endpoints = [str(resource.endpoint_url), str(resource.kinesis_endpoint_url)]
    command = [sys.executable, "-m", "benchmarks.worker_process", *endpoints, json.dumps(asdict(folder))]
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            yield process.pid
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def work(endpoint: str, kinesis: str, folder: Folder) -> None:
    """Run the worker until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    stop, log = StopSignal(), logging.getLogger("worker")
    signal.signal(signal.SIGTERM, lambda *_: stop.request(StopReason.ASKED, "enough was measured"))
    path = Path(folder.batches or os.devnull)
    event_log = BatchLog(AssetKey("records"), SLOT, lambda _: None, log, lambda *_: None, path=path)
    WorkerRun(
        folder.consumer(),
        EmulatorResource(endpoint_url=endpoint, kinesis_endpoint_url=kinesis),
        lambda: start_session(SparkSettings(), f"bench-{folder.application}"),
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
    parser.add_argument("folder", help="JSON of a Folder")
    options = parser.parse_args()
    work(options.endpoint, options.kinesis, Folder(**json.loads(options.folder)))
