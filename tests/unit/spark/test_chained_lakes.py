"""Commits of what chains have decided to real tables: once, whoever commits, whatever happens in between."""

import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType

from kcl_dagster.chains.chain import Chain
from kcl_dagster.chains.entry import FIRST, TableOutput, place_id
from kcl_dagster.chains.publication import chain_id
from kcl_dagster.chains.store import Entries
from kcl_dagster.errors import RecordRefused, SinkError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.sinks import delta_appends
from kcl_dagster.spark.sinks.batch_files import StageFiles, batch_files
from kcl_dagster.spark.sinks.delta_commits import DeltaCommits
from kcl_dagster.spark.sinks.delta_compaction import compact_delta
from kcl_dagster.spark.sinks.delta_log import DeltaLog
from kcl_dagster.spark.storage import LocalStore, StoredFile
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.publishing import publisher_of
from kcl_dagster.worker.staging import Destination, PublishedByCommits
from kcl_dagster.worker.table_committer import COMMIT_SECONDS, RETRY_SECONDS
from tests.unit.spark.chained_lakes import (
    APPLICATION,
    IDENTIFIER,
    LAKES,
    DeltaLake,
    IcebergLake,
    Lake,
    LakeOfWorkers,
    commit_at_once,
    rows_of,
)
from tests.unit.worker.kit import Fuse, Killed, World

pytestmark = pytest.mark.slow

NOON = int(datetime(2026, 11, 23, 12, tzinfo=UTC).timestamp())
A, B = LeaseKey("shardId-000000000000"), LeaseKey("shardId-000000000001")


@pytest.fixture(params=LAKES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return LAKES[request.param](tmp_path)


@pytest.fixture
def delta(tmp_path: Path) -> DeltaLake:
    return DeltaLake(tmp_path)


def test_entries_of_many_batches_come_with_one_commit(lake: Lake) -> None:
    for number in range(4):
        lake.decide(rows_of(range(10 * number, 10 * number + 10), kind="ab"[number % 2]))
    assert lake.rows() == []
    before = lake.version()
    lake.committer(WrittenThrough(NOON, 3)).finish(lake.wanted)
    assert lake.numbers() == list(range(40))
    assert lake.version() == before + 1
    assert lake.last_number() == 1
    assert Counter(row["kind"] for row in lake.rows()) == {"a": 20, "b": 20}
    assert json.loads(lake.complete_through()) == {"epoch": 3, "through": "2026-11-23T12:00:00+00:00"}
    lake.decide(rows_of(range(40, 41)))
    lake.committer().finish(lake.wanted)
    assert lake.numbers() == list(range(41))


def test_a_commit_is_made_once_by_however_many_workers_at_once(lake: Lake) -> None:
    for number in range(3):
        lake.decide(rows_of(range(10 * number, 10 * number + 10)))
    commit_at_once(lake)
    assert lake.numbers() == list(range(30))
    assert lake.last_number() == 1


def test_a_commit_whose_answer_was_lost_is_looked_up(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.decide(rows_of(range(3)))
    committer = lake.committer()
    kind = type(committer.tables[FIRST])
    commit = kind.commit

    def lost(*args: Any) -> None:
        commit(*args)
        raise SinkError("no answer")

    with monkeypatch.context() as network:
        network.setattr(kind, "commit", lost)
        committer.finish(lake.wanted)
    lake.decide(rows_of(range(3, 4)))
    lake.committer().finish(lake.wanted)
    assert lake.numbers() == list(range(4))


def test_a_column_that_is_added_meanwhile_does_no_harm(lake: Lake) -> None:
    lake.decide(rows_of(range(3)))
    lake.add_column()
    lake.committer().finish(lake.wanted)
    assert [row["note"] for row in lake.rows()] == [None] * 3


def test_null_in_a_column_that_allows_none_is_refused_before_the_decision(lake: Lake) -> None:
    lake.make(pa.schema([("n", pa.int64()), pa.field("kind", pa.string(), nullable=False)]))
    with pytest.raises(RecordRefused, match=r"null in \['kind'\]"):
        lake.staged(lake.chain.id, 1, rows_of(range(2), kind=None))


def test_lists_and_structs_without_nulls_make_a_table_as_any_others(lake: Lake) -> None:
    """As Spark's collect_list gives them. A table is made without promises that the next output may not keep."""
    columns = {
        "n": pa.array([1, 2], pa.int64()),
        "kind": ["a", "b"],
        "ids": pa.array([[1], [2, 3]], pa.list_(pa.field("element", pa.int64(), nullable=False))),
        "who": pa.array([{"name": "x"}, {"name": "y"}], pa.struct([pa.field("name", pa.string(), nullable=False)])),
    }
    lake.decide(pa.record_batch(columns))
    lake.committer().finish(lake.wanted)
    lake.decide(pa.record_batch(columns | {"n": pa.array([3, 4], pa.int64())}))
    lake.committer().finish(lake.wanted)
    assert lake.numbers() == [1, 2, 3, 4]
    assert [row["ids"] for row in lake.rows()] == [[1], [2, 3]] * 2


def test_narrower_types_are_widened_as_the_table_has_them(lake: Lake) -> None:
    lake.make(pa.schema([("n", pa.int64()), ("kind", pa.string())]))
    narrow = pa.record_batch({"n": pa.array([1, 2], pa.int32()), "kind": ["a", "b"]})
    lake.decide(narrow)
    [file] = lake.folder.rglob("*.parquet")
    assert pq.read_schema(file).field("n").type == pa.int64()
    lake.committer().finish(lake.wanted)
    assert lake.numbers() == [1, 2]


def test_files_of_a_batch_that_is_void_are_removed(lake: Lake) -> None:
    staged = lake.staged(lake.chain.id, 1, rows_of(range(3)))
    committer = lake.committer()
    for _ in range(2):
        committer.discard(lake.chain.id, staged.paths)
        assert list(lake.folder.rglob("*.parquet")) == []


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_a_worker_that_ends_is_followed_by_another(lake: Lake, rounds: int) -> None:
    """It ends after it has staged its next batch. What it had decided is in no row and not in the table."""
    world = World(shards=2)
    for shard in (A, B):
        world.stream.put(shard, *(f"record {number}" for number in range(18)))
    names = map("w{}".format, itertools.count(1))
    for _ in range(2):
        sink = LakeOfWorkers(lake, Fuse())
        run = world.worker(next(names), chains=sink)
        world.assign(run)
        for _ in range(rounds):
            run.round()
        sink.fuse.burns_at = sink.fuse.passed + 1
        with pytest.raises(Killed):
            run.until_idle()
        world.stream.put(A, "one more")
    run = world.worker(next(names), chains=LakeOfWorkers(lake, Fuse()))
    world.assign(run)
    run.until_idle()
    run.worker.protocol.close()
    run.worker.shut_down()
    found = Counter((row["shard"], row["n"], row["data"]) for row in lake.rows())
    assert found == Counter(world.stream.everything())
    assert all(world.lease(shard).claim is None for shard in (A, B))
    assert len([path for path in lake.left() if path.startswith("_commits/")]) == 1


STEP = 5  # points between two kills: each point is tried with a table in memory, see test_chained_tables


@pytest.mark.parametrize("kind", LAKES)
def test_a_worker_that_is_killed_anywhere_loses_and_repeats_nothing(tmp_path: Path, kind: str) -> None:
    for point in itertools.count(1, STEP):
        (tmp_path / str(point)).mkdir()
        lake = LAKES[kind](tmp_path / str(point))
        world = World(shards=2)
        for shard in (A, B):
            world.stream.put(shard, *(f"record {number}" for number in range(7)))
        sink = LakeOfWorkers(lake, Fuse(burns_at=point))
        run = world.worker("w1", chains=sink)
        world.assign(run)
        with suppress(Killed):
            run.until_idle()
            run.worker.protocol.close()
            run.worker.step_renewal()
            sink.fuse.burns_at = None
        world.stream.put(A, "one more")
        following = world.worker("w2", chains=LakeOfWorkers(lake, Fuse()))
        world.assign(following)
        following.until_idle()
        following.worker.protocol.close()
        found = Counter((row["shard"], row["n"], row["data"]) for row in lake.rows())
        assert found == Counter(world.stream.everything())
        if sink.fuse.burns_at is None:
            assert point > 50
            return


def test_what_is_kept_beside_the_table_does_not_grow_with_its_commits(lake: Lake) -> None:
    """One plan and the last entry of each chain."""
    committer = lake.committer()
    for number in range(12):
        lake.decide(rows_of(range(number, number + 1)))
        committer.finish(lake.wanted)
        lake.chain.written({A: Checkpoint(str(number + 1))})
        lake.chain.delete_entries(committer.visible(lake.chain.id))
    assert len(lake.left()) == 2
    assert lake.numbers() == list(range(12))


# Delta


def test_a_committer_that_was_paused_over_other_commits_adds_nothing(
    delta: DeltaLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = delta.decide(rows_of(range(3)))
    late = delta.process().commits
    assert isinstance(late, DeltaCommits)
    assert late.committed(APPLICATION) == 0
    table = late.log.open()
    assert table is not None
    delta.committer().finish(delta.wanted)
    delta.decide(rows_of(range(3, 5)))
    delta.committer().finish(delta.wanted)
    with monkeypatch.context() as paused:
        paused.setattr(DeltaLog, "refreshed", lambda _: table)
        with pytest.raises(SinkError, match="Concurrent"):
            late.commit(APPLICATION, 1, [entry], None)
    assert late.committed(APPLICATION) == 2
    late.commit(APPLICATION, 1, [entry], None)
    assert delta.numbers() == list(range(5))


def test_other_writers_of_the_table_may_commit_in_between(delta: DeltaLake) -> None:
    delta.decide(rows_of(range(3)))
    committer = delta.committer()
    assert committer.tables[FIRST].committed(APPLICATION) == 0
    delta.process().keep_complete("another", WrittenThrough(NOON), NOON)
    committer.finish(delta.wanted)
    assert delta.numbers() == [0, 1, 2]


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
def test_a_table_that_was_altered_takes_nothing_that_does_not_fit(delta: DeltaLake, how: str) -> None:
    delta.decide(rows_of(range(3)))
    committer = delta.committer()
    committer.finish(delta.wanted)
    delta.decide(rows_of(range(3, 6)))
    ALTERATIONS[how](delta.table())
    before = delta.table().version()
    delta.clock.advance(COMMIT_SECONDS)
    for _ in range(2):
        with pytest.raises(SinkError, match="What was decided is safe in its files"):
            committer.step(delta.wanted)
        with pytest.raises(SinkError):
            committer.check()
        delta.clock.advance(RETRY_SECONDS)
    assert delta.table().version() == before


def test_a_table_with_rules_that_another_writer_made_meanwhile_takes_no_unchecked_files(delta: DeltaLake) -> None:
    delta.columns = ()
    delta.format = delta.process()
    rules = delta.format.first_rules(rows_of(range(1)).schema)
    delta.make(pa.schema([("n", pa.int64()), pa.field("kind", pa.string(), nullable=False)]))
    rows = rows_of(range(2), kind=None)
    task = StageFiles(rules.store, rules.layout, delta.chain.id, 1, 1 << 20, table=rules.for_table)
    files = batch_files([row for manifest in task(iter([rows])) for row in manifest.to_pylist()])
    with pytest.raises(SinkError, match="made by another writer"):
        rules.staged(files, rows.schema)


def test_a_table_that_was_repaired_takes_what_was_decided(delta: DeltaLake) -> None:
    delta.decide(rows_of(range(3)))
    committer = delta.committer()
    committer.finish(delta.wanted)
    delta.decide(rows_of(range(3, 6)))
    delta.table().alter.add_constraint({"small": "n < 100"})
    with pytest.raises(SinkError):
        committer.finish(delta.wanted)
    delta.table().alter.drop_constraint("small")
    delta.clock.advance(RETRY_SECONDS)
    committer.finish(delta.wanted)
    committer.check()
    assert delta.numbers() == list(range(6))


def test_a_table_that_was_removed_is_made_again_from_what_was_decided(delta: DeltaLake) -> None:
    delta.decide(rows_of(range(3)))
    shutil.rmtree(Path(delta.store.root, "_delta_log"))
    committer = delta.committer()
    committer.finish(delta.wanted)
    assert delta.numbers() == [0, 1, 2]
    assert delta.table().metadata().partition_columns == ["kind"]


def test_a_vacuum_leaves_chains_and_plans_alone(delta: DeltaLake) -> None:
    delta.decide(rows_of(range(3)))
    delta.committer().finish(delta.wanted)
    delta.staged(delta.chain.id, 99, rows_of(range(3)))  # of a batch that came to nothing
    removed = delta.table().vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert [name for name in removed if "99_" not in name] == []
    assert len(removed) == 1
    delta.decide(rows_of(range(3, 4)))
    delta.committer().finish(delta.wanted)
    assert delta.numbers() == list(range(4))


def test_a_delta_table_whose_batches_come_from_chains_is_compacted(delta: DeltaLake) -> None:
    kinds: list[str | None] = ["a", "b / c", None]
    for number in range(6):
        delta.decide(rows_of(range(number, number + 1), kind=kinds[number % 3]))
        delta.committer().finish(delta.wanted)
    assert compact_delta(delta.store.root).merged == 6
    assert delta.numbers() == list(range(6))
    assert compact_delta(delta.store.root).merged == 0


def test_a_commit_to_delta_does_not_list_the_log(delta: DeltaLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log keeps a month of commits."""
    listed: list[str] = []
    files = LocalStore.files

    def listing(store: LocalStore, prefix: str = "", *, hidden: bool = False) -> Iterator[StoredFile]:
        listed.append(prefix)
        return files(store, prefix, hidden=hidden)

    monkeypatch.setattr(LocalStore, "files", listing)
    for number in range(3):
        delta.decide(rows_of(range(number, number + 1)))
        delta.committer().finish(delta.wanted)
    assert listed
    assert not [prefix for prefix in listed if prefix.startswith("_delta_log") or not prefix]


def test_the_log_of_delta_is_cleaned_with_some_commits_only(
    delta: DeltaLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs lists the whole log for it."""
    monkeypatch.setattr(delta_appends, "COMMITS_TO_CLEANING", 3)
    left = []
    for number in range(3):
        delta.decide(rows_of(range(number, number + 1)))
        delta.committer().finish(delta.wanted)
        if number == 0:
            delta.table().alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
        delta.table().create_checkpoint()
        left.append((delta.folder / "table" / "_delta_log" / f"{0:020}.json").exists())
    assert left == [True, True, False]
    assert delta.numbers() == [0, 1, 2]


def test_a_task_that_fails_leaves_no_files(lake: Lake) -> None:
    rows = rows_of(range(20_000))
    rules = lake.format.rules() or lake.format.first_rules(rows.schema)
    task = StageFiles(rules.store, rules.layout, lake.chain.id, 1, 1, table=rules.for_table)
    before = set(lake.folder.rglob("*.parquet"))
    seen: list[int] = []

    def cut_off() -> Iterator[pa.RecordBatch]:
        for _ in range(20):
            yield rows
            seen.append(len(set(lake.folder.rglob("*.parquet")) - before))
        raise ValueError("the function has failed")

    with pytest.raises(ValueError, match="the function has failed"):
        list(task(cut_off()))
    assert max(seen) > 1, "files were closed before"
    assert set(lake.folder.rglob("*.parquet")) == before


def deploy(lake: Lake, first: LocalStore, worker: str, numbers: range) -> None:
    """A worker of a sink of a folder and the table stores batches of one row each, and stops."""
    table = PublishedByCommits(lake.process().commits, COMMIT_SECONDS, lake.format.stages)
    destinations = {
        FIRST: Destination(first, place=first.root),
        "further": Destination(lake.store, table, lake.format.place),
    }
    entries = Entries(first)
    chain = Chain(entries, chain_id(APPLICATION, worker, "1"), lake.ids)
    publisher = publisher_of(entries, destinations, APPLICATION, lake.runtime)
    for number in numbers:
        publisher.check()
        staged = lake.staged(chain.id, chain.last + 1, rows_of(range(number, number + 1)))
        output = TableOutput(staged.files, staged.rules, place_id(lake.format.place))
        entry = chain.decide((), (), None, {"further": output})
        assert entry is not None
        publisher.publish(chain.id, chain.last, entry)
        publisher.finish({chain.id: chain.last})
    publisher.forget(chain.id)
    entries.forget(chain.id)


def test_a_further_table_gets_all_rows_after_the_first_folder_was_made_anew_or_moved(
    lake: Lake, tmp_path: Path
) -> None:
    first = tmp_path / "first"
    deploy(lake, LocalStore(str(first)), "w1", range(5))
    shutil.rmtree(first)
    deploy(lake, LocalStore(str(first)), "w2", range(5, 12))
    assert lake.numbers() == list(range(12))
    shutil.move(first, tmp_path / "moved")
    deploy(lake, LocalStore(str(tmp_path / "moved")), "w3", range(12, 14))
    assert lake.numbers() == list(range(14))


def test_a_further_table_is_dropped_and_made_anew_after_a_stop(lake: Lake, tmp_path: Path) -> None:
    first = LocalStore(str(tmp_path / "first"))
    deploy(lake, first, "w1", range(3))
    if isinstance(lake, IcebergLake):
        lake.catalog_table().catalog.drop_table(IDENTIFIER)
    else:
        shutil.rmtree(lake.store.root)
    lake.format = lake.process()
    deploy(lake, first, "w2", range(3, 5))
    assert lake.numbers() == [3, 4]


def test_an_older_copy_of_the_first_folder_is_refused_before_a_batch_is_decided(lake: Lake, tmp_path: Path) -> None:
    first, copy = tmp_path / "first", tmp_path / "copy"
    deploy(lake, LocalStore(str(first)), "w1", range(3))
    shutil.copytree(first, copy)
    deploy(lake, LocalStore(str(first)), "w2", range(3, 7))
    for place in (first, copy):
        if place == first:
            shutil.rmtree(first)
            shutil.copytree(copy, first)
        with pytest.raises(SinkError, match=r"'further' contains commit .* is an older copy"):
            deploy(lake, LocalStore(str(place)), "w3", range(7, 9))
    assert lake.numbers() == list(range(7))
