"""A Python worker that has settled looks at its packages no more when it collects garbage. It returns the memory of
large records."""

import os
import subprocess
import sys

import pytest

from kcl_dagster.spark.session import KEEPS_MEMORY

PROGRAM = """
import gc
from kcl_dagster.spark.python_worker_tuning import settle
import kcl_dagster.spark.staged_ranges
settle()
frozen, live = gc.get_freeze_count(), len(gc.get_objects())
settle()
again = gc.get_freeze_count()
import kcl_dagster.spark.sinks.parquet
imported = len(gc.get_objects())
settle()
print(frozen, live, again, imported, len(gc.get_objects()))
"""
# User code that imports a module in every batch.
IMPORTS_ALWAYS = """
import gc, sys, types
from kcl_dagster.spark.python_worker_tuning import MOST_TIMES, settle
counts = []
for batch in range(3 * MOST_TIMES):
    sys.modules[f"of_batch_{batch}"] = types.ModuleType(f"of_batch_{batch}")
    settle()
    counts.append(gc.get_freeze_count())
print(len(set(counts)), MOST_TIMES)
"""
# A fetch task that reads 60 MB in records of one size, as a Python worker runs it. Prints the megabytes that the
# process has more afterwards than after a task with a small record.
FETCHES = """
import sys
from pathlib import Path
import pyarrow as pa
from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.spark import fetch
from kcl_dagster.streams.pacing import ShardLimits
from kcl_dagster.worker.batch import Budget, Range

PAGE = 10_000_000

class FullShards:
    def __init__(self, size):
        self.size = size

    def get_shard_iterator(self, **request):
        return {"ShardIterator": "1"}

    def get_records(self, **request):
        begin = int(request["ShardIterator"])
        count = max(1, min(request["Limit"], PAGE // self.size))
        records = [
            {"SequenceNumber": str(begin + number), "Data": b"x" * self.size, "PartitionKey": "k"}
            for number in range(count)
        ]
        return {"Records": records, "NextShardIterator": str(begin + count), "MillisBehindLatest": 1000}

def read(size, most):
    ranges = [Range(LeaseKey(f"s{i}"), StreamIdentifier("clicks"), f"s{i}", TRIM_HORIZON, 1) for i in range(64)]
    shards = tuple(map(fetch.ShardPlan, ranges))
    plan = fetch.FetchPlan(fetch.Connection(), (shards,), Budget(10**6, most, 30.0), ShardLimits.unlimited(), True)
    fetch._clients[plan.connection] = FullShards(size)
    task = fetch.FetchTask(plan)(iter([pa.record_batch({"id": pa.array([0])})]))
    rows = sum(batch.num_rows for batch in task)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6, rows - 128

before, _ = read(100, 1)
after, records = read(int(sys.argv[1]), 64 * 2**20)
print(after - before, records)
"""


def test_what_is_imported_is_frozen_once() -> None:
    told = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    frozen, live, again, imported, live_at_last = map(int, told.split())
    assert live < frozen / 100
    assert again == frozen
    assert imported > frozen / 20, "the program imports nothing between its calls"
    assert live_at_last < frozen / 100


def test_a_process_settles_a_few_times_only() -> None:
    told = subprocess.run([sys.executable, "-c", IMPORTS_ALWAYS], capture_output=True, text=True, check=True).stdout
    times, most = map(int, told.split())
    assert times == most


@pytest.mark.skipif(sys.platform != "linux", reason="looks at the memory of a process in /proc")
def test_a_task_with_the_largest_records_returns_their_memory() -> None:
    """A Python worker keeps the memory that it frees, which would be more than the batch itself."""
    keeps = {name.removeprefix("spark.executorEnv."): value for name, value in KEEPS_MEMORY.items()}
    command = [sys.executable, "-c", FETCHES, "10000000"]
    told = subprocess.run(command, env=os.environ | keeps, capture_output=True, text=True, check=True).stdout
    megabytes, records = map(float, told.split())
    assert records == 6
    assert megabytes < 65
