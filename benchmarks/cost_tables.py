"""Measures the cost of commits to a table, and the time until a folder shows a batch.

Early commits of a table are compared with late ones, and a fleet of one worker with a larger one. The classes are
those of production, without Spark. Only one data file is written. The entries of all batches refer to it, each time
by another name. A fake clock is advanced between commits, so that 2,000 commits are sixteen hours of an
application.
"""

import json
import math
import os
import random
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from types import SimpleNamespace
from typing import Final
from unittest.mock import patch

import deltalake
import msgspec
import pyarrow as pa

from kcl_dagster.application import BatchSettings
from kcl_dagster.chains.chain import Chain
from kcl_dagster.chains.entry import FIRST, StagedFile, StoredRange, TableRules
from kcl_dagster.chains.publication import FolderPublisher, chain_id, file_name, staged_path
from kcl_dagster.chains.store import Entries
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.claim import ChainId, ClaimId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.sinks.batch_files import StageFiles, batch_files
from kcl_dagster.spark.sinks.catalog_table import CatalogTable
from kcl_dagster.spark.sinks.chain_folder import ChainFolder
from kcl_dagster.spark.sinks.delta import DeltaFormat
from kcl_dagster.spark.sinks.delta_appends import COMMITS_TO_CLEANING
from kcl_dagster.spark.sinks.delta_compaction import compact_delta
from kcl_dagster.spark.sinks.delta_log import DeltaLog
from kcl_dagster.spark.sinks.iceberg import IcebergFormat
from kcl_dagster.spark.sinks.table_sink import TableFormat
from kcl_dagster.spark.storage import LocalStore, Store
from kcl_dagster.worker.table_committer import COMMIT_SECONDS, TableCommitter
from tests.doubles.clock import FakeClock

APPLICATION: Final = "orders"
WORKERS: Final = 5
LEASES: Final = 25  # leases of each worker
FILES: Final = 2  # files of a batch: one for each task of a fetch
ROWS: Final = 100
BATCH_SECONDS: Final = BatchSettings().max_seconds
COMMITS_AN_HOUR: Final = round(3600 / COMMIT_SECONDS)
EARLY: Final = 100
AROUND: Final = 50  # the figure of a commit is the median of twice this many; for the last commit, they end with it
FLEETS: Final = (1, 8)  # the numbers of workers
FLEET_SECONDS: Final = 600.0
MOST_LINKS: Final = 30_000
VISIBLE_BATCHES: Final = 200
VISIBLE_BYTES: Final = 2_500_000  # bytes of a file: half of the records of five seconds at 1 MB/s

MOST_LATE_OVER_EARLY: Final = 1.5
# The ratio of the size of the metadata after all commits to their size after half of the commits. If metadata were
# never removed, this ratio would be 2. Delta names each removed file for a week, so the metadata of a Delta table
# grow until a week of commits is made.
MOST_GROWTH: Final = 1.5
MOST_COMMITS: Final = 2.0  # per minute
MOST_VISIBLE_SECONDS: Final = 1.0

# The figures of commit cf50fa6, which had no chains yet. A commit to an Iceberg table that got ten files in each
# batch took 68 ms of CPU after 40 commits, and 473 ms after 320. Each worker made a commit for each of its batches.
FORMER_LATE_OVER_EARLY: Final = 0.473 / 0.068
FORMER_COMMITS: Final = {workers: workers * 60 / BATCH_SECONDS for workers in FLEETS}


@dataclass(frozen=True)
class CostFigure:
    """One measured number. `bar`: the largest value that is allowed. `former`: the number of commit cf50fa6; None
    if it is not known."""

    name: str
    value: float
    unit: str
    bar: float | None = None
    former: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the bar holds."""
        return self.bar is None or self.value <= self.bar

    def as_json(self) -> str:
        facts = {"figure": self.name, "value": round(self.value, 3), "unit": self.unit, "bar": self.bar}
        former = None if self.former is None else round(self.former, 3)
        return json.dumps({**facts, "ok": self.ok, "cf50fa6": former})

    def as_row(self) -> str:
        former = "" if self.former is None else f"{self.former:,.2f}"
        bar = "" if self.bar is None else f"<= {self.bar:,.10g} {'ok' if self.ok else 'MISSED'}"
        return f"{self.name:<86}{self.value:>12,.2f} {self.unit:<6}{former:>12}  {bar}".rstrip()


class Table(ABC):
    """A table in a folder."""

    def __init__(self, folder: Path, clock: FakeClock) -> None:
        self.folder = folder
        self.clock = clock
        self.runtime = Runtime(clock=clock, random=random.Random(1))
        self.format = self.process()
        self.template, self.rules = self._staged()

    @abstractmethod
    def process(self) -> TableFormat:
        """Open the table as another process would."""

    @property
    @abstractmethod
    def metadata(self) -> Path:
        """The folder with the metadata of the table."""

    def _staged(self) -> tuple[StagedFile, TableRules]:
        """Write the one data file. Returns the file as it is in an entry, and the rules with which it was
        written."""
        rows = pa.record_batch(
            {
                "shard_id": ["shardId-000000000000"] * ROWS,
                "sequence_number": [f"{number:056d}" for number in range(ROWS)],
                "arrival_timestamp": pa.array(range(ROWS), pa.timestamp("us", "UTC")),
                "text": [f"row {number}" for number in range(ROWS)],
            }
        )
        rules = self.format.rules() or self.format.first_rules(rows.schema)
        task = StageFiles(rules.store, rules.layout, ChainId("first"), 1, 1 << 20, table=rules.for_table)
        files = batch_files([row for manifest in task(iter([rows])) for row in manifest.to_pylist()])
        (staged,), fulfilled = rules.staged(files, rows.schema)
        return staged, fulfilled

    def maintain(self, number: int) -> None:  # noqa: ARG002
        """Called before each commit."""
        return

    def added(self, path: str) -> None:  # noqa: ARG002
        """Called for each file that a batch refers to. Makes the file available, if readers of the table need
        it."""
        return

    def kept_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.metadata.rglob("*") if path.is_file())

    def listed(self) -> tuple[int, int]:
        """The bytes of the list of the table's data files, and the number of these files. Both are 0 if the list is
        not separate from the other metadata. The list grows with the table as long as no engine merges the files;
        the other metadata do not."""
        return 0, 0


class IcebergTable(Table):
    """A table in a SQL catalog, on a local disk."""

    @property
    def _where(self) -> dict[str, str]:
        return {"type": "sql", "uri": f"sqlite:///{self.folder}/catalog.db", "warehouse": str(self.folder)}

    def process(self) -> TableFormat:
        table = CatalogTable("lake.orders", self._where)
        return IcebergFormat(table, ChainFolder(table), self.runtime)

    @property
    def metadata(self) -> Path:
        return self.folder / "lake" / "orders" / "metadata"

    def listed(self) -> tuple[int, int]:
        table = CatalogTable("lake.orders", self._where).catalog.load_table("lake.orders")
        snapshot = table.current_snapshot()
        manifests = [] if snapshot is None else snapshot.manifests(table.io)
        files = sum((one.added_files_count or 0) + (one.existing_files_count or 0) for one in manifests)
        return sum(one.manifest_length for one in manifests), files


class DeltaTable(Table):
    """A Delta table that is compacted every hour. Its log is kept for two hours instead of Delta's thirty days. Its
    entries about removed files are kept for a minute of the machine's clock instead of Delta's week."""

    def __init__(self, folder: Path, clock: FakeClock) -> None:
        super().__init__(folder, clock)
        self._since: dict[Path, float] = {}
        self._links, self._linked = 0, folder
        opened = deltalake.DeltaTable(str(folder / "table"))
        opened.alter.set_table_properties(
            {
                "delta.logRetentionDuration": "interval 2 hours",
                "delta.deletedFileRetentionDuration": "interval 1 minutes",
            }
        )

    def process(self) -> TableFormat:
        return DeltaFormat(DeltaLog(LocalStore(str(self.folder / "table")), {}), self.runtime)

    @property
    def metadata(self) -> Path:
        return self.folder / "table" / "_delta_log"

    def maintain(self, number: int) -> None:
        now = self.clock.now()
        for path in self.metadata.iterdir():
            self._since.setdefault(path, now)
        if number % COMMITS_TO_CLEANING == 0:  # delta-rs compares the times of files with the machine's clock
            for path in self.metadata.iterdir():
                modified = time.time() - (now - self._since[path])
                os.utime(path, (modified, modified))
        if number % COMMITS_AN_HOUR == 0:
            compact_delta(str(self.folder / "table"))

    def added(self, path: str) -> None:
        """Make a hard link with this name, because a compaction reads the files. A file system limits the number of
        links to a file, so there is a new copy for every `MOST_LINKS` links."""
        if self._links % MOST_LINKS == 0:
            self._linked = self.folder / f"linked-{self._links}.parquet"
            shutil.copyfile(self.folder / "table" / self.template.path, self._linked)
        self._links += 1
        (self.folder / "table" / path).hardlink_to(self._linked)


TABLES: Final[dict[str, type[Table]]] = {"Iceberg": IcebergTable, "Delta": DeltaTable}


@dataclass
class CommittingWorker:
    """Decides batches, and commits them as a worker does."""

    table: Table
    name: str
    offset: float = 0.0
    chain: Chain = field(init=False)
    committer: TableCommitter = field(init=False)

    def __post_init__(self) -> None:
        form, new_id = self.table.process(), self.table.runtime.new_id
        self.chain = Chain(Entries(form.chains), chain_id(APPLICATION, self.name, "1"), new_id)
        self.committer = TableCommitter(
            Entries(form.chains), {FIRST: form.commits}, APPLICATION, new_id, self.table.clock
        )
        self.leases = [LeaseKey(f"{self.name}-shardId-{number:012d}") for number in range(LEASES)]

    @property
    def wanted(self) -> dict[ChainId, int]:
        is_visible = self.committer.visible(self.chain.id) >= self.chain.last
        return {} if is_visible else {self.chain.id: self.chain.last}

    def decide(self) -> None:
        """Decide a batch with records of all leases. First deletes the entries whose batches the table contains, as
        a worker does when it has written checkpoints to the rows of the leases."""
        self.chain.written(dict.fromkeys(self.leases, Checkpoint(str(self.chain.last))))
        self.chain.delete_entries(self.committer.visible(self.chain.id))
        number = self.chain.last + 1
        folder, slash, _ = self.table.template.path.rpartition("/")
        files = [
            msgspec.structs.replace(
                self.table.template, path=f"{folder}{slash}{file_name(self.chain.id, number, task, 0)}"
            )
            for task in range(FILES)
        ]
        for file in files:
            self.table.added(file.path)
        through = Checkpoint(str(number))
        ranges = [StoredRange(key, ClaimId("c"), TRIM_HORIZON, through, ROWS, 8 * ROWS) for key in self.leases]
        assert self.chain.decide(files, ranges, self.table.rules) is not None


@contextmanager
def moved_on(clock: FakeClock) -> Iterator[None]:
    """Give Iceberg snapshots the time of this clock, because their age determines when they expire."""
    with patch("pyiceberg.table.snapshots.time", SimpleNamespace(time=clock.now)):
        yield


@dataclass
class Commits:
    """The commits of one table, one after another."""

    table: Table
    number: int = 0
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.workers = [CommittingWorker(self.table, f"w{number}") for number in range(WORKERS)]
        for worker in self.workers:
            worker.committer = self.workers[0].committer  # all workers would see the same state of the table

    def make_next(self) -> None:
        for worker in self.workers:
            worker.decide()
        self.table.clock.advance(COMMIT_SECONDS)
        self.number += 1
        self.table.maintain(self.number)
        committer, wanted = self.workers[0].committer, self.workers[0].wanted
        began, used = time.perf_counter(), time.process_time()
        committer.step(wanted)
        self.seconds.append(time.perf_counter() - began)
        self.cpu.append(time.process_time() - used)
        assert not self.workers[0].wanted, f"commit {self.number} was not made"


def late_and_early(kind: str, folder: Path, commits: int) -> list[CostFigure]:
    """Compare late commits with early ones. The last commits of one table and the early commits of an equal table
    are made in turns, so that other processes of the machine change the speed of both in the same way."""
    tables = [folder / name for name in ("late", "early")]
    for path in tables:
        path.mkdir()
    late, early = (Commits(TABLES[kind](path, FakeClock())) for path in tables)
    half = 0
    while late.number < commits - 2 * AROUND:
        with moved_on(late.table.clock):
            late.make_next()
        if late.number == commits // 2:
            half = late.table.kept_bytes() - late.table.listed()[0]
    with moved_on(early.table.clock):
        while early.number < EARLY - AROUND:
            early.make_next()
    for _ in range(2 * AROUND):
        for one in (early, late):
            with moved_on(one.table.clock):
                one.make_next()
    over = f"{kind}: commit {commits:,} over commit {EARLY}"
    found = []
    for what, all_now, all_then in (("CPU", late.cpu, early.cpu), ("time", late.seconds, early.seconds)):
        now, then = all_now[-2 * AROUND :], all_then[-2 * AROUND :]
        found += [
            CostFigure(f"{kind}: {what} of commit {EARLY}", 1000 * median(then), "ms"),
            CostFigure(f"{kind}: {what} of commit {commits:,}", 1000 * median(now), "ms"),
            CostFigure(
                f"{over}, {what}",
                median(now) / median(then),
                "x",
                MOST_LATE_OVER_EARLY,
                former=FORMER_LATE_OVER_EARLY if (kind, what) == ("Iceberg", "CPU") else None,
            ),
            CostFigure(f"{over}, {what} with merges and checkpoints", mean(now) / mean(then), "x"),
        ]
    listed, files = late.table.listed()
    kept = late.table.kept_bytes() - listed
    growth = kept / half
    if files:
        found.append(CostFigure(f"{kind}: list of {files:,} data files", listed / files, "B/file"))
    return [
        *found,
        CostFigure(f"{kind}: metadata after {commits:,} commits", kept / 1e6, "MB"),
        CostFigure(f"{kind}: metadata after {commits:,} over {commits // 2:,}", growth, "x", MOST_GROWTH),
    ]


def commits_a_minute(kind: str, folder: Path, workers: int) -> float:
    """The commits per minute of a fleet with the default settings. Each worker decides a batch every five seconds,
    at a different time from the other workers. Before each batch, the worker makes a commit if one is due."""
    clock = FakeClock()
    with moved_on(clock):
        table = TABLES[kind](folder, clock)
        fleet = [CommittingWorker(table, f"w{number}") for number in range(workers)]
        began, made = clock.now(), 0
        while clock.now() - began < FLEET_SECONDS:
            for worker in fleet:
                worker.committer.step(worker.wanted)
                worker.decide()
                clock.advance(BATCH_SECONDS / workers)
        made = table.format.commits.committed(APPLICATION)
    return made / (FLEET_SECONDS / 60)


def commits_of_fleets(kind: str, folder: Path) -> list[CostFigure]:
    found: dict[int, float] = {}
    for workers in FLEETS:
        place = folder / str(workers)
        place.mkdir()
        found[workers] = commits_a_minute(kind, place, workers)
    few, many = (found[workers] for workers in FLEETS)
    name = f"{kind}: commits a minute, {{}} workers"
    return [
        *(
            CostFigure(name.format(workers), made, "1/min", MOST_COMMITS, former=FORMER_COMMITS[workers])
            for workers, made in found.items()
        ),
        CostFigure(f"{kind}: commits of {FLEETS[1]} workers over {FLEETS[0]}", many / few, "x", 1.05),
    ]


def visible_in(store: Store) -> list[float]:
    """The seconds from the beginning of the decision on a batch until a folder shows the files of the batch. One
    number for each batch, sorted."""
    application = chain_id(APPLICATION, "w0", "1")
    chain, publisher = (
        Chain(Entries(store), application, Runtime(random=random.Random(1)).new_id),
        FolderPublisher(store),
    )
    content, found = os.urandom(VISIBLE_BYTES), []
    for number in range(1, VISIBLE_BATCHES + 1):
        names = [file_name(chain.id, number, task, 0) for task in range(FILES)]
        for name in names:
            store.put(staged_path(chain.id, name), content)
        files = [StagedFile(name, ROWS, VISIBLE_BYTES) for name in names]
        began = time.perf_counter()
        entry = chain.decide(files, ())
        assert entry is not None
        publisher.publish(chain.id, number, entry)
        found.append(time.perf_counter() - began)
        chain.delete_entries(number)
        store.delete(names)
    return sorted(found)


def visibility(place: str, store: Store) -> list[CostFigure]:
    seconds = visible_in(store)
    name = f"Parquet {place}: from decided to visible"
    return [
        CostFigure(f"{name}, median", seconds[len(seconds) // 2], "s"),
        CostFigure(f"{name}, p99", seconds[math.ceil(0.99 * len(seconds)) - 1], "s", MOST_VISIBLE_SECONDS),
    ]


def table_figures(kind: str, commits: int) -> list[CostFigure]:
    with tempfile.TemporaryDirectory() as folder:
        one, other = Path(folder, "series"), Path(folder, "fleets")
        for place in (one, other):
            place.mkdir()
        return [*late_and_early(kind, one, commits), *commits_of_fleets(kind, other)]


def visibility_on_disk() -> list[CostFigure]:
    with tempfile.TemporaryDirectory() as folder:
        return visibility("on a local disk", LocalStore(f"{folder}/lake"))
