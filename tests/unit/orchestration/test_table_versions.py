"""The version of a table in the materializations of its windows."""

import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

import kcl_dagster as kcl
from kcl_dagster.model.lease import Lease
from kcl_dagster.model.stored import BatchCounts
from kcl_dagster.orchestration import table_versions
from kcl_dagster.orchestration.complete_windows import CompleteWindows
from kcl_dagster.orchestration.sink_choices import SinkChoice
from kcl_dagster.orchestration.table_versions import newest_versions
from tests.unit.orchestration.test_complete_windows import CHECKPOINT, complete, consumer_of, lease, rows

RESOURCE = kcl.KclResource(region_name="us-east-1")
ROWS = pa.table({"n": [1, 2]})


def test_a_window_of_a_delta_table_has_its_version(tmp_path: Path) -> None:
    consumer = consumer_of(sink=kcl.delta(str(tmp_path / "things")))
    assert newest_versions(consumer, RESOURCE) == {}, "there is no table yet"
    for _ in range(3):
        write_deltalake(tmp_path / "things", ROWS, mode="append")
    with dg.DagsterInstance.ephemeral() as instance:
        ours = CompleteWindows(consumer, kcl.KclTranslator(), RESOURCE)
        [event] = ours.events(instance, complete("12:00"), [lease(0, rows("10:00"), rows("11:00"))])
    assert event.metadata["kcl/table_version"].value == DeltaTable(tmp_path / "things").version() == 2


def test_a_window_of_an_iceberg_table_has_its_snapshot(tmp_path: Path) -> None:
    where = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": str(tmp_path)}
    consumer = consumer_of(sink=kcl.iceberg("lake.things", where))
    assert newest_versions(consumer, RESOURCE) == {}, "there is no table yet"
    catalog = SqlCatalog("default", **where)
    catalog.create_namespace("lake")
    table = catalog.create_table("lake.things", ROWS.schema)
    assert newest_versions(consumer, RESOURCE) == {}, "there is no snapshot yet"
    table.append(ROWS)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert newest_versions(consumer, RESOURCE) == {"": {"snapshot": str(snapshot.snapshot_id)}}


def test_a_table_that_cannot_be_read_or_does_not_answer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader needs no rights to the table, and its tick has a minute."""
    monkeypatch.setattr(table_versions, "ANSWER_SECONDS", 0.01)
    hung: list[Any] = []

    def refuse(*_: object) -> Any:
        raise PermissionError("s3:ListBucket")

    def hang(*_: object) -> Any:
        hung.append(release.wait(60))
        return None

    release = threading.Event()
    for open_sink in (refuse, hang):
        assert newest_versions(consumer_of(sink=SinkChoice("deltalake", "unused", open_sink)), RESOURCE) == {}
    release.set()
    assert newest_versions(consumer_of(), RESOURCE) == {}, "Parquet has no versions"


def counted(number: int, outside: int, late_uncounted: int) -> Lease:
    """A lease with rows that no window counts."""
    found = lease(number, rows("10:00"), rows("11:00"))
    assert found.stored is not None
    more = BatchCounts(outside=outside).added_to(found.stored, CHECKPOINT, CHECKPOINT)
    return replace(found, stored=replace(more, late_uncounted=late_uncounted))


def test_rows_that_no_window_counts_are_said_where_rows_have_times_of_their_own() -> None:
    leases = [counted(0, 3, 5), counted(1, 4, 0)]
    late = {"event_time": "at", "allowed_lateness": timedelta(minutes=1)}
    with dg.DagsterInstance.ephemeral() as instance:
        [event] = CompleteWindows(consumer_of(**late), kcl.KclTranslator()).events(
            instance, complete("12:10"), leases
        )
        [other] = CompleteWindows(consumer_of(), kcl.KclTranslator()).events(instance, complete("12:10"), leases)
    told = event.metadata["kcl/rows_without_window"].value, event.metadata["kcl/late_rows_uncounted"].value
    assert told == (7, 5)
    assert "kcl/rows_without_window" not in other.metadata
