"""The worker of `benchmarks.wide_worker`, which runs until SIGTERM. It has a process of its own, because the memory
of this process is measured."""

import argparse
import logging
import os
import signal
from functools import partial
from typing import Final

from dagster import AssetKey

import kcl_dagster as kcl
from kcl_dagster.application import Application, FleetSettings
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.run_event_log import RunEventLog
from kcl_dagster.orchestration.worker_run import WorkerRun
from kcl_dagster.runtime import system
from kcl_dagster.spark.session import SparkSettings, start_session
from kcl_dagster.testing import EmulatorResource
from kcl_dagster.worker.stop import StopReason, StopSignal

STREAM: Final = "wide"
SLOT: Final = "worker-000"


def consumer_of(folder: str, shards: int) -> Consumer:
    """The consumer. All settings have their defaults, except the number of workers and of shards for each
    worker."""
    make = kcl.kcl_consumer(
        application=Application(
            name=STREAM, streams=STREAM, fleet=FleetSettings(max_workers=1, shards_per_worker=shards)
        ),
        sink=kcl.parquet(folder),
        name="records",
    )
    return make(lambda records: records)


def work(endpoint: str, kinesis: str, folder: str, shards: int) -> None:
    """Run the worker until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    stop, log = StopSignal(), logging.getLogger("worker")
    signal.signal(signal.SIGTERM, lambda *_: stop.request(StopReason.ASKED, "enough was measured"))
    event_log = RunEventLog(AssetKey("records"), SLOT, lambda _: None, log, lambda *_: None)
    WorkerRun(
        consumer_of(folder, shards),
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
    options = parser.parse_args()
    work(options.endpoint, options.kinesis, options.folder, options.shards)
