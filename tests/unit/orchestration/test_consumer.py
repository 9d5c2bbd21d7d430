"""What a consumer's function may ask for, and where its assets are."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

import kcl_dagster as kcl
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.orchestration.component import KclApplicationComponent, SinkModel
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.diary import Diary
from kcl_dagster.orchestration.sinks import SinkChoice, place_of
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


def test_a_materialization_says_how_many_rows_came_and_where_they_are() -> None:
    events: list[Any] = []
    place = {"dagster/uri": "s3://lake/things"}
    diary = Diary(dg.AssetKey("things"), "worker-000", events.append, Log(), lambda *_: None, place=place)
    diary.batch(BatchReport((LEASE,)))
    metadata = {name: value.value for name, value in events[0].metadata.items()}
    assert (metadata["dagster/row_count"], metadata["dagster/uri"]) == (12, "s3://lake/things")


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
