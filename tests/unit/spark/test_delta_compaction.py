"""Compaction of Delta tables: the same rows in fewer files, beside whatever else is at work."""

import json
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.table import TableOptimizer
from deltalake.transaction import AddAction

from kcl_dagster.errors import Unsafe
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.sinks import delta_compaction
from kcl_dagster.spark.sinks.delta_compaction import LOOKED, compact_delta
from kcl_dagster.spark.sinks.parquet_compaction import LOCKS, Compaction
from kcl_dagster.spark.storage import LocalStore, S3Options
from kcl_dagster.spark.store_lock import LOCK_SECONDS, store_lock
from tests.doubles.clock import FakeClock

pytestmark = pytest.mark.slow


def made(path: str, files: int = 4) -> None:
    for number in range(files):
        deltalake.write_deltalake(path, pa.table({"value": [number]}), mode="append")


def partitioned(path: str, files: int, *kinds: str) -> None:
    for number in range(files):
        for kind in kinds:
            rows = pa.table({"value": [number], "kind": [kind]})
            deltalake.write_deltalake(path, rows, mode="append", partition_by=["kind"])


def values(path: str) -> list[int]:
    return sorted(deltalake.DeltaTable(path).to_pyarrow_table()["value"].to_pylist())


def while_it_merges(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
    """Before delta-rs begins, of the next compaction only."""
    original, left = TableOptimizer.compact, [meanwhile]

    def compacting(optimizer: TableOptimizer, *given: Any, **more: Any) -> Any:
        if left:
            left.pop()()
        return original(optimizer, *given, **more)

    monkeypatch.setattr(TableOptimizer, "compact", compacting)


def test_of_two_compactions_at_once_the_second_one_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """delta-rs commits both, and the table has the rows twice."""
    path = str(tmp_path)
    made(path)

    def second() -> None:
        with pytest.raises(Unsafe, match="the second one has to wait: the first one works at"):
            compact_delta(path, by="the second one")

    while_it_merges(monkeypatch, second)
    assert compact_delta(path, by="the first one").merged == 4
    assert values(path) == [0, 1, 2, 3]


def test_a_compaction_that_opened_the_table_before_another_one_merged_it_stores_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path)
    made(path)
    before = delta_compaction.open_table(path, S3Options())
    compact_delta(path)
    made(path, 1)
    monkeypatch.setattr(delta_compaction, "open_table", lambda *_: before)
    compact_delta(path)
    assert values(path) == [0, 0, 1, 2, 3]


def test_a_compaction_renews_its_lock_while_delta_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, clock = str(tmp_path), FakeClock()
    made(path)
    kept = threading.Event()
    keep = LocalStore.put

    def put(store: LocalStore, name: str, content: Any) -> None:
        keep(store, name, content)
        if name.startswith(LOCKS) and clock.now() > start:
            kept.set()

    start = clock.now()
    monkeypatch.setattr("kcl_dagster.spark.store_lock.CHECK_SECONDS", 0.01)
    monkeypatch.setattr(LocalStore, "put", put)

    def long() -> None:
        for _ in range(3):
            kept.clear()
            clock.advance(LOCK_SECONDS * 0.6)
            assert kept.wait(30)
            with pytest.raises(Unsafe):
                compact_delta(path, runtime=Runtime(clock=clock))

    while_it_merges(monkeypatch, long)
    assert compact_delta(path, runtime=Runtime(clock=clock)).merged == 4


def test_a_merge_does_not_begin_when_its_lock_is_about_to_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock = str(tmp_path), FakeClock()
    made(path)
    looked = delta_compaction._not_found

    def slow(*given: Any) -> list[str]:
        clock.advance(LOCK_SECONDS - 10)
        return looked(*given)

    def meanwhile() -> None:
        clock.advance(20)
        with pytest.raises(Unsafe, match="has to wait"):
            compact_delta(path, runtime=Runtime(clock=clock))

    monkeypatch.setattr(delta_compaction, "_not_found", slow)
    while_it_merges(monkeypatch, meanwhile)
    assert compact_delta(path, runtime=Runtime(clock=clock)).merged == 4


def test_an_unreadable_note_about_other_engines_is_named(tmp_path: Path) -> None:
    path = str(tmp_path)
    made(path)
    (tmp_path / LOOKED).parent.mkdir()
    (tmp_path / LOOKED).write_bytes(b"")
    with pytest.raises(Unsafe, match=f"{path}/{LOOKED} cannot be read"):
        compact_delta(path)
    (tmp_path / LOOKED).unlink()
    assert compact_delta(path).merged == 4


def test_a_compaction_that_was_overtaken_reports_that_rows_may_be_there_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock = str(tmp_path), FakeClock()
    made(path)

    def paused() -> None:
        clock.advance(LOCK_SECONDS)
        with store_lock(LocalStore(path), LOCKS, Runtime(clock=clock), "another one"):
            pass

    while_it_merges(monkeypatch, paused)
    with pytest.raises(Unsafe, match="compare the number of rows with that of version 3"):
        compact_delta(path, runtime=Runtime(clock=clock))


@pytest.mark.parametrize(
    "column", [pa.array([Decimal("1.5000")], pa.decimal128(20, 4)), pa.array([b"xy"], pa.binary())]
)
def test_a_table_whose_partition_values_delta_would_change_is_left_alone(
    tmp_path: Path, column: pa.Array, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path)
    for number in range(3):
        rows = pa.table({"value": [number], "kind": column})
        deltalake.write_deltalake(path, rows, mode="append", partition_by=["kind"])
    before = deltalake.DeltaTable(path).version()
    assert compact_delta(path) == Compaction(0, 0, 0)
    assert deltalake.DeltaTable(path).version() == before
    assert "changes values of the partition columns ['kind']" in caplog.text


def test_a_partition_whose_files_delta_does_not_find_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path)
    partitioned(path, 3, "plain", "a~b", "o'hara %7E/ü")
    assert compact_delta(path).merged == 6
    assert values(path) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert "{'kind': 'a~b'} is left alone" in caplog.text
    assert compact_delta(path) == Compaction(0, 0, 0)


def test_a_table_with_a_file_that_delta_does_not_find_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Former versions named files with a tilde."""
    path, name = str(tmp_path), "clicks-12345678~worker-1.3_0_0.parquet"
    made(path, 3)
    pq.write_table(pa.table({"value": [3]}), tmp_path / name)
    table = deltalake.DeltaTable(path)
    action = AddAction(name, (tmp_path / name).stat().st_size, {}, 0, True, "{}")
    table.create_write_transaction([action], "append", table.schema())
    assert compact_delta(path) == Compaction(0, 0, 0)
    assert values(path) == [0, 1, 2, 3]
    assert f"does not find its file {name}" in caplog.text


def test_a_partition_that_fails_does_not_keep_others_from_being_merged(tmp_path: Path) -> None:
    path, long = str(tmp_path), "k" * 300  # delta-rs makes a folder of the value, with a name that is too long
    deltalake.DeltaTable.create(
        path, pa.schema([("value", pa.int64()), ("kind", pa.string())]), partition_by=["kind"]
    )
    partitioned(path, 3, "plain")
    for number in range(3):
        table = deltalake.DeltaTable(path)
        file = tmp_path / f"f{number}.parquet"
        pq.write_table(pa.table({"value": [number]}), file)
        action = AddAction(file.name, file.stat().st_size, {"kind": long}, 0, True, "{}")
        table.create_write_transaction([action], "append", table.schema(), partition_by=["kind"])
    done = compact_delta(path)
    assert (done.merged, done.into, len(done.failed)) == (3, 1, 1)
    assert done.failed[0].startswith("the partition {'kind': 'kkk")
    assert values(path) == [0, 0, 1, 1, 2, 2]


def test_a_large_file_that_delta_does_not_find_does_not_keep_others_from_being_merged(tmp_path: Path) -> None:
    path, name = str(tmp_path), "clicks-12345678~worker-1.3_0_0.parquet"
    made(path, 3)
    pq.write_table(pa.table({"value": list(range(3, 5003))}), tmp_path / name)
    size = (tmp_path / name).stat().st_size
    table = deltalake.DeltaTable(path)
    table.create_write_transaction([AddAction(name, size, {}, 0, True, "{}")], "append", table.schema())
    assert compact_delta(path, target_bytes=size - 1).merged == 3
    assert values(path) == list(range(5003))


def test_a_compaction_hides_no_row_from_readers_that_skip_files_by_their_bounds(tmp_path: Path) -> None:
    """delta-rs's bounds leave out NaN, and those of decimals are doubles."""
    path, large, money = str(tmp_path), Decimal(12345678901234567891), Decimal("123456789012345.67")
    for chance in (float("nan"), 5.0):
        rows = pa.table(
            {
                "value": [1],
                "large": pa.array([large], pa.decimal128(38)),
                "money": pa.array([money], pa.decimal128(20, 2)),
                "chance": [chance],
            }
        )
        file = tmp_path / f"{chance}.parquet"
        pq.write_table(rows, file)
        table = deltalake.DeltaTable.create(path, rows.schema, mode="ignore")
        table.create_write_transaction(
            [AddAction(file.name, file.stat().st_size, {}, 0, True, "{}")], "append", table.schema()
        )
    assert compact_delta(path).merged == 2
    table = deltalake.DeltaTable(path)
    reader = deltalake.QueryBuilder().register("clicks", table)
    conditions = {
        f"large = {large}": 2,
        f"money = CAST('{money}' AS DECIMAL(20, 2))": 2,
        "isnan(chance)": 1,
        "chance > 9": 1,
        "value = 1": 2,
    }
    for condition, count in conditions.items():
        found = pa.table(reader.execute(f"SELECT value FROM clicks WHERE {condition}"))
        assert found.num_rows == count, condition
    newest = (tmp_path / "_delta_log" / f"{table.version():020}.json").read_text().splitlines()
    statistics = [json.loads(json.loads(line)["add"]["stats"]) for line in newest if '"add"' in line]
    assert [(one["numRecords"], list(one["maxValues"])) for one in statistics] == [(2, ["value"])]
