"""What a consumer becomes in Dagster, from Python and from YAML."""

import warnings
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from inspect import signature
from pathlib import Path
from typing import Any, cast

import dagster as dg
import pytest
from dagster.components.resolved.errors import ResolutionException
from dagster.components.testing import create_defs_folder_sandbox
from dagster_shared.libraries import DagsterLibraryRegistry
from pydantic import ValidationError

import kcl_dagster as kcl
from kcl_dagster.application import Application, BatchSettings, Billing, FailurePolicy, MetricsLevel, Position
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.orchestration.component import KclApplicationComponent
from kcl_dagster.orchestration.component_models import BatchModel, FailureModel, SinkModel, TelemetryModel
from kcl_dagster.orchestration.consumer import Consumer

pytestmark = pytest.mark.slow

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


def test_dagster_knows_the_version_of_the_library() -> None:
    assert kcl.KclResource.__module__.startswith("kcl_dagster.orchestration")
    assert DagsterLibraryRegistry.get()["kcl-dagster"] == kcl.__version__


def test_everything_of_an_application_is_in_one_group() -> None:
    graph = graph_of(kcl.build_kcl_definitions(consumer(), resources=RESOURCES))
    keys = {key.to_user_string() for key in graph.get_all_asset_keys()}
    assert keys == {"kinesis/stream", "things", "app/leases", "app/workers", "app/lag", "app/decisions"}
    groups = {key.to_user_string(): graph.get(key).group_name for key in graph.get_all_asset_keys()}
    assert groups.pop("kinesis/stream") == "kinesis", "applications share streams"
    assert set(groups.values()) == {"app"}


def test_records_tell_where_they_come_from_and_go_to() -> None:
    built = kcl.build_kcl_definitions(
        consumer(owners=["team:web"], tags={"tier": "1"}, freshness=timedelta(hours=2)), resources=RESOURCES
    )
    things = graph_of(built).get(dg.AssetKey("things"))
    assert things.description == "Things that happened."
    assert things.owners == ["team:web"]
    assert things.tags["tier"] == "1"
    assert things.kinds == {"pyspark", "parquet"}
    assert things.metadata["kcl/sink"] == dg.MetadataValue.path("s3://lake/things")
    [reference] = things.metadata["dagster/code_references"].code_references
    assert (reference.file_path, reference.label) == (__file__, "things")
    assert "kcl.kcl_consumer" in Path(__file__).read_text().splitlines()[reference.line_number - 1]
    assert things.freshness_policy == dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=2))
    assert things.partitions_def == dg.HourlyPartitionsDefinition("2026-11-01-00:00")


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


def test_applications_defined_apart_can_be_merged_whatever_they_share() -> None:
    one = kcl.build_kcl_definitions(consumer("one", name="a"), resources=RESOURCES)
    two = kcl.build_kcl_definitions(consumer("two", name="b"))
    merged = dg.Definitions.merge(one, two)
    assert len(graph_of(merged).get_all_asset_keys()) == 11
    assert {merged.resolve_sensor_def(f"{name}_leader").name for name in ("one", "two")} == {
        "one_leader",
        "two_leader",
    }


def test_applications_of_several_code_locations_share_streams_and_nothing_else() -> None:
    """Keys, slots and tags are what a Dagster instance knows by name across code locations. `a-b` and `a_b` are two
    applications."""
    built = {
        name: kcl.build_kcl_definitions(consumer(name, name=f"{name}_things"), resources=RESOURCES)
        for name in ("a-b", "a_b")
    }
    graphs = [graph_of(definitions) for definitions in built.values()]
    keys = [set(graph.get_all_asset_keys()) for graph in graphs]
    assert keys[0] & keys[1] == {dg.AssetKey(["kinesis", "stream"])}
    streams = [graph.get(dg.AssetKey(["kinesis", "stream"])) for graph in graphs]
    assert streams[0].description == streams[1].description
    workers = [definitions.resolve_job_def("a_b_worker").partitions_def for definitions in built.values()]
    assert [slots.name for slots in workers if isinstance(slots, dg.DynamicPartitionsDefinition)] == [
        "a-b/slots",
        "a_b/slots",
    ]


def test_a_stream_shows_the_columns_that_a_consumer_is_given() -> None:
    graph = graph_of(kcl.build_kcl_definitions(consumer(), resources=RESOURCES))
    schema = graph.get(dg.AssetKey(["kinesis", "stream"])).metadata["dagster/column_schema"]
    assert [column.name for column in schema.columns][:2] == ["data", "partition_key"]


def test_lag_gets_stale_when_nobody_leads() -> None:
    policy = (
        graph_of(kcl.build_kcl_definitions(consumer(), resources=RESOURCES))
        .get(dg.AssetKey(["app", "lag"]))
        .freshness_policy
    )
    assert policy == dg.FreshnessPolicy.time_window(
        fail_window=timedelta(minutes=10), warn_window=timedelta(minutes=3)
    )


def test_a_docstring_with_braces_is_a_description() -> None:
    described = consumer(description="Rows of {curly} braces.")
    things = graph_of(kcl.build_kcl_definitions(described, resources=RESOURCES)).get(dg.AssetKey("things"))
    assert things.description == "Rows of {curly} braces."


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


def test_a_worker_evaluates_no_checks() -> None:
    """It would acknowledge what somebody must have seen, and leave them pending for hours."""
    job = kcl.build_kcl_definitions(consumer(), resources=RESOURCES).resolve_job_def("app_worker")
    assert [node.name for node in job.nodes] == ["app_read"]


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
    "applications that Dagster cannot tell apart": (
        lambda: kcl.build_kcl_definitions(consumer("my-app", name="a"), consumer("my_app", name="b")),
        "differ in punctuation only",
    ),
    "one asset twice": (
        lambda: kcl.build_kcl_definitions(consumer("one"), consumer("two")),
        "two consumers cannot make one asset",
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


@pytest.mark.filterwarnings(
    "ignore:`parse_obj_as` is deprecated",
    "ignore::dagster_shared.utils.warnings.BetaWarning",
    "ignore::dagster_shared.utils.warnings.PreviewWarning",
)
def test_applications_in_yaml_that_read_one_stream_share_a_project() -> None:
    with create_defs_folder_sandbox() as sandbox:
        for name, region in (("one", "eu-west-1"), ("two", "us-east-1")):
            sandbox.scaffold_component(
                component_cls=KclApplicationComponent,
                defs_path=name,
                defs_yaml_contents={
                    "type": "kcl_dagster.KclApplicationComponent",
                    "attributes": {
                        "application": f"{name}-app",
                        "stream": "orders",
                        "name": name,
                        "sink": {"path": f"s3://lake/{name}"},
                        "connection": {"region_name": region},
                    },
                },
            )
        with sandbox.build_all_defs() as definitions:
            keys = {key.to_user_string() for key in graph_of(definitions).get_all_asset_keys()}
            assert {"one", "two", "one-app/leases", "two-app/leases", "kinesis/orders"} <= keys
            regions = {key: kcl.region_name for key, kcl in (definitions.resources or {}).items() if key != "spark"}
            assert regions == {"one_app_kcl": "eu-west-1", "two_app_kcl": "us-east-1"}


@pytest.mark.filterwarnings(
    "ignore:`parse_obj_as` is deprecated", "ignore::dagster_shared.utils.warnings.BetaWarning"
)
def test_yaml_may_ask_for_bounded_runs_instead_of_workers() -> None:
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(
            component_cls=KclApplicationComponent,
            defs_yaml_contents={
                "type": "kcl_dagster.KclApplicationComponent",
                "attributes": {**YAML, "catch_up": "17 * * * *"},
            },
        )
        with sandbox.load_component_and_build_defs(defs_path=path) as (_, definitions):
            schedule = definitions.resolve_schedule_def("orders_to_lake_catch_up_schedule")
            assert schedule.cron_schedule == "17 * * * *"
            leader = definitions.resolve_sensor_def("orders_to_lake_leader")
            assert leader.default_status is dg.DefaultSensorStatus.STOPPED


def test_every_attribute_is_described_in_the_json_schema() -> None:
    schema = KclApplicationComponent.model().model_json_schema()
    for part in (schema, *schema["$defs"].values()):
        assert not [name for name, field in part.get("properties", {}).items() if "description" not in field]
    assert schema["properties"]["lag_target"]["description"].startswith("Seconds behind the tip of the stream")


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"start": "LATEST"}, "LATEST"),
        ({"retrieval": "fanout"}, "fanout"),
        ({"freshness_minutes": 90.0}, "1:30:00"),
    ],
)
def test_what_yaml_says_reaches_the_application(attributes: dict[str, Any], expected: str) -> None:
    made = KclApplicationComponent("app", "stream", SinkModel("x"), **attributes).consumer()
    start = made.application.streams[0].start.position
    assert expected in {start.value, made.application.batch.retrieval.value, str(made.freshness)}


def in_yaml(**attributes: Any) -> KclApplicationComponent:
    """As a `defs.yaml` says it."""
    made = KclApplicationComponent.resolve_from_dict(
        {"application": "app", "stream": "stream", "sink": {"path": "lake"}, **attributes}
    )
    assert isinstance(made, KclApplicationComponent)
    return made


BATCH = {
    "max_seconds": 30.0,
    "max_records": 1000,
    "max_bytes": 2048,
    "idle_seconds": 0.5,
    "consumer_name": "ours",
    "deaggregate": False,
    "prefetch": False,
    "on_data_loss": "continue",
}
FAILURE = {"action": "dead_letter", "attempts": 3, "max_age": 3600.0, "dead_letter_path": "s3://lake/dead"}


@pytest.mark.filterwarnings("ignore:`parse_obj_as`")  # Dagster's own
def test_batches_and_failures_can_be_described_in_yaml() -> None:
    made = in_yaml(batch=BATCH, failure=FAILURE, retrieval="fanout").consumer().application.batch
    assert made == BatchSettings.model_validate({**BATCH, "retrieval": "fanout", "failure": FAILURE})


@pytest.mark.filterwarnings("ignore:`parse_obj_as`")  # Dagster's own
def test_what_yaml_leaves_out_is_as_in_python() -> None:
    assert in_yaml().consumer().application == Application(name="app", streams="stream")
    some = in_yaml(batch={"prefetch": False}, failure={"action": "skip"}).consumer().application.batch
    assert some == BatchSettings(prefetch=False, failure=FailurePolicy.model_validate({"action": "skip"}))


@pytest.mark.filterwarnings("ignore:`parse_obj_as`")  # Dagster's own
@pytest.mark.parametrize("key", ["aws_secret_access_key", "aws_session_token", "aws_access_key_id"])
def test_keys_in_yaml_are_refused_with_where_they_belong(key: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        in_yaml(connection={"region_name": "eu-west-1", key: "hush-hush"})
    text = str(refused.value)
    assert f"{key} cannot be in YAML" in text
    assert f"Set {key.upper()} in the environment" in text
    assert "profile_name" in text
    assert "role_arn" in text
    assert f'EnvVar("{key.upper()}")' in text
    assert "hush-hush" not in text


@pytest.mark.filterwarnings("ignore:`parse_obj_as`")  # Dagster's own
@pytest.mark.parametrize("part", ["batch", "failure", "fleet", "timings", "policy", "tables"])
def test_a_name_that_nobody_knows_is_refused(part: str) -> None:
    with pytest.raises(ValidationError, match=rf"{part}\..*\.max_secs at .*\n +Extra inputs are not permitted"):
        in_yaml(**{part: {"max_secs": 3}})


@pytest.mark.filterwarnings("ignore:`parse_obj_as`")  # Dagster's own
@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"failure": {"action": "dead_letter"}}, "action dead_letter needs dead_letter_path"),
        (
            {"failure": {"action": "dead_letter", "dead_letter_path": "s3:/lake/dead"}},
            "dead_letter_path: s3:/lake/dead is no address: s3: lacks its two slashes",
        ),
        ({"sink": {"path": "s3:/lake/x"}}, r"kcl\.parquet: s3:/lake/x is no address"),
        ({"sink": {"path": "s3:lake", "kind": "delta"}}, r"kcl\.delta: s3:lake is no address"),
        ({"sink": {"path": "/x", "kind": "csv"}}, "sink.*kind"),
        ({"start": "latest"}, "start"),
        ({"retrieval": "push"}, "retrieval"),
        ({"failure": {"action": "deadletter"}}, "failure.*action"),
        ({"transform": "os.path.sep"}, r"transform os\.path\.sep is neither a function nor a class"),
        ({"batch": {"max_seconds": 0}}, "max_seconds"),
        ({"batch": {"on_data_loss": "shrug"}}, "on_data_loss"),
        ({"timings": {"tick_interval": 5}}, "Timings: tick_interval: .* not one less than a multiple of 5"),
        ({"tables": {"kms_key": "alias/x"}}, "TableSettings: kms_key: "),
        ({"policy": {"name": "random"}}, "policy"),
        ({"fleet": {"min_workers": 9}}, "FleetSettings: min_workers 9 is above max_workers 4"),
        ({"min_workers": 9}, "application app: min_workers 9 is above max_workers 4"),
        ({"fleet": {"zone": "a"}, "min_workers": 2}, "application app: give min_workers in fleet"),
        ({"start": "AT_TIMESTAMP"}, "position AT_TIMESTAMP and timestamp None do not fit together"),
        ({"start": "AT_TIMESTAMP", "start_timestamp": "2026-11-22"}, "timestamp .* has no time zone"),
    ],
)
def test_what_cannot_work_is_refused_in_yaml_too(attributes: dict[str, Any], says: str) -> None:
    with pytest.raises((ValidationError, ConfigurationError, ResolutionException), match=says):
        in_yaml(**attributes).consumer()


@pytest.mark.parametrize(
    ("of", "value", "says"),
    [
        ("kind", "csv", "sink.kind: 'csv' is none of parquet, delta, iceberg"),
        ("action", "deadletter", "failure.action: 'deadletter' is none of stop, bisect"),
        ("cloudwatch", "ALL", "telemetry.cloudwatch: 'ALL' is none of NONE, SUMMARY"),
        ("start", "latest", "start: 'latest' is none of TRIM_HORIZON, LATEST, AT_TIMESTAMP"),
        ("retrieval", "push", "retrieval: 'push' is none of polling, fanout"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_with_those_that_are(of: str, value: Any, says: str) -> None:
    made = KclApplicationComponent("app", "stream", SinkModel("x"), telemetry=TelemetryModel())
    owner = {"kind": made.sink, "action": made.failure, "cloudwatch": made.telemetry}.get(of, made)
    setattr(owner, of, value)
    with pytest.raises(ConfigurationError, match=says):
        made.consumer()


def test_a_function_that_is_no_consumer_is_refused() -> None:
    def orders(records: Any) -> Any:
        return records

    with pytest.raises(ConfigurationError, match=r"orders is not a consumer: decorate it with @kcl_consumer"):
        kcl.build_kcl_definitions(cast("Any", orders))


def test_a_folder_of_exports_whose_address_is_misspelt_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="exports: s3:/ops is no address"):
        kcl.build_kcl_definitions(consumer(), exports="s3:/ops")


@pytest.mark.parametrize(
    ("model", "settings", "elsewhere"),
    [(BatchModel, BatchSettings, {"retrieval", "failure"}), (FailureModel, FailurePolicy, set())],
)
def test_nothing_that_python_can_say_is_missing_in_yaml(model: Any, settings: Any, elsewhere: set[str]) -> None:
    assert {field.name for field in fields(model)} | elsewhere == set(settings.model_fields)


IN_OTHER_WORDS = {
    "workers": "max_workers",
    "freshness": "freshness_minutes",
    "allowed_lateness": "allowed_lateness_minutes",
    "resources": "connection",
    "kcl_key": "connection",
}
"""Parameters of Python that have another name in YAML."""

IN_A_SUBCLASS = {"consumers", "translator", "streams"}
"""Parameters of `build_kcl_definitions` that the component gives by itself, or that a subclass of it can give."""


def test_no_parameter_of_python_is_missing_in_yaml() -> None:
    parameters = {*signature(kcl.kcl_consumer).parameters, *signature(kcl.build_kcl_definitions).parameters}
    said = {IN_OTHER_WORDS.get(name, name) for name in parameters - IN_A_SUBCLASS}
    assert said - {field.name for field in fields(KclApplicationComponent)} == set()


PARTS = {
    "fleet": kcl.FleetSettings(lifetime=3600, zone="eu-west-1a"),
    "timings": kcl.Timings(lease_duration=10, heartbeat=2),
    "policy": kcl.PolicySettings(name="throughput", max_leases_per_worker=50),
    "tables": kcl.TableSettings(billing=Billing.PROVISIONED, tags={"team": "web"}, create=False),
}


@pytest.mark.filterwarnings("ignore:`parse_obj_as`")  # Dagster's own
@pytest.mark.parametrize("part", PARTS)
def test_settings_of_an_application_have_the_same_names_in_yaml(part: str) -> None:
    wanted = PARTS[part]
    for said in (wanted.model_dump(mode="json"), wanted.model_dump(mode="json", exclude_defaults=True)):
        made = getattr(in_yaml(**{part: said}).consumer().application, part)
        assert (type(made), made) == (type(wanted), wanted)
    written = KclApplicationComponent.model().model_json_schema()["$defs"][f"{type(wanted).__name__}Model"]
    assert written["properties"].keys() == type(wanted).model_fields.keys()


@pytest.mark.filterwarnings("ignore:`parse_obj_as`")  # Dagster's own
def test_a_setting_can_be_a_template(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASE_TABLE", "leases")
    made = in_yaml(timings={"lease_duration": "{{ 2 * 5 }}"}, tables={"lease_table": "{{ env.LEASE_TABLE }}"})
    application = made.consumer().application
    assert (application.timings.lease_duration, application.lease_table) == (10, "leases")


@pytest.mark.filterwarnings("ignore:`parse_obj_as`")  # Dagster's own
def test_the_records_asset_can_be_described_in_yaml() -> None:
    about: dict[str, Any] = {"description": "Clicks.", "tags": {"team": "web"}, "metadata": {"rows": 3}}
    made = in_yaml(**about, arrow=True).consumer()
    assert {name: getattr(made, name) for name in about} == about
    assert made.arrow


@pytest.mark.filterwarnings("ignore:`parse_obj_as`")  # Dagster's own
def test_an_application_in_yaml_can_start_at_a_time() -> None:
    made = in_yaml(start="AT_TIMESTAMP", start_timestamp="2026-11-22T00:00:00Z").consumer()
    at = datetime(2026, 11, 22, tzinfo=UTC)
    assert made.application.streams[0].start == kcl.StartAt(position=Position.AT_TIMESTAMP, timestamp=at)


def start_elsewhere(context: Any, extras: Any, emr: Any) -> Any:
    raise NotImplementedError


@pytest.mark.filterwarnings(
    "ignore:`parse_obj_as` is deprecated", "ignore::dagster_shared.utils.warnings.BetaWarning"
)
@pytest.mark.parametrize(
    ("more", "resources"),
    [
        ({"launch": f"{__name__}.start_elsewhere"}, {"emr", "orders_to_lake_kcl"}),
        ({"spark_key": "cluster"}, {"cluster", "orders_to_lake_kcl"}),
    ],
)
def test_yaml_says_where_bounded_runs_read(more: dict[str, Any], resources: set[str]) -> None:
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(
            component_cls=KclApplicationComponent,
            defs_yaml_contents={"type": "kcl_dagster.KclApplicationComponent", "attributes": {**YAML, **more}},
        )
        with sandbox.load_component_and_build_defs(defs_path=path) as (_, definitions):
            # Of the project, which has the client that starts the driver.
            project = dg.Definitions(resources={"emr": object()} if "launch" in more else {})
            job = dg.Definitions.merge(definitions, project).resolve_job_def("orders_to_lake_catch_up")
            definition = job.nodes[0].definition
            assert isinstance(definition, dg.OpDefinition)
            assert definition.required_resource_keys == resources


def test_telemetry_can_be_asked_for_in_yaml() -> None:
    wanted = TelemetryModel(json_logs=True, openmetrics_port=9400, cloudwatch="SUMMARY")
    made = KclApplicationComponent("app", "stream", SinkModel("x"), telemetry=wanted).consumer()
    assert made.application.telemetry == kcl.TelemetrySettings(
        json_logs=True, openmetrics_port=9400, cloudwatch=MetricsLevel.SUMMARY
    )
    assert (
        KclApplicationComponent("app", "stream", SinkModel("x")).consumer().application.telemetry.json_logs is False
    )


class Processor:
    def process_records(self, process_records_input: Any) -> None: ...


def test_a_record_processor_can_be_named_in_yaml() -> None:
    made = KclApplicationComponent("app", "stream", transform=f"{__name__}.Processor", processes=2).consumer()
    assert made.transform.__name__ == "Processor"
    with pytest.raises(ConfigurationError, match=r"Processor is a record processor and has no sink"):
        KclApplicationComponent("app", "stream", SinkModel("x"), transform=f"{__name__}.Processor").consumer()
    with pytest.raises(ConfigurationError, match=r"needs a sink"):
        KclApplicationComponent("app", "stream").consumer()


def test_a_transform_that_is_not_there_is_said() -> None:
    component = KclApplicationComponent("app", "stream", SinkModel("x"), transform="json.nothing")
    with pytest.raises(ConfigurationError, match=r"transform json\.nothing cannot be loaded"):
        component.consumer()


@pytest.mark.parametrize(
    ("kind", "shown"), [("parquet", "parquet"), ("delta", "deltalake"), ("iceberg", "iceberg")]
)
def test_every_table_format_can_be_named_in_yaml(kind: Any, shown: str) -> None:
    assert SinkModel("db.table", kind=kind).choice().kind == shown


@dataclass
class Narrower(KclApplicationComponent):
    """A user's own."""

    country: str = "all"
    """Whose clicks are kept."""


def test_a_users_own_component_is_described_as_a_whole() -> None:
    properties = Narrower.model().model_json_schema()["properties"]
    assert properties["country"]["description"] == "Whose clicks are kept."
    assert properties["stream"]["description"] == "The name of the stream."
