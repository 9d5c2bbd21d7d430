"""Materializing partitions of the records by hand: a bounded run, and what it reports."""

from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

import kcl_dagster as kcl
from kcl_dagster.leader.completeness import Completeness
from kcl_dagster.leader.report import TickReport
from kcl_dagster.orchestration import declared_windows, records_asset
from kcl_dagster.orchestration.records_asset import build_records_asset
from tests.unit.orchestration.test_declared_windows import LEASES, THINGS, at, complete, consumer_of

TEN, ELEVEN, TWELVE = (f"2026-11-22-{hour}:00" for hour in (10, 11, 12))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Through which moments bounded runs were asked to read. The streams were made at ten."""
    monkeypatch.setattr(declared_windows, "created_within_retention", lambda *_: float(at("10:00")))
    return []


def materialized(
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    asked: list[float],
    tick: TickReport | None,
    first: str,
    last: str | None = None,
) -> tuple[list[str | None], list[str | None]]:
    """What a run for these partitions materializes itself, and what the instance has then, newest last."""

    def read_until(context: Any, consumer: Any, translator: Any, resource: Any, spark: Any, through: float) -> Any:
        asked.append(through)
        return SimpleNamespace(tick=tick, leading=lambda: nullcontext(lambda: tick))

    monkeypatch.setattr(records_asset, "read_until", read_until)
    asset = build_records_asset(consumer_of(), kcl.KclTranslator())
    resources: dict[str, Any] = {"kcl": kcl.KclResource(region_name="us-east-1"), "spark": "unused"}
    tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last or first}
    result = dg.materialize([asset], instance=instance, resources=resources, tags=tags)
    own: Sequence[dg.AssetMaterialization] = result.asset_materializations_for_node("app_records")
    stored = instance.fetch_materializations(THINGS, limit=100).records
    return [event.partition for event in own], [record.partition_key for record in reversed(stored)]


def led(completeness: Completeness) -> TickReport:
    return TickReport(leading=True, completeness=completeness, leases=tuple(LEASES))


def test_a_run_reads_through_the_end_of_its_newest_partition_and_tells_what_is_complete(
    monkeypatch: pytest.MonkeyPatch, asked: list[float]
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        own, stored = materialized(instance, monkeypatch, asked, led(complete("12:30")), ELEVEN)
        assert asked == [at("12:00")]
        assert own == [ELEVEN], "of the run are the partitions that it was launched for"
        assert stored == [TEN, ELEVEN], "others became complete as well"
        own, stored = materialized(instance, monkeypatch, asked, led(complete("12:30")), ELEVEN)
        assert (own, stored) == ([ELEVEN], [TEN, ELEVEN, ELEVEN]), "whoever asks again is told again"


def test_a_partition_that_is_not_complete_is_not_materialized(
    monkeypatch: pytest.MonkeyPatch, asked: list[float]
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        own, _ = materialized(instance, monkeypatch, asked, led(complete("12:30")), ELEVEN, TWELVE)
        assert asked == [at("13:00")]
        assert own == [ELEVEN]


def test_where_another_leads_the_run_leaves_it_to_that_leader(
    monkeypatch: pytest.MonkeyPatch, asked: list[float]
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        assert materialized(instance, monkeypatch, asked, None, ELEVEN) == ([], [])
