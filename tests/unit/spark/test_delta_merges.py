"""Change rows in a real Delta table, as far as it does more than `test_merges` says of both formats."""

import json
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from kcl_dagster.errors import RecordRefused, SinkError
from kcl_dagster.model.change_rules import DELETES, ChangeRules
from kcl_dagster.spark.sinks import delta_merges
from kcl_dagster.spark.sinks.change_steps import steps
from kcl_dagster.spark.sinks.delta_commits import DeltaCommits
from kcl_dagster.spark.sinks.delta_compaction import compact_delta
from kcl_dagster.spark.sinks.delta_log import DeltaLog
from kcl_dagster.worker.error_class import ErrorClass, class_of
from tests.unit.spark.chained_lakes import APPLICATION, DeltaLake
from tests.unit.spark.changed_lakes import BY_ID, changes_of, commit, found, gone, staged
from tests.unit.worker.kit import Killed

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(tmp_path: Path) -> DeltaLake:
    return DeltaLake(tmp_path, (), changes=BY_ID)


def test_a_table_of_which_no_row_can_be_changed_is_refused_before_the_decision(lake: DeltaLake) -> None:
    schema = pa.schema([("id", pa.int64()), ("value", pa.string())])
    DeltaTable.create(lake.store.root, schema, configuration={"delta.appendOnly": "true"})
    with pytest.raises(SinkError, match=r"says delta\.appendOnly"):
        lake.decide(changes_of((1, "a")))


def test_a_committer_that_was_paused_over_other_commits_changes_nothing(
    lake: DeltaLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row that it would insert was deleted by the next commit."""
    entry = lake.decide(changes_of((1, "a")))
    content = {path: lake.format.chains.get(path) for path in staged(lake)}
    late = lake.process().commits
    assert isinstance(late, DeltaCommits)
    assert late.committed(APPLICATION) == 0
    table = late.log.open()
    assert table is not None
    commit(lake)
    lake.decide(changes_of(gone(1)))
    commit(lake)
    lake.format.chains.put(*content.popitem())  # type: ignore[attr-defined]  # it had read its files before
    refreshed, looks = DeltaLog.refreshed, iter([True, True, True])
    monkeypatch.setattr(DeltaLog, "refreshed", lambda log: table if next(looks, False) else refreshed(log))
    late.commit(APPLICATION, 1, [entry], None)
    assert found(lake) == {}
    assert late.committed(APPLICATION) == 2


def test_a_step_is_not_made_again_by_a_worker_that_was_paused_before_it(
    lake: DeltaLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever steps it makes of the commit: another version of the package may divide it otherwise."""
    entries = [lake.decide(changes_of((1, "a"))), lake.decide(changes_of(gone(1), (2, "b")))]
    late, planned, merged = lake.process().commits, steps, delta_merges.merge
    ends = iter([True])

    def others_first(*args: Any) -> Any:
        if next(ends, False):
            with monkeypatch.context() as other, suppress(Killed):
                other.setattr(delta_merges, "steps", lambda entries, done: planned(entries, done, most_rows=1))
                other.setattr(delta_merges, "merge", merged_once)
                lake.process().commits.commit(APPLICATION, 1, entries, None)
        return merged(*args)

    def merged_once(*args: Any) -> Any:
        if once:
            raise Killed
        once.append(True)
        return merged(*args)

    once: list[bool] = []
    monkeypatch.setattr(delta_merges, "merge", others_first)
    late.commit(APPLICATION, 1, entries, None)
    assert once
    assert found(lake) == {2: "b"}
    assert lake.last_number() == 1


def test_another_writer_may_commit_in_between(lake: DeltaLake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.decide(changes_of((1, "a"), (2, "b")))
    commit(lake)
    lake.decide(changes_of((1, "c"), (5, "d")))
    merged, writes = delta_merges.merge, iter([True, True])

    def beside(*args: Any) -> Any:
        if next(writes, False):
            write_deltalake(lake.store.root, pa.table({"id": [5], "value": ["theirs"]}), mode="append")
            if lake.version() == 3:
                lake.table().optimize.compact()
        return merged(*args)

    monkeypatch.setattr(delta_merges, "merge", beside)
    commit(lake)
    rows = sorted((row["id"], row["value"]) for row in lake.table().to_pyarrow_table().to_pylist())
    assert rows == [(1, "c"), (2, "b"), (5, "d"), (5, "d")]


def test_a_compaction_may_run_beside_it(lake: DeltaLake) -> None:
    for number in range(4):
        lake.decide(changes_of((number, "a")))
        commit(lake)
    assert compact_delta(lake.store.root).merged > 0
    lake.decide(changes_of((1, "b"), gone(2)))
    commit(lake)
    assert found(lake) == {0: "a", 1: "b", 3: "a"}
    assert compact_delta(lake.store.root).left_alone is None


def test_a_vacuum_leaves_changes_alone_that_are_not_applied(lake: DeltaLake) -> None:
    lake.decide(changes_of((1, "a")))
    lake.table().vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    commit(lake)
    assert found(lake) == {1: "a"}


LARGE = Decimal(12345678901234567891)


@pytest.mark.parametrize(
    ("kind", "key"),
    [(pa.decimal128(38), LARGE), (pa.decimal128(38), Decimal(2**53 + 1)), (pa.decimal128(20, 2), LARGE / 10**5)],
)
def test_a_decimal_key_is_found_although_the_bounds_of_its_file_are_wrong(
    tmp_path: Path, kind: pa.DataType, key: Decimal
) -> None:
    lake = DeltaLake(tmp_path, (), changes=BY_ID)
    ids = pa.array([key.quantize(Decimal(1).scaleb(-kind.scale))], kind)
    write_deltalake(lake.store.root, pa.table({"id": ids, "value": ["a"]}))  # with the bounds of delta-rs
    for value in "bc":
        lake.decide(pa.record_batch({"id": ids, "value": [value], DELETES: [False]}))
        commit(lake)
        assert lake.read()["value"].to_pylist() == [value]


def test_files_of_merges_have_no_bounds_that_can_be_wrong(lake: DeltaLake) -> None:
    """Readers skip files by them: delta-rs's bounds leave out NaN, and those of decimals are doubles."""
    batch = changes_of(
        (1, "a"),
        (2, "b"),
        large=pa.array([LARGE] * 2, pa.decimal128(38)),
        small=pa.array([Decimal("0.1"), None], pa.decimal128(15, 2)),
        chance=pa.array([float("nan"), 5.0]),
        **{"a.b": pa.array([float("nan"), 5.0], pa.float32())},
    )
    lake.decide(batch)
    commit(lake)
    assert _bounded(lake) == {"id", "value", "small"}


def test_files_of_merges_have_no_bounds_of_structs_that_can_be_wrong(lake: DeltaLake) -> None:
    nested = pa.array([{"x": float("nan"), "y": 1}, {"x": 5.0, "y": 2}])
    lake.decide(changes_of((1, "a"), (2, "b"), nested=nested, other=pa.array([{"y": 1}, {"y": 2}])))
    commit(lake)
    assert _bounded(lake) == {"id", "value"}


@pytest.mark.parametrize("is_made", [False, True])
@pytest.mark.parametrize(
    "value",
    [pa.array([Decimal("-0.05")], pa.decimal128(9, 2)), pa.array([b"a"]), pa.array([b"a"], pa.large_binary())],
)
def test_a_table_whose_partition_values_delta_would_change_is_refused_before_the_decision(
    tmp_path: Path, value: pa.Array, is_made: bool
) -> None:
    """Negative decimals stopped all commits from the second one on, and bytes were corrupted."""
    lake = DeltaLake(tmp_path, ("part",), changes=BY_ID)
    if is_made:
        schema = pa.schema([("id", pa.int64()), ("value", pa.string()), ("part", value.type)])
        DeltaTable.create(lake.store.root, schema, partition_by=["part"])
    with pytest.raises(SinkError, match=r"no rows can be merged .* partitioned by \['part'\] of type"):
        lake.decide(changes_of((1, "a"), part=value))
    assert DeltaTable.is_deltatable(lake.store.root) == is_made


@pytest.mark.parametrize(
    ("longest", "too_long"),
    [("é" * 41, "é" * 42), ("x" * 250, "x" * 251), (1e249, 1e250)],
    ids=["escaped", "text", "float"],
)
def test_a_partition_value_that_is_too_long_for_a_folder_is_refused_before_the_decision(
    tmp_path: Path, longest: str | float, too_long: str | float
) -> None:
    """delta-rs names a folder after the value. Such a value stopped all commits."""
    lake = DeltaLake(tmp_path, ("part",), changes=BY_ID)
    lake.decide(changes_of((1, "a"), part=pa.array([longest])))
    commit(lake)
    with pytest.raises(RecordRefused, match="a value of the partition columns would need a name of more than 255"):
        lake.decide(changes_of((2, "b"), part=pa.array([too_long])))
    lake.decide(changes_of(gone(1), part=pa.array([too_long])))
    commit(lake)
    assert found(lake) == {}


LONG = "é" * 60


def appended(folder: Path, *columns: str, **values: Any) -> None:
    """A table in which rows were appended, without changes: their files are in folders with short names."""
    lake = DeltaLake(folder, columns, "w0")
    kinds = {name: pa.array(found) for name, found in values.items()}
    size = len(next(iter(kinds.values())))
    ids = pa.array(range(1, size + 1), pa.int64())
    lake.write(pa.record_batch({"id": ids, "value": pa.array(["old"] * size), **kinds}))


@pytest.mark.parametrize(("long", "told"), [(LONG, "é" * 20), (1e300, "1" + "0" * 19)], ids=["text", "float"])
def test_a_table_with_a_partition_that_delta_rs_cannot_write_again_is_refused_before_the_decision(
    tmp_path: Path, long: str | float, told: str
) -> None:
    """A change of a row in such a partition stopped all commits."""
    appended(tmp_path, "part", part=[long, long, type(long)(1)])
    lake = DeltaLake(tmp_path, ("part",), changes=BY_ID)
    with pytest.raises(SinkError, match=rf"a value of part that begins with '{told}'\.\.\. .* 255 bytes") as caught:
        lake.decide(changes_of((1, "new"), part=pa.array([type(long)(1)])))
    assert class_of(caught.value) is ErrorClass.SINK
    lake.table().delete("id < 3")
    lake.decide(changes_of((1, "new"), part=pa.array([type(long)(1)])))
    commit(lake)
    assert found(lake) == {1: "new", 3: "old"}


def test_where_the_key_contains_the_partition_only_changes_of_this_partition_are_refused(tmp_path: Path) -> None:
    appended(tmp_path, "part", part=[LONG, LONG, "a", "a"])
    lake = DeltaLake(tmp_path, ("part",), changes=ChangeRules(("id", "part")))
    lake.decide(changes_of((3, "new"), gone(4), part=pa.array(["a", "a"])))
    commit(lake)
    for change in ((1, "new"), gone(1)):
        with pytest.raises(RecordRefused, match="a value of the partition columns would need a name"):
            lake.decide(changes_of(change, part=pa.array([LONG])))
    lake.decide(changes_of((5, "new"), part=pa.array(["a"])))
    commit(lake)
    assert found(lake) == {1: "old", 2: "old", 3: "new", 5: "new"}


def test_a_key_column_that_is_short_itself_does_not_save_a_partition(tmp_path: Path) -> None:
    appended(tmp_path, "part", "other", part=["a"], other=[LONG])
    lake = DeltaLake(tmp_path, ("part", "other"), changes=ChangeRules(("id", "part")))
    with pytest.raises(SinkError, match="a value of other that begins with"):
        lake.decide(changes_of((1, "new"), part=pa.array(["a"]), other=pa.array(["b"])))


def _bounded(lake: DeltaLake) -> set[str]:
    """The columns that have bounds in the newest commit of the table."""
    log = Path(lake.store.root) / "_delta_log" / f"{lake.version():020}.json"
    added = [json.loads(line)["add"] for line in log.read_text().splitlines() if '"add"' in line]
    return {name for one in added for name in json.loads(one["stats"])["maxValues"]}
