"""What the data path costs: `make bench-worker`, or `python -m benchmarks.worker`.

The embedded AWS is a process of its own with the limits off, so the figures are the consumer's. For records of
100 B, 1 KB, 10 KB and KPL aggregates:

    bare (boto3)   a loop of GetRecords with stock boto3: what a consumer in Python can do at best
    bare           the same loop with our parser: the floor
    fetch          our fetch in Spark, frozen, every record evaluated once, nothing stored
    unsafe         fetch and Parquet in one job: no frozen copy, no guard, no pins, no checkpoint
    worker         the worker: leases in DynamoDB, exactly-once batches, Parquet

CPU is that of the whole process tree (driver, JVM, Python workers) without the emulator. Options: --megabytes,
--loads, --memory (adds the peak memory of a 200 MB batch). One JSON line per figure after the tables.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster import aws
from kcl_dagster.application import Application, BatchSettings, Timings
from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.model.worker import worker_id
from kcl_dagster.runtime import system
from kcl_dagster.spark.engine import EngineSettings, SparkEngine
from kcl_dagster.spark.fetch import Connection, FetchPlan, FetchTask, ShardPlan
from kcl_dagster.spark.schema import COLUMNS, PROGRESS, SPARK_SCHEMA
from kcl_dagster.spark.session import SparkSettings, start_session
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.spark.sinks.writing import write_files
from kcl_dagster.spark.storage import open_store
from kcl_dagster.spark.transform import unchanged
from kcl_dagster.streams.listing import list_shards
from kcl_dagster.streams.pacing import ShardLimits
from kcl_dagster.tables.creation import create_tables
from kcl_dagster.tables.layout import detect_layout
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.workers import WorkerTable
from kcl_dagster.testing.aggregation import UserRecord, aggregate
from kcl_dagster.worker.batch import Budget, Range
from kcl_dagster.worker.heartbeat import Identity
from kcl_dagster.worker.loop import Worker
from kcl_dagster.worker.surroundings import Surroundings

SHARDS = 4
MB = 1_000_000
KEYS: dict[str, Any] = {"region": "us-east-1", "access_key": "bench", "secret_key": "bench"}
UNLIMITED = ShardLimits.unlimited()
EXACTLY_ONCE_BAR = 1.15  # exactly-once may cost 15 % of the time of the unsafe way
FETCH_BAR = 0.60  # of the bare loop's bytes per second


@dataclass(frozen=True)
class Load:
    """`aggregated` user records of `size` bytes in each Kinesis record."""

    name: str
    size: int
    aggregated: int = 1

    def payload(self) -> bytes:
        if self.aggregated == 1:
            return os.urandom(self.size)
        return aggregate([UserRecord(f"key-{i % 16}", os.urandom(self.size)) for i in range(self.aggregated)])


LOADS = {
    load.name: load
    for load in (Load("100B", 100), Load("1KB", 1_000), Load("10KB", 10_000), Load("KPL", 100, aggregated=400))
}


@dataclass(frozen=True)
class Cost:
    """What a run took. `records` are user records."""

    records: int
    bytes: int
    seconds: float
    cpu: float

    @property
    def mb_per_second(self) -> float:
        return self.bytes / MB / self.seconds

    @property
    def records_per_cpu(self) -> float:
        return self.records / self.cpu

    @property
    def cpu_per_gb(self) -> float:
        return self.cpu / (self.bytes / (1000 * MB))


# The machine


def tree(root: int) -> list[int]:
    """`root` and all processes below it."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            parents.setdefault(parent, []).append(int(folder.name))
    found, todo = [], [root]
    while todo:
        found.append(todo.pop())
        todo += parents.get(found[-1], [])
    return found


def cpu_seconds(but: int) -> float:
    """CPU of this process and its children, ended ones included, without the tree of `but`."""
    excluded = set(tree(but))
    ticks = 0
    for pid in tree(os.getpid()):
        if pid not in excluded:
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            ticks += sum(map(int, fields[11:15] if pid != os.getpid() else fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def peak_memory(but: int) -> dict[str, float]:
    """Highest resident memory so far in MB, by kind of process."""
    excluded, found = set(tree(but)), {"driver python": 0.0, "jvm": 0.0, "python workers": 0.0}
    for pid in tree(os.getpid()):
        if pid in excluded:
            continue
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            command = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            continue
        peak = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0) / 1000
        kind = "driver python" if pid == os.getpid() else "jvm" if command == "java" else "python workers"
        found[kind] += peak
    return found


@contextmanager
def emulator() -> Iterator[tuple[str, int]]:
    """A process of its own; its endpoint and pid."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder, "ready.json")
        command = [sys.executable, "-m", "kcl_dagster.emulator", "--port", "0", "--no-limits"]
        command += ["--ready-file", str(ready), "--watch-pid", str(os.getpid())]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            while not ready.exists():
                if process.poll() is not None:
                    raise SystemExit("the embedded AWS did not start")
                time.sleep(0.05)
            yield json.loads(ready.read_text())["endpoint"], process.pid
            process.terminate()


# The runs


class Bench:
    """One stream full of one load, and the ways to read it."""

    def __init__(self, load: Load, megabytes: int, spark: SparkSession, endpoint: str, emulator_pid: int) -> None:
        self.load = load
        self.spark = spark
        self.endpoint = endpoint
        self._emulator_pid = emulator_pid
        self.stream = f"{load.name}-{megabytes}"
        self.kinesis = aws.client("kinesis", endpoint_url=endpoint, **KEYS)
        self.connection = Connection(endpoint_url=endpoint, **KEYS)
        self.kinesis_records = self._fill(megabytes)
        self.records = self.kinesis_records * load.aggregated
        self.bytes = self.records * load.size
        self.shards = [shard.id for shard in list_shards(self.kinesis, self.stream, runtime=system())]

    def _fill(self, megabytes: int) -> int:
        self.kinesis.create_stream(StreamName=self.stream, ShardCount=SHARDS)
        payloads = [self.load.payload() for _ in range(64)]
        count = max(SHARDS, megabytes * MB // (self.load.size * self.load.aggregated))
        at_once = max(1, min(500, 4 * MB // len(payloads[0])))

        def put(start: int) -> None:
            entries = [
                {
                    "Data": payloads[i % 64],
                    "PartitionKey": "k",
                    "ExplicitHashKey": str(i % SHARDS * 2**128 // SHARDS),
                }
                for i in range(start, min(start + at_once, count))
            ]
            assert self.kinesis.put_records(StreamName=self.stream, Records=entries)["FailedRecordCount"] == 0

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(put, range(0, count, at_once)))
        return count

    def ranges(self) -> list[Range]:
        stream = StreamIdentifier.single(self.stream)
        return [Range(LeaseKey(shard), stream, shard, TRIM_HORIZON, 1) for shard in self.shards]

    def budget(self) -> Budget:
        return Budget(self.records * 2, self.bytes * 2, 0.2)

    def measured(self, run: Callable[[], int]) -> Cost:
        cpu, began = cpu_seconds(self._emulator_pid), time.monotonic()
        records = run()
        seconds, used = time.monotonic() - began, cpu_seconds(self._emulator_pid) - cpu
        assert records == self.records, f"{records} of {self.records} records"
        return Cost(self.records, self.bytes, seconds, used)

    def bare(self, *, stock: bool) -> Cost:
        client = aws.client("kinesis", endpoint_url=self.endpoint, **KEYS) if stock else self.connection.kinesis()

        def read() -> int:
            records = 0
            for shard in self.shards:
                iterator = client.get_shard_iterator(
                    StreamName=self.stream, ShardId=shard, ShardIteratorType="TRIM_HORIZON"
                )["ShardIterator"]
                while True:
                    page = client.get_records(ShardIterator=iterator, Limit=10_000)
                    records += len(page["Records"])
                    if not page["MillisBehindLatest"]:
                        break
                    iterator = page["NextShardIterator"]
            return records * self.load.aggregated

        return self.measured(read)

    def engine(self) -> SparkEngine:
        return SparkEngine(self.spark, self.connection, EngineSettings(limits=UNLIMITED))

    def fetch(self) -> Cost:
        engine = self.engine()

        def run() -> int:
            fetched = engine.fetch(self.ranges(), self.budget())
            fetched.data(list(fetched.progress)).select(F.sum(F.length("data"))).collect()
            fetched.release()
            return sum(progress.records for progress in fetched.progress.values())

        try:
            return self.measured(run)
        finally:
            engine.close()

    def unsafe(self, folder: str) -> Cost:
        """Fetch and store in one job; nobody knows how far it came, and a task that fails reads something else."""

        def run() -> int:
            plans = [ShardPlan(range_) for range_ in self.ranges()]
            plan = FetchPlan(self.connection, (tuple(plans[::2]), tuple(plans[1::2])), self.budget(), UNLIMITED)
            data = self.spark.range(0, 2, 1, 2).mapInArrow(FetchTask(plan), SPARK_SCHEMA)
            records = data.where(F.col(PROGRESS).isNull()).select(*COLUMNS)
            names = {LeaseKey(shard): f"{shard}.parquet" for shard in self.shards}
            return sum(file.rows for file in write_files(records, unchanged, open_store(folder), names))

        return self.measured(run)

    def worker(self, folder: str) -> Cost:
        """The worker as it runs, without its threads: the same steps, one after another."""
        application = Application.model_validate(
            {
                "name": f"bench-{self.stream}",
                "streams": [self.stream],
                "timings": Timings(lease_duration=600.0),
                "batch": BatchSettings(
                    max_seconds=0.2, max_records=self.records * 2, max_bytes=self.bytes * 2, prefetch=False
                ),
            }
        )
        dynamodb, runtime = aws.client("dynamodb", endpoint_url=self.endpoint, **KEYS), system()
        layout = detect_layout(dynamodb, application)
        create_tables(dynamodb, application, layout, runtime)
        leases = LeaseTable(dynamodb, application, layout, runtime, deadline_seconds=5.0)
        me = worker_id("worker-000", "benchmark")
        for shard in self.shards:
            leases.create(Lease(LeaseKey(shard), shard, owner=me, checkpoint=TRIM_HORIZON))
        engine = self.engine()
        worker = Worker(
            Surroundings(
                application=application,
                leases=leases,
                workers=WorkerTable(dynamodb, application, layout, runtime),
                list_shards=lambda _: list_shards(self.kinesis, self.stream, runtime=runtime),
                engine=engine,
                sink=ParquetSink(folder),
            ),
            Identity(me, "worker-000", "benchmark", None),
            runtime,
        )
        worker.start()
        worker.step_discovery()

        def run() -> int:
            report = worker.step_batch()
            assert report.error is None, report.error
            return sum(lease.records for lease in report.leases)

        try:
            cost = self.measured(run)
            self.empty_ms = min(self._milliseconds(worker) for _ in range(5))
            return cost
        finally:
            engine.close()

    @staticmethod
    def _milliseconds(worker: Worker[Any]) -> float:
        """A batch in which nothing came, without the time it waited for something to come."""
        began = time.monotonic()
        worker.step_batch()
        return (time.monotonic() - began - 0.2) * 1000


# The report


def row(load: str, name: str, cost: Cost) -> str:
    return (
        f"{load:>6}  {name:<14}{cost.mb_per_second:8.1f} MB/s {cost.records / cost.seconds:11,.0f} rec/s"
        f" {cost.cpu_per_gb:8.1f} CPU-s/GB {cost.records_per_cpu:11,.0f} rec/CPU-s"
    )


def figure(name: str, value: float, unit: str, bar: float | None = None, *, lower: bool = False) -> dict[str, Any]:
    facts: dict[str, Any] = {"figure": name, "value": round(value, 3), "unit": unit}
    if bar is not None:
        facts |= {"bar": bar, "ok": value <= bar if lower else value >= bar}
    return facts


def best(run: Callable[[], Cost], times: int) -> Cost:
    """The quickest of some runs: the machine has other things to do."""
    return min((run() for _ in range(times)), key=lambda cost: cost.seconds)


def measure(load: Load, megabytes: int, spark: SparkSession, repeat: int) -> list[dict[str, Any]]:
    folder = tempfile.mkdtemp()
    try:
        with emulator() as (endpoint, pid):
            bench = Bench(load, megabytes, spark, endpoint, pid)
            bench.fetch()  # starts the Python workers
            costs = {
                "bare (boto3)": best(lambda: bench.bare(stock=True), repeat),
                "bare": best(lambda: bench.bare(stock=False), repeat),
                "fetch": best(bench.fetch, repeat),
                "unsafe": best(lambda: bench.unsafe(f"{folder}/unsafe"), repeat),
                "worker": bench.worker(f"{folder}/worker"),
            }
    finally:
        shutil.rmtree(folder)
    for name, cost in costs.items():
        print(row(load.name, name, cost), flush=True)
    print(f"{load.name:>6}  an empty batch of the worker: {bench.empty_ms:.0f} ms\n", flush=True)
    figures = [
        figure(f"worker {load.name} {name}", value, unit)
        for name, value, unit in (
            ("throughput", costs["worker"].mb_per_second, "MB/s"),
            ("records", costs["worker"].records / costs["worker"].seconds, "1/s"),
            ("cpu", costs["worker"].cpu_per_gb, "CPU-s/GB"),
            ("empty batch", bench.empty_ms, "ms"),
        )
    ]
    figures.append(
        figure(
            f"fetch {load.name} over bare boto3 loop",
            costs["fetch"].mb_per_second / costs["bare (boto3)"].mb_per_second,
            "x",
            FETCH_BAR,
        )
    )
    figures.append(
        figure(
            f"exactly-once {load.name} over unsafe, time",
            costs["worker"].seconds / costs["unsafe"].seconds,
            "x",
            EXACTLY_ONCE_BAR,
            lower=True,
        )
    )
    return figures


def measure_memory(spark: SparkSession) -> list[dict[str, Any]]:
    """The peak of everything after one batch of 200 MB."""
    folder = tempfile.mkdtemp()
    try:
        with emulator() as (endpoint, pid):
            bench = Bench(replace(LOADS["1KB"], name="memory"), 200, spark, endpoint, pid)
            bench.worker(folder)
            peaks = peak_memory(pid)
    finally:
        shutil.rmtree(folder)
    print(
        "200 MB batch, peak resident: " + ", ".join(f"{kind} {mb:.0f} MB" for kind, mb in peaks.items()), flush=True
    )
    return [figure(f"peak memory of {kind}, 200 MB batch", mb, "MB") for kind, mb in peaks.items()]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=64, help="of payload per load (100 B: a quarter)")
    parser.add_argument("--loads", nargs="*", choices=LOADS, default=list(LOADS))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--memory", action="store_true", help="also the peak memory of a 200 MB batch")
    options = parser.parse_args(arguments)
    spark = start_session(SparkSettings(memory="1g"), "bench-worker")
    try:
        figures = [
            found
            for name in options.loads
            for found in measure(
                LOADS[name], max(1, options.megabytes // (4 if name == "100B" else 1)), spark, options.repeat
            )
        ]
        if options.memory:
            figures += measure_memory(spark)
    finally:
        spark.stop()
    for facts in figures:
        print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
