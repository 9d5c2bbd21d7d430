"""Assets downstream of the records, by the condition that docs/how-to/sinks.md recommends."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import kcl_dagster as kcl
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.orchestration.translator import slots_of

EAGER = dg.AutomationCondition.eager()
RECOMMENDED = EAGER.without(~dg.AutomationCondition.any_deps_missing()).without(
    ~dg.AutomationCondition.any_deps_in_progress()
)
PAGE = Path(__file__).parents[3] / "docs/how-to/sinks.md"


def requests(condition: Any) -> list[int]:
    """How many runs of the downstream asset are asked for: at first, and after one of two slots stored a batch."""
    make = kcl.kcl_consumer(
        application="clicks-app", stream="clicks", sink=kcl.parquet("unused"), name="clicks_table"
    )

    def clicks_table(records: Any) -> Any:
        return records

    consumer = make(clicks_table)

    @dg.asset(deps=["clicks_table"], automation_condition=condition)
    def downstream() -> None:
        """Nothing."""

    ours = kcl.build_kcl_definitions(consumer, resources={"kcl": kcl.KclResource(region_name="us-east-1")})
    definitions = dg.Definitions.merge(ours, dg.Definitions(assets=[downstream]))
    selection = dg.AssetSelection.assets("downstream")
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(slots_of(consumer.application).name or "", ["worker-000", "worker-001"])
        first = dg.evaluate_automation_conditions(definitions, instance, asset_selection=selection)
        instance.report_runless_asset_event(dg.AssetMaterialization("clicks_table", partition="worker-000"))
        second = dg.evaluate_automation_conditions(
            definitions, instance, asset_selection=selection, cursor=first.cursor
        )
        return [first.total_requested, second.total_requested]


@pytest.mark.audit("F10")
def test_an_asset_by_the_recommended_condition_runs_although_a_slot_has_stored_nothing() -> None:
    assert requests(EAGER)[1] == 0, "plain eager waits for a slot that may never store anything"
    assert requests(RECOMMENDED)[1] == 1


@pytest.mark.audit("F11")
def test_no_run_of_a_worker_is_asked_for_when_its_stream_is_materialized() -> None:
    """An automation would take the workers' slots from the leader, so their asset may not have one."""

    class Eager(kcl.KclTranslator):
        def get_asset_spec(self, asset: kcl.KclAsset) -> dg.AssetSpec:
            return super().get_asset_spec(asset).replace_attributes(automation_condition=EAGER)

    @kcl.kcl_consumer(application="clicks-app", stream="clicks", sink=kcl.parquet("unused"), name="clicks_table")
    def clicks_table(records: Any) -> Any:
        return records

    with pytest.raises(ConfigurationError, match="clicks_table has an automation condition: the leader of"):
        kcl.build_kcl_definitions(clicks_table, translator=Eager())
    definitions = kcl.build_kcl_definitions(clicks_table, resources={"kcl": kcl.KclResource()})
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(slots_of(clicks_table.application).name or "", ["worker-000"])
        everything = dg.AssetSelection.all()
        first = dg.evaluate_automation_conditions(definitions, instance, asset_selection=everything)
        instance.report_runless_asset_event(dg.AssetMaterialization(["kinesis", "clicks"]))
        second = dg.evaluate_automation_conditions(
            definitions, instance, asset_selection=everything, cursor=first.cursor
        )
        assert (first.total_requested, second.total_requested) == (0, 0)


@pytest.mark.audit("F10")
def test_the_page_recommends_that_condition() -> None:
    text = "".join(PAGE.read_text().split())
    assert "eager().without(~dg.AutomationCondition.any_deps_missing())" in text
    assert ".without(~dg.AutomationCondition.any_deps_in_progress())" in text
