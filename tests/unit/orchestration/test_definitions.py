"""What a consumer becomes in Dagster, from Python and from YAML."""

import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster.components.testing import create_defs_folder_sandbox

import kcl_dagster as kcl
from kcl_dagster.application import Application
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.orchestration.component import KclApplicationComponent, SinkModel
from kcl_dagster.orchestration.consumer import Consumer

RESOURCES = {"kcl": kcl.KclResource(region_name="eu-west-1")}


def consumer(application: str = "app", stream: str = "stream", name: str = "things", **more: Any) -> Consumer:
    @kcl.kcl_consumer(
        application=application, stream=stream, sink=kcl.parquet("s3://lake/things"), name=name, **more
    )
    def transform(records: Any) -> Any:
        """Things that happened."""
        return records

    return transform


def graph_of(definitions: dg.Definitions) -> Any:
    dg.Definitions.validate_loadable(definitions)
    return definitions.resolve_asset_graph()


def test_everything_of_an_application_is_in_one_group() -> None:
    graph = graph_of(kcl.build_kcl_definitions(consumer(), resources=RESOURCES))
    keys = {key.to_user_string() for key in graph.get_all_asset_keys()}
    assert keys == {"kinesis/stream", "things", "app/leases", "app/workers", "app/lag", "app/decisions"}
    assert {graph.get(key).group_name for key in graph.get_all_asset_keys()} == {"app"}


def test_records_tell_where_they_come_from_and_go_to() -> None:
    built = kcl.build_kcl_definitions(
        consumer(owners=["team:web"], tags={"tier": "1"}, freshness=timedelta(hours=1)), resources=RESOURCES
    )
    things = graph_of(built).get(dg.AssetKey("things"))
    assert things.description == "Things that happened."
    assert things.owners == ["team:web"]
    assert things.tags["tier"] == "1"
    assert things.kinds == {"pyspark", "parquet"}
    assert things.metadata["kcl/sink"] == "s3://lake/things"
    assert things.metadata["kcl/code"].startswith(f"{__file__}:")
    assert things.freshness_policy == dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=1))
    assert isinstance(things.partitions_def, dg.DynamicPartitionsDefinition)


def test_two_applications_may_read_one_stream() -> None:
    graph = graph_of(
        kcl.build_kcl_definitions(consumer("one", name="a"), consumer("two", name="b"), resources=RESOURCES)
    )
    assert {key.to_user_string() for key in graph.get(dg.AssetKey(["kinesis", "stream"])).child_keys} == {
        "a",
        "b",
        "one/leases",
        "two/leases",
    }


def test_a_translator_changes_how_assets_appear() -> None:
    class Ours(kcl.KclTranslator):
        def get_asset_spec(self, asset: kcl.KclAsset) -> dg.AssetSpec:
            return super().get_asset_spec(asset).replace_attributes(group_name="ingest")

    graph = graph_of(kcl.build_kcl_definitions(consumer(), resources=RESOURCES, translator=Ours()))
    assert {graph.get(key).group_name for key in graph.get_all_asset_keys()} == {"ingest"}


def test_workers_run_in_process_and_are_not_retried() -> None:
    built = kcl.build_kcl_definitions(consumer(), resources=RESOURCES)
    job = built.resolve_job_def("app_worker")
    assert job.executor_def is dg.in_process_executor
    assert job.tags["dagster/max_retries"] == "0"
    assert job.tags["kcl/application"] == "app"


def test_definitions_load_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph_of(kcl.build_kcl_definitions(consumer(), resources=RESOURCES))


REFUSED: dict[str, tuple[Any, str]] = {
    "nothing": (kcl.build_kcl_definitions, "needs at least one consumer"),
    "one application twice": (
        lambda: kcl.build_kcl_definitions(consumer(), consumer(name="others")),
        "two consumers cannot share an application",
    ),
    "no stream": (lambda: kcl.kcl_consumer(application="app", sink=kcl.parquet("x")), "say which stream"),
    "workers twice": (
        lambda: consumer(workers=2, fleet=kcl.FleetSettings()),
        "give workers or fleet, not both",
    ),
    "a whole application and parts of it": (
        lambda: consumer(application=Application(name="app", streams=("stream",)), workers=1),  # type: ignore[arg-type]
        "application app is complete: fleet, stream belong in it",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_by_name(name: str) -> None:
    attempt, says = REFUSED[name]
    with pytest.raises(ConfigurationError, match=says):
        attempt()


def test_a_class_of_the_kcls_kind_is_a_record_processor_and_has_no_sink() -> None:
    class Things:
        """Counts things."""

        def process_records(self, given: Any) -> None:
            """Never called here."""

    made = kcl.kcl_consumer(application="app", stream="stream", name="things")(Things)
    assert made.sink.processors is Things
    things = graph_of(kcl.build_kcl_definitions(made, resources=RESOURCES)).get(dg.AssetKey("things"))
    assert things.description == "Counts things."
    assert things.kinds == {"pyspark", "python"}
    with pytest.raises(ConfigurationError, match="Things is a record processor and has no sink"):
        kcl.kcl_consumer(application="app", stream="stream", sink=kcl.parquet("x"))(Things)


def test_a_function_needs_a_sink() -> None:
    with pytest.raises(ConfigurationError, match=r"transform needs a sink, such as kcl\.parquet"):
        kcl.kcl_consumer(application="app", stream="stream")(consumer().transform)


def test_a_consumer_can_be_called_like_its_function() -> None:
    assert consumer()("records") == "records"


def test_sinks_are_opened_by_the_worker_and_not_before(tmp_path: Path) -> None:
    choice = kcl.parquet(str(tmp_path / "lake"))
    assert (choice.kind, choice.place) == ("parquet", str(tmp_path / "lake"))
    assert not (tmp_path / "lake").exists()


YAML = {
    "application": "orders-to-lake",
    "stream": "orders",
    "transform": "json.loads",
    "sink": {"path": "s3://lake/orders", "partition_by": ["day"]},
    "max_workers": 8,
    "connection": {"region_name": "eu-west-1"},
}


# Dagster's own sandbox does what its users are warned of.
@pytest.mark.filterwarnings(
    "ignore:`parse_obj_as` is deprecated", "ignore::dagster_shared.utils.warnings.BetaWarning"
)
def test_an_application_can_be_described_in_yaml() -> None:
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(
            component_cls=KclApplicationComponent,
            defs_yaml_contents={"type": "kcl_dagster.KclApplicationComponent", "attributes": YAML},
        )
        with sandbox.load_component_and_build_defs(defs_path=path) as (component, definitions):
            assert isinstance(component, KclApplicationComponent)
            found = component.consumer()
            assert found.application.fleet.max_workers == 8
            assert found.transform is __import__("json").loads
            keys = {key.to_user_string() for key in graph_of(definitions).get_all_asset_keys()}
            assert {"orders", "kinesis/orders", "orders-to-lake/leases"} <= keys


def test_a_transform_that_is_not_there_is_said() -> None:
    component = KclApplicationComponent("app", "stream", SinkModel("x"), transform="json.nothing")
    with pytest.raises(ConfigurationError, match=r"transform json\.nothing cannot be loaded"):
        component.consumer()


@pytest.mark.parametrize(
    ("kind", "shown"), [("parquet", "parquet"), ("delta", "deltalake"), ("iceberg", "iceberg")]
)
def test_every_table_format_can_be_named_in_yaml(kind: Any, shown: str) -> None:
    assert SinkModel("db.table", kind=kind).choice().kind == shown
