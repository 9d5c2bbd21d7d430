"""Workers that decide their batches in chains, over files in memory that they share."""

import itertools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kcl_dagster.chains.entry import PublishingEntry, StagedFile
from kcl_dagster.chains.publication import file_name, staged_path
from kcl_dagster.chains.store import Entries
from kcl_dagster.model.claim import ChainId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.batch import Batch
from kcl_dagster.worker.staging import StagedBatch
from kcl_dagster.worker.table_committer import COMMIT_SECONDS
from tests.unit.chains.memory import MemoryFiles
from tests.unit.chains.memory_table import MemoryTable, TableState
from tests.unit.worker.kit import Data, Fuse, MemorySink, Payload, Run, World

A, B = LeaseKey("shardId-000000000000"), LeaseKey("shardId-000000000001")


@dataclass
class WorkersFiles(MemoryFiles):
    """The shared files as one worker uses them: every operation is a point at which it may be killed."""

    fuse: Fuse = field(default_factory=Fuse)

    def _moment(self) -> None:
        self.fuse.point()


@dataclass
class MemoryStagingSink:
    """Writes the rows of a batch into two files, and says in each row which attempt wrote it: no output is like
    another one."""

    files: WorkersFiles
    attempts: Callable[[], int]
    refuses: Callable[[Data], None] | None = None
    hooks: list[Callable[[Batch], None]] = field(default_factory=list)

    @property
    def entries(self) -> Entries:
        return Entries(self.files)

    def stage(self, data: Data, batch: Batch, chain: ChainId, number: int) -> StagedBatch:
        for hook in list(self.hooks):
            hook(batch)
        if self.refuses is not None:
            self.refuses(data)
        attempt, staged = self.attempts(), []
        for task, rows in enumerate((data[0::2], data[1::2])):
            if rows:
                path = file_name(chain, number, task, 0)
                content = json.dumps([[*row, attempt] for row in rows]).encode()
                self.files.put(staged_path(chain, path), content)
                staged.append(StagedFile(path, len(rows), len(content)))
        return StagedBatch(tuple(staged), {})


@dataclass
class SinkBesideChains(MemorySink):
    """The sink of a worker that decides its batches in the leases, where others may have left chains."""

    files: WorkersFiles = field(default_factory=WorkersFiles)

    @property
    def entries(self) -> Entries:
        return Entries(self.files)


class ChainWorld(World):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.shared = MemoryFiles()
        self._attempts = itertools.count()
        self.sinks: dict[str, MemoryStagingSink] = {}

    def chain_worker(self, name: str, **extra: Any) -> Run:
        files = WorkersFiles(content=self.shared.content, times=self.shared.times, clock=self.clock.now)
        sink = self.sinks[name] = MemoryStagingSink(files, self._attempts.__next__)
        run = self.worker(name, chains=sink, **extra)
        files.fuse = run.fuse
        return run

    def former_worker(self, name: str, **extra: Any) -> Run:
        """A worker that decides its batches in the leases."""
        files = WorkersFiles(content=self.shared.content, times=self.shared.times, clock=self.clock.now)
        sink = SinkBesideChains(self.store, files=files)
        run = self.worker(name, sink=sink, **extra)
        files.fuse = sink.fuse = run.fuse
        return run

    def check_both(self) -> None:
        """Everything is stored once, in a chain or not."""
        assert Counter(self.stored()) + Counter(self.store.everything()) == Counter(self.stream.everything())

    def stored(self) -> list[Payload]:
        rows = [row for path in self.shared.published() for row in json.loads(self.shared.content[path])]
        return sorted((shard, sequence, data) for shard, sequence, data, _ in rows)

    def check(self) -> None:
        """Everything is stored, once, and nothing is staged that nobody publishes or removes."""
        assert Counter(self.stored()) == Counter(self.stream.everything())

    def entries(self) -> Entries:
        return Entries(self.shared)

    def chains(self) -> dict[str, list[PublishingEntry | None]]:
        """The entries of each chain, None for a closing one."""
        found: dict[str, list[PublishingEntry | None]] = {}
        for path in sorted(self.shared.content):
            if path.startswith("_chains/"):
                _, chain, name = path.split("/")
                entry = self.entries().read(ChainId(chain), int(name.removesuffix(".json")))
                found.setdefault(chain, []).append(entry if isinstance(entry, PublishingEntry) else None)
        return found


@dataclass
class MemoryTableSink:
    """Writes the rows of a batch into two files of a table, as `MemoryStagingSink` does into a folder."""

    files: WorkersFiles
    state: TableState
    attempts: Callable[[], int]
    refuses: Callable[[Data], None] | None = None
    commit_seconds: float = COMMIT_SECONDS

    def __post_init__(self) -> None:
        self.chained_table = MemoryTable(self.state, self.files)

    @property
    def entries(self) -> Entries:
        return Entries(self.files)

    def stage(self, data: Data, batch: Batch, chain: ChainId, number: int) -> StagedBatch:
        if self.refuses is not None:
            self.refuses(data)
        attempt, staged = self.attempts(), []
        for task, rows in enumerate((data[0::2], data[1::2])):
            if rows:
                path = file_name(chain, number, task, 0)
                content = json.dumps([[*row, attempt] for row in rows]).encode()
                self.files.put(path, content)
                staged.append(StagedFile(path, len(rows), len(content)))
        return StagedBatch(tuple(staged), {})


@dataclass
class SinkOfTable(SinkBesideChains):
    """The sink of a worker that decides its batches in the leases, of a table beside which others may have left
    chains."""

    state: TableState = field(default_factory=TableState)
    commit_seconds: float = COMMIT_SECONDS

    @property
    def chained_table(self) -> MemoryTable:
        return MemoryTable(self.state, self.files)


class TableWorld(ChainWorld):
    """Workers whose batches come into a table, with the commits that one of them makes."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.table = TableState()
        self.tables: dict[str, MemoryTableSink] = {}

    def chain_worker(self, name: str, **extra: Any) -> Run:
        files = WorkersFiles(content=self.shared.content, times=self.shared.times, clock=self.clock.now)
        sink = self.tables[name] = MemoryTableSink(files, self.table, self._attempts.__next__)
        run = self.worker(name, chains=sink, **extra)
        files.fuse = run.fuse
        return run

    def former_worker(self, name: str, **extra: Any) -> Run:
        files = WorkersFiles(content=self.shared.content, times=self.shared.times, clock=self.clock.now)
        sink = SinkOfTable(self.store, files=files, state=self.table)
        run = self.worker(name, sink=sink, **extra)
        files.fuse = sink.fuse = run.fuse
        return run

    def stored(self) -> list[Payload]:
        """What readers of the table see."""
        rows = [row for path in self.table.paths for row in json.loads(self.shared.content[path])]
        return sorted((shard, sequence, data) for shard, sequence, data, _ in rows)


def put(world: ChainWorld, shard: str = A, records: int = 7) -> None:
    world.stream.put(shard, *(f"record {number}" for number in range(records)))


def working(world: ChainWorld, name: str = "w1") -> Run:
    """A worker that has all leases."""
    run = world.chain_worker(name)
    world.assign(run)
    return run


def loses_its_lease_at(world: ChainWorld, run: Run, successor: Run, point: int) -> None:
    """The worker pauses at this point of its way, and goes on when its successor has read everything."""

    def takes_over() -> None:
        run.fuse.passed += 1
        if run.fuse.passed == point:
            world.assign(successor)
            successor.until_idle()

    run.fuse.point = takes_over  # type: ignore[method-assign]
