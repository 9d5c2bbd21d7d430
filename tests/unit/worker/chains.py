"""Workers that decide their batches in chains, over files in memory that they share."""

import itertools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kcl_dagster.chains.entry import FIRST, PublishingEntry, StagedFile
from kcl_dagster.chains.publication import file_name, staged_path
from kcl_dagster.chains.store import Entries
from kcl_dagster.errors import SinkError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.claim import ChainId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.batch import Batch, Part
from kcl_dagster.worker.staging import Destination, PublishedByCommits, StagedBatch
from kcl_dagster.worker.table_committer import COMMIT_SECONDS
from tests.unit.chains.memory import MemoryFiles
from tests.unit.chains.memory_table import MemoryTable, TableState
from tests.unit.worker.kit import Data, Fuse, MemoryStore, Payload, Run, World

A, B = LeaseKey("shardId-000000000000"), LeaseKey("shardId-000000000001")


@dataclass
class WorkersFiles(MemoryFiles):
    """The shared files as one worker uses them: every operation is a point at which it may be killed."""

    fuse: Fuse = field(default_factory=Fuse)

    def _moment(self) -> None:
        self.fuse.point()


@dataclass
class MemoryFormerParts:
    """Parts that workers of a former version have stored. A folder cannot tell which."""

    store: MemoryStore
    fuse: Fuse
    can_tell: bool

    def stored_to(self, part: Part) -> Checkpoint | None:
        self.fuse.point()
        return self._stored_to(part) if self.can_tell else None

    def withdraw(self, part: Part) -> None:
        self.fuse.point()
        if self._stored_to(part) is not None:
            if self.can_tell:
                raise SinkError("it was stored meanwhile")
            del self.store.parts[part.shard_id, str(part.after)]
        if self.can_tell:
            self.store.numbers[part.shard_id, str(part.after)] = part.number
        self.fuse.point()

    def _stored_to(self, part: Part) -> Checkpoint | None:
        place = (part.shard_id, str(part.after))
        first = part.number if part.instead_of is None else part.instead_of
        if place not in self.store.parts or not first <= self.store.numbers[place] <= part.number:
            return None
        sequence, _, sub_sequence = self.store.identities[place][-1].partition(":")[2].partition("/")
        return Checkpoint(sequence, int(sub_sequence or 0))


NO_FORMER_PARTS = MemoryFormerParts(MemoryStore(), Fuse(), can_tell=True)


@dataclass
class MemoryStagingSink:
    """Writes the rows of a batch into two files, and says in each row which attempt wrote it: no output is like
    another one."""

    files: WorkersFiles
    attempts: Callable[[], int]
    former_parts: MemoryFormerParts
    refuses: Callable[[Data], None] | None = None
    hooks: list[Callable[[Batch], None]] = field(default_factory=list)
    kept: list[WrittenThrough] = field(default_factory=list)
    chain: ChainId | None = None
    """For which the next batch is read."""

    @property
    def entries(self) -> Entries:
        return Entries(self.files)

    @property
    def destinations(self) -> dict[str, Destination]:
        return {FIRST: Destination(self.files)}

    def begin_reading(self, chain: ChainId, time_column: str | None) -> None:
        """See `worker.staging.StagingSink`."""
        self.chain = chain

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        self.kept.append(known)

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


class ChainWorld(World):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.shared = MemoryFiles()
        self._attempts = itertools.count()
        self.sinks: dict[str, MemoryStagingSink] = {}

    def chain_worker(self, name: str, **extra: Any) -> Run:
        files = WorkersFiles(content=self.shared.content, times=self.shared.times, clock=self.clock.now)
        former = MemoryFormerParts(self.store, files.fuse, can_tell=False)
        sink = self.sinks[name] = MemoryStagingSink(files, self._attempts.__next__, former)
        run = self.worker(name, chains=sink, **extra)
        files.fuse = former.fuse = run.fuse
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
    former_parts: MemoryFormerParts
    refuses: Callable[[Data], None] | None = None
    commit_seconds: float = COMMIT_SECONDS

    def __post_init__(self) -> None:
        commits = PublishedByCommits(MemoryTable(self.state, self.files), self.commit_seconds)
        self.destinations = {FIRST: Destination(self.files, commits)}

    def begin_reading(self, chain: ChainId, time_column: str | None) -> None:
        """See `worker.staging.StagingSink`."""

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        """Not looked at."""

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


class TableWorld(ChainWorld):
    """Workers whose batches come into a table, with the commits that one of them makes."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.table = TableState()
        self.tables: dict[str, MemoryTableSink] = {}

    def chain_worker(self, name: str, **extra: Any) -> Run:
        files = WorkersFiles(content=self.shared.content, times=self.shared.times, clock=self.clock.now)
        former = MemoryFormerParts(self.store, files.fuse, can_tell=True)
        sink = self.tables[name] = MemoryTableSink(files, self.table, self._attempts.__next__, former)
        run = self.worker(name, chains=sink, **extra)
        files.fuse = former.fuse = run.fuse
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
