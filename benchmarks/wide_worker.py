"""Measures one worker that reads 1,000 shards: part of `make bench-scale`.

Only the worker is measured, with its JVM and its Python workers. The benchmark process puts the records, runs the
leader and observes the leases. The embedded AWS runs in two processes with the limits of Kinesis: one for streams
and one for tables, so that neither delays the other.

    a pass    the benchmark puts ten small records into each shard. The time of the pass is from the last response
              of PutRecords until readers of the Parquet folder can see all these records. It includes 5 s of a
              batch with the default settings
    memory    the most memory that the worker's processes have together. Pages that processes share count once, as
              in a pod
    idle      the CPU of the worker's processes while no records arrive
    renewals  the longest time between two changes of the row of a lease, as another worker would observe it
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import pyarrow.parquet as pq

from benchmarks.leading import leading
from benchmarks.machine import PeakMemory, cpu_between, cpu_times
from benchmarks.source import KEYS, emulator
from benchmarks.worker import Figure
from benchmarks.worker_process import Folder, working
from kcl_dagster import aws
from kcl_dagster.errors import ServiceError
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import system
from kcl_dagster.streams.listing import list_shards
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.table_layout import detect_layout
from kcl_dagster.testing import EmulatorResource

STREAM: Final = "wide"
SHARDS: Final = 1_000
RECORDS: Final = 10  # records for each shard in a pass
PAYLOAD_BYTES: Final = 100
PASSES: Final = 5
WARM_UP_PASSES: Final = 2
IDLE_SECONDS: Final = 60.0
SETTLE_SECONDS: Final = 15.0  # without records, before a worker counts as idle

MOST_PASS_SECONDS: Final = 10.0
POD: Final = 3 * 2**30 / 1e6  # megabytes; deploy/kubernetes.yaml

LOOK_SECONDS: Final = 0.1
TABLE_LOOK_SECONDS: Final = 1.0
START_SECONDS: Final = 600.0
PASS_SECONDS: Final = 300.0  # after this time, the benchmark gives up a pass
MOST_IN_A_PUT: Final = 500
PATIENT: Final = 60.0  # time limit in seconds for a request of the benchmark, so that it fails only in rare cases


def visible_files(folder: str) -> Iterator[Path]:
    """The files that readers of a Parquet folder see. Names that begin with _ or . are hidden from them."""
    for path in Path(folder).rglob("*.parquet"):
        if not any(part[0] in "_." for part in path.relative_to(folder).parts):
            yield path


class StoredRows:
    """Counts the rows that readers of a Parquet folder can see."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._rows: dict[Path, int] = {}

    def count(self) -> int:
        for path in visible_files(self._folder):
            if path not in self._rows:
                self._rows[path] = pq.read_metadata(path).num_rows
        return sum(self._rows.values())

    @property
    def files(self) -> int:
        return len(self._rows)

    def positions(self) -> list[tuple[str, str]]:
        """The shard and the sequence number of each row in the files that `count` has found."""
        tables = [pq.read_table(path, columns=["shard_id", "sequence_number"]) for path in self._rows]
        return [(row["shard_id"], row["sequence_number"]) for table in tables for row in table.to_pylist()]


@dataclass
class LeaseWatch:
    """Observes the leases as another worker would, until it is closed."""

    table: LeaseTable
    oldest: float = 0.0
    """The longest time between two changes of a lease's counter since `begin`, in seconds. It may be too long by
    the time between two scans."""

    _changed: dict[LeaseKey, tuple[int, float]] = field(default_factory=dict)
    _closed: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def begin(self) -> None:
        self._thread = threading.Thread(target=self._watch, name="lease-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def begun(self) -> int:
        """The number of leases that have an owner and have been renewed."""
        with suppress(ServiceError):
            return sum(lease.owner is not None and lease.counter > 1 for lease in self.table.scan().leases)
        return 0

    def _watch(self) -> None:
        while not self._closed.wait(TABLE_LOOK_SECONDS):
            try:
                scan = self.table.scan()
            except ServiceError:  # on a busy machine, the embedded AWS may be late
                continue
            for lease in scan.leases:
                counter, since = self._changed.get(lease.key, (None, scan.started))
                if counter != lease.counter:
                    self._changed[lease.key] = lease.counter, scan.ended
                self.oldest = max(self.oldest, scan.started - since)


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> float:
    """Wait until the condition holds. Returns the seconds that this took. Raises TimeoutError after `seconds`."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() > began + seconds:
            raise TimeoutError(f"after {seconds:.0f} s: {what}")
        time.sleep(LOOK_SECONDS)
    return time.monotonic() - began


def has_tables(dynamodb: Any) -> bool:
    """Whether DynamoDB responds. On a busy machine, the first response of the embedded DynamoDB takes seconds."""
    with suppress(ServiceError):
        aws.call(dynamodb, "list_tables")
        return True
    return False


def put_records(kinesis: Any, hash_keys: list[str]) -> None:
    entries = [
        {"Data": os.urandom(PAYLOAD_BYTES), "PartitionKey": "key", "ExplicitHashKey": key}
        for key in hash_keys
        for _ in range(RECORDS)
    ]
    for start in range(0, len(entries), MOST_IN_A_PUT):
        answer = kinesis.put_records(StreamName=STREAM, Records=entries[start : start + MOST_IN_A_PUT])
        if answer["FailedRecordCount"]:
            raise RuntimeError("the embedded AWS refused records")


def measure(add: Callable[[Figure], None], say: Callable[[str], None], shards: int = SHARDS) -> None:
    """Measure a worker, and call `add` with each figure as soon as it is known. Raises TimeoutError if the worker
    does not acquire all leases or store all records in time."""
    name = f"{shards:,} shards"
    with (
        emulator(has_limits=True) as (kinesis_endpoint, _),
        emulator(has_limits=True) as (endpoint, _),
        tempfile.TemporaryDirectory() as root,
    ):
        resource = EmulatorResource(endpoint_url=endpoint, kinesis_endpoint_url=kinesis_endpoint)
        patient: dict[str, Any] = {"read_seconds": PATIENT, "total_seconds": PATIENT, **KEYS}
        kinesis = aws.client("kinesis", endpoint_url=kinesis_endpoint, **patient)
        dynamodb = aws.client("dynamodb", endpoint_url=endpoint, **patient)
        wait_until(lambda: has_tables(dynamodb), START_SECONDS, "the embedded AWS has no tables")
        kinesis.create_stream(StreamName=STREAM, ShardCount=shards)
        hash_keys = [str(shard.hash_range.start) for shard in list_shards(kinesis, STREAM, runtime=system())]
        folder, log = Folder(STREAM, STREAM, f"{root}/records", shards), Path(root, "log")
        application = folder.consumer().application
        with leading(application, resource), working(resource, folder, log) as pid:
            layout = detect_layout(dynamodb, application, system())
            watch = LeaseWatch(LeaseTable(dynamodb, application, layout, system()))
            ready = wait_until(lambda: watch.begun() == shards, START_SECONDS, "not all leases were acquired")
            add(Figure(f"{name}: from the worker's start until it holds all leases", ready, "s"))
            watch.begin()
            with closing(watch), closing(PeakMemory(root=pid)) as memory:
                try:
                    _pass(Passes(kinesis, hash_keys, StoredRows(folder.path)), name, pid, add, say)
                    _idle(name, shards, pid, add)
                finally:
                    most = application.timings.lease_duration / 2
                    lost = float(log.read_text().count("lease lost"))
                    add(Figure(f"{name}: peak memory of the worker", memory.together, "MB", POD, at_most=True))
                    for kind, peak in memory.megabytes.items():
                        add(Figure(f"{name}: peak memory, {kind}", peak, "MB"))
                    add(Figure(f"{name}: a lease was not renewed for", watch.oldest, "s", most, at_most=True))
                    add(Figure(f"{name}: leases lost", lost, "leases", 0.0, at_most=True))


@dataclass
class Passes:
    kinesis: Any
    hash_keys: list[str]
    stored: StoredRows
    expected: int = 0

    def run(self) -> float:
        """Carry out one pass. Returns the seconds that it took."""
        put_records(self.kinesis, self.hash_keys)
        self.expected += RECORDS * len(self.hash_keys)
        return wait_until(lambda: self.stored.count() >= self.expected, PASS_SECONDS, "not all rows were stored")


def _pass(passes: Passes, name: str, pid: int, add: Callable[[Figure], None], say: Callable[[str], None]) -> None:
    add(Figure(f"{name}: first pass", passes.run(), "s"))
    for _ in range(WARM_UP_PASSES):
        passes.run()
    files, before, took = passes.stored.files, cpu_times(pid), list[float]()
    for _ in range(PASSES):
        took.append(passes.run())
        say(f"a pass: {took[-1]:.1f} s")
    cpu = cpu_between(before, cpu_times(pid)) / PASSES
    what = f"{name}: a pass over {RECORDS} records in each"
    add(Figure(what, median(took), "s", MOST_PASS_SECONDS, at_most=True))
    add(Figure(f"{name}: slowest of {PASSES} passes", max(took), "s"))
    add(Figure(f"{name}: CPU of a pass", cpu, "CPU-s"))
    add(Figure(f"{name}: files of a pass", (passes.stored.files - files) / PASSES, "files"))


def _idle(name: str, shards: int, pid: int, add: Callable[[Figure], None]) -> None:
    time.sleep(SETTLE_SECONDS)
    before, began = cpu_times(pid), time.monotonic()
    time.sleep(IDLE_SECONDS)
    cores = cpu_between(before, cpu_times(pid)) / (time.monotonic() - began)
    add(Figure(f"{name}: CPU of the idle worker", cores, "cores"))
    add(Figure(f"{name}: CPU of an idle shard", cores * 3600 / shards, "CPU-s/h"))
