"""Measures a whole tick of the leader with a table of 10,000 leases: part of `make bench-leader`.

    python -m benchmarks.leader_tick                                  against ministack and the embedded AWS
    python -m benchmarks.leader_tick --dynamodb http://127.0.0.1:4566 against another DynamoDB

ministack is an emulator of another project. It is installed for this benchmark if a package index can be reached.

In the first tick, 500 leases have no owner, and the leader gives them to the workers. In the steady tick, all
leases are served: the leader reads the whole table and decides that nothing is to be done.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kcl_dagster import aws
from kcl_dagster.application import Application, FleetSettings, Timings
from kcl_dagster.leader.construction import open_leader
from kcl_dagster.leader.run_view import RunView, SlotRun
from kcl_dagster.leader.tick import Leader
from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.shard import MAX_HASH_KEY, HashRange
from kcl_dagster.model.worker_row import WorkerRow, slot_name, worker_id
from kcl_dagster.tables.items import lease_to_item

LEASES, WORKERS, UNSERVED = 10_000, 10, 500
BAR_SECONDS = 10.0
REGION, KEY = "us-east-1", "any key will do"
BATCH = 25  # items of one BatchWriteItem
STARTS_WITHIN = 60.0


@dataclass(frozen=True)
class Figure:
    """How long one tick took. `figure`: the kind of tick. `dynamodb`: the DynamoDB that was used. `stages`: the
    seconds of each stage."""

    figure: str
    dynamodb: str
    seconds: float
    moves: int
    bar: float
    stages: dict[str, float]

    @property
    def holds(self) -> bool:
        return self.seconds <= self.bar

    def to_json(self) -> str:
        told = {"figure": f"{self.figure}, {self.dynamodb}", "value": round(self.seconds, 3), "unit": "s"}
        return json.dumps({**told, "bar": self.bar, "ok": self.holds, "moves": self.moves, "stages": self.stages})


@contextlib.contextmanager
def embedded() -> Iterator[str]:
    """Run the embedded AWS as a process of its own. Yields its endpoint."""
    with tempfile.TemporaryDirectory() as directory:
        ready = Path(directory) / "ready.json"
        command = [sys.executable, "-m", "kcl_dagster.emulator", "--no-limits", "--port", "0"]
        command += ["--ready-file", str(ready), "--watch-pid", str(os.getpid())]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + STARTS_WITHIN
            while not ready.exists() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            yield json.loads(ready.read_text())["endpoint"]
            process.terminate()


def client(service: str, endpoint: str) -> Any:
    return aws.client(service, region=REGION, endpoint_url=endpoint, access_key=KEY, secret_key=KEY)


def run_id(index: int) -> str:
    return f"{index:08d}-run"


def owner(number: int) -> WorkerId | None:
    index = number % WORKERS
    return worker_id(slot_name(index), run_id(index)) if number >= UNSERVED else None


def fill(dynamodb: Any, table: str) -> None:
    step = (MAX_HASH_KEY + 1) // LEASES
    items = [
        lease_to_item(
            Lease(
                LeaseKey(f"shardId-{number:012d}"),
                f"shardId-{number:012d}",
                counter=1,
                owner=owner(number),
                checkpoint=TRIM_HORIZON,
                hash_range=HashRange(
                    number * step, MAX_HASH_KEY if number == LEASES - 1 else (number + 1) * step - 1
                ),
            )
        )
        for number in range(LEASES)
    ]
    for start in range(0, len(items), BATCH):
        puts = [{"PutRequest": {"Item": item}} for item in items[start : start + BATCH]]
        dynamodb.batch_write_item(RequestItems={table: puts})


def beat(leader: Leader, number: int) -> dict[str, SlotRun]:
    """Write the rows of all workers. Returns the runs of the workers, by slot."""
    now = time.time()
    runs = {}
    for index in range(WORKERS):
        slot, run = slot_name(index), run_id(index)
        worker = worker_id(slot, run)
        row = WorkerRow(worker, int(now), averages={}, operating_range={}, slot=slot, run_id=run, beat=number)
        leader.tables.workers.put(row)
        runs[slot] = SlotRun(run, worker, "running", now)
    return runs


def measure(kinesis: Any, dynamodb: Any, whose: str) -> list[Figure]:
    application = Application(
        name="bench-tick",
        streams="bench-tick",
        fleet=FleetSettings(min_workers=WORKERS, max_workers=WORKERS),
        timings=Timings(shard_audit=3600.0, lease_duration=3600.0),
    )
    kinesis.create_stream(StreamName="bench-tick", ShardCount=1)
    leader = open_leader(application, dynamodb=dynamodb, kinesis=kinesis, identity="bench")
    fill(dynamodb, application.lease_table)
    figures: list[Figure] = []
    for number in range(10):
        view = RunView(beat(leader, number))
        started = time.perf_counter()
        report = leader.tick(view)
        seconds = time.perf_counter() - started
        steady = not report.moves and not report.unserved
        if number == 0 or steady:
            name = "10,000 leases, nothing to do" if steady else f"10,000 leases, {UNSERVED} to give away"
            stages = {stage.name: round(stage.seconds, 2) for stage in report.stages}
            figures.append(Figure(name, whose, round(seconds, 2), len(report.moves), BAR_SECONDS, stages))
        if steady:
            break
    return figures


@contextlib.contextmanager
def others() -> Iterator[str | None]:
    """Run ministack. Yields its endpoint, or None if it cannot be installed."""
    from tests.integration.emulator.contract import referees

    with contextlib.ExitStack() as stack:
        try:
            endpoint = stack.enter_context(referees.ministack()).endpoint_url
        except referees.Unavailable as why:
            print(f"no whole tick against ministack: {why}", file=sys.stderr)
            endpoint = None
        yield endpoint


def run(dynamodb_url: str | None = None) -> list[Figure]:
    """Measure the ticks, and print a line for each figure. `dynamodb_url`: measure only with this DynamoDB."""
    if dynamodb_url is not None:
        figures = run_against(dynamodb_url, dynamodb_url)
    else:
        with others() as ministack:
            figures = run_against("ministack", ministack) if ministack is not None else []
        figures += run_against("embedded", None)
    return figures


def run_against(whose: str, dynamodb_url: str | None) -> list[Figure]:
    """Measure the ticks with the DynamoDB at `dynamodb_url`, or with that of the embedded AWS if it is None. The
    stream is always in the embedded AWS."""
    with embedded() as endpoint:
        kinesis = client("kinesis", endpoint)
        figures = measure(kinesis, client("dynamodb", dynamodb_url or endpoint), whose)
    for figure in figures:
        verdict = "holds" if figure.holds else "MISSED"
        print(
            f"{figure.figure:34} {figure.dynamodb:10} {figure.seconds:6.2f} s  {figure.moves:4} moves  "
            f"bar {figure.bar:.0f} s {verdict}  {figure.stages}",
            flush=True,
        )
    return figures


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dynamodb", help="another DynamoDB than the embedded one")
    figures = run(parser.parse_args(arguments).dynamodb)
    print()
    for figure in figures:
        print(figure.to_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
