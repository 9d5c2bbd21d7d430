"""The sink of one worker that decides its batches in chains: what executors do is simulated, and nothing else."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from kcl_dagster.aws import Client, call
from kcl_dagster.chains.entry import FIRST, PublishingEntry, StagedFile, TableOutput, place_id
from kcl_dagster.chains.publication import staged_of_batch, staged_path
from kcl_dagster.chains.store import Entries, FileStore
from kcl_dagster.errors import KclError, SinkError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.claim import ChainId
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.batch import Batch, Part, PartCounts
from kcl_dagster.worker.staging import Destination, PublishedByCommits, StagedBatch
from tests.doubles.engine import Row
from tests.simulation.bucket import store_of
from tests.simulation.chained import ROOTS, Chained
from tests.simulation.chained_lake import ChainedLake
from tests.simulation.consumer import CodeVersion
from tests.simulation.files import staged_files_of
from tests.simulation.kernel import Process
from tests.simulation.lake import PART_SECONDS, SinkFaults

# Share of the batches of which another attempt of a task stages a file late, when nothing waits for it.
LATE_SHARE: Final = 0.05
LATE_SECONDS: Final = 60.0
# Tasks of a batch whose number says that another attempt has written their files.
OTHER_ATTEMPT: Final = 1000
# By which the share of the rows of a batch that come into the first of two destinations may be below 0 or above 1:
# then all rows come into one of them.
ALL_IN_ONE: Final = 0.2


@dataclass(slots=True)
class ChainedSink:
    """For folders and tables. `tasks`: in which the executors write the files of a batch for a destination. Which
    rows of a batch come into which of several destinations differs with each attempt, and is drawn."""

    lake: ChainedLake
    destinations: Mapping[str, Destination]
    process: Process
    faults: SinkFaults
    draw: Callable[[], float]
    code: CodeVersion
    tasks: int

    @property
    def entries(self) -> Entries:
        return Entries(self.destinations[FIRST].files)

    @property
    def former_parts(self) -> "FormerParts":
        """See `worker.staging.StagingSink`."""
        return FormerParts(self.lake, self.process, self.draw)

    def begin_reading(self, chain: ChainId, time_column: str | None) -> None:
        """See `worker.staging.StagingSink`."""

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        """See `worker.staging.StagingSink`. What is written to the leases is checked, see S16."""

    def stage(self, data: Sequence[Row], batch: Batch, chain: ChainId, number: int) -> StagedBatch:
        """See `worker.staging.StagingSink.stage`."""
        kernel = self.process.kernel
        self.lake.is_about_to_stage(batch)
        kernel.sleep(self.faults.slow_seconds)
        if self.faults.hangs:
            self.faults.hang(self.process)
        if self.faults.code_fails and self.draw() < self.faults.code_fails:
            raise ValueError("user code fails, injected")
        try:
            staged = {name: self._staged(name, rows, chain, number) for name, rows in self._divided(data)}
        except Exception:
            with suppress(KclError):
                self._discard(chain, number)
            raise
        kernel.note("sink", f"{self.process.name} has staged batch {number} of {chain}")
        first = staged.pop(FIRST)
        return StagedBatch(
            tuple(first),
            {part.lease: PartCounts(None) for part in batch.parts},
            others={name: TableOutput(tuple(files), place=place_id(name)) for name, files in staged.items()},
        )

    def _divided(self, data: Sequence[Row]) -> Iterator[tuple[str, Sequence[Row]]]:
        """The rows of each destination, in order."""
        names = list(self.destinations)
        if len(names) == 1:
            yield names[0], data
            return
        share = self.draw() * (1 + 2 * ALL_IN_ONE) - ALL_IN_ONE
        is_first = [self.draw() < share for _ in data]
        for name, wanted in zip(names, (True, False), strict=True):
            yield name, [row for row, first in zip(data, is_first, strict=True) if first is wanted]

    def _discard(self, chain: ChainId, number: int) -> None:
        """Vacuum removes what failed attempts leave of tables."""
        for one in self.destinations.values():
            if one.commits is None:
                one.files.delete(staged_of_batch(one.files, chain, number))

    def _place(self, destination: str, chain: ChainId, path: str) -> str:
        """The key of a file until the batch is decided. Files of tables have their final names from the beginning,
        and commits make them visible."""
        is_table = self.destinations[destination].commits is not None
        return ROOTS[destination] + (path if is_table else staged_path(chain, path))

    def _staged(self, destination: str, data: Sequence[Row], chain: ChainId, number: int) -> list[StagedFile]:
        self.lake.admit(self.code)
        kernel, staged = self.process.kernel, []
        for path, rows in staged_files_of(data, self.tasks, chain, number, self.code):
            if self.draw() < self.faults.refuses:
                kernel.note("sink", f"{self.process.name} {path} is refused")
                raise SinkError("the sink refuses, injected")
            seconds = PART_SECONDS * self.draw()
            self._write_later(self._place(destination, chain, path), rows, seconds)
            kernel.sleep(seconds)
            staged.append(StagedFile(path, len(rows), sum(len(row.data) for row in rows)))
        self._write_of_another_attempt(destination, data, chain, number)
        if self.draw() < self.faults.lies:
            raise SinkError("the sink lies, injected")
        return staged

    def _write_later(self, path: str, rows: tuple[Row, ...], seconds: float) -> None:
        """An executor writes the file, whatever becomes of the worker meanwhile."""
        kernel, bucket = self.process.kernel, self.lake.bucket
        kernel.call_at(kernel.now + seconds, lambda: bucket.put(path, rows))

    def _write_of_another_attempt(self, destination: str, data: Sequence[Row], chain: ChainId, number: int) -> None:
        """A task was tried twice, and the attempt whose result the driver does not wait for ends late."""
        if self.draw() < LATE_SHARE:
            for path, rows in staged_files_of(data, 1, chain, number, self.code)[:1]:
                other = path.replace(f".{number}_0_", f".{number}_{OTHER_ATTEMPT}_")
                self._write_later(self._place(destination, chain, other), rows, LATE_SECONDS * self.draw())


@dataclass(frozen=True, slots=True)
class FormerParts:
    """What workers that decided their batches in leases have stored, as one process sees it."""

    lake: ChainedLake
    process: Process
    draw: Callable[[], float]

    def stored_to(self, part: Part) -> Checkpoint | None:
        """See `worker.staging.FormerParts`. A folder cannot tell."""
        self.process.kernel.sleep(PART_SECONDS * self.draw())
        return self.lake.stored_to(part) if self.lake.tables[FIRST] else None

    def withdraw(self, part: Part) -> None:
        """See `worker.staging.FormerParts`."""
        self.process.kernel.sleep(PART_SECONDS * self.draw())
        if self.lake.tables[FIRST] and self.lake.stored_to(part) is not None:
            raise SinkError("the part was stored meanwhile")
        self.lake.withdraw(part)
        self.process.kernel.sleep(PART_SECONDS * self.draw())


def destinations_of(
    chained: Chained, line: Client, runtime: Runtime, faults: SinkFaults, draw: Callable[[], float]
) -> dict[str, Destination]:
    """Those of the sink, as one process uses them."""
    found = {}
    for name, is_table in chained.tables.items():
        files = store_of(line, runtime, ROOTS[name])
        table = CommittedTable(name, line, files, faults, draw)
        commits = PublishedByCommits(table, chained.commit_seconds) if is_table else None
        found[name] = Destination(files, commits, name)
    return found


@dataclass(frozen=True, slots=True)
class CommittedTable:
    """A table as one process uses it, see `worker.table_committer.ChainedTable`."""

    name: str
    line: Client
    files: FileStore
    faults: SinkFaults
    draw: Callable[[], float]

    def committed(self, application: str) -> int:
        with _errors():
            number: int = call(self.line, "read_log", application=application, table=self.name)["Number"]
            return number

    def commit(
        self,
        application: str,
        number: int,
        entries: Sequence[PublishingEntry],
        complete: WrittenThrough | None,
    ) -> None:
        read = self.committed(application)
        if read >= number:
            return
        if self.draw() < self.faults.refuses:
            raise SinkError("the table refuses, injected")
        paths = [file.path for entry in entries for file in entry.files]
        with _errors():
            call(
                self.line,
                "write_log",
                application=application,
                read=read,
                number=number,
                paths=paths,
                table=self.name,
            )
        if self.draw() < self.faults.lies:
            raise SinkError("the table lies, injected")

    def discard(self, paths: Sequence[str]) -> None:
        self.files.delete(paths)


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except KclError as error:
        raise SinkError(f"the table: {error}") from error
