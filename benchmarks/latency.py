"""Measures how soon records can be seen: `make bench-latency`, or `python -m benchmarks.latency`.

The latency of a record is the time from the return of PutRecords until readers of a sink can see the record, or
until the consumer's code gets it. One worker with the default settings reads four shards of an embedded AWS, which
is a process of its own and has the limits of Kinesis. There are two loads, one after the other:

    busy     a record for each shard, four times a second
    sparse   one record for one shard, after pauses of one to five seconds

For comparison, Java's KCL 3.1.3 reads the same loads, with its default pauses between reads. It passes records to a
processor, and stores nothing.

Prints a table, and one JSON line for each figure. Takes about twelve minutes. `--only` chooses ways by a part of
their names.
"""

import argparse
import json
import logging
import math
import random
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from dagster import AssetKey
from pyiceberg.catalog import load_catalog
from pyspark.sql import DataFrame, SparkSession

import kcl_dagster as kcl
from benchmarks.leading import leading
from benchmarks.source import KEYS, emulator
from benchmarks.worker import Figure
from kcl_dagster import aws
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.run_event_log import RunEventLog
from kcl_dagster.orchestration.worker_run import WorkerRun
from kcl_dagster.runtime import system
from kcl_dagster.spark.session import SparkSettings, start_session
from kcl_dagster.spark.sinks.catalog_table import DEFAULT_CATALOG
from kcl_dagster.spark.storage import S3Options, open_store
from kcl_dagster.testing import EmulatorResource
from kcl_dagster.worker.processor import ProcessRecordsInput, RecordProcessorBase
from kcl_dagster.worker.stop import StopReason, StopSignal
from tests.interop import java_kcl

SHARDS: Final = 4
DIGITS: Final = 8  # the payload of a record is its number, with so many digits
SECONDS: Final = 45.0  # the duration of each load
BUSY_PAUSE: Final = 0.25
SPARSE_PAUSES: Final = (1.0, 5.0)
LOOK_SECONDS: Final = 0.02
TABLE_LOOK_SECONDS: Final = 0.1
WARM_SECONDS: Final = 150.0  # time limit until the first records are seen
LAST_SECONDS: Final = 60.0  # time limit until the last records are seen
WARM_ROUNDS: Final = 3
WARM_UP_SECONDS: Final = 2.0
WARM_UP: Final = "warm-up"
SEED: Final = 20_261_123
LOADS: Final = ("busy", "sparse")
BUCKET: Final = "lake"
ICEBERG_TABLE: Final = "lake.records"
# The KCL's defaults: the pause between two reads of a shard, and the most records of one read.
JAVA_IDLE_MS: Final = 1500
JAVA_RECORDS: Final = 10_000
TABLE_SECONDS: Final = 30.0  # the default of `visible_within` for a table
MARGIN_SECONDS: Final = 0.5  # 99 of 100 sparse records must be seen at most this long after `visible_within`
FANOUT_SECONDS: Final = 0.2  # half of the records must reach the consumer's code within this time
PERCENTS: Final = (50, 90, 99)

Seen = dict[int, float]
"""When each record was seen first, by the number of the record. In seconds of `time.monotonic()`."""


@dataclass
class Producer:
    """Puts numbered records, and records when each PutRecords call returned."""

    kinesis: Any
    stream: str
    put_at: dict[int, float] = field(default_factory=dict)
    load_of: dict[int, str] = field(default_factory=dict)
    chance: random.Random = field(default_factory=lambda: random.Random(SEED))

    def put(self, load: str, shards: Sequence[int]) -> None:
        width, first = 2**128 // SHARDS, len(self.put_at)
        numbers = range(first, first + len(shards))
        self.kinesis.put_records(
            StreamName=self.stream,
            Records=[
                {
                    "Data": f"{number:0{DIGITS}}".encode(),
                    "PartitionKey": "key",
                    "ExplicitHashKey": str(shard * width + 1),
                }
                for number, shard in zip(numbers, shards, strict=True)
            ],
        )
        now = time.monotonic()
        for number in numbers:
            self.put_at[number], self.load_of[number] = now, load

    def busy(self, load: str, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.put(load, range(SHARDS))
            time.sleep(BUSY_PAUSE)

    def sparse(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            time.sleep(self.chance.uniform(*SPARSE_PAUSES))
            self.put("sparse", [self.chance.randrange(SHARDS)])


class Sights(ABC):
    """Finds out which records of a stream have been seen so far, and when."""

    @abstractmethod
    def seen(self) -> Seen: ...


class Visible(Sights):
    """Lists a folder or table again and again. `look` returns the names of the files or snapshots that are there.
    `read` returns the numbers of the records in the file or snapshot with a name."""

    def __init__(
        self, look: Callable[[], Iterable[Any]], read: Callable[[Any], Iterable[int]], pause: float
    ) -> None:
        self._look, self._read, self._pause = look, read, pause
        self._found: dict[Any, float] = {}
        self._was_read: set[Any] = set()
        self._seen: Seen = {}
        self._over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._over.wait(self._pause):
            now = time.monotonic()
            with suppress(Exception):  # there is no table before the first commit
                for name in self._look():
                    self._found.setdefault(name, now)

    def close(self) -> None:
        self._over.set()

    def seen(self) -> Seen:
        for name, at in list(self._found.items()):
            if name not in self._was_read:
                for number in self._read(name):
                    self._seen.setdefault(number, at)
                self._was_read.add(name)
        return self._seen


@dataclass
class Noted(Sights):
    """Reads the file in which the consumer's code notes when it gets each record."""

    file: Path

    def seen(self) -> Seen:
        seen: Seen = {}
        for line in self.file.read_text().splitlines() if self.file.exists() else ():
            number, _, at = line.partition(" ")
            if at.endswith("."):  # the line is complete
                seen.setdefault(int(number), float(at[:-1]))
        return seen


@dataclass
class Printed(Sights):
    """Reads the output of the Java consumer, which prints each record when its processor gets the record."""

    worker: java_kcl.JavaWorker

    def seen(self) -> Seen:
        seen: Seen = {}
        for record in list(self.worker.records):
            seen.setdefault(int(record.data), record.at)
        return seen


def numbers_in(column: pa.ChunkedArray) -> list[int]:
    return [int(payload) for payload in column.to_pylist()]


@dataclass(frozen=True)
class Place:
    """The environment of one measurement. `folder`: a folder that no other measurement uses."""

    endpoint: str
    spark: SparkSession
    stream: str
    folder: Path


Reading = Callable[[Place], AbstractContextManager[Sights]]


@dataclass(frozen=True)
class Way:
    """A sink or a kind of consumer whose latency is measured. `bars`: the most seconds, by load and percentile."""

    name: str
    reading: Reading
    bars: Mapping[tuple[str, int], float] = field(default_factory=dict)


def with_text(records: DataFrame) -> DataFrame:
    return records.selectExpr("cast(data as string) as text")


@contextmanager
def working(place: Place, consumer: Consumer) -> Iterator[None]:
    """Run a leader and a worker, each on a thread, until the end of the block."""
    resource, stop, log = EmulatorResource(endpoint_url=place.endpoint), StopSignal(), logging.getLogger(__name__)
    event_log = RunEventLog(AssetKey("records"), "worker-000", lambda _: None, log, lambda *_: None)
    worker = WorkerRun(consumer, resource, lambda: place.spark, "worker-000", system().new_id(), event_log)
    thread = threading.Thread(target=worker.work, args=(stop,))
    with leading(consumer.application, resource):
        thread.start()
        try:
            yield
        finally:
            stop.request(StopReason.ASKED, "enough was measured")
            thread.join()


def consumer_of(place: Place, sink: Any, transform: Callable[..., Any], **more: Any) -> Consumer:
    make = kcl.kcl_consumer(application=place.stream, stream=place.stream, sink=sink, name="records", **more)
    return make(transform)


def folder(*, is_in_s3: bool, **more: Any) -> Reading:
    @contextmanager
    def reading(place: Place) -> Iterator[Sights]:
        path = f"s3://{BUCKET}/{place.stream}" if is_in_s3 else str(place.folder / "records")
        access = S3Options(endpoint_url=place.endpoint, **KEYS)
        store = open_store(path, access)

        def look() -> list[str]:
            return [file.path for file in store.files() if file.path.endswith(".parquet")]

        def read(name: str) -> list[int]:
            table = pq.read_table(pa.BufferReader(store.get(name)), columns=["data"], partitioning=None)
            return numbers_in(table.column("data"))

        sights = Visible(look, read, LOOK_SECONDS)
        with (
            closing(sights),
            working(place, consumer_of(place, kcl.parquet(path), lambda records: records, **more)),
        ):
            yield sights

    return reading


@contextmanager
def delta(place: Place) -> Iterator[Sights]:
    path = place.folder / "records"

    def look() -> list[str]:
        return [file.name for file in (path / "_delta_log").glob("*.json")]

    def read(name: str) -> list[int]:
        actions = [json.loads(line) for line in (path / "_delta_log" / name).read_text().splitlines()]
        files = [path / action["add"]["path"] for action in actions if "add" in action]
        return [n for file in files for n in numbers_in(pq.read_table(file, partitioning=None).column("text"))]

    sights = Visible(look, read, LOOK_SECONDS)
    with closing(sights), working(place, consumer_of(place, kcl.delta(str(path)), with_text)):
        yield sights


@contextmanager
def iceberg(place: Place) -> Iterator[Sights]:
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{place.folder}/catalog.db",
        "warehouse": f"file://{place.folder}/warehouse",
    }
    load_catalog(DEFAULT_CATALOG, **properties)  # creates its tables; two threads must not do this at the same time

    def table() -> Any:
        return load_catalog(DEFAULT_CATALOG, **properties).load_table(ICEBERG_TABLE)

    def look() -> list[int]:
        snapshot = table().current_snapshot()
        return [] if snapshot is None else [snapshot.snapshot_id]

    def read(snapshot: int) -> list[int]:
        return numbers_in(table().scan(snapshot_id=snapshot).to_arrow().column("text"))

    sights = Visible(look, read, TABLE_LOOK_SECONDS)
    sink = kcl.iceberg(ICEBERG_TABLE, properties)
    with closing(sights), working(place, consumer_of(place, sink, with_text)):
        yield sights


def batches(retrieval: str, linger: float | None = None) -> Reading:
    @contextmanager
    def reading(place: Place) -> Iterator[Sights]:
        file = place.folder / "noted"

        def note(records: DataFrame, batch: Any) -> None:  # noqa: ARG001 - foreach_batch gives it
            payloads = [bytes(row.data).decode() for row in records.select("data").collect()]
            now = time.monotonic()
            with file.open("a") as notes:
                notes.write("".join(f"{payload} {now}.\n" for payload in payloads))

        settings = kcl.BatchSettings(retrieval=retrieval, linger_seconds=linger)
        consumer = consumer_of(place, kcl.foreach_batch(note), lambda records: records, batch=settings)
        with working(place, consumer):
            yield Noted(file)

    return reading


def processors(retrieval: str) -> Reading:
    @contextmanager
    def reading(place: Place) -> Iterator[Sights]:
        file = str(place.folder / "noted")

        class Notes(RecordProcessorBase):
            def process_records(self, process_records_input: ProcessRecordsInput) -> None:
                now = time.monotonic()
                with Path(file).open("a") as notes:
                    notes.write(
                        "".join(
                            f"{record.binary_data.decode()} {now}.\n" for record in process_records_input.records
                        )
                    )
                process_records_input.checkpointer.checkpoint()

        settings = kcl.BatchSettings(retrieval=retrieval)
        make = kcl.kcl_consumer(application=place.stream, stream=place.stream, name="records", batch=settings)
        with working(place, make(Notes)):
            yield Noted(Path(file))

    return reading


def java(retrieval: str) -> Reading:
    @contextmanager
    def reading(place: Place) -> Iterator[Sights]:
        settings = {"retrieval": retrieval, "idle": JAVA_IDLE_MS, "batch": JAVA_RECORDS}
        with java_kcl.worker(
            java_kcl.legacy(),
            endpoint=place.endpoint,
            application=place.stream,
            stream=place.stream,
            worker_id="java",
            log=place.folder / "log",
            settings=settings,
        ) as worker:
            yield Printed(worker)

    return reading


def limits(percent: int, seconds: float) -> dict[tuple[str, int], float]:
    return {("sparse", percent): seconds}


def fanout_limits() -> dict[tuple[str, int], float]:
    return {(load, 50): FANOUT_SECONDS for load in LOADS}


LINGER: Final = 0.05
SOON: Final = 2.0  # a `visible_within` of a folder that is shorter than the default
WAYS: Final = (
    Way("Parquet on disk, default", folder(is_in_s3=False)),
    Way("Parquet in S3, default", folder(is_in_s3=True)),
    Way(
        f"Parquet on disk, visible within {SOON:g} s",
        folder(is_in_s3=False, visible_within=SOON),
        limits(99, SOON + MARGIN_SECONDS),
    ),
    Way("Delta, default", delta, limits(99, TABLE_SECONDS + MARGIN_SECONDS)),
    Way("Iceberg, default", iceberg, limits(99, TABLE_SECONDS + MARGIN_SECONDS)),
    Way("foreach_batch, polling", batches("polling")),
    Way("foreach_batch, fan-out", batches("fanout")),
    Way(f"foreach_batch, fan-out, linger {LINGER:g} s", batches("fanout", LINGER), fanout_limits()),
    Way("record processor, polling", processors("polling")),
    Way("record processor, fan-out", processors("fanout"), fanout_limits()),
    Way("KCL 3.1.3 (Java), polling", java("POLLING")),
    Way("KCL 3.1.3 (Java), fan-out", java("FANOUT")),
)


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > ends:
            raise TimeoutError(f"after {seconds:.0f} s: {what}")
        time.sleep(LOOK_SECONDS)


def measure(way: Way, place: Place, seconds: float) -> dict[str, list[float]]:
    """Measure one way. Returns the latencies of the records in seconds, by load."""
    kinesis = aws.client("kinesis", endpoint_url=place.endpoint, **KEYS)
    kinesis.create_stream(StreamName=place.stream, ShardCount=SHARDS)
    producer = Producer(kinesis, place.stream)
    with way.reading(place) as sights:
        producer.put(WARM_UP, range(SHARDS))
        wait_until(lambda: len(sights.seen()) == SHARDS, WARM_SECONDS, f"{way.name}: nothing was seen")
        for _ in range(WARM_ROUNDS):
            before = len(producer.put_at)
            producer.busy(WARM_UP, WARM_UP_SECONDS)
            wait_until(lambda: len(sights.seen()) > before, LAST_SECONDS, f"{way.name}: warm-up")  # noqa: B023
        producer.busy("busy", seconds)
        producer.sparse(seconds)
        everything = len(producer.put_at)
        wait_until(lambda: len(sights.seen()) == everything, LAST_SECONDS, f"{way.name}: not all records were seen")
        seen = sights.seen()
    found: dict[str, list[float]] = {load: [] for load in LOADS}
    for number, load in producer.load_of.items():
        if load in found:
            found[load].append(seen[number] - producer.put_at[number])
    return found


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest value that `percent` percent of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each load")
    parser.add_argument("--only", default="", help="ways whose names contain this")
    options = parser.parse_args(arguments)
    figures: list[Figure] = []
    print(f"{'seconds until records are seen':<38}" + "".join(f"{load:>9}{'':21}" for load in LOADS))
    print(f"{'':<38}" + f"{'p50':>9} {'p90':>8} {'p99':>8}    " * len(LOADS))
    spark = start_session(SparkSettings(memory="1g"), "bench-latency")
    try:
        with emulator(has_limits=True) as (endpoint, _), tempfile.TemporaryDirectory() as root:
            aws.client("s3", endpoint_url=endpoint, **KEYS).create_bucket(Bucket=BUCKET)
            for number, way in enumerate(way for way in WAYS if options.only in way.name):
                where = Path(root, str(number))
                where.mkdir()
                try:
                    found = measure(way, Place(endpoint, spark, f"latency-{number}", where), options.seconds)
                except java_kcl.Unavailable as reason:
                    print(f"{way.name:<38}not available: {reason}")
                    figures.append(Figure(way.name, None, "s", why=str(reason)))
                    continue
                columns = ""
                for load in LOADS:
                    for percent in PERCENTS:
                        value = percentile(found[load], percent)
                        columns += f"{value:9.2f}"
                        name = f"{way.name}, {load}, p{percent}"
                        figures.append(Figure(name, value, "s", way.bars.get((load, percent)), at_most=True))
                    columns += "   "
                print(f"{way.name:<38}{columns}", flush=True)
    finally:
        spark.stop()
    for figure in figures:
        print(figure.as_json())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
