"""A worker of `benchmarks.deploy`, which runs until it is drained or gets SIGTERM. It appends a line to a file for
each read of a shard, and for each range that was stored: `read SHARD AFTER BEGAN ENDED`, and `stored SHARD AFTER
THROUGH`. Times are monotonic, and the same for all processes."""

import argparse
import logging
import os
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from dagster import AssetKey

import kcl_dagster as kcl
from benchmarks.worker_process import why_orphaned
from kcl_dagster.application import Application, FleetSettings
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.run_event_log import RunEventLog
from kcl_dagster.orchestration.worker_run import WorkerRun
from kcl_dagster.spark.engine import SparkEngine
from kcl_dagster.spark.session import SparkSettings, start_session
from kcl_dagster.testing import EmulatorResource
from kcl_dagster.worker.batch import Range
from kcl_dagster.worker.claims import Claims
from kcl_dagster.worker.stop import StopReason, StopSignal

STREAM: Final = "deployed"


def consumer_of(folder: str) -> Consumer:
    """The consumer. The times of batches are those of a folder in S3."""
    application = Application(
        name=STREAM,
        streams=STREAM,
        fleet=FleetSettings(min_workers=2, max_workers=2),
        batch=kcl.BatchSettings(max_seconds=6.5),
    )
    return kcl.kcl_consumer(application=application, sink=kcl.parquet(folder), name="records")(lambda rows: rows)


def work(endpoint: str, kinesis: str, folder: str, slot: str, run_id: str, told: Path) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    stop, log = StopSignal(), logging.getLogger("worker")
    signal.signal(signal.SIGTERM, lambda *_: stop.request(StopReason.ASKED, "enough was measured"))
    event_log = RunEventLog(AssetKey("records"), slot, lambda _: None, log, lambda *_: None)
    run = WorkerRun(
        consumer_of(folder),
        EmulatorResource(endpoint_url=endpoint, kinesis_endpoint_url=kinesis),
        lambda: start_session(SparkSettings(), "bench-deploy"),
        slot,
        run_id,
        event_log,
        watches=(partial(why_orphaned, os.getppid()),),
    )

    def tell(*facts: object) -> None:
        with told.open("a") as file:  # in one system call, because several threads tell
            file.write(" ".join(map(str, facts)) + "\n")

    with (
        patch.object(SparkEngine, "_staged", _telling_reads(SparkEngine._staged, tell)),
        patch.object(SparkEngine, "_kept", _telling_reads(SparkEngine._kept, tell)),
        patch.object(Claims, "decide", _telling_what_is_stored(Claims.decide, tell)),
    ):
        run.work(stop)


def _telling_reads(read: Any, tell: Any) -> Any:
    """Wraps the method of the engine that runs a fetch. Each range is told with its beginning in the stream."""

    def reading(engine: SparkEngine, ranges: Sequence[Range], *more: Any) -> Any:
        began = time.monotonic()
        found = read(engine, ranges, *more)
        ended = time.monotonic()
        for one in ranges:
            tell("read", one.shard_id, one.after.sequence, began, ended)
        return found

    return reading


def _telling_what_is_stored(decide: Any, tell: Any) -> Any:
    def deciding(claims: Claims, chain: Any, staged: Any, ranges: Sequence[Any], tokens: Any) -> Any:
        done = decide(claims, chain, staged, ranges, tokens)
        if done:
            for one in ranges:
                tell("stored", one.lease, one.after.sequence, one.through.sequence)
        return done

    return deciding


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("endpoint", "kinesis", "folder", "slot", "run_id"):
        parser.add_argument(name)
    parser.add_argument("told", type=Path)
    work(**vars(parser.parse_args()))
