"""A batch whose transform moves records by chance, on a cluster that loses part of the shuffle while the batch is
staged. A program of its own: it needs its own session. Its last line of output is a verdict in JSON.

    python -m tests.integration.spark.random_shuffle_run MASTER ENDPOINT FOLDER SESSION

SESSION is ours: it does not look for evaluations that differ, as Spark 4.0 and 4.1; or another: it does, as Spark
does by default since 4.2, and it may repeat stages. MASTER has three executors: two hold the records, and the third
one holds only part of the shuffle. That one is killed when one task has staged its rows and the others wait.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster.aws import client
from kcl_dagster.errors import BatchError
from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.spark.engine import EngineSettings, SparkEngine
from kcl_dagster.spark.fetch import Connection
from kcl_dagster.spark.session import start_session
from kcl_dagster.spark.transform import Transform
from kcl_dagster.streams.pacing import ShardLimits
from kcl_dagster.worker.batch import Range
from tests.integration.spark.cluster_run import BUDGET, KEYS, SHARDS, settings_for
from tests.integration.spark.cluster_sinks import APPLICATION, CHANGED, ChainedSink
from tests.integration.spark.conftest import batch_of
from tests.integration.spark.executor_faults import executors

STREAM = "clicks"
RECORDS = 4000
TASKS = 6  # more than there are executors: some begin after the kill
TRIES = 5
PATIENCE_SECONDS = 120.0
CHECKSUMS = "spark.sql.shuffle.orderIndependentChecksum"
SESSIONS = {
    "ours": {f"{CHECKSUMS}.enabled": "false", f"{CHECKSUMS}.enableFullRetryOnMismatch": "false"},
    "another": {"spark.stage.maxConsecutiveAttempts": "4"},
}


def by_chance(begun: str, killed: str) -> Transform:
    """The first task ends and leaves the file `begun`; the others wait for the file `killed`."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        rows = list(batches)
        if context.partitionId() == 0:
            yield from rows
            Path(begun).touch()
        else:
            wait_for(killed)
            yield from rows

    def transform(records: DataFrame) -> DataFrame:
        chance = F.udf(lambda _: random.random(), "double").asNondeterministic()
        spread = records.repartition(TASKS, "partition_key")  # also to the executor that holds no records
        moved = spread.withColumn("chance", chance("data")).repartition(TASKS, "chance")
        return moved.mapInArrow(wait, moved.schema)

    return transform


def wait_for(path: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def kill_the_one_without_records(spark: SparkSession, begun: str, killed: str) -> None:
    """Runs on a thread of its own."""
    wait_for(begun)
    context = spark.sparkContext
    listed = context._jsc.sc().statusStore().executorList(True)
    held = {listed.apply(place).id(): listed.apply(place).rddBlocks() for place in range(listed.size())}
    for pid in executors(context.applicationId):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        if held.get(words[words.index("--executor-id") + 1]) == 0:
            os.kill(pid, signal.SIGKILL)
            while Path(f"/proc/{pid}").exists():
                time.sleep(0.05)
            Path(killed).touch()


def main(master: str, endpoint: str, folder: Path, session: str) -> dict[str, Any]:
    folder.mkdir()
    settings = settings_for(master)
    conf = {"spark.cores.max": "3", "spark.sql.adaptive.coalescePartitions.enabled": "false"}
    spark = start_session(settings.model_copy(update={"conf": settings.conf | conf | SESSIONS[session]}), "chance")
    kinesis = client("kinesis", endpoint_url=endpoint, **KEYS)
    kinesis.create_stream(StreamName=STREAM, ShardCount=SHARDS)
    for first in range(0, RECORDS, 500):
        some = [{"Data": b"%d" % n, "PartitionKey": f"k{n}"} for n in range(first, first + 500)]
        assert kinesis.put_records(StreamName=STREAM, Records=some)["FailedRecordCount"] == 0
    shards = [shard["ShardId"] for shard in kinesis.list_shards(StreamName=STREAM)["Shards"]]
    ranges = [Range(LeaseKey(shard), StreamIdentifier(STREAM), shard, TRIM_HORIZON, 1) for shard in shards]
    connection = Connection(endpoint_url=endpoint, **KEYS)
    engine = SparkEngine(spark, connection, EngineSettings(tasks=2, limits=ShardLimits.unlimited()))
    begun, killed = str(folder / "begun"), str(folder / "killed")
    sink = ChainedSink("delta", folder / "table", {CHANGED: by_chance(begun, killed)})
    killer = threading.Thread(target=kill_the_one_without_records, args=(spark, begun, killed), daemon=True)
    killer.start()
    errors: list[str] = []
    while len(errors) < TRIES:
        fetched = engine.fetch(ranges, BUDGET)
        batch = batch_of(list(fetched.progress.values()), APPLICATION)
        try:
            sink.store(CHANGED, fetched.data([part.lease for part in batch.parts]), batch)
            break
        except BatchError as error:
            errors.append(type(error).__name__)
    engine.close()
    found = sink.finish()
    spark.stop()
    return {"errors": errors, "killed": Path(killed).exists(), "read": batch.records, **found}


if __name__ == "__main__":
    master, endpoint, folder, session = sys.argv[1:]
    sys.stdout.write(json.dumps(main(master, endpoint, Path(folder), session)))
