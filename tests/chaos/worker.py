"""`python -m tests.chaos.worker PLAN MASTER`: a worker run as the worker job makes it, without Dagster around it.

It starts Spark, says "ready" on standard output, and waits to be told on standard input which slot and run it is:
a spare that takes a slot over needs no seconds for its JVM.
"""

import json
import logging
import os
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dagster import AssetCheckEvaluation, AssetKey
from pyspark.sql import SparkSession

import kcl_dagster as kcl
from kcl_dagster.errors import SinkError
from kcl_dagster.orchestration import watchdog
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.run_event_log import RunEventLog
from kcl_dagster.orchestration.worker_run import WorkerRun
from kcl_dagster.spark.batch_records import Records
from kcl_dagster.spark.session import SparkSettings, start_session, stop_session
from kcl_dagster.spark.sinks.contract import SparkSink
from kcl_dagster.testing import EmulatorResource
from kcl_dagster.worker.batch import Batch, Sink
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.stop import StopReason, StopSignal
from kcl_dagster.worker.surroundings import Watch
from tests.chaos import lakes, orders
from tests.chaos.journal import Journal
from tests.chaos.plan import Plan

REGION = "us-east-1"
SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # half the processor time of a start
FAILS = 0.15  # of the writes while sinks fail, half of them before and half of them after storing


class NotedSink:
    """Notes what a sink is given, and how that ended."""

    def __init__(self, kind: str, sink: Sink[Records], journal: Journal, maybe_fail: Callable[[], None]) -> None:
        self._kind = kind
        self._sink = sink
        self._journal = journal
        self._maybe_fail = maybe_fail

    def write(self, data: Records, batch: Batch) -> None:
        self._journal.add("begin", self._kind, batch)
        try:
            self._maybe_fail()
            self._sink.write(data, batch)
        except BaseException:
            self._journal.add("failed", self._kind, batch)
            raise
        self._journal.add("end", self._kind, batch)
        self._maybe_fail()


def consumer(plan: Plan, slot: str, run_id: str) -> Consumer:
    """The application as a user would define it. Its sink fails now and then, as it is told."""
    choice = lakes.choice(plan.sink, plan.lake)

    def maybe_fail() -> None:
        if plan.sinks_fail.exists() and random.random() < FAILS / 2:
            raise SinkError(f"{plan.sink}: told to fail")

    def open_failing(transform: Callable[[Any], Any], s3: Any) -> Sink[Any]:
        assert choice.open is not None
        journal = Journal(plan.journals / f"{slot}.{run_id}.jsonl")
        return NotedSink(plan.sink, choice.open(transform, s3), journal, maybe_fail)

    def open_failing_staging(transform: Callable[[Any], Any], s3: Any) -> SparkSink:
        assert choice.open_staging is not None
        sink: Any = choice.open_staging(transform, s3)
        stage = sink.stage

        def failing(*about: Any) -> Any:
            maybe_fail()
            staged = stage(*about)
            maybe_fail()
            return staged

        sink.stage = failing
        opened: SparkSink = sink
        return opened

    failing = (
        replace(choice, open=open_failing)
        if choice.open_staging is None
        else replace(choice, open_staging=open_failing_staging)
    )
    return kcl.kcl_consumer(application=plan.application, sink=failing, name="clicks")(
        lakes.transform_of(plan.sink)
    )


def run_is_over(plan: Plan, run_id: str) -> Watch:
    """What the worker job asks Dagster, asked of the orchestrator's file."""

    def check() -> str | None:
        return f"run {run_id} is over" if run_id in orders.read_runs(plan.runs).finished else None

    return check


def spark_session(plan: Plan, master: str) -> SparkSession:
    local = plan.directory / "spark" / str(os.getpid())
    conf = {
        "spark.local.dir": str(local),
        "spark.sql.warehouse.dir": str(local / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.executor.memory": "512m",
        "spark.log.level": "ERROR",
        "spark.driver.extraJavaOptions": SHORT_LIVED,
        "spark.executor.extraJavaOptions": SHORT_LIVED,
    }
    if master.startswith("local-cluster"):
        conf["spark.pyspark.python"] = sys.executable  # its executors run on this machine
        return start_session(SparkSettings(mode="cluster", url=master, conf=conf), "chaos")
    return start_session(SparkSettings(slots=2, memory="512m", conf=conf), "chaos")


def work(plan: Plan, spark: SparkSession, slot: str, run_id: str, stop: StopSignal) -> StopReason:
    log = logging.getLogger(f"{slot}:{run_id[:8]}")
    asset = AssetKey("clicks")

    def alarm(kind: EventKind, message: str) -> AssetCheckEvaluation:
        return AssetCheckEvaluation(asset, kind.name.lower(), passed=False, metadata={"message": message})

    event_log = RunEventLog(asset, slot, lambda event: log.info("%s", event), log, alarm)
    kcl_resource = EmulatorResource(endpoint_url=plan.endpoint_url, region_name=REGION)
    watches = (watchdog.parent_is_gone(), run_is_over(plan, run_id))
    run = WorkerRun(consumer(plan, slot, run_id), kcl_resource, lambda: spark, slot, run_id, event_log, watches)
    return run.work(stop)


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    for loud in ("botocore", "boto3", "urllib3", "py4j", "pyiceberg"):
        logging.getLogger(loud).setLevel(logging.WARNING)
    plan = Plan.read(Path(sys.argv[1]))
    spark = spark_session(plan, sys.argv[2])
    spark.range(2).count()
    stop = StopSignal()
    for number in (signal.SIGTERM, signal.SIGINT):  # after Spark, which installs a handler of its own
        signal.signal(number, lambda *_: stop.request(StopReason.ASKED, "interrupted"))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    told = sys.stdin.readline()
    if not told or stop.is_requested():
        spark.stop()
        return 0
    identity = json.loads(told)
    reason = work(plan, spark, identity["slot"], identity["run_id"], stop)
    logging.getLogger(__name__).info("stopped: %s", reason)
    stop_session(spark)
    return 0


if __name__ == "__main__":
    sys.exit(main())
