"""What chains have decided, in a real Delta table: once, by one commit for all, and only if it fits."""

import itertools
import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType

from kcl_dagster.chains.chain import Chain
from kcl_dagster.chains.entry import PublishingEntry, StagedFile, StoredRange
from kcl_dagster.chains.publication import chain_id
from kcl_dagster.chains.store import Entries
from kcl_dagster.errors import RecordRefused, SinkError
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.claim import ChainId, ClaimId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.sinks.batch_files import ForTable, StageFiles, batch_files
from kcl_dagster.spark.sinks.completeness import completeness_key
from kcl_dagster.spark.sinks.delta import DeltaSink
from kcl_dagster.spark.sinks.delta_commits import DeltaCommits, application_key
from kcl_dagster.spark.sinks.delta_log import DeltaLog, url_of
from kcl_dagster.spark.sinks.delta_rules import DeltaRules
from kcl_dagster.spark.storage import LocalStore, Store
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.testing.clock import FakeClock
from kcl_dagster.worker.batch import Batch
from kcl_dagster.worker.staging import StagedBatch
from kcl_dagster.worker.table_committer import COMMIT_SECONDS, RETRY_SECONDS, TableCommitter
from tests.unit.worker.kit import Data, Fuse, Killed, World

APPLICATION = "clicks"
NOON = int(datetime(2026, 11, 23, 12, tzinfo=UTC).timestamp())
A, B = LeaseKey("shardId-000000000000"), LeaseKey("shardId-000000000001")


@dataclass
class Fixture:
    """A table, and workers that decide batches for it."""

    store: Store
    options: dict[str, str] = field(default_factory=dict)
    columns: Sequence[str] = ("kind",)
    clock: FakeClock = field(default_factory=FakeClock)
    ids: Callable[[], str] = field(default_factory=lambda: map(str, itertools.count()).__next__)

    def __post_init__(self) -> None:
        self.runtime = Runtime(clock=self.clock, random=random.Random(1))
        self.chain = Chain(Entries(self.store), chain_id(APPLICATION, "w1", "1"), self.ids)
        self.log = self.new_log()

    def new_log(self) -> DeltaLog:
        return DeltaLog(self.store, self.options, self.columns)

    def committer(self, complete: WrittenThrough | None = None) -> TableCommitter:
        table = DeltaCommits(self.new_log(), self.runtime)
        entries = Entries(self.store)
        return TableCommitter(entries, table, APPLICATION, self.ids, self.clock, complete=lambda: complete)

    def staged(self, chain: ChainId, number: int, rows: pa.RecordBatch) -> StagedBatch:
        """As `StagedDeltaSink.stage`, of an output that is there already."""
        table = self.log.refreshed() or self.log.open(rows.schema)
        assert table is not None
        rules = DeltaRules.of(table, self.log.name)
        task = StageFiles(
            self.store, rules.layout, chain, number, 1 << 20, table=ForTable(rules.target, rules.indexed_columns)
        )
        files = batch_files([row for manifest in task(iter([rows])) for row in manifest.to_pylist()])
        found = (StagedFile(one.path, one.rows, one.bytes, one.partition, one.statistics) for one in files)
        return StagedBatch(tuple(found), {}, rules.fulfilled(rows.schema) if files else None)

    def decide(self, rows: pa.RecordBatch) -> PublishingEntry:
        number = self.chain.last + 1
        ranges = [StoredRange(A, ClaimId("c"), TRIM_HORIZON, Checkpoint(str(number)), 1, 8)]
        staged = self.staged(self.chain.id, number, rows)
        entry = self.chain.decide(staged.files, ranges, staged.rules)
        assert entry is not None
        return entry

    @property
    def wanted(self) -> dict[ChainId, int]:
        return {self.chain.id: self.chain.last}

    def table(self) -> DeltaTable:
        return DeltaTable(url_of(self.store.root), storage_options=self.options)

    def rows(self) -> list[dict[str, Any]]:
        return self.table().to_pyarrow_table().sort_by("n").to_pylist()  # type: ignore[no-any-return]  # untyped

    def numbers(self) -> list[int]:
        return [row["n"] for row in self.rows()]


def rows_of(numbers: range, kind: str | None = "a", **columns: Any) -> pa.RecordBatch:
    size = len(numbers)
    return pa.record_batch(
        {"n": pa.array(numbers, pa.int64()), "kind": pa.array([kind] * size, pa.string()), **columns}
    )


@pytest.fixture
def local(tmp_path: Path) -> Fixture:
    return Fixture(LocalStore(str(tmp_path)))


def test_entries_of_many_batches_come_with_one_commit(local: Fixture) -> None:
    for number in range(4):
        local.decide(rows_of(range(10 * number, 10 * number + 10), kind="ab"[number % 2]))
    assert local.rows() == []
    version = local.table().version()
    committer = local.committer(WrittenThrough(NOON, 3))
    committer.finish(local.wanted)
    assert local.numbers() == list(range(40))
    table = local.table()
    assert table.version() == version + 1
    assert table.transaction_version(application_key(APPLICATION)) == 1
    assert Counter(row["kind"] for row in local.rows()) == {"a": 20, "b": 20}
    newest, *_ = table.history(1)
    assert "2026-11-23T12:00:00" in newest[completeness_key(APPLICATION)]
    assert pa.table(table.get_add_actions(flatten=True))["num_records"].to_pylist() == [10] * 4
    local.decide(rows_of(range(40, 41)))
    local.committer().finish(local.wanted)
    assert local.numbers() == list(range(41))


def test_a_commit_is_made_once_by_however_many_workers_at_once(local: Fixture) -> None:
    for number in range(3):
        local.decide(rows_of(range(10 * number, 10 * number + 10)))
    committers = [local.committer() for _ in range(4)]
    barrier = threading.Barrier(len(committers))

    def work(committer: TableCommitter) -> None:
        barrier.wait()
        committer.finish(local.wanted)

    threads = [threading.Thread(target=work, args=(committer,)) for committer in committers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for committer in committers:
        local.clock.advance(RETRY_SECONDS)
        committer.finish(local.wanted)
    assert local.numbers() == list(range(30))
    assert local.table().transaction_version(application_key(APPLICATION)) == 1


def test_a_committer_that_was_paused_over_other_commits_adds_nothing(
    local: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = local.decide(rows_of(range(3)))
    late = DeltaCommits(local.new_log(), local.runtime)
    assert late.committed(APPLICATION) == 0
    table = late.log.open()
    assert table is not None
    local.committer().finish(local.wanted)
    local.decide(rows_of(range(3, 5)))
    local.committer().finish(local.wanted)
    with monkeypatch.context() as paused:
        paused.setattr(DeltaLog, "refreshed", lambda _: table)
        with pytest.raises(SinkError, match="Concurrent"):
            late.commit(APPLICATION, 1, [entry], None)
    assert late.committed(APPLICATION) == 2
    late.commit(APPLICATION, 1, [entry], None)
    assert local.numbers() == list(range(5))


def test_a_commit_whose_answer_was_lost_is_looked_up(local: Fixture) -> None:
    local.decide(rows_of(range(3)))
    committer = local.committer()
    commit = committer.table.commit

    def lost(*args: Any) -> None:
        commit(*args)
        raise SinkError("no answer")

    committer.table = _Table(committer.table.committed, lost)
    committer.finish(local.wanted)
    local.decide(rows_of(range(3, 4)))
    local.committer().finish(local.wanted)
    assert local.numbers() == list(range(4))


@dataclass
class _Table:
    committed: Callable[[str], int]
    commit: Callable[..., None]


def test_other_writers_of_the_table_may_commit_in_between(local: Fixture) -> None:
    local.decide(rows_of(range(3)))
    committer = local.committer()
    assert committer.table.committed(APPLICATION) == 0
    DeltaSink(local.store.root).keep_complete("another", WrittenThrough(NOON), NOON)
    committer.finish(local.wanted)
    assert local.numbers() == [0, 1, 2]


ALTERATIONS: dict[str, Callable[[DeltaTable], object]] = {
    "a constraint": lambda table: table.alter.add_constraint({"small": "n < 100"}),
    "another table": lambda table: _replaced(
        table, [Field("m", PrimitiveType("long")), Field("kind", PrimitiveType("string"))]
    ),
    "another type": lambda table: _replaced(
        table, [Field("n", PrimitiveType("string")), Field("kind", PrimitiveType("string"))]
    ),
}


def _replaced(table: DeltaTable, fields: list[Field]) -> None:
    from deltalake import write_deltalake

    empty = pa.schema(Schema(fields).to_arrow()).empty_table()
    write_deltalake(table, empty, mode="overwrite", schema_mode="overwrite", partition_by=["kind"])


@pytest.mark.parametrize("how", ALTERATIONS)
def test_a_table_that_was_altered_takes_nothing_that_does_not_fit(local: Fixture, how: str) -> None:
    local.decide(rows_of(range(3)))
    committer = local.committer()
    committer.finish(local.wanted)
    local.decide(rows_of(range(3, 6)))
    ALTERATIONS[how](local.table())
    before = local.table().version()
    local.clock.advance(COMMIT_SECONDS)
    for _ in range(2):
        with pytest.raises(SinkError, match="What was decided is safe in its files"):
            committer.step(local.wanted)
        with pytest.raises(SinkError):
            committer.check()
        local.clock.advance(RETRY_SECONDS)
    assert local.table().version() == before


def test_a_table_that_was_repaired_takes_what_was_decided(local: Fixture) -> None:
    local.decide(rows_of(range(3)))
    committer = local.committer()
    committer.finish(local.wanted)
    local.decide(rows_of(range(3, 6)))
    local.table().alter.add_constraint({"small": "n < 100"})
    with pytest.raises(SinkError):
        committer.finish(local.wanted)
    local.table().alter.drop_constraint("small")
    local.clock.advance(RETRY_SECONDS)
    committer.finish(local.wanted)
    committer.check()
    assert local.numbers() == list(range(6))


def test_a_column_that_is_added_meanwhile_does_no_harm(local: Fixture) -> None:
    local.decide(rows_of(range(3)))
    local.table().alter.add_columns([Field("note", PrimitiveType("string"))])
    local.committer().finish(local.wanted)
    assert [row["note"] for row in local.rows()] == [None] * 3


def test_a_table_that_was_removed_is_made_again_from_what_was_decided(local: Fixture) -> None:
    local.decide(rows_of(range(3)))
    shutil.rmtree(Path(local.store.root, "_delta_log"))
    committer = local.committer()
    committer.finish(local.wanted)
    assert local.numbers() == [0, 1, 2]
    assert local.table().metadata().partition_columns == ["kind"]


def test_null_in_a_column_that_allows_none_is_refused_before_the_decision(local: Fixture) -> None:
    fields = [("n", pa.int64()), pa.field("kind", pa.string(), nullable=False)]
    DeltaTable.create(local.store.root, pa.schema(fields))
    with pytest.raises(RecordRefused, match=r"null in \['kind'\]"):
        local.staged(local.chain.id, 1, rows_of(range(2), kind=None))


def test_narrower_types_are_widened_as_the_table_has_them(local: Fixture) -> None:
    DeltaTable.create(local.store.root, pa.schema([("n", pa.int64()), ("kind", pa.string())]))
    narrow = pa.record_batch({"n": pa.array([1, 2], pa.int32()), "kind": ["a", "b"]})
    (file,) = local.decide(narrow).files
    assert pq.read_schema(pa.BufferReader(local.store.get(file.path))).field("n").type == pa.int64()
    local.committer().finish(local.wanted)
    assert local.numbers() == [1, 2]


def test_a_vacuum_leaves_chains_and_plans_alone(local: Fixture) -> None:
    local.decide(rows_of(range(3)))
    local.committer().finish(local.wanted)
    local.staged(local.chain.id, 99, rows_of(range(3)))  # of a batch that came to nothing
    removed = local.table().vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert [name for name in removed if "99_" not in name] == []
    assert len(removed) == 1
    local.decide(rows_of(range(3, 4)))
    local.committer().finish(local.wanted)
    assert local.numbers() == list(range(4))


@dataclass
class TableOfWorkers:
    """The sink of workers in a test, into a real table. Nothing in a row says which attempt wrote it, and no two
    attempts write the same."""

    lake: Fixture
    fuse: Fuse
    commit_seconds: float = COMMIT_SECONDS

    def __post_init__(self) -> None:
        self.chained_table = DeltaCommits(self.lake.new_log(), self.lake.runtime)

    @property
    def entries(self) -> Entries:
        return Entries(self.lake.store)

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


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_a_worker_that_ends_is_followed_by_another(local: Fixture, rounds: int) -> None:
    """It ends after it has staged its next batch. What it had decided is in no row and not in the table."""
    world = World(shards=2)
    for shard in (A, B):
        world.stream.put(shard, *(f"record {number}" for number in range(18)))
    names = map("w{}".format, itertools.count(1))
    for _ in range(2):
        sink = TableOfWorkers(local, Fuse())
        run = world.worker(next(names), chains=sink)
        world.assign(run)
        for _ in range(rounds):
            run.round()
        sink.fuse.burns_at = sink.fuse.passed + 1
        with pytest.raises(Killed):
            run.until_idle()
        world.stream.put(A, "one more")
    run = world.worker(next(names), chains=TableOfWorkers(local, Fuse()))
    world.assign(run)
    run.until_idle()
    run.worker.protocol.close()
    run.worker.shut_down()
    found = Counter((row["shard"], row["n"], row["data"]) for row in local.rows())
    assert found == Counter(world.stream.everything())
    assert all(world.lease(shard).claim is None for shard in (A, B))
    plans = [file.path for file in local.store.files("_commits/", hidden=True)]
    assert len(plans) == 1


def test_the_costs_of_a_commit_do_not_grow_with_their_number(local: Fixture) -> None:
    """What is kept beside the table is one plan and the last entry of each chain, after however many commits."""
    committer = local.committer()
    for number in range(30):
        local.decide(rows_of(range(number, number + 1)))
        committer.finish(local.wanted)
        local.chain.written({A: Checkpoint(str(number + 1))})
        local.chain.delete_entries(committer.visible(local.chain.id))
    kept = [file.path for folder in ("_chains/", "_commits/") for file in local.store.files(folder, hidden=True)]
    assert len(kept) == 2
    assert local.numbers() == list(range(30))
