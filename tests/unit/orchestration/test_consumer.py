"""What a consumer's function may ask for, and where its assets are."""

from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
import yaml
from pyspark.sql import DataFrame

import kcl_dagster as kcl
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.orchestration.component import KclApplicationComponent
from kcl_dagster.orchestration.component_models import SinkModel
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.run_event_log import RunEventLog
from kcl_dagster.orchestration.sink_choices import SinkChoice, place_of
from kcl_dagster.orchestration.translator import KclAsset, KclTranslator, Role
from kcl_dagster.worker.report import BatchReport, LeaseReport, Outcome

pytestmark = pytest.mark.audit("F13")


class Shops(dg.ConfigurableResource[Any]):
    country: str


RESOURCES = {"kcl": kcl.KclResource(region_name="eu-west-1")}


def consumer(transform: Any, **more: Any) -> Consumer:
    made = kcl.kcl_consumer(
        application="app", stream="stream", sink=kcl.parquet("s3://lake/things"), name="things", **more
    )
    return made(transform)


def asking(records: Any, context: Any, shops: Any, *, limit: int = 7) -> Any:
    """Things."""
    return (records, context, shops, limit)


def test_a_function_gets_the_context_and_the_resources_that_its_parameters_name() -> None:
    ours = consumer(asking)
    assert ours.resources == {"shops"}
    bound = ours.bound("the context", SimpleNamespace(shops="the shops", others="unasked"))
    assert bound.transform("records") == ("records", "the context", "the shops", 7)
    assert bound.code == ours.code, "the asset links to the function as it is written"


def test_a_function_that_asks_for_nothing_is_called_as_it_is() -> None:
    ours = consumer(lambda records: records, description="x")
    assert ours.resources == frozenset()
    assert ours.bound("the context", SimpleNamespace()) is ours


def test_a_function_is_tested_without_dagster() -> None:
    assert consumer(asking)("records", context=None, shops="fake") == ("records", None, "fake", 7)


def test_a_resource_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match="the resource shops, and there is no such"):
        consumer(asking).bound(None, SimpleNamespace())


def test_dagster_checks_that_the_resource_exists_when_the_code_is_loaded() -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="shops"):
        dg.Definitions.validate_loadable(kcl.build_kcl_definitions(consumer(asking), resources=RESOURCES))
    complete = kcl.build_kcl_definitions(consumer(asking), resources={**RESOURCES, "shops": Shops(country="no")})
    dg.Definitions.validate_loadable(complete)


def test_a_prefix_stands_before_every_asset_but_the_stream() -> None:
    prefixed = consumer(lambda records: records, description="x", key_prefix=["web", "raw"])
    graph = kcl.build_kcl_definitions(prefixed, resources=RESOURCES).resolve_asset_graph()
    assert {key.to_user_string() for key in graph.get_all_asset_keys()} == {
        "kinesis/stream",
        "web/raw/things",
        "web/raw/app/leases",
        "web/raw/app/workers",
        "web/raw/app/lag",
        "web/raw/app/decisions",
    }
    assert consumer(lambda records: records, description="x", key_prefix="web").key_prefix == ("web",)


def test_consumers_with_different_prefixes_may_have_one_name() -> None:
    def things(records: Any) -> Any:
        return records

    many = [
        kcl.kcl_consumer(
            application=f"app-{prefix}", stream="stream", sink=kcl.parquet(f"s3://lake/{prefix}"), key_prefix=prefix
        )(things)
        for prefix in ("web", "app")
    ]
    dg.Definitions.validate_loadable(kcl.build_kcl_definitions(*many, resources=RESOURCES))


def test_yaml_has_the_prefix() -> None:
    component = KclApplicationComponent(
        application="app", stream="stream", key_prefix=["web"], sink=SinkModel(path="s3://lake/things")
    )
    assert component.consumer().key_prefix == ("web",)


LEASE = LeaseReport(
    LeaseKey("shardId-000000000000"),
    StreamIdentifier.single("stream"),
    "shardId-000000000000",
    Outcome.COMMITTED,
    1,
    Checkpoint("TRIM_HORIZON"),
    records=12,
)


@dataclass
class Log:
    def info(self, *_: Any) -> None: ...

    warning = info


def test_an_observation_says_how_many_records_came_from_whom_and_where_they_are() -> None:
    events: list[Any] = []
    place = {"dagster/uri": "s3://lake/things"}
    event_log = RunEventLog(dg.AssetKey("things"), "worker-000", events.append, Log(), lambda *_: None, place=place)
    event_log.batch(BatchReport((LEASE,)))
    metadata = {name: value.value for name, value in events[0].metadata.items()}
    told = [metadata[name] for name in ("kcl/records", "kcl/worker", "dagster/uri")]
    assert told == [12, "worker-000", "s3://lake/things"]


@pytest.mark.parametrize(
    ("sink", "place"),
    [
        (kcl.parquet("s3://lake/things"), {"dagster/uri": "s3://lake/things"}),
        (kcl.delta("/data/my things"), {"dagster/uri": "file:///data/my%20things"}),
        (kcl.iceberg("lake.things"), {"dagster/table_name": "lake.things"}),
        (kcl.foreach_batch(lambda rows, batch: None), {}),
        (SinkChoice("postgres", "events", lambda transform, s3: None), {}),  # type: ignore[arg-type, return-value]
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_dagster_is_told_where_the_rows_are_under_its_own_names(sink: SinkChoice, place: dict[str, str]) -> None:
    assert place_of(sink) == place
    consumer = kcl.kcl_consumer(application="app", stream="stream", sink=sink, name="x")(lambda records: records)
    spec = KclTranslator().get_asset_spec(KclAsset(Role.RECORDS, consumer))
    assert place.items() <= {name: getattr(v, "value", v) for name, v in spec.metadata.items()}.items()


HOUR = timedelta(hours=1)
WINDOWS_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "partitions that are no windows of time": (
        {"partitions": dg.StaticPartitionsDefinition(["a"])},
        "app: partitions must be windows of time",
    ),
    "a partition that is still open": (
        {"partitions": dg.HourlyPartitionsDefinition("2026-11-01-00:00", end_offset=1)},
        "end_offset=1",
    ),
    "lateness without a time of events": ({"allowed_lateness": HOUR}, "goes with event_time"),
    "negative lateness": ({"event_time": "at", "allowed_lateness": -HOUR}, "must not be negative"),
    "columns of rows that nobody sees": (
        {"event_time": "at", "sink": kcl.foreach_batch(print)},
        "rows of the sink print are not seen",
    ),
    "a policy that fails within every partition": ({"freshness": HOUR}, "must be longer than a partition"),
    "a policy that fails while late rows are waited for": (
        {"event_time": "at", "allowed_lateness": HOUR, "freshness": 2 * HOUR},
        "its allowed lateness, 2:00:00",
    ),
}


@pytest.mark.parametrize("name", WINDOWS_REFUSED)
def test_windows_that_cannot_be_complete_are_refused(name: str) -> None:
    given, says = WINDOWS_REFUSED[name]
    with pytest.raises(ConfigurationError, match=says):
        kcl.kcl_consumer(**{"application": "app", "stream": "s", "sink": kcl.parquet("x"), **given})(asking)


def test_rows_of_a_record_processor_have_no_event_time() -> None:
    class Things:
        def process_records(self, given: Any) -> None:
            """Never called here."""

    with pytest.raises(ConfigurationError, match="rows of record processors are not seen"):
        kcl.kcl_consumer(application="app", stream="s", event_time="at")(Things)


def test_records_are_partitioned_by_hours_of_utc_unless_said_otherwise() -> None:
    ours = consumer(asking)
    assert ours.partitions == dg.HourlyPartitionsDefinition("2026-11-01-00:00")
    days = dg.DailyPartitionsDefinition("2026-11-01")
    assert consumer(asking, partitions=days).windows.longest == timedelta(days=1).total_seconds()


def test_workers_that_count_in_other_windows_are_replaced() -> None:
    days = dg.DailyPartitionsDefinition("2026-11-01")
    versions = [
        consumer(asking, **more).code_version
        for more in ({}, {"partitions": days}, {"event_time": "at"}, {"event_time": "at", "allowed_lateness": HOUR})
    ]
    assert len(set(versions)) == len(versions)
    assert consumer(asking).code_version == versions[0]


IN_YAML: dict[str, tuple[str, dg.TimeWindowPartitionsDefinition]] = {
    "hours": ("{start: 2026-11-22}", dg.HourlyPartitionsDefinition("2026-11-22-00:00")),
    "days of Berlin": (
        '{start: "2026-11-22", every: day, timezone: Europe/Berlin}',
        dg.DailyPartitionsDefinition("2026-11-22", timezone="Europe/Berlin"),
    ),
    "weeks": ("{start: 2026-11-22, every: week}", dg.WeeklyPartitionsDefinition("2026-11-22")),
    "months": ("{start: 2026-11-01, every: month}", dg.MonthlyPartitionsDefinition("2026-11-01")),
    "a quarter of an hour": (
        '{start: 2026-11-22, every: "*/15 * * * *"}',
        dg.TimeWindowPartitionsDefinition("2026-11-22-00:00", "%Y-%m-%d-%H:%M", cron_schedule="*/15 * * * *"),
    ),
}


def component(text: str, **more: Any) -> Consumer:
    attributes = {"application": "app", "stream": "s", "sink": {"path": "x"}, "partitions": yaml.safe_load(text)}
    made = KclApplicationComponent.resolve_from_dict({**attributes, **more})
    assert isinstance(made, KclApplicationComponent)
    return made.consumer()


@pytest.mark.filterwarnings("ignore:`parse_obj_as`")  # Dagster's own
@pytest.mark.parametrize("name", IN_YAML)
def test_partitions_can_be_described_in_yaml(name: str) -> None:
    text, expected = IN_YAML[name]
    ours = component(text, event_time="at", allowed_lateness_minutes=5)
    assert ours.partitions == expected
    assert (ours.event_time, ours.allowed_lateness) == ("at", timedelta(minutes=5))


@pytest.mark.filterwarnings("ignore:`parse_obj_as`")  # Dagster's own
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{start: 2026-11-22, every: fortnight}", "invalid cron schedule 'fortnight'"),
        ("{start: yesterday}", "partitions: .*yesterday"),
        ("{start: 2026-11-22, timezone: Mars/Olympus}", "Mars/Olympus"),
    ],
)
def test_partitions_in_yaml_that_do_not_exist_are_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        component(text)


PARQUET = kcl.parquet("/lake/clicks")


def test_a_function_of_tables_is_marked_for_sinks() -> None:
    made = kcl.kcl_consumer(application="clicks", stream="clicks", sink=PARQUET, arrow=True)(
        lambda records: records
    )
    assert type(made.stored_transform).__name__ == "ArrowTransform"
    assert made("table") == "table", "it is tested like the function"
    assert consumer(lambda records: records).stored_transform(1) == 1


@pytest.mark.parametrize(
    ("sink", "function", "message"),
    [
        (
            kcl.delta("/lake/clicks"),
            lambda records: records,
            r"deltalake at /lake/clicks is none: use kcl.parquet\(",
        ),
        (kcl.foreach_batch(print), lambda records: records, "leave arrow out"),
        (PARQUET, asking, "asking asks for context, shops"),
        (None, type("Reader", (), {"process_records": print}), "not for record processors"),
    ],
)
def test_functions_of_tables_that_could_not_run_are_refused(sink: Any, function: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        kcl.kcl_consumer(application="clicks", stream="clicks", sink=sink, arrow=True)(function)


def of_tables(records: pa.Table) -> pa.Table:
    return records


def of_frames(records: DataFrame) -> DataFrame:
    return records


@pytest.mark.parametrize(
    ("function", "arrow", "message"),
    [
        (of_tables, False, r"of_tables is for rows of pyarrow \(Table\): set arrow=True, or"),
        (of_frames, True, r"of_frames is for rows of pyspark \(DataFrame\): leave out arrow=True, or"),
    ],
)
def test_a_function_of_the_other_kind_of_rows_is_refused(function: Any, arrow: bool, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        kcl.kcl_consumer(application="clicks", stream="clicks", sink=PARQUET, arrow=arrow)(function)
    kcl.kcl_consumer(application="clicks", stream="clicks", sink=PARQUET, arrow=not arrow)(function)


def test_other_arguments_and_processors_can_have_any_rows() -> None:
    def joined(records: DataFrame, lookup: pa.Table) -> DataFrame:
        return records

    class Processor:
        rows: pa.Table

        def process_records(self, given: Any) -> None:
            """Nothing."""

    kcl.kcl_consumer(application="clicks", stream="clicks", sink=PARQUET)(joined)
    kcl.kcl_consumer(application="clicks", stream="clicks")(Processor)
    kcl.kcl_consumer(application="clicks", stream="clicks", sink=PARQUET)(max)  # has no signature


@pytest.mark.parametrize("store", [lambda rows: None, lambda: None, lambda rows, batch, more: None])
def test_a_function_for_batches_takes_the_rows_and_the_batch(store: Any) -> None:
    with pytest.raises(ConfigurationError, match="must take two arguments, the rows and the batch"):
        kcl.foreach_batch(store)
    kcl.foreach_batch(print)  # takes any number


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"evolve": "drop"}, "evolve of kcl.delta: 'drop' is none of refuse, add, ignore"),
        ({"commit_seconds": 0}, "commit_seconds of kcl.delta must be more than 0, is 0"),
    ],
)
def test_settings_of_a_table_that_cannot_work_are_refused_where_they_are_made(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        kcl.delta("/lake/clicks", **settings)


def test_a_table_that_is_named_as_in_unity_is_refused_with_what_to_say_instead() -> None:
    said = r'^kcl.delta: uc://lake.web.clicks is a name in Unity.* location.* writer="spark"$'
    with pytest.raises(ConfigurationError, match=said):
        kcl.delta("uc://lake.web.clicks", storage_options={"unity_workspace_url": "https://dbc.example.com"})


def by_spark(name: str = "main.web.clicks", **settings: Any) -> kcl.SinkChoice:
    return kcl.delta(name, writer="spark", **{"chains_path": "/lake/chains", **settings})


def test_a_table_to_which_spark_writes_has_a_name_and_no_files_of_ours() -> None:
    choice = by_spark()
    assert place_of(choice) == {"dagster/table_name": "main.web.clicks"}
    assert choice.is_table
    assert choice.compacted == {}
    assert choice.open_chains is not None
    chains = choice.open_chains({})
    assert chains is not None
    assert chains.root == "/lake/chains"
    assert choice.with_commit_seconds is not None
    assert choice.with_commit_seconds(5).commit_seconds == 5
    assert by_spark("delta.`s3a://lake/clicks`", commit_seconds=7).with_commit_seconds is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"chains_path": None}, r'kcl.delta\(writer="spark"\) needs chains_path'),
        ({"merge_on": ["id"]}, 'merge_on of kcl.delta needs writer="delta-rs"'),
        ({"delete_when": "true"}, 'delete_when of kcl.delta needs writer="delta-rs"'),
        ({"storage_options": {"AWS_REGION": "eu-west-1"}}, "storage_options of kcl.delta are for delta-rs"),
        ({"name": "s3://lake/clicks"}, "s3://lake/clicks is no name of a table in Spark"),
        ({"name": "uc://main.web.clicks"}, "is no name of a table in Spark"),
        ({"name": "main.web.clicks; DROP TABLE x"}, "is no name of a table in Spark"),
        ({"evolve": "drop"}, "evolve of kcl.delta: 'drop' is none of"),
        ({"commit_seconds": 0}, "commit_seconds of kcl.delta must be more than 0"),
        ({"writer": "flink"}, "writer of kcl.delta: 'flink' is none of delta-rs, spark"),
    ],
)
def test_what_a_table_to_which_spark_writes_cannot_have_is_refused(settings: dict[str, Any], said: str) -> None:
    given = {"name": "main.web.clicks", "writer": "spark", "chains_path": "/lake/chains", **settings}
    with pytest.raises(ConfigurationError, match=said):
        kcl.delta(given.pop("name"), **given)


def test_delta_rs_has_its_chains_in_the_table() -> None:
    with pytest.raises(ConfigurationError, match=r'chains_path of kcl\.delta needs writer="spark"'):
        kcl.delta("/lake/clicks", chains_path="/lake/chains")
