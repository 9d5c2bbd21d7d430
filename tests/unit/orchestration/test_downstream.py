"""Assets downstream of the records: which partitions a condition asks for when windows become complete.

Evaluated by Dagster's own automation engine, with the events that the leader sensor returns stored in an instance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from dagster._core.events import (
    AssetMaterializationPlannedData,
    DagsterEvent,
    DagsterEventType,
    StepMaterializationData,
)
from dagster._core.test_utils import create_run_for_test

import kcl_dagster as kcl
from kcl_dagster.errors import ConfigurationError
from tests.docs.pages import ROOT, blocks

pytestmark = pytest.mark.slow

EAGER = dg.AutomationCondition.eager()
HOURS = dg.HourlyPartitionsDefinition("2026-11-22-00:00")
DAYS = dg.DailyPartitionsDefinition("2026-11-22")
PAGE = ROOT / "docs/how-to/windows.md"


def records_of(translator: kcl.KclTranslator | None = None) -> dg.Definitions:
    @kcl.kcl_consumer(
        application="clicks-app", stream="clicks", sink=kcl.parquet("unused"), name="clicks_table", partitions=HOURS
    )
    def clicks_table(records: Any) -> Any:
        return records

    return kcl.build_kcl_definitions(
        clicks_table, resources={"kcl": kcl.KclResource(region_name="us-east-1")}, translator=translator
    )


def below(name: str, condition: Any, partitions: Any = HOURS, mapping: dg.PartitionMapping | None = None) -> Any:
    @dg.asset(
        name=name,
        deps=[dg.AssetDep("clicks_table", partition_mapping=mapping)],
        partitions_def=partitions,
        automation_condition=condition,
    )
    def made() -> None:
        """Nothing."""

    return made


@dataclass
class Day:
    """A day of a deployment: windows become complete, Dagster evaluates, and what it asks for is materialized."""

    instance: dg.DagsterInstance
    assets: Sequence[Any]
    cursor: Any = None
    ran: dict[str, list[str | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.definitions = dg.Definitions.merge(records_of(), dg.Definitions(assets=self.assets))

    def declare(self, *hours: int, day: int = 22) -> None:
        for hour in hours:
            key = f"2026-11-{day}-{hour:02}:00"
            self.instance.report_runless_asset_event(dg.AssetMaterialization("clicks_table", partition=key))

    def evaluate(self, text: str, *, ends: bool = True) -> dict[str, list[str | None]]:
        """What is asked for at this time of November 22 or, as `23T00:05`, of another day. `ends`: its runs end."""
        day, _, clock = text.rpartition("T")
        moment = datetime.fromisoformat(f"2026-11-{day or 22}T{clock}").replace(tzinfo=UTC)
        found = dg.evaluate_automation_conditions(
            self.definitions,
            self.instance,
            asset_selection=dg.AssetSelection.all(),
            evaluation_time=moment,
            cursor=self.cursor,
        )
        self.cursor = found.cursor
        asked: dict[str, list[str | None]] = {}
        for result in found.results:
            name = result.key.to_user_string()
            asset: Any = self.definitions.resolve_asset_graph().get(result.key)
            subset = result.true_subset
            if subset.size:
                keys = sorted(subset.expensively_compute_partition_keys()) if asset.partitions_def else [None]
                asked[name] = list(keys)
        if ends:
            self.ends(asked)
        return asked

    def _report(self, run: dg.DagsterRun, asset: dg.AssetKey, data: Any) -> None:
        planned = isinstance(data, AssetMaterializationPlannedData)
        kind = DagsterEventType.ASSET_MATERIALIZATION_PLANNED if planned else DagsterEventType.ASSET_MATERIALIZATION
        event = DagsterEvent(kind.value, run.job_name, step_key=asset.to_user_string(), event_specific_data=data)
        self.instance.report_dagster_event(event, run.run_id)

    def ends(self, asked: Mapping[str, Sequence[str | None]]) -> None:
        """The runs that were asked for end."""
        for name, keys in asked.items():
            for key in keys:
                self.ran.setdefault(name, []).append(key)
                self.instance.report_runless_asset_event(dg.AssetMaterialization(name, partition=key))

    def launch(self, hour: int, name: str, partition: str | None = None, meanwhile: tuple[int, ...] = ()) -> None:
        """One run, launched by hand, that materializes the hour of the records and this asset. `meanwhile`: hours
        that the leader declares before the asset is materialized; Dagster evaluates then."""
        key = f"2026-11-22-{hour:02}:00"
        planned = [dg.AssetKey("clicks_table"), dg.AssetKey(name)]
        going_on = dg.DagsterRunStatus.STARTED
        run = create_run_for_test(self.instance, asset_selection=frozenset(planned), status=going_on)
        keys = dict(zip(planned, (key, partition or key), strict=True))
        for asset, of in keys.items():
            self._report(run, asset, AssetMaterializationPlannedData(asset, partition=of))
        self._report(run, planned[0], StepMaterializationData(dg.AssetMaterialization(planned[0], partition=key)))
        if meanwhile:
            self.declare(*meanwhile)
            assert self.evaluate(f"{hour + 1}:06") == {}, "its run goes on"
        of = keys[planned[1]]
        self._report(run, planned[1], StepMaterializationData(dg.AssetMaterialization(planned[1], partition=of)))
        self.instance.report_dagster_event(
            DagsterEvent(DagsterEventType.RUN_SUCCESS.value, run.job_name), run.run_id
        )


def hours(*numbers: int) -> list[str]:
    return [f"2026-11-22-{number:02}:00" for number in numbers]


def day(*assets: Any) -> Day:
    return Day(dg.DagsterInstance.ephemeral(), assets)


@pytest.mark.audit("F10")
def test_eager_runs_once_for_each_window_when_it_is_complete() -> None:
    world = day(below("sessions", EAGER))
    world.evaluate("10:58")
    for hour in (10, 11, 12):
        for minute in range(0, 60, 7):
            assert world.evaluate(f"{hour + 1}:{minute:02}") == ({"sessions": hours(hour)} if minute == 7 else {})
            if minute == 0:
                world.declare(hour)
    assert world.ran == {"sessions": hours(10, 11, 12)}


@pytest.mark.audit("F10")
def test_eager_leaves_out_all_but_the_latest_of_windows_that_become_complete_at_once() -> None:
    """Which is why docs recommend on_complete wherever a gap matters."""
    world = day(below("eager", EAGER), below("sessions", kcl.on_complete()))
    world.evaluate("10:58")
    world.declare(10, 11, 12)
    assert world.evaluate("13:01") == {"eager": hours(12), "sessions": hours(10, 11, 12)}
    assert [world.evaluate(f"13:{minute}") for minute in range(10, 20)] == [{}] * 10


def test_eager_runs_nothing_of_what_was_complete_before_it_was_first_evaluated() -> None:
    world = day(below("eager", EAGER), below("sessions", kcl.on_complete()))
    world.declare(10, 11, 12)
    assert world.evaluate("13:01") == {"sessions": hours(10, 11, 12)}
    world.declare(13)
    assert world.evaluate("14:01") == {"eager": hours(13), "sessions": hours(13)}


@pytest.mark.audit("F10")
def test_a_day_is_rolled_up_once_when_its_last_hour_is_complete() -> None:
    world = day(below("eager", EAGER, DAYS), below("daily", kcl.on_complete(), DAYS))
    world.evaluate("00:01")
    for hour in range(23):
        world.declare(hour)
        assert world.evaluate(f"{hour + 1:02}:01") == {}
    assert world.evaluate("23T00:00") == {}
    world.declare(23)
    assert world.evaluate("23T00:01") == {"eager": ["2026-11-22"], "daily": ["2026-11-22"]}
    assert world.evaluate("23T00:02") == {}


@pytest.mark.audit("F10")
def test_a_window_that_looks_at_the_one_before_runs_once_when_both_are_complete() -> None:
    mapping = dg.TimeWindowPartitionMapping(start_offset=-1)
    world = day(below("sessions", kcl.on_complete(), HOURS, mapping))
    world.declare(9)
    world.evaluate("10:30")
    for hour in range(10, 13):
        world.declare(hour)
        assert world.evaluate(f"{hour + 1:02}:01") == {"sessions": hours(hour)}
        assert world.evaluate(f"{hour + 1:02}:02") == {}


@pytest.mark.audit("F10")
def test_late_rows_and_replays_run_the_windows_that_they_touch_and_those_alone() -> None:
    mapping = dg.TimeWindowPartitionMapping(start_offset=-1)
    assets = (
        below("same", kcl.on_complete()),
        below("next", kcl.on_complete(), HOURS, mapping),
        below("daily", kcl.on_complete(), DAYS),
    )
    world = day(*assets)
    world.evaluate("00:01")
    world.declare(*range(24))
    world.evaluate("23T00:01")
    assert world.evaluate("23T00:02") == {}
    world.declare(3)
    assert world.evaluate("23T00:03") == {"same": hours(3), "next": hours(3, 4), "daily": ["2026-11-22"]}
    assert world.evaluate("23T00:04") == {}


def test_a_window_that_is_materialized_again_right_after_its_run_was_asked_for_runs_once_more() -> None:
    """Before the next evaluation, half a minute later: Dagster then notes that the run was asked for."""
    world = day(below("sessions", kcl.on_complete()))
    world.evaluate("10:58")
    world.declare(10)
    assert world.evaluate("11:01") == {"sessions": hours(10)}
    world.declare(10)  # late rows
    assert world.evaluate("11:02") == {"sessions": hours(10)}
    assert [world.evaluate("11:03"), world.evaluate("11:04")] == [{}, {}]


def test_the_documented_asset_that_looks_at_the_window_before_runs_again_for_late_rows_of_both() -> None:
    known: dict[str, Any] = {"__name__": "page_windows"}
    for block in blocks(PAGE):
        if block.language == "python" and "@dg.asset(" in block.text:
            exec(block.text, known)
    spec = known["clicks_once"].get_asset_spec()
    [dep] = spec.deps
    world = day(below("once", spec.automation_condition, spec.partitions_def, dep.partition_mapping))
    world.evaluate("00:01")
    world.declare(0)
    assert world.evaluate("01:01") == {"once": hours(0)}, "there is no partition before the first one"
    world.declare(1, 2, 3, 4)
    assert world.evaluate("05:01") == {"once": hours(1, 2, 3, 4)}
    world.declare(2)  # late rows
    assert world.evaluate("05:02") == {"once": hours(2, 3)}
    assert world.evaluate("05:03") == {}


@pytest.mark.audit("F10")
def test_a_window_that_is_materialized_again_while_its_run_goes_on_runs_once_more() -> None:
    """eager() takes the end of the run for an answer to what happened during it."""
    world = day(below("eager", EAGER), below("sessions", kcl.on_complete()))
    world.evaluate("10:58")
    world.declare(10)
    both = {"eager": hours(10), "sessions": hours(10)}
    assert world.evaluate("11:01", ends=False) == both
    assert world.evaluate("11:02") == {}
    world.declare(10)  # late rows, while the runs go on
    world.ends(both)
    assert world.evaluate("11:03") == {"sessions": hours(10)}
    assert [world.evaluate("11:04"), world.evaluate("11:05")] == [{}, {}]


def test_a_run_by_hand_of_the_records_and_what_depends_on_them_is_the_only_one() -> None:
    world = day(below("eager", EAGER), below("sessions", kcl.on_complete()))
    for moment in ("10:58", "11:01"):  # the partition exists, and is missing, before the run
        world.evaluate(moment)
    for minute in (15, 25):
        world.launch(10, "sessions")
        assert world.evaluate(f"11:{minute}").get("sessions") is None
        assert world.evaluate(f"11:{minute + 1}").get("sessions") is None
    world.declare(10)  # late rows
    assert world.evaluate("11:30")["sessions"] == hours(10)
    assert world.evaluate("11:31") == {}


def test_a_run_by_hand_of_the_last_hour_and_the_day_is_the_only_one_of_the_day() -> None:
    world = day(below("daily", kcl.on_complete(), DAYS))
    world.evaluate("00:01")
    world.declare(*range(23))
    assert world.evaluate("23:01") == {}
    assert world.evaluate("23T00:01") == {}
    world.launch(23, "daily", "2026-11-22")
    assert [world.evaluate("23T00:05"), world.evaluate("23T00:06")] == [{}, {}]
    world.declare(4)  # late rows
    assert world.evaluate("23T00:07") == {"daily": ["2026-11-22"]}
    assert world.evaluate("23T00:08") == {}


def test_late_rows_while_a_run_by_hand_goes_on_run_what_depends_on_them_once_more() -> None:
    mapping = dg.TimeWindowPartitionMapping(start_offset=-1)
    world = day(below("sessions", kcl.on_complete(), HOURS, mapping))
    world.declare(9)
    world.evaluate("10:58")
    world.evaluate("11:01")
    world.launch(10, "sessions", meanwhile=(9,))
    assert world.evaluate("11:07") == {"sessions": hours(10)}, "the run may have read the hour before already"
    assert world.evaluate("11:08") == {}


def test_dagster_keeps_the_memories_of_the_condition_apart() -> None:
    """Two that Dagster cannot tell apart would overwrite each other."""

    def found(condition: Any) -> list[str]:
        own = [condition.get_node_unique_id(parent_unique_id=None, index=0, target_key=None)]
        below = [one for child in condition.children for one in found(child)]
        return (own if condition.name == "SINCE" else []) + below

    ids = found(kcl.on_complete())
    assert len(ids) == len(set(ids)) == 3


@pytest.mark.audit("F10")
def test_windows_of_the_last_day_that_were_complete_before_the_first_evaluation_run_once() -> None:
    """As where the leader declares twenty windows with its first tick, before the automation sensor evaluates."""
    assets = below("sessions", kcl.on_complete()), below("latest", kcl.on_complete(timedelta(0)))
    world = day(*assets, below("daily", kcl.on_complete(), DAYS), below("eager", EAGER))
    world.declare(*range(24))
    world.declare(0, day=23)
    first = world.evaluate("23T01:01")
    assert first["sessions"] == [*hours(*range(1, 24)), "2026-11-23-00:00"], "the 22nd, 00:00 is left to a backfill"
    assert (first["latest"], first["daily"]) == (["2026-11-23-00:00"], ["2026-11-22"])
    assert world.evaluate("23T01:02") == {}
    world.declare(1, day=23)
    again = {"sessions": ["2026-11-23-01:00"], "latest": ["2026-11-23-01:00"], "eager": ["2026-11-23-01:00"]}
    assert world.evaluate("23T02:01") == again
    assert world.evaluate("23T02:02") == {}


@pytest.mark.audit("F10")
def test_what_runs_when_the_condition_is_first_evaluated_does_not_run_once_more() -> None:
    """As where a backfill goes on already."""
    world = day(below("sessions", kcl.on_complete()), below("behind", kcl.on_complete()))
    world.declare(8, 9)
    world.ends({"sessions": hours(8)})
    assert world.evaluate("10:01") == {"sessions": hours(9), "behind": hours(8, 9)}
    assert world.evaluate("10:02") == {}
    world.ends({"sessions": hours(7)})  # by hand, although nothing upstream is there
    assert world.evaluate("10:03") == {}
    world.declare(10)
    assert world.evaluate("11:01") == {"sessions": hours(10), "behind": hours(10)}


@pytest.mark.audit("F10")
def test_what_has_no_partitions_runs_at_each_complete_window_unless_an_earlier_one_is_missing() -> None:
    """Windows before the application began are never materialized, so the partitions should begin with it."""
    although = kcl.on_complete().without(~dg.AutomationCondition.any_deps_missing())
    world = day(below("totals", EAGER, None), below("so_far", although, None))
    world.evaluate("02:59")
    world.declare(1, 2)
    assert world.evaluate("03:01") == {"so_far": [None]}
    assert world.evaluate("03:02") == {}
    world.declare(0)
    assert world.evaluate("03:03") == {"totals": [None], "so_far": [None]}
    world.evaluate("03:04")
    world.declare(3)
    assert world.evaluate("04:01") == {"totals": [None], "so_far": [None]}
    assert world.evaluate("04:02") == {}


@pytest.mark.audit("F10")
def test_an_instance_in_which_the_records_were_partitioned_by_slot_goes_on() -> None:
    """Upgrade: what workers had materialized by slot neither counts as a window nor fails anything."""
    world = day(below("sessions", kcl.on_complete()))
    for slot in ("worker-000", "worker-001"):
        event = dg.AssetMaterialization("clicks_table", partition=slot, metadata={"kcl/records": 1})
        world.instance.report_runless_asset_event(event)
    assert world.evaluate("10:01") == {}
    world.declare(10)
    assert world.evaluate("11:01") == {"sessions": hours(10)}
    asset: Any = world.definitions.resolve_asset_graph().get(dg.AssetKey("clicks_table"))
    with dg.partition_loading_context(datetime(2026, 11, 22, 11, 30, tzinfo=UTC), world.instance):
        keys = world.instance.get_materialized_partitions(asset.key)
        assert {key for key in keys if asset.partitions_def.has_partition_key(key)} == set(hours(10))


@pytest.mark.audit("F11")
def test_no_run_of_the_records_is_asked_for_when_their_stream_is_materialized() -> None:
    """The leader materializes their partitions, so their asset may not have a condition."""

    class Eager(kcl.KclTranslator):
        def get_asset_spec(self, asset: kcl.KclAsset) -> dg.AssetSpec:
            return super().get_asset_spec(asset).replace_attributes(automation_condition=EAGER)

    with pytest.raises(ConfigurationError, match="clicks_table has an automation condition: the leader of"):
        records_of(Eager())
    definitions = records_of()
    with dg.DagsterInstance.ephemeral() as instance:
        everything = dg.AssetSelection.all()
        first = dg.evaluate_automation_conditions(definitions, instance, asset_selection=everything)
        instance.report_runless_asset_event(dg.AssetMaterialization(["kinesis", "clicks"]))
        second = dg.evaluate_automation_conditions(
            definitions, instance, asset_selection=everything, cursor=first.cursor
        )
        assert (first.total_requested, second.total_requested) == (0, 0)
