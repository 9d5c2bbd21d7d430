"""What storing costs in files and requests: `make bench-cost`, or `python -m benchmarks.cost`.

One worker with the default settings stores shards that are always busy on the embedded S3, first with its batches
decided in the leases, then in chains. Requests are counted where they arrive. They are those of the steady state:
the first batches, in which leases are taken, are not counted.

Prints a table, leases beside chains, and one JSON line for each figure. About six minutes.
"""

import argparse
import json
import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, get_args
from urllib.parse import parse_qs, urlsplit

from dagster import AssetKey
from pyspark.sql import DataFrame, SparkSession

import kcl_dagster as kcl
from kcl_dagster.emulator.gateway import Gateway
from kcl_dagster.emulator.http.http_messages import HttpRequest
from kcl_dagster.leader.construction import open_leader
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.operations.cost import Storing, estimate
from kcl_dagster.orchestration.diary import Diary
from kcl_dagster.orchestration.sinks import Commit
from kcl_dagster.orchestration.worker_run import WorkerRun
from kcl_dagster.runtime import system
from kcl_dagster.spark.session import SparkSettings, start_session
from kcl_dagster.spark.storage import S3Options, open_store
from kcl_dagster.testing.consuming import EmbeddedAws, embedded_aws
from kcl_dagster.worker.report import BatchReport
from kcl_dagster.worker.stop import StopReason, StopSignal

FIRST_BATCHES: Final = 4  # not counted: leases are taken, and claimed
RECORD_BYTES: Final = 1000
PUT_SECONDS: Final = 0.5  # from one round of records for all shards to the next
HOUR: Final = 3600.0
LEASE_WRITES: Final = "writes to leases"
S3_WRITES: Final = ("s3 PutObject", "s3 CopyObject", "s3 ListObjectsV2")  # what S3 charges as writes
S3_READS: Final = ("s3 GetObject",)
BUCKET: Final = "lake"
# At most, of batches in chains.
BARS: Final = {"data files per batch": 2.0, "DynamoDB writes of a lease per hour": 400.0}
DOLLARS: Final = 19.0


def operation(request: HttpRequest) -> str | None:
    """What the request is counted as; None for those of the leader, and for heartbeats."""
    target = request.headers.get("x-amz-target", "")
    if target.startswith("DynamoDB"):
        is_of_lease = target.endswith(".UpdateItem") and b'"shardId-' in request.body
        return LEASE_WRITES if is_of_lease else None
    if f"/{BUCKET}" not in request.target.partition("?")[0]:
        return None
    query = parse_qs(urlsplit(request.target).query, keep_blank_values=True)
    match request.method:
        case "PUT":
            return "s3 CopyObject" if "x-amz-copy-source" in request.headers else "s3 PutObject"
        case "GET" if "list-type" in query:
            return "s3 ListObjectsV2"
        case "POST" | "DELETE":
            return "s3 DeleteObjects"
        case _:
            return "s3 GetObject"


@contextmanager
def counted(requests: Counter[str]) -> Iterator[None]:
    """Count the requests that reach this process's emulators."""
    handle = Gateway.__call__

    def listening(gateway: Gateway, request: HttpRequest) -> Any:
        found = operation(request)
        if found is not None:
            requests[found] += 1
        return handle(gateway, request)

    Gateway.__call__ = listening  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Gateway.__call__ = handle  # type: ignore[method-assign]


@dataclass
class SteadyDiary(Diary):
    """Begins to count with the first batches stored, and stops the worker after so many more seconds."""

    requests: Counter[str] = field(default_factory=Counter)
    stop: StopSignal = field(default_factory=StopSignal)
    seconds: float = 60.0
    batches: int = 0
    stored_batches: int = 0
    """All, also those that are not counted."""

    records: int = 0
    began: float | None = None
    ended: float = 0.0
    counted: Counter[str] = field(default_factory=Counter)

    def batch(self, report: BatchReport) -> None:
        now = self.monotonic()
        self.batches += bool(report.records)
        self.stored_batches += bool(report.records)
        if self.began is None:
            if self.batches == FIRST_BATCHES:
                self.began, self.batches = now, 0
                self.requests.clear()
            return
        self.records += report.records
        if self.ended:
            return
        if now - self.began >= self.seconds:
            self.ended, self.counted = now, Counter(self.requests)
            self.stop.request(StopReason.ASKED, "enough was counted")


def produce(cloud: EmbeddedAws, stream: str, shards: int, over: threading.Event) -> None:
    """Records for every shard."""
    payload = b"x" * RECORD_BYTES
    width = 2**128 // shards
    kinesis = cloud.emulator.client("kinesis")
    while not over.wait(PUT_SECONDS):
        some = [
            {"Data": payload, "PartitionKey": "key", "ExplicitHashKey": str(shard * width)}
            for shard in range(shards)
        ]
        kinesis.put_records(StreamName=stream, Records=some)


def transform(records: DataFrame) -> DataFrame:
    return records.selectExpr("lease_key", "sequence_number", "cast(data as string) as text")


def run(cloud: EmbeddedAws, spark: SparkSession, commit: Commit, shards: int, seconds: float) -> SteadyDiary:
    stream = f"cost-{commit}"
    cloud.emulator.client("kinesis").create_stream(StreamName=stream, ShardCount=shards)
    application = kcl.Application(name=stream, streams=stream)
    place = f"s3://{BUCKET}/{commit}"
    consumer = kcl.kcl_consumer(application=application, sink=kcl.parquet(place, commit=commit), name="records")(
        transform
    )
    resource = cloud.resource()
    requests: Counter[str] = Counter()
    stop = StopSignal()
    log = logging.getLogger(__name__)
    diary = SteadyDiary(
        AssetKey("records"),
        "worker-000",
        lambda _: None,
        log,
        lambda *_: None,
        requests=requests,
        stop=stop,
        seconds=seconds,
    )
    # The leader's own requests do not depend on the sink, and are few.
    leader = open_leader(
        application,
        dynamodb=resource.client("dynamodb"),
        kinesis=resource.client("kinesis"),
        identity="bench",
        runtime=system(),
    )
    over = threading.Event()

    def lead() -> None:
        while not over.wait(application.timings.tick_interval + 1):
            leader.tick(RunView(launches=False))

    leader.tick(RunView(launches=False))
    threads = [
        threading.Thread(target=lead, daemon=True),
        threading.Thread(target=produce, args=(cloud, stream, shards, over), daemon=True),
    ]
    with counted(requests):
        for thread in threads:
            thread.start()
        WorkerRun(consumer, resource, lambda: spark, "worker-000", system().new_id(), diary).work(stop)
        over.set()
        for thread in threads:
            thread.join()
    leader.resign()
    return diary


def figures(diary: SteadyDiary, shards: int, files: int) -> dict[str, float]:
    assert diary.began is not None
    seconds = diary.ended - diary.began
    per_hour = HOUR / seconds
    of_batches = max(1, diary.batches)
    s3_writes = sum(diary.counted[name] for name in S3_WRITES)
    return {
        "batches": diary.batches,
        "data files per batch": files / diary.stored_batches,
        "data files per hour": files / diary.stored_batches * diary.batches * per_hour,
        "DynamoDB writes of a lease per hour": diary.counted[LEASE_WRITES] * per_hour / shards,
        "S3 PUT, COPY, LIST per batch": s3_writes / of_batches,
        "S3 PUT, COPY, LIST per hour": s3_writes * per_hour,
        "S3 GET per batch": sum(diary.counted[name] for name in S3_READS) / of_batches,
        "S3 DELETE per batch": diary.counted["s3 DeleteObjects"] / of_batches,
    }


def figure(name: str, value: float, bar: float | None) -> dict[str, Any]:
    about = {"figure": name, "value": round(value, 2), "unit": "", "bar": bar}
    return {**about, "ok": bar is None or value <= bar}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=120.0, help="for which requests are counted, each time")
    options = parser.parse_args(arguments)
    spark = start_session(SparkSettings(memory="1g"), "bench-cost")
    found: dict[str, dict[str, float]] = {}
    try:
        for commit in get_args(Commit):
            with embedded_aws(streams={}) as cloud:
                resource: Any = cloud.resource()
                cloud.emulator.client("s3").create_bucket(Bucket=BUCKET)  # its first request takes long
                diary = run(cloud, spark, commit, options.shards, options.seconds)
                store = open_store(f"s3://{BUCKET}/{commit}", S3Options(**resource.connection("s3", "bench")))
                files = sum(file.path.endswith(".parquet") for file in store.files())
                found[commit] = figures(diary, options.shards, files)
    finally:
        spark.stop()
    for name in found["leases"]:
        former, chained = found["leases"][name], found["chains"][name]
        print(f"{name:<36}{former:12,.1f}{chained:12,.1f}")
    for commit, values in found.items():
        for name, value in values.items():
            bar = BARS.get(name) if commit == "chains" else None
            print(json.dumps(figure(f"{commit}, {options.shards} shards: {name}", value, bar)))
    for chained in (False, True):
        cost = estimate(
            kcl.Application(name="orders", streams="orders"),
            shards=100,
            workers=4,
            storing=Storing(chained=chained),
        )
        dollars = sum(line.dollars(cost.prices) for line in cost.lines if not line.puts)
        name = (
            f"{'chains' if chained else 'leases'}, 100 shards, 4 workers: DynamoDB dollars a month, as `cost` says"
        )
        print(json.dumps(figure(name, dollars, DOLLARS if chained else None)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
