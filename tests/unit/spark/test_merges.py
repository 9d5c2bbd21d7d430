"""Change rows in real tables of both formats: each commit applies the last change of each key once."""

import itertools
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kcl_dagster.chains.chain import Chain
from kcl_dagster.chains.deletion import delete_chains
from kcl_dagster.chains.entry import FIRST, PublishingEntry, StagedFile, TableRules
from kcl_dagster.chains.publication import chain_id
from kcl_dagster.chains.settlement import settle
from kcl_dagster.chains.store import Entries
from kcl_dagster.errors import ConfigurationError, RecordRefused, SinkError
from kcl_dagster.model.change_rules import DELETES, ChangeRules, change_rules
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.sinks import catalog_table, delta_merges, iceberg_commits
from kcl_dagster.spark.sinks.change_steps import STEP_ROWS, steps
from kcl_dagster.spark.sinks.delta_commits import DeltaCommits
from kcl_dagster.spark.sinks.delta_log import DeltaLog
from kcl_dagster.spark.sinks.iceberg_commits import IcebergCommits
from kcl_dagster.spark.sinks.iceberg_merges import IcebergMerge
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.table_committer import TableCommitter
from tests.unit.spark.chained_lakes import APPLICATION, DeltaLake, Fused, commit_at_once
from tests.unit.spark.changed_lakes import (
    BY_ID,
    KINDS,
    ChangedLake,
    ChangesOfWorkers,
    Row,
    changes_of,
    commit,
    found,
    gone,
    lake_in,
    staged,
)
from tests.unit.worker.kit import Fuse, Killed, World

pytestmark = pytest.mark.slow


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def lake(tmp_path: Path, kind: str) -> ChangedLake:
    return lake_in(tmp_path, kind)


def test_the_last_change_of_each_key_wins_over_all_batches_of_a_commit(lake: ChangedLake) -> None:
    lake.decide(changes_of((1, "a"), (2, "b"), (1, "c"), (3, "d"), gone(3)))
    lake.decide(changes_of((4, "e"), gone(2), gone(99)))
    lake.decide(changes_of((2, "again"), gone(4)))
    assert len(staged(lake)) == 3
    assert found(lake) == {}
    before = lake.version()
    commit(lake)
    assert found(lake) == {1: "c", 2: "again"}
    assert lake.version() == before + 1
    assert lake.last_number() == 1
    assert staged(lake) == [], "the commit removes the files of its changes"
    lake.decide(changes_of((1, "f"), gone(2), (5, "g")))
    commit(lake)
    assert found(lake) == {1: "f", 5: "g"}


def test_a_deletion_may_come_before_its_row(lake: ChangedLake) -> None:
    lake.decide(changes_of(gone(1)))
    commit(lake)
    assert (found(lake), lake.last_number()) == ({}, 1)
    lake.decide(changes_of((1, "a")))
    commit(lake)
    assert found(lake) == {1: "a"}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abc"), st.booleans()), min_size=1, max_size=8),
        min_size=1,
        max_size=4,
    ),
    st.sets(st.integers(0, 3)),
)
def test_the_table_is_as_if_changes_were_applied_one_after_the_other(
    tmp_path_factory: pytest.TempPathFactory, kind: str, batches: list[list[Row]], commits: set[int]
) -> None:
    lake, expected = lake_in(tmp_path_factory.mktemp("lake"), kind), dict[int, str]()
    for number, rows in enumerate(batches):
        lake.decide(changes_of(*rows))
        for key, value, deletes in rows:
            expected.pop(key, None)
            if not deletes:
                expected[key] = value
        if number in commits:
            commit(lake)
    commit(lake)
    assert found(lake) == expected


@pytest.mark.parametrize("is_one_commit", [True, False])
@pytest.mark.parametrize(
    ("order_by", "note"),
    [
        (None, None),
        ((1, 2, 3), None),
        ((2, 2, 2), None),
        ((None, None, None), None),
        ((2, 1, 3), "kept"),  # the deletion is older than the row
        ((2, None, 3), "kept"),
    ],
)
def test_a_row_that_is_deleted_and_inserted_again_keeps_no_value(
    tmp_path: Path, kind: str, order_by: tuple[int | None, ...] | None, note: str | None, is_one_commit: bool
) -> None:
    """In one commit, the new row had the values of the deleted one in columns that the change rows lack."""
    lake = lake_in(tmp_path, kind, changes=ChangeRules(("id",), None, "at" if order_by else None))

    def decide(place: int, *rows: Row, **more: Any) -> None:
        if order_by is not None:
            more["at"] = pa.array([order_by[place]] * len(rows), pa.int64())
        lake.decide(changes_of(*rows, **more))

    decide(0, (1, "a"), (2, "b"), (3, "c"), note=["kept"] * 3)
    commit(lake)
    decide(1, gone(1), gone(3))
    if not is_one_commit:
        commit(lake)
    decide(2, (1, "d"), (2, "e"), (4, "f"))
    commit(lake)
    read = {row["id"]: (row["value"], row["note"]) for row in lake.read().to_pylist()}
    there = {3: ("c", "kept")} if note else {}
    assert read == {1: ("d", note), 2: ("e", "kept"), 4: ("f", None)} | there


def test_a_key_may_have_several_columns_of_any_name(tmp_path: Path, kind: str) -> None:
    lake = lake_in(tmp_path, kind, changes=ChangeRules(("Order Id", "a.b", "at", "price")))
    noon = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)

    def rows(value: str, key: str, deletes: bool = False) -> pa.RecordBatch:
        columns = {
            "Order Id": pa.array([1, 1], pa.int32()),
            "a.b": ["x", key],
            "at": pa.array([noon, noon], pa.timestamp("us", "UTC")),
            "price": pa.array([Decimal("1.50")] * 2, pa.decimal128(10, 2)),
            "Größe `m`": [value, value],
        }
        return pa.record_batch(columns | {DELETES: [False, deletes]})

    lake.decide(rows("first", "y"))
    commit(lake)
    lake.decide(rows("second", "y"))
    lake.decide(rows("third", "z"))
    commit(lake)
    read = {row["a.b"]: row["Größe `m`"] for row in lake.read().to_pylist()}
    assert read == {"x": "third", "y": "second", "z": "third"}
    lake.decide(rows("fourth", "y", deletes=True))
    commit(lake)
    assert {row["a.b"] for row in lake.read().to_pylist()} == {"x", "z"}


def test_a_change_that_is_older_than_the_row_changes_nothing(tmp_path: Path, kind: str) -> None:
    lake = lake_in(tmp_path, kind, changes=ChangeRules(("id",), None, "version"))

    def versions(*values: int | None) -> dict[str, pa.Array]:
        return {"version": pa.array(values, pa.int64())}

    lake.decide(changes_of((1, "a"), (1, "older"), (2, "none"), (2, "b"), **versions(7, 6, None, 3)))
    lake.decide(changes_of((2, "same"), **versions(3)))
    commit(lake)
    assert found(lake) == {1: "a", 2: "same"}
    lake.decide(changes_of((1, "older"), gone(2), (3, "new"), **versions(6, 2, None)))
    commit(lake)
    assert found(lake) == {1: "a", 2: "same", 3: "new"}
    lake.decide(changes_of((1, "same"), gone(2), (3, "known"), **versions(7, 3, 1)))
    commit(lake)
    assert found(lake) == {1: "same", 3: "known"}


def test_null_in_a_key_is_refused_before_the_decision(lake: ChangedLake) -> None:
    with pytest.raises(RecordRefused, match=r"a row has null in \['id'\], which merge_on does not allow"):
        lake.staged(lake.chain.id, 1, changes_of((1, "a"), (None, "b")))
    lake.decide(changes_of((1, None)))
    commit(lake)
    with pytest.raises(RecordRefused, match=r"null in \['id'\]"):
        lake.staged(lake.chain.id, 2, changes_of((None, "b")))


@pytest.mark.parametrize(("of", "key"), [(pa.float64(), 1.0), (pa.list_(pa.int64()), [1])])
def test_a_key_without_an_order_is_refused_before_the_decision(
    tmp_path: Path, kind: str, of: pa.DataType, key: Any
) -> None:
    lake = lake_in(tmp_path, kind)
    rows = pa.record_batch({"id": pa.array([key], of), "value": ["a"], DELETES: [False]})
    with pytest.raises(SinkError, match="merge_on names id of type"):
        lake.decide(rows)


def test_rows_of_a_partitioned_table_move_with_their_values(tmp_path: Path, kind: str) -> None:
    lake = lake_in(tmp_path, kind, ["value"])
    lake.decide(changes_of((1, "a"), (2, "b / c"), (3, None)))
    commit(lake)
    lake.decide(changes_of((1, "b / c"), (3, "a"), gone(2)))
    commit(lake)
    assert found(lake) == {1: "b / c", 3: "a"}


def test_a_table_that_has_rows_already_is_merged_into(lake: ChangedLake) -> None:
    schema = pa.schema([("id", pa.int64()), ("value", pa.string()), ("note", pa.string())])
    lake.make(schema)
    lake.append(pa.table({"id": [1, 1, 2, 3], "value": list("abcd"), "note": list("xyxy")}, schema=schema))
    lake.decide(changes_of((1, "both"), gone(2), (4, "new")))
    commit(lake)
    rows = lake.read().sort_by([("id", "ascending"), ("note", "ascending")]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (1, "both", "x"),  # a column that the changes lack is left alone
        (1, "both", "y"),
        (3, "d", "y"),
        (4, "new", None),
    ]


def test_a_column_that_some_batches_lack_is_left_alone_by_them(lake: ChangedLake) -> None:
    lake.decide(changes_of((1, "a"), (2, "b")))
    lake.process().add(pa.schema([("note", pa.string())]))
    lake.decide(changes_of((1, "c"), note=["x"]))
    lake.decide(changes_of((1, "d"), (3, "e")))
    before = lake.version()
    commit(lake)
    assert lake.version() == before + 3, "a step for each set of columns"
    rows = lake.read().sort_by("id").to_pylist()
    assert [tuple(row.values()) for row in rows] == [(1, "d", "x"), (2, "b", None), (3, "e", None)]


def test_a_table_without_the_key_is_refused_before_the_decision(lake: ChangedLake) -> None:
    lake.make(pa.schema([("value", pa.string())]))
    with pytest.raises(SinkError, match=r"merge_on names \['id'\], which the table lacks"):
        lake.decide(changes_of((1, "a")))


def test_a_row_that_deletes_needs_no_values_and_others_do(lake: ChangedLake) -> None:
    lake.make(
        pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.string(), nullable=False)])
    )
    lake.decide(changes_of((1, "a"), (2, "b")))
    lake.decide(changes_of(gone(1)))
    commit(lake)
    assert found(lake) == {2: "b"}


# Exactly once


def test_a_commit_is_made_once_by_however_many_workers_at_once(lake: ChangedLake) -> None:
    for number in range(4):
        lake.decide(changes_of((number, "a"), (0, str(number))))
    commit_at_once(lake, SinkError)
    assert found(lake) == {0: "3", 1: "a", 2: "a", 3: "a"}
    assert lake.last_number() == 1


def test_a_commit_whose_answer_was_lost_is_looked_up(lake: ChangedLake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.decide(changes_of((1, "a")))
    of: Any = type(lake.process().commits)
    committer, made = lake.committer(), of.commit

    def lost(*args: Any) -> None:
        made(*args)
        raise SinkError("no answer")

    with monkeypatch.context() as network:
        network.setattr(of, "commit", lost)
        committer.finish(lake.wanted)
    lake.decide(changes_of((1, "b")))
    commit(lake)
    assert (found(lake), lake.last_number()) == ({1: "b"}, 2)


def fused(lake: ChangedLake, fuse: Fuse) -> TableCommitter:
    """The committer of a worker that is killed at a point: before or after any call of the store."""
    store: Any = Fused(lake.store, fuse)
    table: Any = (
        DeltaCommits(DeltaLog(store, {}, lake.columns), lake.runtime)
        if isinstance(lake, DeltaLake)
        else IcebergCommits(lake.catalog_table(), store, lake.runtime)
    )
    return TableCommitter(Entries(store), {FIRST: table}, APPLICATION, lake.ids, lake.clock, staging=(store,))


STEPS_OF: dict[str, Any] = {"delta": delta_merges, "iceberg": iceberg_commits}
POINTS: dict[str, list[tuple[Any, str]]] = {
    "delta": [(delta_merges, "merge"), (delta_merges, "append")],
    "iceberg": [(catalog_table, "_append"), (IcebergMerge, "applied_to"), (IcebergMerge, "remove_unused")],
}


@pytest.mark.parametrize("most_rows", [STEP_ROWS, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_worker_that_is_killed_anywhere_applies_each_change_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, most_rows: int
) -> None:
    """With one step a commit, and with several. A change that was applied twice would bring back deleted rows."""
    planned, fuse = steps, Fuse()

    def points(of: Any, name: str) -> None:
        called = getattr(of, name)

        def with_points(*args: Any, **more: Any) -> Any:
            fuse.point()
            answer = called(*args, **more)
            fuse.point()
            return answer

        monkeypatch.setattr(of, name, with_points)

    monkeypatch.setattr(STEPS_OF[kind], "steps", lambda entries, done: planned(entries, done, most_rows=most_rows))
    for of, name in POINTS[kind]:
        points(of, name)
    for point in itertools.count(1):
        lake = lake_in(tmp_path / str(point), kind)
        lake.decide(changes_of((1, "a"), (2, "b")))
        lake.decide(changes_of(gone(1), (2, "c")))
        lake.decide(changes_of(gone(9)))
        fuse.passed, fuse.burns_at = 0, point
        with suppress(Killed):
            fused(lake, fuse).finish(lake.wanted)
            fuse.burns_at = None
        is_killed, fuse.burns_at = fuse.burns_at is not None, None
        lake.decide(changes_of(gone(2), (3, "d")))
        settle(Entries(lake.store), lake.chain.id, "w2", lake.ids, lake.committer())
        assert found(lake) == {3: "d"}
        assert staged(lake) == []
        if not is_killed:
            assert point > 20
            return


def test_batches_that_were_decided_to_be_appended_are_appended(tmp_path: Path, kind: str) -> None:
    """The sink got its key between two runs, of which the first one was killed."""
    former = lake_in(tmp_path, kind, changes=None)
    former.decide(pa.record_batch({"id": [1, 2], "value": ["a", "b"]}))
    lake = lake_in(tmp_path, kind, worker="w2")
    lake.ids = former.ids
    lake.chain = Chain(Entries(lake.store), chain_id(APPLICATION, "w2", "1"), lake.ids)
    lake.decide(changes_of((1, "c"), (3, "d")))
    lake.committer().finish(lake.wanted | former.wanted)
    assert found(lake) == {1: "c", 2: "b", 3: "d"}
    assert lake.last_number() == 1


def test_changes_that_were_decided_are_applied_by_a_sink_that_appends(tmp_path: Path, kind: str) -> None:
    former = lake_in(tmp_path, kind)
    former.decide(changes_of((1, "a"), (1, "b")))
    lake = lake_in(tmp_path, kind, changes=None)
    lake.committer().finish(former.wanted)
    assert found(lake) == {1: "b"}


def test_commits_say_through_when_the_application_is_complete(lake: ChangedLake) -> None:
    lake.decide(changes_of((1, "a")))
    lake.committer(WrittenThrough(1_795_435_200)).finish(lake.wanted)
    assert '"through": "2026-11-23T' in lake.complete_through()


EVERY = 7  # points between two kills: each point is tried with a table in memory, see test_chained_tables


def test_changes_are_applied_in_the_order_of_the_shard_whichever_workers_own_it(tmp_path: Path, kind: str) -> None:
    for point in itertools.count(1, EVERY):
        lake = lake_in(tmp_path / str(point), kind, changes=ChangeRules(("shard",)))
        world = World(shards=2)
        shards = [LeaseKey(f"shardId-{number:012}") for number in range(2)]
        for shard in shards:
            world.stream.put(shard, *(f"record {number}" for number in range(7)))
        sink = ChangesOfWorkers(lake, Fuse(burns_at=point))
        run = world.worker("w1", chains=sink)
        world.assign(run)
        with suppress(Killed):
            run.until_idle()
            run.worker.protocol.close()
            run.worker.step_renewal()
            sink.fuse.burns_at = None
        for shard, more in zip(shards, (1, 2), strict=True):
            world.stream.put(shard, *["more"] * more)
        following = world.worker("w2", chains=ChangesOfWorkers(lake, Fuse()))
        world.assign(following)
        following.until_idle()
        following.worker.protocol.close()
        newest = {shard: n for shard, n, _ in sorted(world.stream.everything())}
        expected = {shard: n for shard, n in newest.items() if n % 3 != 2}
        assert {row["shard"]: row["n"] for row in lake.read().to_pylist()} == expected
        if sink.fuse.burns_at is None:
            assert point > 50
            return


# Files of changes


def test_files_of_void_batches_are_removed(lake: ChangedLake) -> None:
    batch = lake.staged(lake.chain.id, 1, changes_of((1, "a")))
    lake.committer().discard(lake.chain.id, batch.paths)
    assert staged(lake) == []
    lake.staged(lake.chain.id, 2, changes_of((1, "a")))
    lake.decide(changes_of((2, "b")))
    settle(Entries(lake.store), lake.chain.id, "w2", lake.ids, lake.committer())
    assert (staged(lake), found(lake)) == ([], {2: "b"})


def test_files_of_a_worker_that_ended_before_it_had_decided_are_removed(lake: ChangedLake) -> None:
    lake.staged(lake.chain.id, 1, changes_of((1, "a")))
    assert len(staged(lake)) == 1
    delete_chains(Entries(lake.store), APPLICATION, (), float("inf"), "w2", lake.ids, lake.committer())
    assert staged(lake) == []


def test_changes_whose_files_were_removed_by_hand_stop_the_table(lake: ChangedLake) -> None:
    lake.decide(changes_of((1, "a")))
    lake.store.delete(staged(lake))
    with pytest.raises(SinkError, match="is missing, whose changes were decided and are not in the table"):
        commit(lake)


def entry(size: int, rows: int = 1, schema: str = "s", changes: ChangeRules | None = BY_ID) -> PublishingEntry:
    return PublishingEntry("1", (StagedFile("f", rows, size),), (), rules=TableRules(schema, changes=changes))


@pytest.mark.parametrize(
    ("entries", "done", "sizes"),
    [
        ([entry(6), entry(4), entry(1), entry(50), entry(1)], 0, [2, 1, 1, 1]),
        ([entry(6), entry(4), entry(1), entry(50), entry(1)], 1, [2, 1, 1]),
        ([entry(1, rows=60), entry(1, rows=60)], 0, [1, 1]),
        ([entry(1), entry(1, schema="t"), entry(1)], 0, [1, 1, 1]),
        ([entry(1), entry(1, changes=None), entry(90, changes=None, schema="t"), entry(1)], 0, [1, 2, 1]),
    ],
)
def test_steps_are_of_one_kind_and_bounded(entries: Sequence[PublishingEntry], done: int, sizes: list[int]) -> None:
    made = steps(entries, done, most_bytes=10, most_rows=100)
    assert [len(step.entries) for step in made] == sizes
    assert made[-1].through == len(entries)
    assert [one for step in made for one in step.entries] == list(entries[done:])


SETTINGS: dict[str, tuple[Any, Any, Any]] = {
    r"merge_on of kcl\.delta is a list of columns: write merge_on=\['id'\]": ("id", None, None),
    r"delete_when of kcl\.delta needs merge_on": ((), "op = 'D'", None),
    r"order_by of kcl\.delta needs merge_on": ((), None, "version"),
    r"merge_on of kcl\.delta names a column twice": (["id", "id"], None, None),
    r"merge_on of kcl\.delta is a list of names of columns, and is \[''\]": ([""], None, None),
    r"merge_on of kcl\.delta is a list of names of columns, and is \[1\]": ([1], None, None),
    r"order_by of kcl\.delta is the name of one column, and is \['lsn'\]": (["id"], None, ["lsn"]),
    r"delete_when of kcl\.delta is an SQL condition, .* and is ' '": (["id"], " ", None),
}


@pytest.mark.parametrize("said", SETTINGS)
def test_settings_that_say_nothing_clear_are_refused(said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        change_rules(*SETTINGS[said], "kcl.delta")
