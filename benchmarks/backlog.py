"""Measures how long a backlog takes: `make bench-backlog`, or `python -m benchmarks.backlog`.

One worker with the default settings reads a backlog of records of 1 KB, from the oldest one on, and stores them in
a Parquet folder. The embedded AWS runs in two processes with the limits of Kinesis: one for streams and one for
tables. They use the same cores as the worker, so a machine that only runs the worker reads faster.

    cores     100 shards. Kinesis lets a worker read more than its cores can, so the cores are the limit. Only the
              CPU of the worker's processes counts. From this CPU, the benchmark computes how long a day's backlog
              takes with several cores
    kinesis   4 shards. The cores can read more than Kinesis lets a worker read, so Kinesis is the limit
    tip       while about 1 MB/s of new records arrive, a second application with a worker of its own begins at
              LATEST, reads by fan-out, and stores into its own folder. The age of a record is the time from the
              response of PutRecords until readers of this folder can see the record. It is measured without a
              backlog, and while the first application reads one. At the end, the benchmark compares both folders
              with the records that were put

Prints a table, and one JSON line for each figure. Figures that begin with `computed` were not measured. Takes about
six minutes. `--only` runs one part.
"""

import argparse
import math
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.catch_up_time import HOUR, MB_PER_GB, Backlog, core_speed, cores_for
from benchmarks.latency import DIGITS, MARGIN_SECONDS, Visible, numbers_in, percentile
from benchmarks.leading import leading
from benchmarks.machine import PeakMemory, cpu_total
from benchmarks.scale import Add, run
from benchmarks.source import KEYS, MB, emulator
from benchmarks.wide_worker import PATIENT, POD, START_SECONDS, StoredRows, has_tables, visible_files, wait_until
from benchmarks.worker import Figure, say
from benchmarks.worker_process import Folder, working
from kcl_dagster import aws
from kcl_dagster.runtime import system
from kcl_dagster.streams.listing import list_shards
from kcl_dagster.testing import EmulatorResource

RECORD_BYTES: Final = 1_000
MOST_IN_A_PUT: Final = 500
REFUSED_SECONDS: Final = 0.2  # until refused records are put again
STORE_SECONDS: Final = 600.0  # time limit until a backlog is stored
# The parts of the backlog between which a worker reads steadily. Before, Spark starts and Java compiles. After this
# part, some shards are at their tip, and a batch waits for records.
STEADY_FROM, STEADY_TO = 0.25, 0.9

CORES_SHARDS, CORES_MEGABYTES = 100, 10.0  # of each shard
KINESIS_SHARDS, KINESIS_MEGABYTES = 4, 40.0
TIP_SHARDS, TIP_MEGABYTES = 100, 20.0

READS: Final = 2 * 2**20  # bytes per second that the embedded AWS, like Kinesis, lets clients read from a shard
LEAST_OF_LIMIT: Final = 0.8  # of this limit, because a worker also has to store what it reads
HALF: Final = 0.5  # MB/s of a shard that is half as busy as it can be

VISIBLE_WITHIN: Final = 10.0  # seconds, which the second application promises
# About 1 MB/s: the benchmark, the embedded AWS and both workers share the cores.
NEW_PAUSE: Final = 0.1
NEW_RECORDS: Final = 100
# When the load of a worker grows, it uses more tasks. Their leases subscribe again, which Kinesis allows after 5 s.
SETTLE_SECONDS: Final = 20.0
ALONE_SECONDS: Final = 45.0
LATEST_SECONDS: Final = 2.0  # LATEST is a whole second of the clock of Kinesis. The backlog must be older than it
TIP_LOOK_SECONDS: Final = 0.1
LAST_SECONDS: Final = 90.0
SEED: Final = 20_261_124


@dataclass
class Stream:
    """A stream of the embedded AWS, and the number of records that were put into its backlog."""

    name: str
    shards: int
    resource: EmulatorResource
    kinesis: Any
    hash_keys: list[str]
    records: int = 0

    @classmethod
    def create(cls, name: str, shards: int, resource: EmulatorResource) -> "Stream":
        patient: dict[str, Any] = {"read_seconds": PATIENT, "total_seconds": PATIENT, **KEYS}
        kinesis = aws.client("kinesis", endpoint_url=resource.kinesis_endpoint_url, **patient)
        kinesis.create_stream(StreamName=name, ShardCount=shards)
        hash_keys = [str(shard.hash_range.start) for shard in list_shards(kinesis, name, runtime=system())]
        return cls(name, shards, resource, kinesis, hash_keys)

    def fill(self, megabytes: float) -> None:
        """Put the same number of records into each shard. `megabytes`: of each shard."""
        of_a_shard = int(megabytes * MB) // RECORD_BYTES
        keys = self.hash_keys * of_a_shard
        parts = [keys[start : start + MOST_IN_A_PUT] for start in range(0, len(keys), MOST_IN_A_PUT)]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda part: self.put([os.urandom(RECORD_BYTES) for _ in part], part), parts))
        self.records += len(keys)

    def put(self, payloads: Sequence[bytes], hash_keys: Sequence[str]) -> None:
        """Put records. Those that Kinesis refuses because a shard gets more than its limit are put again."""
        entries = [
            {"Data": payload, "PartitionKey": "key", "ExplicitHashKey": hash_key}
            for payload, hash_key in zip(payloads, hash_keys, strict=True)
        ]
        while True:
            results = self.kinesis.put_records(StreamName=self.name, Records=entries)["Records"]
            entries = [entry for entry, result in zip(entries, results, strict=True) if "ErrorCode" in result]
            if not entries:
                return
            time.sleep(REFUSED_SECONDS)


@dataclass
class NewRecords:
    """Puts numbered records into random shards until it is closed, and notes when each PutRecords call returned."""

    stream: Stream
    put_at: dict[int, float] = field(default_factory=dict)
    _chance: random.Random = field(default_factory=lambda: random.Random(SEED))
    _closed: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="new-records", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(NEW_PAUSE):
            numbers = range(len(self.put_at), len(self.put_at) + NEW_RECORDS)
            payloads = [f"{number:0{DIGITS}}".ljust(RECORD_BYTES).encode() for number in numbers]
            self.stream.put(payloads, self._chance.choices(self.stream.hash_keys, k=NEW_RECORDS))
            now = time.monotonic()
            self.put_at.update(dict.fromkeys(numbers, now))

    def close(self) -> None:
        self._closed.set()
        self._thread.join()


@dataclass
class Running:
    """An application with a leader and a worker process."""

    folder: Folder
    pid: int
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.stored = StoredRows(self.folder.path)

    def wait_for(self, records: int) -> float:
        """Wait until so many records are visible. Returns the moment."""
        what = f"{self.folder.application}: {records} records are not stored"
        wait_until(lambda: self.stored.count() >= records, STORE_SECONDS, what)
        return time.monotonic()


@contextmanager
def embedded_aws() -> Iterator[EmulatorResource]:
    with emulator(has_limits=True) as (kinesis, _), emulator(has_limits=True) as (endpoint, _):
        dynamodb = aws.client("dynamodb", endpoint_url=endpoint, read_seconds=PATIENT, **KEYS)
        wait_until(lambda: has_tables(dynamodb), START_SECONDS, "the embedded AWS has no tables")
        yield EmulatorResource(endpoint_url=endpoint, kinesis_endpoint_url=kinesis)


@contextmanager
def running(resource: EmulatorResource, folder: Folder) -> Iterator[Running]:
    with (
        leading(folder.consumer().application, resource),
        working(resource, folder, Path(f"{folder.path}.log")) as pid,
    ):
        yield Running(folder, pid)


@dataclass(frozen=True)
class Reading:
    """How a worker read a backlog. `seconds`: from the start of its process until everything was visible. The other
    values are those of the steady part."""

    seconds: float
    steady_seconds: float
    steady_megabytes: float
    steady_cpu: float

    @property
    def speed(self) -> float:
        return self.steady_megabytes / self.steady_seconds

    @property
    def cores(self) -> float:
        return self.steady_cpu / self.steady_seconds

    @property
    def cpu_per_gb(self) -> float:
        return self.steady_cpu / self.steady_megabytes * MB_PER_GB


def read(application: Running, records: int) -> Reading:
    """Wait until a backlog is stored."""
    begun = application.wait_for(int(records * STEADY_FROM))
    before, first = cpu_total(application.pid), application.stored.count()
    over = application.wait_for(int(records * STEADY_TO))
    cpu = cpu_total(application.pid) - before
    megabytes = (application.stored.count() - first) * RECORD_BYTES / MB
    ended = application.wait_for(records)
    return Reading(ended - application.started, over - begun, megabytes, cpu)


def of_backlog(shards: int, megabytes: float, add: Add) -> tuple[Reading, str]:
    """Measure a worker that reads a backlog. Returns the name of the measurement, too."""
    name = f"{shards} shards"
    with embedded_aws() as resource, tempfile.TemporaryDirectory() as root:
        stream = Stream.create("backlog", shards, resource)
        began = time.monotonic()
        stream.fill(megabytes)
        say(f"{name}: {stream.records:,} records were put in {time.monotonic() - began:.0f} s")
        folder = Folder("main", stream.name, f"{root}/main", shards)
        with running(resource, folder) as main, closing(PeakMemory(root=main.pid)) as memory:
            reading = read(main, stream.records)
        wrong = float(abs(main.stored.count() - stream.records))
    add(
        Figure(
            f"{name}: a backlog of {shards * megabytes / MB_PER_GB:g} GB, from start to stored",
            reading.seconds,
            "s",
        )
    )
    add(Figure(f"{name}: records lost or stored twice", wrong, "records", 0.0, at_most=True))
    add(Figure(f"{name}: peak memory of the worker", memory.together, "MB", POD, at_most=True))
    return reading, name


def of_cores(add: Add, shards: int = CORES_SHARDS, megabytes: float = CORES_MEGABYTES) -> None:
    reading, name = of_backlog(shards, megabytes, add)
    add(Figure(f"{name}: read and stored in the steady part", reading.speed, "MB/s"))
    add(Figure(f"{name}: cores that the worker used", reading.cores, "cores"))
    add(Figure(f"{name}: CPU of the worker", reading.cpu_per_gb, "CPU-s/GB"))
    for figure in computed(Backlog(shards), reading.speed, reading.cpu_per_gb):
        add(figure)


def computed(backlog: Backlog, worker_speed: float, cpu_per_gb: float) -> Iterator[Figure]:
    """What follows for a day's backlog of shards that get as much as Kinesis allows, and of shards that get half of
    it."""
    name = f"computed, {backlog.shards} shards"
    fewest, most = (cores_for(speed, cpu_per_gb) for speed in (backlog.arriving_together, backlog.limit))
    yield Figure(f"{name}: one core reads and stores", core_speed(cpu_per_gb), "MB/s")
    yield Figure(f"{name}: cores that keep up with what arrives", fewest, "cores")
    yield Figure(f"{name}: cores at the limit of Kinesis, {backlog.limit:g} MB/s", most, "cores")
    yield Figure(f"{name}: workers like this one at this limit", math.ceil(backlog.limit / worker_speed), "workers")
    for one in (backlog, Backlog(backlog.shards, HALF, backlog.seconds)):
        day = f"{name}: a day of {one.arriving:g} MB/s and shard, {one.megabytes / MB:.2f} TB"
        yield Figure(f"{day}, limit of Kinesis", one.catch_up_seconds(math.inf) / HOUR, "h")
        for cores in sorted({fewest, (fewest + most) // 2, most}):
            hours = one.catch_up_seconds(cores * core_speed(cpu_per_gb)) / HOUR
            known, why = (
                (hours, None) if math.isfinite(hours) else (None, "records arrive as fast as they are read")
            )
            yield Figure(f"{day}, {cores} cores", known, "h", why=why)


def of_kinesis(add: Add, shards: int = KINESIS_SHARDS, megabytes: float = KINESIS_MEGABYTES) -> None:
    reading, name = of_backlog(shards, megabytes, add)
    limit = shards * READS / MB
    what = f"{name}: read and stored in the steady part, limit {limit:.2f} MB/s"
    add(Figure(what, reading.speed, "MB/s", LEAST_OF_LIMIT * limit))
    add(Figure(f"{name}: cores that the worker used", reading.cores, "cores"))


def of_tip(add: Add, shards: int = TIP_SHARDS, megabytes: float = TIP_MEGABYTES) -> None:
    bar = VISIBLE_WITHIN + MARGIN_SECONDS
    with embedded_aws() as resource, tempfile.TemporaryDirectory() as root:
        stream = Stream.create("backlog", shards, resource)
        stream.fill(megabytes)
        time.sleep(LATEST_SECONDS)
        main = Folder("main", stream.name, f"{root}/main", shards)
        tip = Folder("tip", stream.name, f"{root}/tip", shards, "LATEST", "fanout", VISIBLE_WITHIN)
        with (
            running(resource, tip) as second,
            closing(NewRecords(stream)) as new,
            closing(visible_in(tip)) as sights,
        ):
            second.wait_for(1)
            time.sleep(SETTLE_SECONDS)
            begun = len(new.put_at)
            time.sleep(ALONE_SECONDS)
            launched = len(new.put_at)
            with running(resource, main) as first:
                first.wait_for(1)
                reading = len(new.put_at)
                speed = read(first, stream.records).speed
                read_all = len(new.put_at)
                new.close()
                put = len(new.put_at)
                wait_until(lambda: len(sights.seen()) == put, LAST_SECONDS, "the newest records are not all stored")
                first.wait_for(stream.records + put)
        for phase, numbers in {
            "without a backlog": range(begun, launched),
            "while the worker of the backlog starts": range(launched, reading),
            "while a backlog is read": range(reading, read_all),
        }.items():
            ages = [sights.seen()[number] - new.put_at[number] for number in numbers]
            name = f"tip of {shards} shards, {phase}"
            add(Figure(f"{name}, p50", percentile(ages, 50), "s"))
            add(Figure(f"{name}, p99", percentile(ages, 99), "s", bar, at_most=True))
        add(Figure(f"{shards} shards: backlog, read and stored beside the tip", speed, "MB/s"))
        for what, count in {
            "first application: records lost or stored twice": lost_or_twice(main, stream.records + put),
            "second application: records lost or stored twice": lost_or_twice(tip, put),
            "records of the second application that the first lacks": len(set(ids_in(tip)) - set(ids_in(main))),
        }.items():
            add(Figure(what, float(count), "records", 0.0, at_most=True))


def lost_or_twice(folder: Folder, records: int) -> int:
    ids = ids_in(folder)
    return abs(len(ids) - records) + len(ids) - len(set(ids))


def visible_in(folder: Folder) -> Visible:
    def numbers(file: Path) -> list[int]:
        return numbers_in(pq.read_table(file, columns=["data"], partitioning=None).column("data"))

    return Visible(lambda: visible_files(folder.path), numbers, TIP_LOOK_SECONDS)


def ids_in(folder: Folder) -> list[tuple[str, str]]:
    """The shard and the sequence number of each record in a folder."""
    found: list[tuple[str, str]] = []
    for file in visible_files(folder.path):
        table: pa.Table = pq.read_table(file, columns=["shard_id", "sequence_number"], partitioning=None)
        found += zip(*(column.to_pylist() for column in table.columns), strict=True)
    return found


PARTS: Final = {"cores": of_cores, "kinesis": of_kinesis, "tip": of_tip}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, help="one part")
    parser.add_argument("--shards", type=int, help="of the stream, instead of the number of each part")
    parser.add_argument("--megabytes", type=float, help="of each shard, instead of the number of each part")
    options = parser.parse_args(arguments)
    size = {"shards": options.shards, "megabytes": options.megabytes}
    given = {name: value for name, value in size.items() if value is not None}
    return run({name: partial(part, **given) for name, part in PARTS.items()}, options.only)


if __name__ == "__main__":
    sys.exit(main())
