"""A worker's batches on a Spark cluster whose executors are killed. A program of its own: it needs its own session.

Every round reads a batch while records keep coming, does something to the executors, writes, and goes through what
a worker does when that fails: read the same range again, pinned, and write again. Its last line of output is a
verdict in JSON. Before the first round the driver is asked whether it sees what executors store.

    python cluster_run.py MASTER ENDPOINT FOLDER ROUND...

ROUND is none; or when an executor is killed: fetch, before-write, write; or stall: one is frozen while it fetches,
and speculation, which is on, lets another read the same. `staged-` before it: the batch is staged for a chain and
published, by the fetch itself where records are stored as they were read.
MASTER may be a Spark Connect server (`sc://host:port`); executors are then left alone.
"""

import itertools
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession

from kcl_dagster.aws import client
from kcl_dagster.chains.entry import PublishingEntry
from kcl_dagster.chains.publication import publish
from kcl_dagster.errors import BatchContentChanged, BatchError, ConfigurationError
from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.claim import ChainId
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.spark.batch_records import Records
from kcl_dagster.spark.engine import EngineSettings, SparkEngine
from kcl_dagster.spark.fetch import Connection
from kcl_dagster.spark.session import SparkSettings, start_session
from kcl_dagster.spark.sharing import check_sharing
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.streams.pacing import ShardLimits
from kcl_dagster.worker.batch import Batch, Budget, Part, Range

SHARDS = 4
BUDGET = Budget(records=100_000, bytes=1 << 28, seconds=0.5)
STAGED = "staged-"
CHAIN = ChainId("app-1234~w1-1")
# The same path leads each process below the directory it was started in, as on machines with disks of their own.
OWN_DIRECTORY = "/proc/self/cwd/lake"
# A task is read a second time, by another machine's executor, as soon as it takes a little longer than the other.
HASTY = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    # An executor may ask a frozen one for what both need, and Spark's patience with that is two minutes.
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "5s",
    # A new executor asks each dead one for what all need, and Spark tries that four times in fifteen seconds.
    "spark.shuffle.io.retryWait": "100ms",
    "spark.executor.heartbeatInterval": "2s",
}
# Ten executors are started and few live for a minute: what the second compiler of the JVM makes is never used.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# What only executors on the driver's own machine may be given.
SAME_MACHINE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.pyspark.python": sys.executable,
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC",  # the default collector starts threads for a big heap
}
KEYS: dict[str, Any] = {"access_key": "test", "secret_key": "test", "region": "us-east-1"}


_numbers = itertools.count(1)  # of batches


class Producer(threading.Thread):
    """Puts records until it is stopped, so that whatever is read twice is not the same twice."""

    def __init__(self, kinesis: Any) -> None:
        super().__init__(daemon=True)
        self._kinesis = kinesis
        self._stop_asked = threading.Event()
        self.produced = 0

    def run(self) -> None:
        while not self._stop_asked.wait(0.02):
            records = [{"Data": b"%d" % (self.produced + i), "PartitionKey": f"k{i}"} for i in range(40)]
            assert self._kinesis.put_records(StreamName="clicks", Records=records)["FailedRecordCount"] == 0
            self.produced += len(records)

    def finish(self) -> None:
        self._stop_asked.set()
        self.join()


def executors(app: str) -> list[int]:
    """The processes of the application's executors on this machine."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if any("CoarseGrainedExecutorBackend" in word for word in command) and app in command:
                found.append(int(folder.name))
    return sorted(found)


def kill_one(app: str) -> None:
    pids = executors(app)
    if pids:
        os.kill(pids[0], signal.SIGKILL)


def kill_all(app: str) -> None:
    for pid in executors(app):
        os.kill(pid, signal.SIGKILL)


class Stall:
    """An executor that is frozen for the time of a batch, from some moment on."""

    def __init__(self, app: str) -> None:
        self._app = app
        self._frozen: list[int] = []
        self._timer = threading.Timer(0.2, self._freeze)
        self._timer.start()

    def _freeze(self) -> None:
        self._frozen = executors(self._app)[:1]
        for pid in self._frozen:
            os.kill(pid, signal.SIGSTOP)

    def end(self) -> None:
        self._timer.join()
        for pid in self._frozen:
            with suppress(ProcessLookupError):  # Spark has given it up
                os.kill(pid, signal.SIGCONT)


def settings_for(master: str) -> SparkSettings:
    if master.startswith("sc://"):
        return SparkSettings(mode="connect", url=master)
    conf = {"spark.ui.enabled": "false", "spark.executor.memory": "512m", "spark.cores.max": "2"} | SAME_MACHINE
    conf |= {"spark.log.level": "OFF", "spark.executor.extraJavaOptions": SHORT_LIVED}
    return SparkSettings(mode="cluster", url=master, conf=conf)


def twins(log: Path) -> dict[str, int]:
    """How many tasks were started a second time beside the first, by the kind of the round."""
    rounds: dict[int, str] = {}
    found: Counter[str] = Counter()
    for line in (line for path in log.rglob("events_*") for line in path.read_text().splitlines()):
        event = json.loads(line)
        if event["Event"] == "SparkListenerJobStart":
            kind = event["Properties"].get("spark.job.description", "")
            rounds |= dict.fromkeys(event["Stage IDs"], kind)
        elif event["Event"] == "SparkListenerTaskStart" and event["Task Info"]["Speculative"]:
            found[rounds[event["Stage ID"]]] += 1
    return dict(found)


def main(master: str, endpoint: str, folder: str, rounds: list[str]) -> dict[str, Any]:
    kinesis = client("kinesis", endpoint_url=endpoint, **KEYS)
    kinesis.create_stream(StreamName="clicks", ShardCount=SHARDS)
    log = Path(f"{folder}.log")
    log.mkdir()
    settings = settings_for(master)
    if settings.mode == "cluster":
        logged = {"spark.eventLog.enabled": "true", "spark.eventLog.compress": "false"}
        logged["spark.eventLog.dir"] = str(log)
        settings = settings.model_copy(update={"conf": settings.conf | HASTY | logged})
    spark = start_session(settings, "chaos")
    sink, connection = ParquetSink(folder), Connection(endpoint_url=endpoint, **KEYS)
    check_sharing(spark, sink.stores_into, "shared")
    left_behind = [path.name for path in Path(folder).rglob("*") if path.is_file()]
    try:
        check_sharing(spark, ParquetSink(OWN_DIRECTORY).stores_into, "unshared")
        unshared = ""
    except ConfigurationError as error:
        unshared = str(error)
    reading = EngineSettings(tasks=2, limits=ShardLimits.unlimited())
    frozen = SparkEngine(spark, connection, reading)
    chained = ParquetSink(folder, transform=as_it_came)
    staging = SparkEngine(spark, connection, reading, staging=chained.staging)
    shards = [shard["ShardId"] for shard in kinesis.list_shards(StreamName="clicks")["Shards"]]
    ranges = [Range(LeaseKey(shard), StreamIdentifier("clicks"), shard, TRIM_HORIZON, 1) for shard in shards]
    producer = Producer(kinesis)
    producer.start()
    retries = counted = 0
    for kind in [*rounds, "last"]:
        if kind == "last":
            producer.finish()
        if settings.mode == "cluster":
            spark.sparkContext.setJobDescription(kind)
        is_staged = kind.startswith(STAGED)
        engine, store = (staging, partial(stage, chained)) if is_staged else (frozen, partial(stage, sink))
        ranges, records, tries = one_batch(spark, engine, store, ranges, kind.removeprefix(STAGED))
        retries, counted = retries + tries, counted + records
    for engine in (frozen, staging):
        engine.close()
    spark.stop()
    stored = [int(value) for value in ds.dataset(folder).to_table(columns=["data"]).column("data").to_pylist()]
    return {
        "produced": producer.produced,
        "counted": counted,
        "stored": len(stored),
        "distinct": len(set(stored)),
        "retries": retries,
        "twins": twins(log),
        "left behind": left_behind,
        "unshared": unshared,
    }


def as_it_came(records: DataFrame) -> DataFrame:
    """What a consumer of raw records says."""
    return records


def stage(sink: ParquetSink, data: Records, batch: Batch) -> None:
    """What a worker does that decides its batches in a chain, without the entry."""
    staged = sink.stage(data, batch, CHAIN, next(_numbers))
    assert publish(sink.stores_into, CHAIN, PublishingEntry("1", staged.files, ()))


def one_batch(
    spark: SparkSession,
    engine: SparkEngine,
    store: Callable[[Records, Batch], None],
    ranges: list[Range],
    kind: str,
) -> tuple[list[Range], int, int]:
    """What a worker does for a batch, and again until it is stored: the same range, though a worker with a chain
    would read on to where it gets. `kind` says when an executor dies."""
    app = "" if kind in ("none", "last") else spark.sparkContext.applicationId
    pinned, tries = ranges, 0
    while True:
        try:
            if kind == "fetch" and tries == 0:
                threading.Timer(0.4, kill_one, [app]).start()
            stall = Stall(app) if kind == "stall" and tries == 0 else None
            try:
                fetched = engine.fetch(pinned, BUDGET)
            finally:
                if stall is not None:
                    stall.end()
            assert not fetched.failures, fetched.failures
            progress = fetched.progress
            pinned = [
                replace(r, through=progress[r.lease].through, first=progress[r.lease].first)
                if progress[r.lease].records
                else r
                for r in ranges
            ]
            parts = tuple(
                Part(
                    "app",
                    p.range.lease,
                    p.range.stream,
                    p.range.shard_id,
                    p.range.after,
                    p.through,
                    1,
                    p.records,
                    0,
                )
                for p in progress.values()
                if p.through is not None
            )
            if kind == "before-write" and tries == 0:
                kill_all(app)  # one of them may hold nothing: on a busy machine the other may have read everything
                time.sleep(1)
            if kind == "write" and tries == 0:
                threading.Timer(0.1, kill_one, [app]).start()
            if parts:
                store(fetched.data([part.lease for part in parts]), Batch("app", WorkerId("w:1"), parts))
            fetched.release()
        except (BatchContentChanged, BatchError):
            tries += 1
            assert tries < 10
            continue
        records = sum(p.records for p in progress.values())
        following = [replace(r, after=progress[r.lease].through or r.after, number=r.number + 1) for r in ranges]
        return following, records, tries


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])))
