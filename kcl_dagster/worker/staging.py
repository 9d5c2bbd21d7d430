"""What a worker that decides its batches in a chain asks of a sink."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kcl_dagster.chains.entry import StagedFile, TableRules
from kcl_dagster.chains.store import Entries
from kcl_dagster.model.claim import ChainId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.batch import Batch, D_contra, PartCounts
from kcl_dagster.worker.table_committer import ChainedTable


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """The staged files of a batch. Each may hold rows of several shards. `counts`: what they hold of each lease; it
    may be missing where that is not known."""

    files: tuple[StagedFile, ...]
    counts: Mapping[LeaseKey, PartCounts]
    rules: TableRules | None = None
    """Of tables, see `PublishingEntry`."""


@runtime_checkable
class BesideChains(Protocol):
    """A sink whose data may have chains beside them, also those of workers with another setting of the sink."""

    @property
    def entries(self) -> Entries:
        """The chains beside the data."""


@runtime_checkable
class TableBesideChains(BesideChains, Protocol):
    """A sink whose entries are published by commits of a table, and not by moving files."""

    @property
    def chained_table(self) -> ChainedTable:
        """The table below whose root the chains are."""

    @property
    def commit_seconds(self) -> float:
        """Between two commits of the table."""


class StagingSink(BesideChains, Protocol[D_contra]):
    """Stages batches. Called on the worker's main thread, one batch at a time."""

    def stage(self, data: D_contra, batch: Batch, chain: ChainId, number: int) -> StagedBatch:
        """Write the output of the batch below `chains.publication.staged_path` of the chain, durably, all of it,
        and check that no row is missing. `number`: no other batch of the chain has it. Readers must not see the
        files. The files of a table are written under their final names, because readers see what is committed.

        The batch may become void after that: its records are then staged again, with other records, by this worker
        or another one. The output may be another one every time. Raises SinkError if staging failed; what was
        staged then is removed when the chain is settled. Any other error counts as a failure of user code.
        """
