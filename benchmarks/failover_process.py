"""The processes of `benchmarks.failover`: `python -m benchmarks.failover_process worker|leader PLAN ...`.

The worker and the leader are those of production, with two differences. The engine of the worker reads without
Spark, so that a process starts in a second, and the start of Spark is not measured. The leader reads the runs from
a file and not from Dagster.
"""

import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from kcl_dagster import aws
from kcl_dagster.application import Application
from kcl_dagster.leader.construction import open_leader
from kcl_dagster.model.worker_row import worker_id
from kcl_dagster.runtime import system
from kcl_dagster.worker.batch import Batch
from kcl_dagster.worker.heartbeat import Identity
from kcl_dagster.worker.loop import Worker
from kcl_dagster.worker.opening import open_surroundings
from kcl_dagster.worker.stop import StopReason, StopSignal
from tests.chaos import orders
from tests.doubles.engine import MemoryEngine, Row

TICK_SECONDS = 5.0  # between two ticks; a sensor of Dagster with a minimum interval of 4 s ticks every 5 s


class Plan(BaseModel):
    """The settings that the processes share. Each measurement stores them in a file of its own."""

    application: Application
    endpoint_url: str
    runs: Path
    """The file with the workers' runs, which the leader reads in place of Dagster's storage."""


class Telling:
    """A sink that prints the time and the shard each time it gets records."""

    def write(self, data: Sequence[Row], batch: Batch) -> None:  # noqa: ARG002 - what is in it does not matter
        at = time.monotonic()
        sys.stdout.write("".join(f"{at} {part.shard_id}\n" for part in batch.parts))
        sys.stdout.flush()


def work(plan: Plan, slot: str, run_id: str) -> None:
    runtime = system()
    stop = StopSignal()
    signal.signal(signal.SIGTERM, lambda *_: stop.request(StopReason.ASKED))
    kinesis = aws.client("kinesis", endpoint_url=plan.endpoint_url)
    surroundings = open_surroundings(
        plan.application,
        dynamodb=aws.client("dynamodb", endpoint_url=plan.endpoint_url),
        kinesis=kinesis,
        engine=MemoryEngine(kinesis, runtime),
        sink=Telling(),
        runtime=runtime,
    )
    Worker(surroundings, Identity(worker_id(slot, run_id), slot, run_id), runtime).run(stop)


def lead(plan: Plan) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    leader = open_leader(
        plan.application,
        dynamodb=aws.client("dynamodb", endpoint_url=plan.endpoint_url),
        kinesis=aws.client("kinesis", endpoint_url=plan.endpoint_url),
        identity="bench",
    )
    due = time.monotonic()
    while not stop.is_set():
        report = leader.tick(orders.read_runs(plan.runs).view())
        sys.stdout.write("".join(f"{time.monotonic():.2f} {move}\n" for move in report.moves))
        sys.stdout.flush()
        due += TICK_SECONDS
        stop.wait(max(0.0, due - time.monotonic()))
    leader.resign()


def main(arguments: list[str]) -> int:
    role, path, *more = arguments
    plan = Plan.model_validate_json(Path(path).read_text())
    if role == "worker":
        work(plan, *more)
    else:
        lead(plan)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
