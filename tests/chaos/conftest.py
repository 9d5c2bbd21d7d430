"""A small chaos run for single tests: an AWS, a plan, and processes that end with the test."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kcl_dagster.emulator import Emulator, environment
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.runtime import system
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.table_layout import detect_layout
from tests.chaos import child_processes, orders
from tests.chaos.child_processes import Child
from tests.chaos.crew import LOCAL
from tests.chaos.plan import MARKER_VARIABLE, SHARDS, STREAM, Plan

PATIENCE_SECONDS = 180.0  # Spark on a busy machine


@dataclass
class Stage:
    """What a test may start and look at."""

    plan: Plan
    emulator: Emulator
    children: list[Child] = field(default_factory=list)

    def leader(self) -> Child:
        return self._start("leader", "tests.chaos.leader", "leader")

    def worker(self, slot: str, run_id: str) -> Child:
        """At work already when this returns."""
        worker = self._start(slot, "tests.chaos.worker", LOCAL)
        wait_for(lambda: worker.said.stat().st_size > 0, f"{slot} has its Spark")
        worker.tell(json.dumps({"slot": slot, "run_id": run_id}))
        return worker

    def produce(self, count: int) -> None:
        kinesis = self.emulator.client("kinesis")
        for number in range(count):
            data = json.dumps({"key": f"key-{number}", "number": 0})
            kinesis.put_record(StreamName=STREAM, Data=data, PartitionKey=f"key-{number}")

    def leases(self) -> dict[LeaseKey, Lease]:
        """None before the leader has made the table."""
        dynamodb = self.emulator.client("dynamodb")
        if self.plan.application.lease_table not in dynamodb.list_tables()["TableNames"]:
            return {}
        layout = detect_layout(dynamodb, self.plan.application)
        return {
            lease.key: lease
            for lease in LeaseTable(dynamodb, self.plan.application, layout, system()).scan().leases
        }

    def owners(self) -> set[str | None]:
        return {lease.actual_owner for lease in self.leases().values()}

    def _start(self, name: str, module: str, argument: str) -> Child:
        child = Child.start(name, module, [str(self.plan.path), argument], self.plan.logs)
        self.children.append(child)
        return child


def wait_for(condition: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"within {seconds:g} s: {what}"
        time.sleep(0.2)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    marker = f"{MARKER_VARIABLE}=test-{os.getpid()}-{tmp_path.name}"
    monkeypatch.setenv(*marker.split("=", 1))
    with Emulator() as emulator:
        for name, value in environment(emulator.endpoint_url, "us-east-1").items():
            monkeypatch.setenv(name, value)
        plan = Plan.make(0, tmp_path, emulator.endpoint_url, "parquet")
        for place in (plan.lake, plan.logs, plan.journals):
            place.mkdir()
        plan.write()
        orders.write_runs(plan.runs, orders.Runs())
        emulator.client("kinesis").create_stream(StreamName=STREAM, ShardCount=SHARDS)
        stage = Stage(plan, emulator)
        try:
            yield stage
        finally:
            while left := child_processes.carriers(marker):
                child_processes.send(signal.SIGKILL, left)
                time.sleep(0.1)
            for child in stage.children:
                child.close()
