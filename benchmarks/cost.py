"""Measures what storing costs in files and requests: `make bench-cost`, or `python -m benchmarks.cost`.

One worker with the default settings stores the records of shards that are always busy, in the embedded S3. The
emulator counts the requests that arrive. Only the steady state counts: the first batches, in which the worker takes
leases, are left out.

Then the following is measured. `--only` chooses one part of the benchmark.

- What commits of tables cost, see `benchmarks.cost_tables`. `--commits 20000` measures a week of commits, which
  takes an hour for each format.
- How much longer it takes to store each record exactly once than to store records without this guarantee, see
  `benchmarks.ours`.
- How long a shard stays unread after its worker was killed, see `benchmarks.failover`.

Prints a table and one JSON line for each figure. If it is known, the figure of commit cf50fa6 is shown beside it.
This commit stored the decision on a batch in leases instead of chains. Takes about twenty minutes.
"""

import argparse
import json
import logging
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import isawaitable
from statistics import median
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from dagster import AssetKey
from pyspark.sql import DataFrame, SparkSession

import kcl_dagster as kcl
from benchmarks.cost_tables import CostFigure, table_figures, visibility, visibility_on_disk
from benchmarks.failover import bar_of, side_by_side
from benchmarks.leading import leading
from benchmarks.ours import BATCHES, Ours
from benchmarks.source import LOADS, Source, emulator
from benchmarks.worker import COMPARED, WARM_UP_MEGABYTES
from kcl_dagster.emulator.gateway import Gateway
from kcl_dagster.emulator.http.http_messages import HttpRequest, Response
from kcl_dagster.operations.cost import READ_UNIT_BYTES, CostLine, Prices, estimate
from kcl_dagster.orchestration.run_event_log import RunEventLog
from kcl_dagster.orchestration.worker_run import WorkerRun
from kcl_dagster.runtime import system
from kcl_dagster.spark.session import SparkSettings, start_session
from kcl_dagster.spark.storage import S3Options, Store, open_store
from kcl_dagster.testing.consuming import EmbeddedAws, embedded_aws
from kcl_dagster.worker.report import BatchReport
from kcl_dagster.worker.stop import StopReason, StopSignal
from tests.doubles.dynamodb.values import item_size

FIRST_BATCHES: Final = 4  # batches that do not count, because the worker takes and claims leases in them
# The shards of one worker, if 4 workers read 100 shards. The 100 shards together get 1 MB/s.
SHARDS: Final = 25
RECORD_BYTES: Final = 5000
PUT_SECONDS: Final = 0.5  # between two rounds of records; a round has a record for each shard
IDLE_SECONDS: Final = 600.0  # in this time, the completeness of an idle stream is stored once
# Idle requests are counted only after this time. Until then, requests still follow from the last record: the worker
# writes checkpoints, deletes entries, and stores a moment of completeness that is later than the record. Such
# moments are a minute apart. On a busy machine, only the second or third one is later than the record.
SETTLING_SECONDS: Final = 250.0
HOUR: Final = 3600.0
GB: Final = 1e9
LEASE_WRITES: Final = "writes to leases"
WRITE_UNITS: Final = "halves of write units"
READ_UNITS: Final = "halves of read units"
S3_WRITES: Final = ("s3 PutObject", "s3 CopyObject", "s3 ListObjectsV2")  # requests that S3 charges as writes
S3_READS: Final = ("s3 GetObject",)
# An idle worker lists objects only to delete old chains, once an hour. It does this for the first time ten minutes
# after its start, while the requests of the idle stream are counted. So this number is not multiplied to get that
# of an hour.
HOURLY: Final = "s3 ListObjectsV2"
S3_PER_GB: Final = "S3 PUT, COPY, LIST per GB"
S3_IDLE: Final = "S3 requests per idle hour"
BYTES_PER_HOUR: Final = "bytes stored per hour"
BUCKET: Final = "lake"
PLACE: Final = f"s3://{BUCKET}/records"
# The bars: the largest values that are allowed. They apply to batches in chains.
DOLLARS_COUNTED: Final = "DynamoDB, dollars a month, as counted"
BARS: Final = {
    "data files per batch": 2.0,
    S3_IDLE: 20.0,
    "DynamoDB writes of a lease per hour": 400.0,
    f"{DOLLARS_COUNTED}, over what `cost` says": 1.1,
}
DOLLARS: Final = 19.0
# The figures of commit cf50fa6. Its batches had one file for each shard, which was put and then copied. Each batch
# wrote each lease twice.
FORMER_WRITES: Final = 1440.0
FORMER_REQUESTS_OF_FILE: Final = 2
MOST_OF_FORMER_REQUESTS: Final = 1 / 20
FORMER_OVER_UNSAFE: Final = 1.03
# Seconds from the kill of a worker until records of all its shards are read again, with a lease duration of ten
# seconds. The median of three measurements.
FORMER_TAKEOVER: Final = 13.3
TAKEOVER_LEASE: Final = 10.0
TAKEOVERS: Final = 3
SPEED_MEGABYTES: Final = 448.0  # eight batches that are nearly as large as the default limit
SPEED_RUNS: Final = 9  # the first one does not count
SPEED_WARM_UPS: Final = 12
FORMER_BATCHES: Final = 720  # per hour
FORMER_DOLLARS: Final = 71.0


def operation(request: HttpRequest) -> str | None:
    """The name under which a request is counted. None for requests that are not counted, such as those of the
    leader, and heartbeats."""
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


def content(message: HttpRequest | Response) -> bytes:
    """The body of a request, or of a response that is not streamed."""
    assert isinstance(message.body, bytes)
    return message.body


def units(target: str, request: Mapping[str, Any], answer: Mapping[str, Any]) -> tuple[float, float]:
    """The write units and the read units of a request to DynamoDB. Assumes that no row that is written has more
    than 1 KB."""
    match target.rpartition(".")[2]:
        case "PutItem" | "UpdateItem" | "DeleteItem":
            return 1.0, 0.0
        case "GetItem":
            return 0.0, 1.0 if request.get("ConsistentRead") else 0.5
        case "Query" | "Scan":
            size = sum(item_size(item) for item in answer.get("Items", ()))
            blocks = max(1, -(-size // READ_UNIT_BYTES))
            return 0.0, blocks * (1.0 if request.get("ConsistentRead") else 0.5)
        case _:
            return 0.0, 0.0


@contextmanager
def counted(requests: Counter[str]) -> Iterator[None]:
    """Count the requests that reach this process's emulators, and the units of those to DynamoDB."""
    handle = Gateway.__call__

    async def metered(waiting: Any, request: HttpRequest, target: str) -> Response:
        response: Response = await waiting if isawaitable(waiting) else waiting
        writes, reads = units(target, json.loads(content(request)), json.loads(content(response)))
        requests[WRITE_UNITS] += round(2 * writes)  # in halves of units, because a Counter has whole numbers
        requests[READ_UNITS] += round(2 * reads)
        return response

    def listening(gateway: Gateway, request: HttpRequest) -> Any:
        found = operation(request)
        if found is not None:
            requests[found] += 1
        answer, target = handle(gateway, request), request.headers.get("x-amz-target", "")
        return metered(answer, request, target) if target.startswith("DynamoDB") else answer

    Gateway.__call__ = listening  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Gateway.__call__ = handle  # type: ignore[method-assign]


@dataclass
class SteadyEventLog(RunEventLog):
    """Counts the requests of a busy worker, and then those of an idle worker. The first count begins after
    `FIRST_BATCHES` batches and takes `seconds`. Then no more records are produced. After the second count, the
    worker is stopped."""

    requests: Counter[str] = field(default_factory=Counter)
    stop: StopSignal = field(default_factory=StopSignal)
    seconds: float = 60.0
    batches: int = 0
    stored_batches: int = 0
    """The number of all batches with records, including those that are not counted."""

    records: int = 0
    began: float | None = None
    ended: float = 0.0
    counted: Counter[str] = field(default_factory=Counter)
    produced: threading.Event = field(default_factory=threading.Event)
    """Set when the producer has to end."""

    idle_since: float | None = None
    idle: Counter[str] = field(default_factory=Counter)

    def batch(self, report: BatchReport) -> None:
        now = self.monotonic()
        self.batches += bool(report.records)
        self.stored_batches += bool(report.records)
        if self.began is None:
            if self.batches == FIRST_BATCHES:
                self.began, self.batches = now, 0
                self.requests.clear()
            return
        if not self.ended:
            self.records += report.records
            if now - self.began >= self.seconds:
                self.ended, self.counted = now, Counter(self.requests)
                self.produced.set()
        elif report.records:
            self.idle_since = None
        elif self.idle_since is None or now < self.idle_since:
            self.idle_since = self.idle_since or now + SETTLING_SECONDS
            self.requests.clear()
        elif now - self.idle_since >= IDLE_SECONDS:
            self.idle = Counter(self.requests)
            self.stop.request(StopReason.ASKED, "enough was counted")


def produce(cloud: EmbeddedAws, stream: str, shards: int, over: threading.Event) -> None:
    """Put a record into each shard, again and again, until `over` is set."""
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


def run(cloud: EmbeddedAws, spark: SparkSession, shards: int, seconds: float) -> SteadyEventLog:
    stream = "cost"
    cloud.emulator.client("kinesis").create_stream(StreamName=stream, ShardCount=shards)
    application = kcl.Application(name=stream, streams=stream)
    consumer = kcl.kcl_consumer(application=application, sink=kcl.parquet(PLACE), name="records")(transform)
    resource = cloud.resource()
    requests: Counter[str] = Counter()
    stop = StopSignal()
    log = logging.getLogger(__name__)
    event_log = SteadyEventLog(
        AssetKey("records"),
        "worker-000",
        lambda _: None,
        log,
        lambda *_: None,
        requests=requests,
        stop=stop,
        seconds=seconds,
    )
    producer = threading.Thread(target=produce, args=(cloud, stream, shards, event_log.produced), daemon=True)
    # The leader runs in the same process. Its requests do not depend on the sink, and are few.
    with counted(requests), leading(application, resource):
        producer.start()
        WorkerRun(consumer, resource, lambda: spark, "worker-000", system().new_id(), event_log).work(stop)
        producer.join()
    return event_log


def figures(event_log: SteadyEventLog, shards: int, files: int) -> dict[str, float]:
    assert event_log.began is not None
    seconds = event_log.ended - event_log.began
    per_hour = HOUR / seconds
    of_batches = max(1, event_log.batches)
    used = CostLine(
        "all", event_log.counted[WRITE_UNITS] / 2 / seconds, event_log.counted[READ_UNITS] / 2 / seconds
    )
    dollars = used.dollars(Prices())
    stored = event_log.records * RECORD_BYTES
    s3_writes = sum(event_log.counted[name] for name in S3_WRITES)
    s3_idle = {
        name.removeprefix("s3 "): number * (1 if name == HOURLY else HOUR / IDLE_SECONDS)
        for name, number in event_log.idle.items()
        if name.startswith("s3 ")
    }
    return {
        "batches": event_log.batches,
        "data files per batch": files / event_log.stored_batches,
        "data files per hour": files / event_log.stored_batches * event_log.batches * per_hour,
        "DynamoDB writes of a lease per hour": event_log.counted[LEASE_WRITES] * per_hour / shards,
        DOLLARS_COUNTED: dollars,
        f"{DOLLARS_COUNTED}, over what `cost` says": dollars / dollars_as_estimated(shards, 1),
        "S3 PUT, COPY, LIST per batch": s3_writes / of_batches,
        "S3 PUT, COPY, LIST per hour": s3_writes * per_hour,
        BYTES_PER_HOUR: stored * per_hour,
        S3_PER_GB: s3_writes / (stored / GB),
        S3_IDLE: sum(s3_idle.values()),
        **{f"{S3_IDLE}, {name}": number for name, number in sorted(s3_idle.items())},
        "S3 GET per batch": sum(event_log.counted[name] for name in S3_READS) / of_batches,
        "S3 DELETE per batch": event_log.counted["s3 DeleteObjects"] / of_batches,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=SHARDS)
    parser.add_argument("--seconds", type=float, default=120.0, help="for which requests are counted, each time")
    parser.add_argument("--commits", type=int, default=1000, help="of each table, at least 300")
    parts: dict[str, Callable[[], list[CostFigure]]] = {
        "storing": lambda: storing_figures(options.shards, options.seconds),
        "iceberg": lambda: table_figures("Iceberg", options.commits),
        "delta": lambda: table_figures("Delta", options.commits),
        "visibility": lambda: [*visibility_on_disk(), *visibility_in_s3()],
        "speed": speed_figures,
        "takeover": takeover_figures,
    }
    parser.add_argument("--only", choices=parts, help="leave out the rest")
    options = parser.parse_args(arguments)
    print(f"{'':<86}{'':>19}{'cf50fa6':>12}")
    found: list[CostFigure] = []
    for name, part in parts.items():
        if options.only in (None, name):
            figures = part()
            print("\n".join(figure.as_row() for figure in figures), flush=True)
            found += figures
    for figure in found:
        print(figure.as_json())
    return 0


def former_figures(shards: int, bytes_per_hour: float) -> dict[str, float]:
    """The figures of commit cf50fa6, for one worker with this number of shards, if each shard has records in each
    batch."""
    per_hour = shards * FORMER_REQUESTS_OF_FILE * FORMER_BATCHES
    return {
        "data files per batch": shards,
        "data files per hour": shards * FORMER_BATCHES,
        "DynamoDB writes of a lease per hour": FORMER_WRITES,
        "S3 PUT, COPY, LIST per batch": shards * FORMER_REQUESTS_OF_FILE,
        "S3 PUT, COPY, LIST per hour": per_hour,
        S3_PER_GB: per_hour * GB / bytes_per_hour,
    }


def storing_figures(shards: int, seconds: float) -> list[CostFigure]:
    spark = start_session(SparkSettings(memory="1g"), "bench-cost")
    try:
        with embedded_aws(streams={}) as cloud:
            cloud.emulator.client("s3").create_bucket(Bucket=BUCKET)  # its first request takes long
            event_log = run(cloud, spark, shards, seconds)
            files = sum(file.path.endswith(".parquet") for file in lake(cloud).files())
            found = figures(event_log, shards, files)
    finally:
        spark.stop()
    before = former_figures(shards, found[BYTES_PER_HOUR])
    bars = BARS | {S3_PER_GB: before[S3_PER_GB] * MOST_OF_FORMER_REQUESTS}
    return [
        *(
            CostFigure(f"{shards} shards: {name}", value, "", bars.get(name), before.get(name))
            for name, value in found.items()
        ),
        CostFigure(
            "100 shards, 4 workers: DynamoDB, as `cost` says",
            dollars_as_estimated(100, 4),
            "$/month",
            DOLLARS,
            FORMER_DOLLARS,
        ),
    ]


def speed_figures() -> list[CostFigure]:
    """How much longer it takes to store each record exactly once than to only read and write. Both run in turns."""
    spark, folder = start_session(SparkSettings(memory="1g"), "bench-cost"), tempfile.mkdtemp()
    try:
        with emulator() as (endpoint, pid):
            load = LOADS[COMPARED]
            warm_up = Ours(Source.fill(load, WARM_UP_MEGABYTES, endpoint, "warm-up"), spark, pid, folder)
            for _ in range(SPEED_WARM_UPS):
                warm_up.exactly_once()
                warm_up.unsafe()
            ours = Ours(Source.fill(load, SPEED_MEGABYTES, endpoint, "speed"), spark, pid, folder)
            found = [
                (ours.unsafe().seconds, ours.exactly_once().seconds, ours.exactly_once(batches=BATCHES).seconds)
                for _ in range(SPEED_RUNS)
            ]
    finally:
        spark.stop()
        shutil.rmtree(folder)
    one, many = (median(seconds[n] / seconds[0] for seconds in found[1:]) for n in (1, 2))
    name = "fetch to stored, time of exactly once over unsafe"
    return [
        CostFigure(f"{name}, in one batch", one, "x", FORMER_OVER_UNSAFE, FORMER_OVER_UNSAFE),
        CostFigure(f"{name}, in {BATCHES} batches one after the other", many, "x"),
    ]


def takeover_figures() -> list[CostFigure]:
    (found,) = side_by_side([["--lease", str(TAKEOVER_LEASE), "--repeats", str(TAKEOVERS), "--only", "by counter"]])
    name = f"takeover after kill -9, leases of {TAKEOVER_LEASE:g} s"
    return [CostFigure(name, median(found.seconds), "s", bar_of("by counter", TAKEOVER_LEASE), FORMER_TAKEOVER)]


def dollars_as_estimated(shards: int, workers: int) -> float:
    application = kcl.Application(name="orders", streams="orders")
    cost = estimate(application, shards=shards, workers=workers)
    return sum(line.dollars(cost.prices) for line in cost.lines if not (line.puts or line.gets))


def lake(cloud: EmbeddedAws) -> Store:
    resource: Any = cloud.resource()
    return open_store(PLACE, S3Options(**resource.connection("s3")))


def visibility_in_s3() -> list[CostFigure]:
    with embedded_aws(streams={}) as cloud:
        cloud.emulator.client("s3").create_bucket(Bucket=BUCKET)
        return visibility("in the embedded S3", lake(cloud))


if __name__ == "__main__":
    raise SystemExit(main())
