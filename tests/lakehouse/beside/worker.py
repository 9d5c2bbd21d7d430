"""`python -m tests.lakehouse.beside.worker PLAN KIND`: one consumer with its leader and one worker, until SIGTERM.

The worker is the one of the worker job, with a Spark session of its own. Each commit to the table is timed.
"""

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from dagster import AssetCheckEvaluation, AssetKey
from pyspark.sql import SparkSession

from benchmarks.leading import leading
from kcl_dagster.orchestration import watchdog
from kcl_dagster.orchestration.run_event_log import RunEventLog
from kcl_dagster.orchestration.worker_run import WorkerRun
from kcl_dagster.runtime import system
from kcl_dagster.spark.session import SparkSettings, start_session, stop_session
from kcl_dagster.spark.sinks.delta_commits import DeltaCommits
from kcl_dagster.spark.sinks.iceberg_commits import IcebergCommits
from kcl_dagster.testing import EmulatorResource
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.stop import StopReason, StopSignal
from tests.lakehouse.beside.commit_times import CommitTime, append
from tests.lakehouse.beside.plan import KINDS, REGION, Kind, Plan

SLOT = "worker-000"
COMMITS: dict[Kind, Any] = {"iceberg": IcebergCommits, "delta": DeltaCommits}


def timed(commit: Callable[..., None], notes: Path) -> Callable[..., None]:
    """The method `commit` of a `ChainedTable`. It notes how long each call took, whether or not the call failed."""

    def measured(table: Any, series: str, number: int, entries: Any, complete: Any) -> None:
        began, had = time.monotonic(), time.process_time()
        is_made = False
        try:
            commit(table, series, number, entries, complete)
            is_made = True
        finally:
            seconds, cpu = time.monotonic() - began, time.process_time() - had
            append(notes, CommitTime(number, len(entries), seconds, cpu, is_made))

    return measured


def work(plan: Plan, kind: Kind, spark: SparkSession, stop: StopSignal) -> StopReason:
    log, asset = logging.getLogger(kind), AssetKey("clicks")

    def alarm(kind_of_event: EventKind, message: str) -> AssetCheckEvaluation:
        name = kind_of_event.name.lower()
        return AssetCheckEvaluation(asset, name, passed=False, metadata={"message": message})

    event_log = RunEventLog(asset, SLOT, lambda event: log.info("%s", event), log, alarm)
    resource = EmulatorResource(endpoint_url=plan.endpoint_url, region_name=REGION)
    consumer = plan.consumer(kind)
    watches = (watchdog.parent_is_gone(),)
    run = WorkerRun(consumer, resource, lambda: spark, SLOT, system().new_id(), event_log, watches)
    commits = COMMITS[kind]
    with (
        patch.object(commits, "commit", timed(commits.commit, plan.commit_times(kind))),
        leading(consumer.application, resource),
    ):
        return run.work(stop)


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(name)s %(levelname)s %(message)s")
    for loud in ("botocore", "boto3", "urllib3", "py4j", "pyiceberg"):
        logging.getLogger(loud).setLevel(logging.WARNING)
    plan, kind = Plan.read(Path(sys.argv[1])), next(one for one in KINDS if one == sys.argv[2])
    spark = start_session(SparkSettings(local_root=str(plan.directory)), kind)
    stop = StopSignal()
    for number in (signal.SIGTERM, signal.SIGINT):  # after Spark, which installs a handler of its own
        signal.signal(number, lambda *_: stop.request(StopReason.ASKED, "the run is over"))
    reason = work(plan, kind, spark, stop)
    logging.getLogger(__name__).info("stopped: %s, threads: %d", reason, threading.active_count())
    stop_session(spark)
    return 0


if __name__ == "__main__":
    sys.exit(main())
