"""Workers whose batches come into several tables. Which row comes into which table differs with each attempt."""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from kcl_dagster.chains.entry import FIRST, StagedFile, TableOutput, place_id
from kcl_dagster.chains.publication import file_name, staged_path
from kcl_dagster.chains.store import Entries
from kcl_dagster.model.claim import ChainId
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.batch import Batch
from kcl_dagster.worker.staging import Destination, PublishedByCommits, StagedBatch
from tests.unit.chains.memory import MemoryFiles
from tests.unit.chains.memory_table import MemoryTable, TableState
from tests.unit.worker.chains import NO_FORMER_PARTS, ChainWorld, MemoryFormerParts, WorkersFiles
from tests.unit.worker.kit import Data, Payload, Run

FOLDER, TABLE = "folder", "table"
_places = itertools.count()
COMMIT_SECONDS: Final = 30.0


@dataclass
class SharedPlace:
    """A folder or a table, as all workers share it."""

    kind: str
    files: MemoryFiles = field(default_factory=lambda: MemoryFiles(root=f"place {next(_places)}"))
    state: TableState = field(default_factory=TableState)

    def stored(self) -> list[Payload]:
        paths = self.files.published() if self.kind == FOLDER else self.state.paths
        rows = [row for path in paths for row in json.loads(self.files.content[path])]
        return sorted((shard, sequence, data) for shard, sequence, data, _ in rows)


@dataclass
class SeveralPlaces:
    """The sink of one worker. `files`: each place, as this worker uses it."""

    kinds: dict[str, str]
    files: dict[str, WorkersFiles]
    states: dict[str, TableState]
    attempts: Callable[[], int]
    former_parts: MemoryFormerParts = field(default_factory=lambda: NO_FORMER_PARTS)

    def __post_init__(self) -> None:
        self.destinations = {
            name: Destination(
                files,
                None
                if self.kinds[name] == FOLDER
                else PublishedByCommits(MemoryTable(self.states[name], files), COMMIT_SECONDS),
                files.root,
            )
            for name, files in self.files.items()
        }

    @property
    def entries(self) -> Entries:
        return Entries(self.files[FIRST])

    def begin_reading(self, chain: ChainId, time_column: str | None) -> None:
        """See `worker.staging.StagingSink`."""

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        """Not looked at."""

    def stage(self, data: Data, batch: Batch, chain: ChainId, number: int) -> StagedBatch:
        attempt = self.attempts()
        staged: dict[str, tuple[StagedFile, ...]] = {}
        for place, (name, files) in enumerate(self.files.items()):
            rows = [row for row in data if (row[1] + attempt) % len(self.files) == place]
            staged[name] = tuple(self._write(name, files, rows, attempt, chain, number)) if rows else ()
        first = staged.pop(FIRST)
        return StagedBatch(first, {}, None, self._others(staged))

    def _others(self, staged: dict[str, tuple[StagedFile, ...]]) -> dict[str, TableOutput]:
        return {name: TableOutput(found, place=place_id(self.files[name].root)) for name, found in staged.items()}

    def _write(
        self, name: str, files: WorkersFiles, rows: Data, attempt: int, chain: ChainId, number: int
    ) -> list[StagedFile]:
        path = file_name(chain, number, 0, 0)
        content = json.dumps([[*row, attempt] for row in rows]).encode()
        files.put(staged_path(chain, path) if self.kinds[name] == FOLDER else path, content)
        return [StagedFile(path, len(rows), len(content))]


class SeveralWorld(ChainWorld):
    """`kinds`: of the places; the first one has the chains."""

    def __init__(self, *kinds: str, **settings: Any) -> None:
        super().__init__(**settings)
        names = [FIRST, *(f"t{number}" for number in range(1, len(kinds)))]
        self.places = {name: SharedPlace(kind) for name, kind in zip(names, kinds, strict=True)}
        self.places[FIRST].files = self.shared

    def chain_worker(self, name: str, **extra: Any) -> Run:
        files = {
            place: WorkersFiles(of.files.root, of.files.content, times=of.files.times, clock=self.clock.now)
            for place, of in self.places.items()
        }
        kinds = {place: of.kind for place, of in self.places.items()}
        states = {place: of.state for place, of in self.places.items()}
        run = self.worker(name, chains=SeveralPlaces(kinds, files, states, self._attempts.__next__), **extra)
        for one in files.values():
            one.fuse = run.fuse
        return run

    def stored(self) -> list[Payload]:
        return sorted(row for place in self.places.values() for row in place.stored())
