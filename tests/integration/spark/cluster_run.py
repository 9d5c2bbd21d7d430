"""A worker's batches on a Spark cluster whose executors are killed. A program of its own: it needs its own session.

Every round reads a batch while records keep coming, does something to the executors, stores it, and goes through
what a worker does when that fails: read the same range again, pinned, and store again. All rounds are run with each
sink, see `cluster_sinks`. Before the first round, the sink is given a place that the driver and the executors do
not share. The last line of output is a verdict in JSON.

    python -m tests.integration.spark.cluster_run MASTER ENDPOINT FOLDER SINK[,SINK...] ROUND...

SINK is parquet, delta or iceberg.
ROUND is none; or when an executor is killed: fetch, before-write, write; or stall: one is frozen while it fetches,
and speculation, which is on, lets another read the same. A word before it says how the batch is stored, which
otherwise holds the records as they were read:
    staged-   in a folder by the fetch itself, from the second such round on; a table gets the same as without it
    changed-  through a transform that is not deterministic, and adds a column
MASTER may be a Spark Connect server (`sc://host:port`); executors are then left alone.
"""

import itertools
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from kcl_dagster.aws import client
from kcl_dagster.errors import BatchContentChanged, BatchError, ConfigurationError
from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.spark.batch_records import Records
from kcl_dagster.spark.engine import EngineSettings, SparkEngine
from kcl_dagster.spark.fetch import Connection
from kcl_dagster.spark.session import SparkSettings, start_session
from kcl_dagster.spark.session_kind import is_classic
from kcl_dagster.spark.sharing import check_sharing
from kcl_dagster.spark.storage import LocalStore
from kcl_dagster.streams.pacing import ShardLimits
from kcl_dagster.worker.batch import Batch, Budget, Range
from tests.integration.spark.cluster_sinks import APPLICATION, AS_READ, CHANGED, STAGED, ChainedSink
from tests.integration.spark.conftest import batch_of
from tests.integration.spark.executor_faults import Stall, kill_all, kill_one

SHARDS = 4
LAST = "last"  # a round after all records were produced; the run ends when such a round reads nothing
BUDGET = Budget(records=100_000, bytes=1 << 28, seconds=0.5)
# The same path leads each process below the directory it was started in, as on machines with disks of their own.
OWN_DIRECTORY = Path("/proc/self/cwd/own")
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


class Producer(threading.Thread):
    """Puts records until it is stopped, so that whatever is read twice is not the same twice."""

    def __init__(self, kinesis: Any, stream: str) -> None:
        super().__init__(daemon=True)
        self._kinesis = kinesis
        self._stream = stream
        self._stop_asked = threading.Event()
        self.produced = 0

    def run(self) -> None:
        while not self._stop_asked.wait(0.02):
            records = [{"Data": b"%d" % (self.produced + i), "PartitionKey": f"k{i}"} for i in range(40)]
            assert self._kinesis.put_records(StreamName=self._stream, Records=records)["FailedRecordCount"] == 0
            self.produced += len(records)

    def finish(self) -> None:
        self._stop_asked.set()
        self.join()


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


def main(master: str, endpoint: str, folder: Path, kinds: list[str], rounds: list[str]) -> dict[str, Any]:
    log = Path(f"{folder}.log")
    log.mkdir()
    settings = settings_for(master)
    if settings.mode == "cluster":
        logged = {"spark.eventLog.enabled": "true", "spark.eventLog.compress": "false"}
        logged["spark.eventLog.dir"] = str(log)
        settings = settings.model_copy(update={"conf": settings.conf | HASTY | logged})
    spark = start_session(settings, "chaos")
    found = {kind: of_sink(spark, endpoint, kind, folder, rounds) for kind in kinds}
    spark.stop()
    return {"sinks": found, "twins": twins(log)}


def of_sink(spark: SparkSession, endpoint: str, kind: str, folder: Path, rounds: list[str]) -> dict[str, Any]:
    """All rounds with one sink, and a stream of its own."""
    kinesis = client("kinesis", endpoint_url=endpoint, **KEYS)
    connection = Connection(endpoint_url=endpoint, **KEYS)
    kinesis.create_stream(StreamName=kind, ShardCount=SHARDS)
    sink = ChainedSink(kind, folder / kind)
    # As the second attempt of a task writes it, whose result does not reach the driver.
    probe = sink.folder / "_sharing" / "shared.1.1.probe"
    probe.parent.mkdir()
    probe.touch()
    check_sharing(spark, (*sink.sink.stores_into, LocalStore(str(sink.folder)))[0], "shared")
    reading = EngineSettings(tasks=2, limits=ShardLimits.unlimited())
    keeping = SparkEngine(spark, connection, reading)
    staging = SparkEngine(spark, connection, reading, staging=sink.staging)
    shards = [shard["ShardId"] for shard in kinesis.list_shards(StreamName=kind)["Shards"]]
    ranges = [Range(LeaseKey(shard), StreamIdentifier(kind), shard, TRIM_HORIZON, 1) for shard in shards]
    producer = Producer(kinesis, kind)
    producer.start()
    unshared = on_disks_of_their_own(spark, keeping, kind, ranges)
    retries, counted = 0, Counter[str]()
    for round_ in itertools.chain(rounds, itertools.repeat(LAST)):
        if round_ == LAST:
            producer.finish()
        if is_classic(spark):
            spark.sparkContext.setJobDescription(round_)
        way = next((way for way in (STAGED, CHANGED) if round_.startswith(way)), AS_READ)
        engine = staging if way == STAGED else keeping
        ranges, records, tries = one_batch(
            spark, engine, partial(sink.store, way), ranges, round_.removeprefix(way)
        )
        retries += tries
        counted[way] += records
        if round_ == LAST and not records:
            break
    for engine in (keeping, staging):
        engine.close()
    return {
        "produced": producer.produced,
        "counted": counted.total(),
        "changed": counted[CHANGED],
        "retries": retries,
        "unshared": unshared,
        "left behind": [path.name for path in (probe,) if path.exists()],
        **sink.finish(),
    }


def on_disks_of_their_own(spark: SparkSession, engine: SparkEngine, kind: str, ranges: list[Range]) -> str:
    """What is said about a sink whose files the driver does not see. Nothing of the batch counts as stored."""
    sink = ChainedSink(kind, OWN_DIRECTORY / kind)
    try:
        for store in sink.sink.stores_into:
            check_sharing(spark, store, "unshared")
        while not one_batch(spark, engine, partial(sink.store, AS_READ), ranges, "none")[1]:
            pass  # records are produced meanwhile
    except ConfigurationError as error:
        return str(error)
    return ""


def one_batch(
    spark: SparkSession,
    engine: SparkEngine,
    store: Callable[[Records, Batch], None],
    ranges: list[Range],
    kind: str,
) -> tuple[list[Range], int, int]:
    """What a worker does for a batch, and again until it is stored: the same range, though a worker with a chain
    would read on to where it gets. `kind` says when an executor dies."""
    app = "" if kind in ("none", LAST) else spark.sparkContext.applicationId
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
            batch = batch_of(list(progress.values()), APPLICATION)
            if kind == "before-write" and tries == 0:
                kill_all(app)  # one of them may hold nothing: on a busy machine the other may have read everything
                time.sleep(1)
            if kind == "write" and tries == 0:
                threading.Timer(0.1, kill_one, [app]).start()
            if batch.parts:
                store(fetched.data([part.lease for part in batch.parts]), batch)
            fetched.release()
        except (BatchContentChanged, BatchError):
            tries += 1
            assert tries < 10
            continue
        records = sum(p.records for p in progress.values())
        following = [replace(r, after=progress[r.lease].through or r.after, number=r.number + 1) for r in ranges]
        return following, records, tries


if __name__ == "__main__":
    master, endpoint, folder, kinds, *rounds = sys.argv[1:]
    sys.stdout.write(json.dumps(main(master, endpoint, Path(folder), kinds.split(","), rounds)))
