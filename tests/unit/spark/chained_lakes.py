"""Real tables, and workers that decide batches for them in chains: one of each format."""

import itertools
import pickle
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyiceberg.schema import Schema
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate
from pyiceberg.types import NestedField, StringType

from kcl_dagster.chains.chain import Chain
from kcl_dagster.chains.entry import FIRST, PublishingEntry, StoredRange
from kcl_dagster.chains.publication import chain_id
from kcl_dagster.chains.store import Entries, FileStore
from kcl_dagster.model.change_rules import ChangeRules
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.claim import ChainId, ClaimId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.sinks.batch_files import StageFiles, batch_files
from kcl_dagster.spark.sinks.catalog_table import CatalogTable
from kcl_dagster.spark.sinks.chain_folder import ChainFolder
from kcl_dagster.spark.sinks.completeness import application_key, completeness_key
from kcl_dagster.spark.sinks.delta import DeltaFormat
from kcl_dagster.spark.sinks.delta_log import DeltaLog, url_of
from kcl_dagster.spark.sinks.iceberg import IcebergFormat
from kcl_dagster.spark.sinks.table_sink import TableFormat
from kcl_dagster.spark.storage import LocalStore
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.batch import Batch
from kcl_dagster.worker.staging import Destination, FormerParts, PublishedByCommits, StagedBatch
from kcl_dagster.worker.table_committer import COMMIT_SECONDS, RETRY_SECONDS, ChainedTable, TableCommitter
from tests.doubles.clock import FakeClock
from tests.unit.worker.kit import Data, Fuse

APPLICATION = "clicks"
LEASE = LeaseKey("shardId-000000000000")
IDENTIFIER = "lake.clicks"


@dataclass
class Lake(ABC):
    """A table below `folder`, which the first batch makes, partitioned by `columns`."""

    folder: Path
    columns: Sequence[str] = ("kind",)
    worker: str = "w1"
    clock: FakeClock = field(default_factory=FakeClock)
    ids: Callable[[], str] = field(default_factory=lambda: map(str, itertools.count()).__next__)

    def __post_init__(self) -> None:
        self.runtime = Runtime(clock=self.clock, random=random.Random(1))
        self.format = self.process()
        self.chain = Chain(Entries(self.format.chains), chain_id(APPLICATION, self.worker, "1"), self.ids)

    @abstractmethod
    def process(self) -> TableFormat:
        """The table as a process of its own uses it."""

    @property
    def store(self) -> FileStore:
        """Where the chains are."""
        return self.format.chains

    def committer(self, complete: WrittenThrough | None = None) -> TableCommitter:
        entries = Entries(self.store)
        return TableCommitter(
            entries,
            {FIRST: self.process().commits},
            APPLICATION,
            self.ids,
            self.clock,
            complete=lambda: complete,
            staging=(self.store,) if self.format.stages else (),
        )

    def staged(self, chain: ChainId, number: int, *batches: pa.RecordBatch) -> StagedBatch:
        """As `TableSink.stage`, of an output that is there already."""
        output = batches[0].schema
        rules = self.format.rules() or self.format.first_rules(output)
        if rules.target is not None:
            rules.target.check(output)
        sent = StageFiles(rules.store, rules.layout, chain, number, 1 << 20, table=rules.for_table)
        task: StageFiles = pickle.loads(pickle.dumps(sent))  # to an executor
        files = batch_files([row for manifest in task(iter(batches)) for row in manifest.to_pylist()])
        if not files:
            return StagedBatch((), {})
        staged, fulfilled = rules.staged(files, output)
        return StagedBatch(staged, {}, fulfilled)

    def decide(self, *batches: pa.RecordBatch) -> PublishingEntry:
        number = self.chain.last + 1
        ranges = [StoredRange(LEASE, ClaimId("c"), TRIM_HORIZON, Checkpoint(str(number)), 1, 8)]
        staged = self.staged(self.chain.id, number, *batches)
        entry = self.chain.decide(staged.files, ranges, staged.rules)
        assert entry is not None
        return entry

    def write(self, *batches: pa.RecordBatch) -> None:
        """Decide a batch, and commit it."""
        self.decide(*batches)
        self.committer().finish(self.wanted)

    @property
    def wanted(self) -> dict[ChainId, int]:
        return {self.chain.id: self.chain.last}

    def left(self) -> list[str]:
        """What is kept beside the table."""
        return [file.path for folder in ("_chains/", "_commits/") for file in self.store.files(folder, hidden=True)]

    def numbers(self) -> list[int]:
        return [row["n"] for row in self.rows()]

    @abstractmethod
    def read(self) -> pa.Table:
        """What readers see."""

    @abstractmethod
    def append(self, rows: pa.Table) -> None:
        """As another writer does."""

    def rows(self) -> list[dict[str, Any]]:
        """What readers see, by `n`."""
        return self.read().sort_by("n").to_pylist()  # type: ignore[no-any-return]  # untyped

    @abstractmethod
    def version(self) -> int:
        """Higher after each commit of rows."""

    @abstractmethod
    def last_number(self) -> int:
        """Of the last commit of the application, as the table says."""

    @abstractmethod
    def complete_through(self) -> str:
        """What the last commit says."""

    @abstractmethod
    def add_column(self) -> None:
        """A column `note` of texts, with nothing in it."""

    @abstractmethod
    def make(self, schema: pa.Schema) -> None:
        """Make the table by hand, without partitions."""


def commit_at_once(lake: Lake, *tolerated: type[Exception]) -> None:
    """Four workers commit what is decided at the same time. Then each of them looks once more. `tolerated`: what a
    worker may raise whose commit another one has made meanwhile."""
    committers = [lake.committer() for _ in range(4)]
    barrier = threading.Barrier(len(committers))

    def work(committer: TableCommitter) -> None:
        barrier.wait()
        with suppress(*tolerated):
            committer.finish(lake.wanted)

    threads = [threading.Thread(target=work, args=(committer,)) for committer in committers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for committer in committers:
        lake.clock.advance(RETRY_SECONDS)
        committer.finish(lake.wanted)


@dataclass
class DeltaLake(Lake):
    """`changes`: its batches are change rows."""

    changes: ChangeRules | None = None

    def process(self) -> TableFormat:
        store = LocalStore(str(self.folder / "table"))
        return DeltaFormat(DeltaLog(store, {}, self.columns), self.runtime, self.changes)

    def table(self) -> DeltaTable:
        return DeltaTable(url_of(self.store.root))

    def read(self) -> pa.Table:
        return self.table().to_pyarrow_table()

    def append(self, rows: pa.Table) -> None:
        write_deltalake(self.store.root, rows, mode="append")

    def version(self) -> int:
        return self.table().version()

    def last_number(self) -> int:
        return self.table().transaction_version(application_key(APPLICATION)) or 0

    def complete_through(self) -> str:
        newest, *_ = self.table().history(1)
        return str(newest[completeness_key(APPLICATION)])

    def add_column(self) -> None:
        self.table().alter.add_columns([Field("note", PrimitiveType("string"))])

    def make(self, schema: pa.Schema) -> None:
        DeltaTable.create(self.store.root, schema)


@dataclass
class IcebergLake(Lake):
    """`changes`: its batches are change rows."""

    changes: ChangeRules | None = None

    @property
    def chains_path(self) -> str | None:
        """None: the chains are below the table."""
        return None

    def catalog_table(self) -> CatalogTable:
        where = {"type": "sql", "uri": f"sqlite:///{self.folder}/catalog.db", "warehouse": str(self.folder)}
        return CatalogTable(IDENTIFIER, where, partition_by=self.columns)

    def process(self) -> TableFormat:
        table = self.catalog_table()
        return IcebergFormat(table, ChainFolder(table, self.chains_path), self.runtime, self.changes)

    def table(self) -> Any:
        return self.catalog_table().catalog.load_table(IDENTIFIER)

    def read(self) -> pa.Table:
        return self.table().scan().to_arrow()

    def append(self, rows: pa.Table) -> None:
        self.table().append(rows)

    def version(self) -> int:
        return len(self.table().snapshots())

    def last_number(self) -> int:
        return self.process().commits.committed(APPLICATION)

    def complete_through(self) -> str:
        return str(self.table().current_snapshot().summary.get(completeness_key(APPLICATION)))

    def add_column(self) -> None:
        with self.table().update_schema() as schema:
            schema.add_column("note", StringType())

    def make(self, schema: pa.Schema) -> None:
        catalog = self.catalog_table().catalog
        catalog.create_namespace_if_not_exists("lake")
        catalog.create_table(IDENTIFIER, schema)


def put_back(lake: IcebergLake, column: NestedField, to: Schema | None = None) -> None:
    """Add a column as engines do that leave the name mapping alone, and compare no names of former partitions.
    `to`: the other columns, if they are not those of the table."""
    table = lake.table()
    newest = max(one.schema_id for one in table.metadata.schemas)
    schema = Schema(*(to or table.schema()).fields, column, schema_id=newest + 1)
    added = AddSchemaUpdate(schema=schema)  # type: ignore[call-arg]  # an alias
    updates = added, SetCurrentSchemaUpdate(schema_id=-1)
    table.catalog.commit_table(table, (), updates)


LAKES: dict[str, type[Lake]] = {"delta": DeltaLake, "iceberg": IcebergLake}


def rows_of(numbers: range, kind: str | None = "a", **columns: Any) -> pa.RecordBatch:
    size = len(numbers)
    return pa.record_batch(
        {"n": pa.array(numbers, pa.int64()), "kind": pa.array([kind] * size, pa.string()), **columns}
    )


@dataclass
class Fused:
    """Each call of a method is two points of a fuse."""

    of: Any
    fuse: Fuse

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.of, name)
        return partial(self._call, found) if callable(found) else found

    def _call(self, method: Callable[..., Any], *args: Any, **more: Any) -> Any:
        self.fuse.point()
        answer = method(*args, **more)
        self.fuse.point()
        return answer


@dataclass
class LakeOfWorkers:
    """The sink of a worker in a test, into a real table. Nothing in a row says which attempt wrote it, and no two
    attempts write the same."""

    lake: Lake
    fuse: Fuse
    commit_seconds: float = COMMIT_SECONDS

    def __post_init__(self) -> None:
        table = cast("ChainedTable", Fused(self.lake.process().commits, self.fuse))
        commits = PublishedByCommits(table, self.commit_seconds, self.lake.format.stages)
        self.destinations = {FIRST: Destination(self.entries.files, commits)}

    @property
    def entries(self) -> Entries:
        return Entries(cast("FileStore", Fused(self.lake.store, self.fuse)))

    @property
    def former_parts(self) -> FormerParts:
        return self.lake.process().former_parts

    def begin_reading(self, chain: ChainId, time_column: str | None) -> None:
        """See `worker.staging.StagingSink`."""

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        self.lake.process().keep_complete(application, known, wanted)

    def stage(self, data: Data, batch: Batch, chain: ChainId, number: int) -> StagedBatch:
        rows = pa.record_batch(
            {
                "shard": [row[0] for row in data],
                "n": pa.array([row[1] for row in data], pa.int64()),
                "data": [row[2] for row in data],
                "kind": [random.choice("abc") for _ in data],
                "chance": [random.random() for _ in data],
            }
        )
        staged = self.lake.staged(chain, number, rows)
        self.fuse.point()
        return staged
