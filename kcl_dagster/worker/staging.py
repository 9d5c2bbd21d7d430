"""What a worker that decides its batches in a chain asks of a sink."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kcl_dagster.chains.entry import FIRST, StagedFile, TableOutput, TableRules
from kcl_dagster.chains.store import Entries, FileStore
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.claim import ChainId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.batch import Batch, D_contra, Part, PartCounts
from kcl_dagster.worker.table_committer import ChainedTable


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """The staged files of a batch. Each may hold rows of several shards. `counts`: what they hold of each lease, in
    all tables; it may be missing where that is not known. `files`, `rules`, `others`: see `PublishingEntry`."""

    files: tuple[StagedFile, ...]
    counts: Mapping[LeaseKey, PartCounts]
    rules: TableRules | None = None
    others: Mapping[str, TableOutput] = field(default_factory=dict)

    @property
    def paths(self) -> dict[str, list[str]]:
        """The final paths of the files, by table."""
        found = {FIRST: self.files, **{name: table.files for name, table in self.others.items()}}
        return {name: [file.path for file in files] for name, files in found.items()}


@dataclass(frozen=True, slots=True)
class PublishedByCommits:
    """Of a table whose entries are published by commits, and not by moving files. `seconds`: between two commits.
    `stages`: whether files are staged as those of a folder are."""

    table: ChainedTable
    seconds: float
    stages: bool = False


@dataclass(frozen=True, slots=True)
class Destination:
    """A table or folder of a sink. `files`: below its root files are staged. `commits`: None of a folder, whose
    entries are published by moving files. `place`: the same in all processes, and no other table has it."""

    files: FileStore
    commits: PublishedByCommits | None = None
    place: str = ""


class FormerParts(Protocol):
    """What versions of this package that decided batches in leases have stored. They have pinned a lease to each
    batch before they stored it."""

    def stored_to(self, part: Part) -> Checkpoint | None:
        """The end of the part if it is stored as a whole, or of the part that it is a piece of (`instead_of`).
        None: it is not, or the sink cannot tell. Raises SinkError."""

    def withdraw(self, part: Part) -> None:
        """Remove what attempts at the part, and at the parts that it replaces, have left. Tables that are there
        refuse all of them from now on. No worker has stored this part itself. Raises SinkError, also if one of them
        was stored meanwhile."""


class StagingSink(Protocol[D_contra]):
    """Stages batches. Called on the worker's main thread, one batch at a time."""

    @property
    def entries(self) -> Entries:
        """The chains beside the data: of several tables, beside the first one."""

    @property
    def destinations(self) -> Mapping[str, Destination]:
        """By name. The only one, or the first, is called FIRST."""

    @property
    def former_parts(self) -> FormerParts: ...

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        """Store with the data through when the application is complete, unless as much is stored. A table to whose
        commits `wanted` (epoch seconds) or a later moment of the epoch is attached needs no other entry. Called on
        a thread of its own, possibly while a batch is staged. May take its time, and may raise anything."""

    def begin_reading(self, chain: ChainId, time_column: str | None) -> None:
        """Called before records are read that are to be decided in this chain: a fetch may stage them already.
        `time_column`: of the batch. Raises nothing."""

    def stage(self, data: D_contra, batch: Batch, chain: ChainId, number: int) -> StagedBatch:
        """Write the output of the batch below `chains.publication.staged_path` of the chain, durably, all of it,
        and check that no row is missing. `number`: no other batch of the chain has it. Readers must not see the
        files. The files of a table are written under their final names, because readers see what is committed.

        The batch may become void after that: its records are then staged again, with other records, by this worker
        or another one. The output may be another one every time. Raises SinkError if staging failed; what was
        staged then is removed when the chain is settled. Any other error counts as a failure of user code.
        """
