"""Ids of columns in the data files of an Iceberg table, and what readers find after a column was altered."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, StructType

from kcl_dagster.errors import SinkError
from kcl_dagster.spark.sinks import iceberg, iceberg_merges
from kcl_dagster.spark.sinks.iceberg_files import target_of
from kcl_dagster.spark.sinks.iceberg_name_mapping import NAME_MAPPING
from kcl_dagster.spark.sinks.table_columns import Target
from tests.unit.spark.chained_lakes import IDENTIFIER, IcebergLake, put_back, rows_of
from tests.unit.spark.changed_lakes import BY_ID, changes_of, commit, found, gone

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(tmp_path: Path) -> IcebergLake:
    return IcebergLake(tmp_path, ())


@pytest.fixture
def changed(tmp_path: Path) -> IcebergLake:
    return IcebergLake(tmp_path, (), changes=BY_ID)


NESTED = {
    "s": pa.array([{"a": 1, "b": "x"}]),
    "l": pa.array([[{"a": 1}]]),
    "m": pa.array([[("k", {"a": 1})]], pa.map_(pa.string(), pa.struct([("a", pa.int64())]))),
}


def schemas_of_files(lake: IcebergLake) -> list[Schema]:
    """As the files say, without the table."""
    paths = [task.file.file_path for task in lake.table().scan().plan_files()]
    return [pyarrow_to_schema(pq.read_schema(path.removeprefix("file://"))) for path in paths]


def names_by_id(schema: Schema) -> dict[int, str]:
    return {number: str(schema.find_column_name(number)) for number in schema.field_ids}


def without_ids(table: Any, name: str) -> Target:
    found = target_of(table, name)
    return Target(name, _plain(found.schema), found.hint)


def _plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(one.name, _plain_type(one.type), one.nullable) for one in schema])


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _plain_type(one.type), one.nullable) for one in kind])
    return kind


@pytest.fixture
def former(monkeypatch: pytest.MonkeyPatch) -> Callable[[IcebergLake, pa.RecordBatch], None]:
    """Decides a batch as a former version does, which wrote no ids."""

    def decide(lake: IcebergLake, rows: pa.RecordBatch) -> None:
        with monkeypatch.context() as version:
            version.setattr(iceberg, "target_of", without_ids)
            lake.decide(rows)

    return decide


def renamed_and_added(lake: IcebergLake, column: str = "kind") -> None:
    rename(lake, column, f"{column}_old")
    with lake.table().update_schema() as schema:
        schema.add_column(column, StringType())


def rename(lake: IcebergLake, *names: str) -> None:
    with lake.table().update_schema() as schema:
        schema.rename_column(*names)


def drop(lake: IcebergLake, name: str) -> None:
    with lake.table().update_schema() as schema:
        schema.delete_column(name)


def test_each_column_of_a_file_has_its_id(lake: IcebergLake) -> None:
    lake.write(rows_of(range(1), **NESTED))
    rename(lake, "s.a", "c")
    [written] = schemas_of_files(lake)
    table = lake.table()
    assert names_by_id(written) == {
        number: name.replace("s.c", "s.a") for number, name in names_by_id(table.schema()).items()
    }
    assert NAME_MAPPING not in table.properties
    assert lake.rows()[0]["s"] == {"c": 1, "b": "x"}
    assert [lake.rows()[0][name] for name in "lm"] == [[{"a": 1}], [("k", {"a": 1})]]


@pytest.mark.parametrize("kind", [StringType(), LongType()])
def test_values_stay_with_a_renamed_column_and_not_with_its_name(lake: IcebergLake, kind: Any) -> None:
    lake.write(rows_of(range(1), "before"))
    rename(lake, "kind", "kind_old")
    with lake.table().update_schema() as schema:
        schema.add_column("kind", kind)
    assert lake.rows() == [{"n": 0, "kind_old": "before", "kind": None}]
    new = pa.array(["after"]) if isinstance(kind, StringType) else pa.array([7])
    lake.write(pa.record_batch({"n": pa.array([1]), "kind": new}))
    assert lake.rows()[1] == {"n": 1, "kind_old": None, "kind": new[0].as_py()}


def test_values_of_a_dropped_column_do_not_return_with_its_name(lake: IcebergLake) -> None:
    lake.write(rows_of(range(1), "secret"))
    drop(lake, "kind")
    with lake.table().update_schema() as schema:
        schema.add_column("kind", StringType())
    assert lake.rows() == [{"n": 0, "kind": None}]


def test_two_names_may_be_swapped(lake: IcebergLake) -> None:
    lake.write(rows_of(range(1), "kind", other=pa.array(["other"])))
    for names in (("kind", "third"), ("other", "kind"), ("third", "other")):
        rename(lake, *names)
    assert lake.rows() == [{"n": 0, "other": "kind", "kind": "other"}]


def test_a_column_that_a_mapping_of_names_lacks_has_its_values(
    lake: IcebergLake, former: Callable[[IcebergLake, pa.RecordBatch], None]
) -> None:
    former(lake, rows_of(range(1)))
    commit(lake)
    before = lake.table().properties[NAME_MAPPING]
    put_back(lake, NestedField(3, "note", StringType(), required=False))
    lake.write(rows_of(range(1, 2), note=pa.array(["there"])))
    assert [row["note"] for row in lake.rows()] == [None, "there"]
    assert lake.table().properties[NAME_MAPPING] == before


# What was decided before


ALTERED: dict[str, tuple[Callable[[IcebergLake], None], dict[str, Any]]] = {
    "renamed": (lambda lake: rename(lake, "kind", "sort"), {"n": 0, "sort": "a", "s": {"a": 1, "b": "x"}}),
    "renamed and added": (
        renamed_and_added,
        {"n": 0, "kind_old": "a", "s": {"a": 1, "b": "x"}, "kind": None},
    ),
    "dropped": (lambda lake: drop(lake, "kind"), {"n": 0, "s": {"a": 1, "b": "x"}}),
    "nested": (lambda lake: rename(lake, "s.a", "c"), {"n": 0, "kind": "a", "s": {"c": 1, "b": "x"}}),
    "nested and dropped": (lambda lake: drop(lake, "s.a"), {"n": 0, "kind": "a", "s": {"b": "x"}}),
}


@pytest.mark.parametrize("how", ALTERED)
def test_what_was_decided_before_a_column_was_altered_is_committed_as_what_was_committed_before(
    lake: IcebergLake, how: str
) -> None:
    alter, expected = ALTERED[how]
    rows = rows_of(range(1), s=NESTED["s"])
    lake.write(rows)
    lake.decide(rows)
    alter(lake)
    commit(lake)
    assert lake.rows() == [expected, expected]


def test_a_nested_column_may_be_added_before_a_batch_is_committed(lake: IcebergLake) -> None:
    lake.decide(rows_of(range(1), s=NESTED["s"]))
    with lake.table().update_schema() as schema:
        schema.add_column(("s", "c"), LongType())
    commit(lake)
    assert lake.rows()[0]["s"] == {"a": 1, "b": "x", "c": None}


def test_a_required_column_may_be_renamed_before_a_batch_is_committed(lake: IcebergLake) -> None:
    catalog = lake.catalog_table().catalog
    catalog.create_namespace_if_not_exists("lake")
    catalog.create_table(IDENTIFIER, Schema(NestedField(1, "n", LongType(), required=True)))
    lake.decide(pa.record_batch({"n": [1]}))
    rename(lake, "n", "number")
    commit(lake)
    assert lake.read().to_pylist() == [{"number": 1}]
    lake.decide(pa.record_batch({"number": [2]}))
    rename(lake, "number", "n")
    with lake.table().update_schema(allow_incompatible_changes=True) as schema:
        schema.add_column("m", LongType(), required=True)
    with pytest.raises(SinkError, match=r"lacks \['m'\]"):
        commit(lake)


# Files of a former version


def test_files_without_ids_have_the_values_of_their_names(
    lake: IcebergLake, former: Callable[[IcebergLake, pa.RecordBatch], None]
) -> None:
    """Decided by a former version, and committed by this one. Its mapping of names has all columns then."""
    former(lake, rows_of(range(1), s=NESTED["s"]))
    commit(lake)
    first = json.loads(lake.table().properties[NAME_MAPPING])
    assert [(one["field-id"], one["names"]) for one in first] == [(1, ["n"]), (2, ["kind"]), (3, ["s"])]
    struct = StructType(
        NestedField(4, "a", LongType(), required=False),
        NestedField(5, "b", StringType(), required=False),
        NestedField(7, "c", LongType(), required=False),
    )
    rename(lake, "kind", "sort")
    table = lake.table()
    schema = Schema(*table.schema().fields[:2], NestedField(3, "s", struct, required=False), schema_id=2)
    put_back(lake, NestedField(6, "note", StringType(), required=False), schema)
    nested = pa.array([{"a": 1, "b": "x", "c": 2}])
    former(lake, pa.record_batch({"n": [1], "sort": ["b"], "s": nested, "note": ["there"]}))
    commit(lake)
    assert lake.rows() == [
        {"n": 0, "sort": "a", "s": {"a": 1, "b": "x", "c": None}, "note": None},
        {"n": 1, "sort": "b", "s": {"a": 1, "b": "x", "c": 2}, "note": "there"},
    ]
    drop(lake, "note")
    former(lake, pa.record_batch({"n": [2]}))
    put_back(lake, NestedField(8, "note", StringType(), required=False))
    commit(lake)
    mapping = json.loads(lake.table().properties[NAME_MAPPING])
    kept = {name: one["field-id"] for one in mapping for name in one["names"]}
    assert kept == {"n": 1, "kind": 2, "sort": 2, "s": 3, "note": 6}, "no name gets another id"
    lake.write(pa.record_batch({"n": [3], "note": ["new"]}))
    assert [row["note"] for row in lake.rows()] == [None, None, None, "new"]


def test_what_a_former_version_decided_waits_until_a_dropped_column_is_put_back(
    lake: IcebergLake, former: Callable[[IcebergLake, pa.RecordBatch], None]
) -> None:
    former(lake, rows_of(range(2)))
    drop(lake, "kind")
    with pytest.raises(SinkError, match=r"kind \(not in the table\)"):
        commit(lake)
    put_back(lake, NestedField(3, "kind", StringType(), required=False))
    lake.clock.advance(100)
    commit(lake)
    assert lake.rows() == [{"n": 0, "kind": "a"}, {"n": 1, "kind": "a"}]


# Merges


def test_a_merge_reads_and_writes_rows_by_ids(changed: IcebergLake) -> None:
    changed.decide(changes_of((1, "before"), (2, "before")))
    commit(changed)
    renamed_and_added(changed, "value")
    changed.decide(changes_of((1, "after")))
    commit(changed)
    rows = changed.read().sort_by("id").to_pylist()
    assert rows == [
        {"id": 1, "value_old": "before", "value": "after"},
        {"id": 2, "value_old": "before", "value": None},
    ]
    assert [names_by_id(one) for one in schemas_of_files(changed)] == [{1: "id", 2: "value_old", 3: "value"}]


def test_a_merge_writes_files_of_a_former_version_with_ids(
    changed: IcebergLake, former: Callable[[IcebergLake, pa.RecordBatch], None]
) -> None:
    plain = IcebergLake(changed.folder, ())
    former(plain, changes_of((1, "a"), (2, "a")).select(["id", "value"]))
    commit(plain)
    changed = IcebergLake(changed.folder, (), worker="w2", changes=BY_ID)
    changed.decide(changes_of((1, "b"), gone(2), (3, "c")))
    changed.committer().finish({**plain.wanted, **changed.wanted})
    assert found(changed) == {1: "b", 3: "c"}
    assert [names_by_id(one) for one in schemas_of_files(changed)] == [{1: "id", 2: "value"}] * 2


@pytest.mark.parametrize("how", ["renamed", "renamed and added", "dropped"])
def test_changes_that_were_decided_before_a_column_was_altered_change_that_column(
    changed: IcebergLake, how: str
) -> None:
    changed.decide(changes_of((1, "a"), (2, "a")))
    commit(changed)
    changed.decide(changes_of((1, "b"), gone(2), (3, "c")))
    if how == "dropped":
        drop(changed, "value")
        expected: dict[int, Any] = {1: {}, 3: {}}
    elif how == "renamed":
        rename(changed, "value", "sort")
        expected = {1: {"sort": "b"}, 3: {"sort": "c"}}
    else:
        renamed_and_added(changed, "value")
        expected = {1: {"value_old": "b", "value": None}, 3: {"value_old": "c", "value": None}}
    commit(changed)
    assert changed.read().sort_by("id").to_pylist() == [{"id": key, **rest} for key, rest in expected.items()]


def test_changes_of_a_nested_column_follow_it(changed: IcebergLake) -> None:
    changed.decide(changes_of((1, "a"), s=NESTED["s"]))
    commit(changed)
    changed.decide(changes_of((1, "b"), s=NESTED["s"]))
    rename(changed, "s.a", "c")
    with changed.table().update_schema() as schema:
        schema.add_column(("s", "a"), StringType())
        schema.move_first(("s", "b"))
    commit(changed)
    assert changed.read().to_pylist() == [{"id": 1, "value": "b", "s": {"b": "x", "c": 1, "a": None}}]


def test_changes_are_refused_if_the_name_of_their_key_is_another_column(changed: IcebergLake) -> None:
    changed.decide(changes_of((1, "a")))
    commit(changed)
    changed.decide(changes_of((1, "b")))
    rename(changed, "id", "former")
    with changed.table().update_schema() as schema:
        schema.add_column("id", LongType())
    with pytest.raises(SinkError, match=r"\['id'\], which merge_on or order_by names, is another column than"):
        commit(changed)
    rename(changed, "id", "other")
    rename(changed, "former", "id")
    changed.clock.advance(100)
    commit(changed)
    assert changed.read().to_pylist() == [{"id": 1, "value": "b", "other": None}]


def test_changes_are_not_copied_if_no_column_was_altered(
    changed: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg_merges, "projected", None)
    for _ in range(2):
        changed.decide(changes_of((1, "a"), s=NESTED["s"], small=pa.array([1], pa.int32())))
        commit(changed)
    with changed.table().update_schema() as schema:
        schema.update_column("small", LongType())
        schema.add_column("more", IntegerType())
        schema.move_first("value")
    changed.decide(changes_of((1, "b"), s=NESTED["s"], small=pa.array([1], pa.int32())))
    commit(changed)
    expected = {"value": "b", "id": 1, "s": {"a": 1, "b": "x"}, "small": 1, "more": None}
    assert changed.read().to_pylist() == [expected]
