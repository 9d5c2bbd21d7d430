"""Change rows in a real Iceberg table, as far as it does more than `test_merges` says of both formats."""

import random
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType

from kcl_dagster.errors import RecordRefused, SinkError
from kcl_dagster.model.change_rules import DELETES, ChangeRules
from kcl_dagster.spark.sinks import catalog_table, iceberg_commits, iceberg_merges
from kcl_dagster.spark.sinks.change_steps import steps
from kcl_dagster.spark.sinks.iceberg_commits import commit_key
from kcl_dagster.spark.sinks.iceberg_merges import IcebergMerge
from kcl_dagster.worker.table_committer import RETRY_SECONDS
from tests.unit.spark.chained_lakes import APPLICATION, IDENTIFIER, IcebergLake, put_back
from tests.unit.spark.changed_lakes import BY_ID, changes_of, commit, found, gone
from tests.unit.spark.iceberg_deletes import add_deletes
from tests.unit.worker.kit import Killed

pytestmark = pytest.mark.slow

NOON = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)


def utc(text: str) -> datetime:
    """Without a zone, as Iceberg's timestamps are."""
    return datetime.fromisoformat(text)


@pytest.fixture
def lake(tmp_path: Path) -> IcebergLake:
    return lake_in(tmp_path)


def lake_in(folder: Path, *columns: str, changes: ChangeRules = BY_ID) -> IcebergLake:
    folder.mkdir(exist_ok=True)
    return IcebergLake(folder, columns, changes=changes)


def data_files(lake: IcebergLake) -> list[str]:
    return sorted(task.file.file_path for task in lake.table().scan().plan_files())


def on_disk(lake: IcebergLake) -> list[str]:
    return sorted(str(path) for path in Path(lake.store.root).glob("data/**/*.parquet"))


def filled(lake: IcebergLake, files: int, rows: int = 10) -> None:
    """Each file holds the keys of its own range."""
    for number in range(files):
        lake.decide(changes_of(*((number * rows + n, "a") for n in range(rows))))
        commit(lake)


# What is read and written


def test_only_files_that_hold_a_changed_key_are_written_anew(lake: IcebergLake) -> None:
    filled(lake, 4)
    before = data_files(lake)
    lake.decide(changes_of((11, "b"), gone(12), gone(99)))
    commit(lake)
    after = data_files(lake)
    assert len(after) == 4
    assert len(set(before) & set(after)) == 3
    assert found(lake) == {n: "b" if n == 11 else "a" for n in range(40) if n != 12}
    summary = lake.table().current_snapshot().summary
    assert summary.operation.value == "overwrite"
    assert (summary["added-data-files"], summary["deleted-data-files"]) == ("1", "1")
    assert (summary["total-records"], summary["total-data-files"]) == ("39", "4")


def test_files_that_cannot_hold_a_key_are_not_opened(lake: IcebergLake) -> None:
    filled(lake, 4)
    changed = data_files(lake)
    for path in on_disk(lake):
        rows = pq.read_table(path)["id"].to_pylist()
        if 25 not in rows:
            Path(path).write_bytes(b"nothing that is Parquet")
    lake.decide(changes_of((25, "b")))
    commit(lake)
    assert len(set(changed) - set(data_files(lake))) == 1


def test_rows_keep_their_places(lake: IcebergLake) -> None:
    lake.decide(changes_of(*((n, "a") for n in (5, 3, 9, 1, 7))))
    commit(lake)
    lake.decide(changes_of((9, "b"), (4, "new"), gone(1)))
    commit(lake)
    [old, new] = sorted((pq.read_table(path) for path in data_files(lake)), key=len, reverse=True)
    assert old["id"].to_pylist() == [5, 3, 9, 7]
    assert old["value"].to_pylist() == ["a", "a", "b", "a"]
    assert new["id"].to_pylist() == [4]


def test_a_table_whose_last_row_is_deleted_is_empty(lake: IcebergLake) -> None:
    lake.decide(changes_of((1, "a"), (2, "b")))
    commit(lake)
    lake.decide(changes_of(gone(1), gone(2)))
    commit(lake)
    assert (found(lake), data_files(lake)) == ({}, [])
    lake.decide(changes_of((1, "c")))
    commit(lake)
    assert found(lake) == {1: "c"}


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int": (pa.int32(), [-(2**31), -1, 0, 7, 2**31 - 1]),
    "long": (pa.int64(), [-(2**63), -1, 0, 7, 2**63 - 1]),
    "string": (pa.string(), ["", "a", "Ü", "\U0001f600", "x" * 100, "x" * 100 + "y"]),
    "binary": (pa.binary(), [b"", b"\x00", b"\x7f", b"\x80", b"\xff" * 20, b"\xff" * 21]),
    "bool": (pa.bool_(), [True, False]),
    "date": (pa.date32(), [date(1, 1, 1), date(1969, 12, 31), date(2026, 1, 1), date(9999, 12, 31)]),
    "timestamp": (pa.timestamp("us"), [utc("0001-01-01"), utc("1969-12-31T23:59:59.000001"), utc("9999-12-31")]),
    "timestamptz": (pa.timestamp("us", "UTC"), [NOON, NOON + timedelta(microseconds=1), NOON - timedelta(9999)]),
    "decimal": (pa.decimal128(20, 3), [Decimal("-1.500"), Decimal("0.000"), Decimal("12345678901234567.890")]),
}


@pytest.mark.parametrize("partitioning", ["", "bucket(3, id)", "id", "truncate(2, id)"])
@pytest.mark.parametrize("listed", [200, 0], ids=["listed", "bounds"])
@pytest.mark.parametrize("of", KEYS)
def test_keys_of_each_type_are_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str, partitioning: str, listed: int
) -> None:
    """Partitions and files are found by a list of the keys, or by their bounds if there are many."""
    monkeypatch.setattr(iceberg_merges, "_MOST_LISTED", listed)
    if (partitioning.startswith("bucket") and of == "bool") or (
        partitioning.startswith("truncate") and of not in ("int", "long", "string", "binary", "decimal")
    ):
        pytest.skip("Iceberg has no such transform")
    kind, keys = KEYS[of]
    lake = lake_in(tmp_path, *([partitioning] if partitioning else []))

    def changes(value: str, *chosen: Any, deletes: bool = False) -> pa.RecordBatch:
        size = len(chosen)
        return pa.record_batch({"id": pa.array(chosen, kind), "value": [value] * size, DELETES: [deletes] * size})

    lake.decide(changes("a", *keys))
    commit(lake)
    lake.decide(changes("b", *keys[1:]))
    commit(lake)
    assert found(lake) == {key: "a" if key == keys[0] else "b" for key in keys}
    lake.decide(changes("", *keys[:-1], deletes=True))
    commit(lake)
    assert found(lake) == {keys[-1]: "b"}


def test_times_that_python_cannot_hold_are_keys_like_others(lake: IcebergLake) -> None:
    late = pa.array([2**61, 5, 2**61 + 1], pa.int64()).cast(pa.timestamp("us", "UTC"))
    rows = pa.record_batch({"id": late, "value": list("abc"), DELETES: [False] * 3})
    for _ in range(2):
        lake.decide(rows)
        commit(lake)
    assert lake.table().scan().to_arrow()["id"].cast(pa.int64()).to_pylist() == [2**61, 5, 2**61 + 1]


def test_a_partition_that_a_change_cannot_have_is_refused_before_the_decision(tmp_path: Path) -> None:
    lake = lake_in(tmp_path, "day(at)")
    late = pa.array([2**61], pa.int64()).cast(pa.timestamp("us"))
    lake.decide(changes_of((1, "a"), at=pa.array([utc("2026-01-01")], pa.timestamp("us"))))
    with pytest.raises(RecordRefused, match="partition column at has a value"):
        lake.staged(lake.chain.id, 2, changes_of((1, "a"), at=late))
    commit(lake)


def test_many_keys_are_found_by_their_bounds(lake: IcebergLake) -> None:
    """More than pyiceberg looks for one by one."""
    keys = random.Random(1).sample(range(10_000), 1000)
    lake.decide(changes_of(*((key, "a") for key in keys[:600])))
    commit(lake)
    lake.decide(changes_of(*((key, "b") for key in keys[300:])))
    commit(lake)
    assert found(lake) == {key: "a" if place < 300 else "b" for place, key in enumerate(keys)}


ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["x", "y", None]), st.sampled_from("abc"), st.booleans()),
    min_size=1,
    max_size=10,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ROWS, min_size=1, max_size=4), st.sampled_from([(), ("part",), ("bucket(2, id)",), ("value",)]))
def test_keys_of_several_columns_in_any_partition(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[Any]], columns: tuple[str, ...]
) -> None:
    """The table is as if the changes were applied one after the other. `part` is null in some rows, and no key."""
    lake = lake_in(tmp_path_factory.mktemp("lake"), *columns, changes=ChangeRules(("id", "value"), None, None))
    expected: dict[Any, Any] = {}
    for rows in batches:
        batch = [(key, part, value) for key, part, value, _ in rows]
        lake.decide(
            pa.record_batch(
                {
                    "id": pa.array([row[0] for row in batch], pa.int64()),
                    "part": pa.array([row[1] for row in batch], pa.string()),
                    "value": pa.array([row[2] for row in batch], pa.string()),
                    DELETES: [row[3] for row in rows],
                }
            )
        )
        commit(lake)
        for key, part, value, deletes in rows:
            expected.pop((key, value), None)
            if not deletes:
                expected[key, value] = part
    read = lake.read().to_pylist()
    assert {(row["id"], row["value"]): row["part"] for row in read} == expected
    assert len(read) == len(expected)
    for row in read:  # each row is in the partition of its values
        where = " and ".join(
            f"{name} is null" if row[name] is None else f"{name} = {row[name]!r}"
            for name in ("id", "part", "value")
        )
        assert lake.table().scan(row_filter=where).to_arrow().num_rows == 1


def test_other_columns_keep_their_values_exactly(tmp_path: Path) -> None:
    lake = lake_in(tmp_path, changes=ChangeRules(("id",), None, "order"))
    bits = np.array([0x7FF8000000000000, 0x7FF8000000000001, 0x8000000000000000, 0, 0xFFF0000000000000], np.uint64)
    floats = pa.array(bits.view(np.float64))
    nested = pa.array(
        [[("k", {"x": n, "ys": [1, None]})] for n in range(5)],
        pa.map_(pa.string(), pa.struct([("x", pa.int64()), ("ys", pa.list_(pa.int64()))])),
    )
    rows = {"float": floats, "nested": nested, "order": pa.array([1.0, float("nan"), None, -0.0, 2.0])}
    lake.decide(changes_of(*((n, "a") for n in range(5)), **rows))
    commit(lake)
    changed = {"float": floats.take([0, 0, 0, 0, 0]), "nested": nested.take([0, 0, 0, 0, 0])}
    lake.decide(
        changes_of(*((n, "b") for n in range(5)), **changed, order=pa.array([0.5, 9.0, None, 0.0, float("nan")]))
    )
    commit(lake)
    read = lake.read().sort_by("id")
    # Null is the least value and NaN the greatest; the zeros are equal.
    assert read["value"].to_pylist() == ["a", "a", "b", "b", "b"]
    stored = read["float"].combine_chunks().to_numpy().view(np.uint64).tolist()
    assert stored == [*bits[:2].tolist(), *[bits[0]] * 3]
    assert read["nested"].to_pylist() == nested.take([0, 1, 0, 0, 0]).to_pylist()


def test_partitions_of_floats_are_followed(tmp_path: Path) -> None:
    lake = lake_in(tmp_path, "kind")
    kinds = pa.array([float("nan"), -0.0, 0.0, None, 1.5])
    lake.decide(changes_of(*((n, "a") for n in range(5)), kind=kinds))
    commit(lake)
    lake.decide(changes_of(*((n, "b") for n in range(5)), kind=kinds.take([1, 0, 3, 2, 4])))
    commit(lake)
    read = lake.read().sort_by("id")
    assert read["value"].to_pylist() == ["b"] * 5
    assert str(read["kind"].to_pylist()) == "[-0.0, nan, None, 0.0, 1.5]"


def test_a_table_that_got_another_spec_is_written_by_it(lake: IcebergLake) -> None:
    lake.decide(changes_of((1, "a"), (2, "b")))
    commit(lake)
    with lake.table().update_spec() as spec:
        spec.add_field("value", IdentityTransform(), "by_value")
    lake.decide(changes_of((3, "c")))
    commit(lake)
    lake.decide(changes_of((1, "c"), gone(3)))
    with lake.table().update_spec() as spec:
        spec.remove_field("by_value")
    commit(lake)
    lake.decide(changes_of((2, "d")))
    commit(lake)
    assert found(lake) == {1: "c", 2: "d"}
    assert lake.table().scan(row_filter="value = 'c'").to_arrow()["id"].to_pylist() == [1]


@pytest.mark.parametrize("is_put_back", [False, True])
def test_files_of_a_former_spec_are_changed_after_its_column_was_dropped(tmp_path: Path, is_put_back: bool) -> None:
    lake = lake_in(tmp_path, "kind")
    for number in range(2):
        kinds = pa.array(["x"] * 2)
        lake.decide(changes_of((2 * number, "a"), (2 * number + 1, "a"), kind=kinds))
        commit(lake)
    with lake.table().update_spec() as spec:
        spec.remove_field("kind")
    with lake.table().update_schema() as schema:
        schema.delete_column("kind")
    if is_put_back:
        put_back(lake, NestedField(10, "kind", LongType(), required=False))
    for key in (0, 2):
        lake.decide(changes_of((key, "b"), (key + 10, "new")))
        commit(lake)
    assert found(lake) == {0: "b", 1: "a", 2: "b", 3: "a", 10: "new", 12: "new"}


def test_a_sorted_table_stays_sorted(lake: IcebergLake) -> None:
    lake.make(pa.schema([("id", pa.int64()), ("value", pa.string())]))
    with lake.table().update_sort_order() as order:
        order.desc("value", IdentityTransform(), NullOrder.NULLS_LAST)
    lake.decide(changes_of((1, "b"), (2, "d"), (3, None), (4, "a")))
    commit(lake)
    lake.decide(changes_of((4, "c"), (5, "e"), (6, None), (7, "f")))
    commit(lake)
    for task in lake.table().scan().plan_files():
        values = pq.read_table(task.file.file_path)["value"].to_pylist()
        assert values == sorted(values, key=lambda value: value or "", reverse=True)
        assert task.file.sort_order_id == lake.table().sort_order().order_id
    assert found(lake) == {1: "b", 2: "d", 3: None, 4: "c", 5: "e", 6: None, 7: "f"}


def test_files_of_a_narrower_type_and_of_a_former_name_are_read(lake: IcebergLake) -> None:
    catalog = lake.catalog_table().catalog
    catalog.create_namespace_if_not_exists("lake")
    schema = Schema(NestedField(1, "id", IntegerType()), NestedField(2, "text", StringType()))
    table = catalog.create_table(IDENTIFIER, schema)
    table.append(pa.table({"id": pa.array([1, 2, 3], pa.int32()), "text": list("abc")}))
    with table.update_schema() as update:
        update.update_column("id", LongType())
        update.rename_column("text", "value")
        update.add_column("more", DoubleType())
    lake.decide(changes_of((2, "d"), gone(3), (2**40, "e")))
    commit(lake)
    assert found(lake) == {1: "a", 2: "d", 2**40: "e"}
    assert lake.read().column_names == ["id", "value", "more"]


# Other writers


def test_rows_that_position_deletes_remove_stay_removed(lake: IcebergLake) -> None:
    filled(lake, 2)
    add_deletes(lake.table(), data_files(lake)[0], [0, 3])
    assert len(found(lake)) == 18
    removed = set(range(20)) - set(found(lake))
    keys = [key for key in range(20) if key not in removed]
    lake.decide(changes_of(*((key, "b") for key in keys[:3]), gone(keys[4]), (max(removed), "again")))
    commit(lake)
    assert found(lake) == {
        **dict.fromkeys(keys[5:], "a"),
        keys[3]: "a",
        **dict.fromkeys(keys[:3], "b"),
        max(removed): "again",
    }


def test_equality_deletes_are_refused_before_the_decision(lake: IcebergLake) -> None:
    filled(lake, 1)
    lake.decide(changes_of((1, "b")))
    add_deletes(lake.table(), data_files(lake)[0], [], equality=True)
    with pytest.raises(SinkError, match="has equality deletes of another writer, which pyiceberg cannot read"):
        lake.decide(changes_of((1, "c")))
    with pytest.raises(SinkError, match="has equality deletes"):
        commit(lake)


def test_branches_and_tags_are_left_alone(lake: IcebergLake) -> None:
    filled(lake, 2)
    snapshot = lake.table().current_snapshot().snapshot_id
    lake.table().manage_snapshots().create_branch(snapshot, "audit").create_tag(snapshot, "before").commit()
    lake.decide(changes_of((1, "b"), gone(2)))
    commit(lake)
    assert len(found(lake)) == 19
    for name in ("audit", "before"):
        assert lake.table().scan().use_ref(name).to_arrow()["value"].to_pylist() == ["a"] * 20


def beside(monkeypatch: pytest.MonkeyPatch, lake: IcebergLake, *writes: Callable[[], None]) -> None:
    """Another writer commits between the look at the table and the commit, once with each of these."""
    made, left = catalog_table._append, list(writes)

    def others_first(table: Any, addition: Any) -> None:
        if left:
            left.pop(0)()
        made(table, addition)

    monkeypatch.setattr(catalog_table, "_append", others_first)


def test_what_was_written_is_used_again_after_a_conflict(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(lake, 3)
    lake.decide(changes_of((1, "b"), (11, "b"), gone(21), (50, "mine"), (60, "new")))
    written: list[str] = []
    put = type(lake.store.store).put  # type: ignore[attr-defined]

    def counted(store: Any, path: str, content: Any) -> None:
        written.append(path)
        put(store, path, content)

    monkeypatch.setattr(type(lake.store.store), "put", counted)  # type: ignore[attr-defined]
    theirs = pa.table({"id": [50, 51], "value": ["theirs", "theirs"]})
    beside(monkeypatch, lake, lambda: lake.append(theirs), lambda: lake.table().delete("id = 11"))
    commit(lake)
    expected = {n: "a" for n in range(30) if n not in (1, 11, 21)} | {1: "b", 50: "mine", 51: "theirs", 60: "new"}
    assert found(lake) == expected | {11: "b"}
    data = [path for path in written if path.endswith(".parquet")]
    # Three files and the new rows; then the file of the other writer and the row that is left; then that and 11.
    assert len(data) == 4 + 2 + 1, data
    assert on_disk(lake) == sorted({*data_files(lake), *referenced(lake)}), "attempts that failed left files"


def referenced(lake: IcebergLake) -> set[str]:
    """By any snapshot."""
    table = lake.table()
    return {
        entry.data_file.file_path
        for snapshot in table.snapshots()
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    }


def test_an_answer_that_was_lost_changes_nothing(lake: IcebergLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the catalog made the commit or not: the next attempt finds out, and writes no file again."""
    filled(lake, 2)
    made = catalog_table._append
    for number, is_made in enumerate((True, False)):
        lake.decide(changes_of((number, "b"), gone(10 + number), (70 + number, "new")))
        committer = lake.committer()
        before = set(on_disk(lake))

        def lost(table: Any, addition: Any, *, is_made: bool = is_made) -> None:
            if is_made:
                made(table, addition)
            raise CommitStateUnknownException("no answer")

        with monkeypatch.context() as network:
            network.setattr(catalog_table, "_append", lost)
            with suppress(SinkError):
                committer.finish(lake.wanted)
        during = set(on_disk(lake)) - before
        lake.clock.advance(RETRY_SECONDS)
        committer.finish(lake.wanted)
        assert set(on_disk(lake)) - before == during
    assert found(lake) == {n: "b" if n < 2 else "a" for n in range(20) if n not in (10, 11)} | {
        70: "new",
        71: "new",
    }


def test_a_committer_that_was_paused_over_other_commits_changes_nothing(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row that it would insert was deleted by the next commit."""
    filled(lake, 1)
    entry = lake.decide(changes_of((50, "a"), (1, "b")))
    late = lake.process().commits

    def others() -> None:
        commit(lake)
        lake.decide(changes_of(gone(50), (1, "c")))
        commit(lake)

    beside(monkeypatch, lake, others)
    late.commit(APPLICATION, 2, [entry], None)
    assert found(lake) == {n: "c" if n == 1 else "a" for n in range(10)}
    assert late.committed(APPLICATION) == 3


def test_a_step_is_not_made_again_by_a_worker_that_was_paused_before_it(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever steps it makes of the commit: another version of the package may divide it otherwise."""
    entries = [lake.decide(changes_of((1, "a"))), lake.decide(changes_of(gone(1), (2, "b")))]

    def killed() -> None:
        raise Killed

    def others() -> None:
        with monkeypatch.context() as other, suppress(Killed):
            other.setattr(iceberg_commits, "steps", lambda entries, done: steps(entries, done, most_rows=1))
            beside(other, lake, lambda: None, killed)
            lake.process().commits.commit(APPLICATION, 1, entries, None)

    beside(monkeypatch, lake, others)
    lake.process().commits.commit(APPLICATION, 1, entries, None)
    assert found(lake) == {2: "b"}
    assert lake.last_number() == 1
    assert lake.table().properties[f"{commit_key(APPLICATION)}/step"].startswith('{"number":1,')


def test_the_files_of_a_commit_that_cannot_be_made_are_removed(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(lake, 2)
    before = on_disk(lake)
    lake.decide(changes_of((1, "b"), (11, "b")))
    changed = set(data_files(lake))
    Path(next(path for path in changed if 11 in ids_of(path))).write_bytes(b"")
    with pytest.raises(SinkError):
        commit(lake)
    assert on_disk(lake) == before


def ids_of(path: str) -> list[int]:
    return pq.read_table(path)["id"].to_pylist()  # type: ignore[no-any-return]  # untyped


def test_manifests_do_not_pile_up(lake: IcebergLake) -> None:
    filled(lake, 1)
    with lake.table().transaction() as transaction:
        transaction.set_properties({"commit.manifest.min-count-to-merge": "4"})
    counts = []
    for number in range(16):
        lake.decide(changes_of((number % 10, str(number)), (100 + number, "new")))
        commit(lake)
        counts.append(len(lake.table().current_snapshot().manifests(lake.table().io)))
    assert max(counts) <= 5, counts
    assert len(found(lake)) == 26


def test_rows_are_read_some_at_a_time(lake: IcebergLake, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 400_000
    keys = pa.array(np.arange(size))
    lake.make(pa.schema([("id", pa.int64()), ("value", pa.string())]))
    lake.append(pa.table({"id": keys, "value": pa.array(["a"] * size)}))
    seen: list[int] = []
    changed = IcebergMerge._changed

    def counted(self: Any, batches: Any, *places: Any) -> Any:
        def each() -> Any:
            for batch in batches:
                seen.append(batch.num_rows)
                yield batch

        return changed(self, each(), *places)

    monkeypatch.setattr(IcebergMerge, "_changed", counted)
    lake.decide(changes_of((0, "b"), (size - 1, "c"), gone(size // 2)))
    commit(lake)
    assert sum(seen) == size
    assert max(seen) < size // 2
    values = lake.read().sort_by("id")
    assert (values["value"][0].as_py(), values["value"][-1].as_py(), len(values)) == ("b", "c", size - 1)
