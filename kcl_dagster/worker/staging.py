"""The interface of sinks for workers that decide their batches in chains (logs of committed batches)."""

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
    """The staged files of a batch. Each file can have rows of several shards. `counts`: the counts of these rows by
    lease, in all tables; leases whose counts are not known are missing. `files`, `rules`, `others`: see
    `PublishingEntry`."""

    files: tuple[StagedFile, ...]
    counts: Mapping[LeaseKey, PartCounts]
    rules: TableRules | None = None
    others: Mapping[str, TableOutput] = field(default_factory=dict)

    @property
    def paths(self) -> dict[str, list[str]]:
        found = {FIRST: self.files, **{name: table.files for name, table in self.others.items()}}
        return {name: [file.path for file in files] for name, files in found.items()}


@dataclass(frozen=True, slots=True)
class PublishedByCommits:
    """A table whose entries are published by commits, instead of by moving files. `seconds`: the time between two
    commits. `stages`: whether files are staged first, like the files of a folder."""

    table: ChainedTable
    seconds: float
    stages: bool = False


@dataclass(frozen=True, slots=True)
class Destination:
    """A table or folder of a sink.

    - `files`: the store in which its files are staged, below the root of the store.
    - `commits`: None for a folder, whose entries are published by moving files.
    - `place`: a text that is the same in all processes, and unique to this table.
    """

    files: FileStore
    commits: PublishedByCommits | None = None
    place: str = ""


class FormerParts(Protocol):
    """The parts that earlier versions of this package have stored. Those versions used no chains, and pinned a
    lease to each batch before they stored it."""

    def stored_to(self, part: Part) -> Checkpoint | None:
        """The checkpoint through which the part is stored. This is the end of the part. If the part is a piece of a
        larger part (`instead_of`) that is stored, it is the end of the larger part. None if neither is stored
        completely, or if the sink cannot tell. Raises SinkError."""

    def withdraw(self, part: Part) -> None:
        """Withdraw this part and the parts that it replaces (`instead_of`). In a folder, the files of earlier
        attempts at these parts are removed. A table that exists refuses all these parts from now on. `part` must
        have a new number, under which no worker has stored it. Raises SinkError, also if one of the replaced parts
        was stored meanwhile."""


class StagingSink(Protocol[D_contra]):
    """Stages batches. Called on the worker's main thread, one batch at a time."""

    @property
    def entries(self) -> Entries:
        """The chains. They are stored with the data. If the sink has several tables, they are stored with the data
        of the first table."""

    @property
    def destinations(self) -> Mapping[str, Destination]:
        """The tables and folders by name. The first of them has the name FIRST, even if it is the only one."""

    @property
    def former_parts(self) -> FormerParts: ...

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        """Store a moment with the data: the moment `known`, through which the application is complete. Nothing is
        written for a folder that has this moment already. Nothing is written for a table that already has the
        moment `wanted` (epoch seconds), or a later moment of the same epoch. Called on a thread of its own,
        possibly while a batch is staged. Can take long, and can raise any error."""

    def begin_reading(self, chain: ChainId, time_column: str | None) -> None:
        """Prepare for batches of this chain. Called before the first records are read, because the files of a batch
        can be written already while the batch is fetched. `time_column`: see `Batch`. Does not raise."""

    def stage(self, data: D_contra, batch: Batch, chain: ChainId, number: int) -> StagedBatch:
        """Write the whole output of the batch durably below `chains.publication.staged_path` of the chain, and
        check that no row is missing. `number`: unique within the chain. Readers must not see the files. The files
        of a table are written under their final names, because readers of a table see only committed files.

        The batch can still be given up later. Its records are then staged again, together with other records, by
        this worker or another one. The output can differ every time. Raises SinkError if staging failed. Files
        that were staged before the error are removed when the chain is settled. Any other error counts as a failure
        of user code.
        """
