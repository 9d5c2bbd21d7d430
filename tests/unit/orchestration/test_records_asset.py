"""Runs that are launched for partitions of the records: what they read, and what they materialize."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

import kcl_dagster as kcl
from kcl_dagster.errors import StreamError
from kcl_dagster.leader.application_completeness import Completeness, HeldBy, Hindrance
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.model.lease import Lease
from kcl_dagster.orchestration import asked_windows, complete_windows, records_asset
from kcl_dagster.orchestration.asked_windows import PATIENCE_SECONDS, Stored
from kcl_dagster.orchestration.complete_windows import CompleteWindows
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.records_asset import build_records_asset
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.tables.completeness_row import CompletenessRow
from kcl_dagster.tables.table_layout import detect_layout
from tests.doubles.clock import FakeClock
from tests.unit.operations.conftest import Shop
from tests.unit.orchestration.conftest import Bench
from tests.unit.orchestration.test_complete_windows import (
    HOURS,
    LEASES,
    THINGS,
    at,
    complete,
    consumer_of,
    lease,
    rows,
    started,
)

pytestmark = pytest.mark.slow

REAL_LOOK = asked_windows.look
NINE, TEN, ELEVEN, TWELVE = (f"2026-11-22-{hour:02}:00" for hour in (9, 10, 11, 12))

VARYING = pytest.mark.filterwarnings("ignore:Asset job .* materializes assets with varying BackfillPolicies")
UNTIL_HALF_PAST = complete("12:30")


@dg.asset(deps=["things"], partitions_def=HOURS)
def below() -> None:
    """Downstream of the records."""


@dataclass
class Deployment:
    """One application, whose streams were made at ten. `stored`: what its tables say at each look, and the last of
    it from then on."""

    instance: dg.DagsterInstance
    stored: list[Stored | Exception] = field(default_factory=lambda: [Stored(complete("12:30"), LEASES)])
    consumer: Consumer = field(default_factory=consumer_of)
    tick: TickReport | None = None
    """What the leader of the run reports. None: another leader leads."""

    read: list[float] = field(default_factory=list)
    """Through which moments bounded runs read."""

    clock: FakeClock = field(default_factory=lambda: FakeClock(at("12:40")))

    def look(self, *_: object) -> Stored:
        found = self.stored.pop(0) if len(self.stored) > 1 else self.stored[0]
        if isinstance(found, Exception):
            raise found
        return found

    def read_until(self, _context: Any, _consumer: Any, _translator: Any, _kcl: Any, _spark: Any, to: float) -> Any:
        self.read.append(to)
        return SimpleNamespace(tick=self.tick, leading=lambda: nullcontext(lambda: self.tick))

    def leads(self, completeness: Completeness, leases: Sequence[Lease] = LEASES) -> None:
        self.tick = TickReport(leading=True, completeness=completeness, leases=tuple(leases))

    def sensor(self, completeness: Completeness = UNTIL_HALF_PAST, leases: Sequence[Lease] = LEASES) -> list[str]:
        """What a leader's sensor declares that starts now."""
        ours = CompleteWindows(self.consumer, kcl.KclTranslator())
        events = ours.events(self.instance, completeness, leases, lambda: float(at("10:00")))
        for event in events:
            self.instance.report_runless_asset_event(event)
        return [str(event.partition) for event in events]

    def run(self, first: str, last: str | None = None, *more: Any) -> dg.ExecuteInProcessResult:
        """A run for these partitions, as the UI launches one."""
        asset = build_records_asset(self.consumer, kcl.KclTranslator())
        resources: dict[str, Any] = {"kcl": kcl.KclResource(region_name="us-east-1"), "spark": "unused"}
        tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last or first}
        where: dict[str, Any] = {"tags": tags} if last else {"partition_key": first}
        return dg.materialize(
            [asset, *more], instance=self.instance, resources=resources, raise_on_error=False, **where
        )

    def history(self) -> list[str]:
        """All materializations of the records, the oldest first."""
        records = self.instance.fetch_materializations(THINGS, limit=100).records
        return [str(record.partition_key) for record in reversed(records)]

    def newest(self, key: str) -> dg.AssetMaterialization:
        chosen = dg.AssetRecordsFilter(THINGS, asset_partitions=[key])
        [record] = self.instance.fetch_materializations(chosen, limit=1).records
        assert record.asset_materialization is not None
        return record.asset_materialization


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    with dg.DagsterInstance.ephemeral() as instance:
        made = Deployment(instance)
        for module in (asked_windows, complete_windows):
            monkeypatch.setattr(module, "created_within_retention", lambda *_: float(at("10:00")))
        monkeypatch.setattr(asked_windows, "look", made.look)
        monkeypatch.setattr(records_asset, "read_until", made.read_until)
        monkeypatch.setattr(records_asset, "system", lambda: Runtime(clock=made.clock))
        yield made


def own(result: dg.ExecuteInProcessResult) -> list[str]:
    return [str(event.partition) for event in result.asset_materializations_for_node("app_records")]


def problem(result: dg.ExecuteInProcessResult) -> str:
    assert not result.success
    [event] = [event for event in result.all_events if event.is_step_failure]
    failure = event.step_failure_data.user_failure_data
    assert failure is not None
    return str(failure.description)


def test_a_run_reads_through_the_end_of_its_newest_partition_and_materializes_what_is_complete(
    world: Deployment,
) -> None:
    world.leads(complete("12:30"))
    result = world.run(ELEVEN)
    assert result.success
    assert world.read == [at("12:00")]
    assert own(result) == [ELEVEN], "of the run is the partition that it was launched for"
    assert world.history() == [TEN, ELEVEN], "another one had become complete as well"
    event = world.newest(ELEVEN)
    assert (event.metadata["dagster/row_count"].value, event.metadata["kcl/reason"].value) == (5, "complete")
    assert world.sensor() == [], "the leader does not materialize it once more"


@VARYING
def test_what_is_downstream_in_the_same_run_goes_on(world: Deployment) -> None:
    world.leads(complete("12:30"))
    result = world.run(ELEVEN, None, below)
    assert result.success
    assert [event.partition for event in result.asset_materializations_for_node("below")] == [ELEVEN]


@VARYING
def test_a_run_for_a_window_that_is_not_complete_fails_and_says_why(world: Deployment) -> None:
    held = HeldBy("shardId-000000000001", Hindrance.PAUSED)
    world.stored = [Stored(complete("11:45"), LEASES)]
    world.tick = TickReport(leading=True, completeness=Completeness(at("11:45"), held))
    result = world.run(ELEVEN, None, below)
    assert problem(result) == (
        "2026-11-22-11:00 is not complete: everything of app is stored through 2026-11-22 11:45:00 UTC, and should "
        "be through 2026-11-22 12:00:00 UTC: shardId-000000000001: it is paused"
    )
    assert not result.asset_materializations_for_node("below")
    assert ELEVEN not in world.history()
    assert world.clock.now() >= at("12:40") + PATIENCE_SECONDS


def test_of_several_windows_those_that_are_complete_are_materialized_by_a_run_that_fails(world: Deployment) -> None:
    world.leads(complete("12:30"))
    result = world.run(ELEVEN, TWELVE)
    assert world.read == [at("13:00")]
    assert world.history() == [TEN, ELEVEN]
    assert problem(result) == (
        "2026-11-22-12:00 cannot be complete before 2026-11-22 13:00:00 UTC: the leader of app materializes it then"
    )
    assert world.clock.now() == at("12:40"), "there is nothing to wait for"


def test_a_run_for_several_windows_says_of_each_what_it_has(world: Deployment) -> None:
    world.leads(complete("12:30"))
    result = world.run(TEN, ELEVEN)
    assert result.success
    assert own(result) == [TEN, ELEVEN]
    assert [world.newest(key).metadata["dagster/row_count"].value for key in (TEN, ELEVEN)] == [17, 5]


@pytest.mark.parametrize("last", [None, ELEVEN], ids=["one window", "two windows"])
def test_windows_that_are_complete_already_are_materialized_once_and_nothing_is_read(
    world: Deployment, last: str | None
) -> None:
    assert world.sensor() == [TEN, ELEVEN]
    dropped = [lease(0, since="20:00")]  # the counts of the window are not kept any more
    world.stored = [Stored(complete("20:00"), dropped)]
    result = world.run(TEN, last)
    assert result.success
    assert world.read == []
    assert own(result) == [key for key in (TEN, last) if key]
    assert world.history() == [TEN, ELEVEN, *own(result)]
    event = world.newest(TEN)
    assert (event.metadata["dagster/row_count"].value, event.metadata["kcl/reason"].value) == (
        17,
        "asked for by hand",
    )
    assert world.sensor() == []


def test_a_window_that_changed_is_materialized_by_the_run_with_what_it_has_now(world: Deployment) -> None:
    world.sensor()
    after = [lease(0, rows("10:00", 11, late=1), rows("11:00", 5)), LEASES[1]]
    world.stored = [Stored(complete("12:30"), after)]
    assert world.run(TEN, ELEVEN).success
    event = world.newest(TEN)
    assert (event.metadata["dagster/row_count"].value, event.metadata["kcl/reason"].value) == (18, "late rows came")
    assert world.sensor(leases=after) == [], "the run has said it"


def test_while_a_run_goes_on_the_leader_leaves_its_windows_to_it(world: Deployment) -> None:
    """Also while the run waits in the queue."""
    key = {"dagster/partition": ELEVEN}
    run = world.instance.create_run_for_job(
        dg.define_asset_job("of_the_ui").resolve(asset_graph=graph(world)), tags=key, asset_selection={THINGS}
    )
    assert world.sensor() == [TEN]
    world.instance.report_run_canceled(run)
    assert world.sensor() == [ELEVEN]


def graph(world: Deployment) -> Any:
    resources: Any = {"kcl": kcl.KclResource(region_name="us-east-1"), "spark": "unused"}
    made = dg.Definitions(assets=[build_records_asset(world.consumer, kcl.KclTranslator())], resources=resources)
    return made.resolve_asset_graph()


def test_beside_a_leader_the_run_waits_until_the_leader_knows_and_has_declared_what_is_before(
    world: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stored = [*[Stored(complete("11:55"), LEASES)] * 3, Stored(complete("12:00"), LEASES)]
    real, looks = world.look, []

    def look(*_: object) -> Stored:
        looks.append(world.clock.now())
        if len(looks) == 7:
            assert world.sensor(complete("12:00")) == [TEN], "the window of the run is not the sensor's"
        return real()

    monkeypatch.setattr(asked_windows, "look", look)
    result = world.run(ELEVEN)
    assert result.success
    assert world.history() == [TEN, ELEVEN]
    assert len(looks) == 7


def test_where_the_leader_does_not_get_on_the_run_fails(world: Deployment) -> None:
    """Otherwise a leader that starts anew would begin with this window, and leave out the one before."""
    result = world.run(ELEVEN)
    assert problem(result) == (
        "2026-11-22-11:00 is complete, but the leader has not materialized 2026-11-22-10:00 yet, which is before it"
    )
    assert world.history() == []


@pytest.mark.parametrize("lives", [True, False])
def test_a_run_leaves_out_no_window_that_another_run_died_with(world: Deployment, lives: bool) -> None:
    """Dagster shows the other run as started. While it goes on, it materializes its window itself."""
    other = started(world.instance, "10:00")
    world.stored = [Stored(complete("12:30"), LEASES, lives={other: lives})]
    result = world.run(ELEVEN)
    assert result.success is lives
    assert world.history() == ([ELEVEN] if lives else [])
    if not lives:
        assert "has not materialized 2026-11-22-10:00 yet" in problem(result)


@pytest.mark.parametrize("seconds", [0, 3600])
def test_a_run_is_known_to_be_dead_by_the_row_of_its_worker(seconds: int) -> None:
    shop = Shop()
    shop.serve()
    shop.clock.advance(seconds)
    resource: Any = SimpleNamespace(client=lambda service, _: getattr(shop, service))
    consumer: Any = SimpleNamespace(application=shop.application)
    assert REAL_LOOK(consumer, resource, shop.runtime).lives == {"anna": seconds == 0}


def test_a_window_before_the_first_one_fails_and_says_which_is_the_first(world: Deployment) -> None:
    world.leads(complete("12:30"))
    result = world.run(NINE)
    assert problem(result) == (
        "2026-11-22-09:00 is before the windows of which app has everything, which begin with 2026-11-22-10:00: it "
        "is not known what of it is stored. If assets downstream should treat it as complete, report a "
        "materialization of it on the asset's page"
    )
    assert NINE not in world.history()


def test_where_there_are_no_tables_yet_the_run_reads(world: Deployment) -> None:
    world.stored = [StreamError("no table"), Stored(complete("12:30"), LEASES)]
    world.leads(complete("12:30"))
    assert world.run(ELEVEN).success
    assert world.read == [at("12:00")]


def test_of_event_times_a_window_waits_for_the_allowed_lateness(world: Deployment) -> None:
    world.consumer = consumer_of(event_time="at", allowed_lateness=timedelta(minutes=50))
    world.leads(complete("12:30"))
    result = world.run(ELEVEN)
    assert world.read == [at("12:50")]
    assert "11:00 cannot be complete before 2026-11-22 12:50:00 UTC" in problem(result)


@pytest.mark.server
def test_the_tables_say_what_is_complete_without_a_leader(
    consumer: Consumer, resource: kcl.KclResource, instance: dg.DagsterInstance
) -> None:
    Bench(consumer, resource, instance).tick()
    stored = asked_windows.look(consumer, resource, system())
    assert len(stored.leases) == 2
    assert (stored.completeness, stored.resets) == (Completeness(), ())
    layout = detect_layout(resource.client("dynamodb"), consumer.application, system())
    row = CompletenessRow(resource.client("dynamodb"), consumer.application, layout, system())
    row.advance(row.load(), at("12:00"))
    assert asked_windows.look(consumer, resource, system()).completeness.through == at("12:00")
