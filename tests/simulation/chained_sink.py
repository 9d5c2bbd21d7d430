"""The sink of one worker that decides its batches in chains: what executors do is simulated, and nothing else."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from kcl_dagster.aws import Client, call
from kcl_dagster.chains.entry import FIRST, PublishingEntry, StagedFile
from kcl_dagster.chains.publication import staged_of_batch, staged_path
from kcl_dagster.chains.store import Entries, FileStore
from kcl_dagster.errors import KclError, SinkError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.claim import ChainId
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.batch import Batch, Part, PartCounts
from kcl_dagster.worker.staging import Destination, PublishedByCommits, StagedBatch
from tests.doubles.engine import Row
from tests.simulation.bucket import BucketStore
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


@dataclass(slots=True)
class ChainedSink:
    """For folders. `tasks`: in which the executors write the files of a batch."""

    lake: ChainedLake
    store: BucketStore
    process: Process
    faults: SinkFaults
    draw: Callable[[], float]
    code: CodeVersion
    tasks: int

    @property
    def entries(self) -> Entries:
        return Entries(self.store)

    @property
    def destinations(self) -> Mapping[str, Destination]:
        """See `worker.staging.StagingSink`."""
        return {FIRST: Destination(self.store)}

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
            files = self._staged(data, chain, number)
        except Exception:
            with suppress(KclError):
                self._discard(chain, number)
            raise
        kernel.note("sink", f"{self.process.name} has staged batch {number} of {chain}")
        return StagedBatch(tuple(files), {part.lease: PartCounts(None) for part in batch.parts})

    def _discard(self, chain: ChainId, number: int) -> None:
        self.store.delete(staged_of_batch(self.store, chain, number))

    def _place(self, chain: ChainId, path: str) -> str:
        """Where a file is until the batch is decided."""
        return staged_path(chain, path)

    def _staged(self, data: Sequence[Row], chain: ChainId, number: int) -> list[StagedFile]:
        self.lake.admit(self.code)
        kernel, staged = self.process.kernel, []
        for path, rows in staged_files_of(data, self.tasks, chain, number, self.code):
            if self.draw() < self.faults.refuses:
                kernel.note("sink", f"{self.process.name} {path} is refused")
                raise SinkError("the sink refuses, injected")
            seconds = PART_SECONDS * self.draw()
            self._write_later(self._place(chain, path), rows, seconds)
            kernel.sleep(seconds)
            staged.append(StagedFile(path, len(rows), sum(len(row.data) for row in rows)))
        self._write_of_another_attempt(data, chain, number)
        if self.draw() < self.faults.lies:
            raise SinkError("the sink lies, injected")
        return staged

    def _write_later(self, path: str, rows: tuple[Row, ...], seconds: float) -> None:
        """An executor writes the file, whatever becomes of the worker meanwhile."""
        kernel, bucket = self.process.kernel, self.lake.bucket
        kernel.call_at(kernel.now + seconds, lambda: bucket.put(path, rows))

    def _write_of_another_attempt(self, data: Sequence[Row], chain: ChainId, number: int) -> None:
        """A task was tried twice, and the attempt whose result the driver does not wait for ends late."""
        if self.draw() < LATE_SHARE:
            for path, rows in staged_files_of(data, 1, chain, number, self.code)[:1]:
                other = path.replace(f".{number}_0_", f".{number}_{OTHER_ATTEMPT}_")
                self._write_later(self._place(chain, other), rows, LATE_SECONDS * self.draw())


@dataclass(frozen=True, slots=True)
class FormerParts:
    """What workers that decided their batches in leases have stored, as one process sees it."""

    lake: ChainedLake
    process: Process
    draw: Callable[[], float]

    def stored_to(self, part: Part) -> Checkpoint | None:
        """See `worker.staging.FormerParts`. A folder cannot tell."""
        self.process.kernel.sleep(PART_SECONDS * self.draw())
        return self.lake.stored_to(part) if self.lake.is_table else None

    def withdraw(self, part: Part) -> None:
        """See `worker.staging.FormerParts`."""
        self.process.kernel.sleep(PART_SECONDS * self.draw())
        if self.lake.is_table and self.lake.stored_to(part) is not None:
            raise SinkError("the part was stored meanwhile")
        self.lake.withdraw(part)
        self.process.kernel.sleep(PART_SECONDS * self.draw())


@dataclass(slots=True)
class ChainedTableSink(ChainedSink):
    """For tables: files have their final names from the beginning, and commits make them visible."""

    commit_seconds: float = field(kw_only=True)
    line: Client = field(kw_only=True)

    @property
    def destinations(self) -> Mapping[str, Destination]:
        """See `worker.staging.StagingSink`."""
        table = CommittedTable(self.line, self.store, self.faults, self.draw)
        return {FIRST: Destination(self.store, PublishedByCommits(table, self.commit_seconds))}

    def _place(self, chain: ChainId, path: str) -> str:
        return path

    def _discard(self, chain: ChainId, number: int) -> None:
        """Vacuum removes what failed attempts leave."""


@dataclass(frozen=True, slots=True)
class CommittedTable:
    """The table as one process uses it, see `worker.table_committer.ChainedTable`."""

    line: Client
    files: FileStore
    faults: SinkFaults
    draw: Callable[[], float]

    def committed(self, application: str) -> int:
        with _errors():
            number: int = call(self.line, "read_log", application=application)["Number"]
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
            call(self.line, "write_log", application=application, read=read, number=number, paths=paths)
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
