"""Several tables of one consumer, as Dagster shows them: each an asset, complete when the consumer's window is."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import kcl_dagster as kcl
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.orchestration.admin_job import config_of
from kcl_dagster.orchestration.complete_windows import CompleteWindows
from kcl_dagster.orchestration.component import KclApplicationComponent
from kcl_dagster.orchestration.component_models import SinkModel
from kcl_dagster.orchestration.stores import storing_of, written_places
from tests.unit.orchestration.test_complete_windows import HOURS, complete, lease, rows

RESOURCE = kcl.KclResource(region_name="us-east-1")
SINKS = {
    "orders": kcl.delta("s3://lake/orders"),
    "rejects": kcl.parquet("s3://lake/rejects"),
    "journal": kcl.iceberg("lake.journal", {"type": "glue"}, commit_seconds=90),
}


def shop(records: Any) -> dict[str, Any]:
    """What the shop sells."""
    return {"orders": records, "rejects": records, "journal": records}


def consumer_of(sink: Any = SINKS, **more: Any) -> kcl.Consumer:
    return kcl.kcl_consumer(application="app", stream="stream", sink=sink, partitions=HOURS, **more)(shop)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def test_each_table_is_an_asset_behind_the_records() -> None:
    consumer = consumer_of(key_prefix=["eu"], owners=["team:web"])
    definitions = kcl.build_kcl_definitions(consumer, resources={"kcl": RESOURCE})
    graph = definitions.resolve_asset_graph()
    records = dg.AssetKey(["eu", "shop"])
    for name, kind in (("orders", "deltalake"), ("rejects", "parquet"), ("journal", "iceberg")):
        node = graph.get(dg.AssetKey(["eu", "shop", name]))
        assert node.parent_keys == {records}
        assert kind in node.kinds
        assert node.partitions_def == consumer.partitions
        assert node.owners == ["team:web"]
    assert graph.get(records).parent_keys == {dg.AssetKey(["kinesis", "stream"])}
    by_name = {name: graph.get(dg.AssetKey(["eu", "shop", name])).metadata for name in SINKS}
    assert "s3://lake/orders" in str(by_name["orders"]["dagster/uri"])
    assert "lake.journal" in str(by_name["journal"]["dagster/table_name"])


def test_a_complete_window_is_one_of_each_table_before_it_is_one_of_the_records(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    write_deltalake(tmp_path / "orders", pa.table({"n": [1]}))
    sinks = {"orders": kcl.delta(str(tmp_path / "orders")), "rejects": kcl.parquet(str(tmp_path / "rejects"))}
    ours = CompleteWindows(consumer_of(sinks), kcl.KclTranslator(), RESOURCE)
    leases = [lease(0, rows("10:00", 3), rows("11:00"))]
    found = ours.with_tables(instance, ours.events(instance, complete("12:00"), leases))
    assert [(event.asset_key.path[-1], str(event.partition)[-5:]) for event in found] == [
        (name, "11:00") for name in ("orders", "rejects", "shop")
    ]
    orders, rejects, records = found
    assert orders.metadata["kcl/table_version"].value == 0
    assert "kcl/table_version" not in rejects.metadata
    assert orders.metadata["dagster/uri"] != rejects.metadata["dagster/uri"]
    assert records.metadata["dagster/row_count"].value == 10, "of all tables together"
    assert "dagster/row_count" not in orders.metadata
    assert orders.tags == records.tags
    for event in found:
        instance.report_runless_asset_event(event)
    assert ours.events(instance, complete("12:00"), leases) == []


def test_a_window_whose_tick_was_cut_off_before_the_records_is_declared_again(instance: dg.DagsterInstance) -> None:
    ours = CompleteWindows(consumer_of(), kcl.KclTranslator())
    leases = [lease(0, rows("10:00"))]
    found = ours.with_tables(instance, ours.events(instance, complete("11:00"), leases))
    for event in found[:-1]:  # the storage fails before the last one
        instance.report_runless_asset_event(event)
    again = ours.with_tables(instance, ours.events(instance, complete("11:00"), leases))
    assert [event.asset_key for event in again] == [event.asset_key for event in found]


@pytest.mark.parametrize(
    ("sink", "problem"),
    [
        ({}, "needs one at least"),
        ({"a b": kcl.parquet("/a")}, "'a b' is no name of a table"),
        ({"a": kcl.foreach_batch(print)}, "a must be kcl.parquet, kcl.delta or kcl.iceberg"),
        ({"a": "/lake/a"}, "a must be kcl.parquet, kcl.delta or kcl.iceberg"),
        ({"a": kcl.parquet("/lake/x"), "b": kcl.delta("/lake/x/")}, "a and b are both at /lake/x"),
        ({"a": kcl.parquet("s3a://lake/x"), "b": kcl.delta("s3://lake/x/")}, "a and b are both at s3"),
        ({"a": kcl.parquet("lake/../lake"), "b": kcl.delta("./lake")}, "a and b are both at ./lake"),
        ({"a": kcl.parquet("/lake"), "b": kcl.delta("/lake/x")}, "b at /lake/x is below the folder of a"),
        ({"a": kcl.iceberg("x.y"), "b": kcl.iceberg("x.y")}, "a and b are both at x.y"),
    ],
)
def test_tables_that_cannot_be_stored_together_are_refused(sink: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        consumer_of(sink)


def test_functions_of_arrow_tables_have_one_table() -> None:
    with pytest.raises(ConfigurationError, match="arrow=True needs a sink"):
        consumer_of(arrow=True)


def test_freshness_sets_the_commits_of_the_tables_that_do_not_say_it() -> None:
    sink = consumer_of(visible_within=60).sink
    assert [one.commit_seconds for one in sink.tables.values()] == [40, None, 90]
    assert sink.commit_seconds == 40
    assert consumer_of().application.batch.max_seconds == 6.5, "a folder in S3 is one of them"


def test_yaml_says_the_same() -> None:
    yaml = KclApplicationComponent(
        application="app",
        stream="stream",
        name="shop",
        transform=f"{__name__}.shop",
        sinks={
            "orders": SinkModel("s3://lake/orders", "delta"),
            "rejects": SinkModel("s3://lake/rejects"),
            "journal": SinkModel("lake.journal", "iceberg", catalog={"type": "glue"}, commit_seconds=90),
        },
    )
    assert yaml.consumer().sink == consumer_of().sink
    assert {name: one.place for name, one in yaml.consumer().sink.tables.items()} == {
        name: one.place for name, one in SINKS.items()
    }
    with pytest.raises(ConfigurationError, match="sink or sinks, not both"):
        replace(yaml, sink=SinkModel("/lake")).consumer()


def test_the_doctor_and_estimates_look_at_all_tables() -> None:
    sink = consumer_of().sink
    places = written_places(consumer_of().application, sink, dict)
    assert set(places.stores) == {"sink orders", "sink rejects", "chains"}
    assert set(places.tables) == {"sink journal"}
    assert (
        places.left_out == "journal: a sink of the kind iceberg cannot be asked without writing to it: lake.journal"
    )
    apart = {name: one for name, one in SINKS.items() if name != "journal"}
    assert written_places(consumer_of().application, consumer_of(apart).sink, dict).left_out == ""
    storing = storing_of(sink)
    assert (storing.target, storing.outputs, storing.committed, storing.is_compacted) == ("folder", 3, 2, True)
    assert storing.commits == pytest.approx(2 * storing_of(SINKS["orders"]).commits)


def test_the_doctor_finds_each_table_of_a_catalog_and_makes_nothing(tmp_path: Path) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"{tmp_path}/lake"}
    sinks = {name: kcl.iceberg(f"lake.{name}", catalog) for name in ("orders", "rejects", "journal")}
    places = written_places(consumer_of().application, consumer_of(sinks).sink, dict)
    found = {name: look() for name, look in places.tables.items()}
    assert found == {
        f"sink {name}": f"iceberg table lake.{name} does not exist; the first batch makes it, at "
        f"{tmp_path}/lake/lake/{name}"
        for name in sinks
    }
    chains = places.stores["chains"]()
    assert chains is not None
    assert chains.root == f"{tmp_path}/lake/lake/orders"
    assert list(tmp_path.iterdir()) == []


def test_small_files_of_each_table_are_merged(tmp_path: Path) -> None:
    for number in range(4):
        path = tmp_path / "rejects" / f"shard.{number}-0.{number}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"n": [number]}), path)
        os.utime(path, (1_700_000_000, 1_700_000_000))
        write_deltalake(tmp_path / "orders", pa.table({"n": [number]}), mode="append")
    sinks = {"orders": kcl.delta(str(tmp_path / "orders")), "rejects": kcl.parquet(str(tmp_path / "rejects"))}
    consumer = consumer_of(sinks)
    definitions = kcl.build_kcl_definitions(consumer, resources={"kcl": RESOURCE})
    assert [one.name for one in definitions.schedules or ()] == ["app_compaction_schedule"]
    job = definitions.resolve_job_def("app_admin")
    result = job.execute_in_process(config_of(consumer, "compact"), instance=dg.DagsterInstance.ephemeral())
    (told,) = [event.step_output_data.metadata for event in result.all_events if event.is_successful_output]
    assert (told["merged"].value, told["into"].value) == (7, 2), (
        "the last part of the folder's shard may come again"
    )
    assert len(DeltaTable(tmp_path / "orders").file_uris()) == 1
    assert sorted(pq.read_table(tmp_path / "rejects")["n"].to_pylist()) == [0, 1, 2, 3]
