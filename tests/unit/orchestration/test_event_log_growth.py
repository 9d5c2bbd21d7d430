"""How much an application adds to Dagster's event log, which nothing but our pruning ever shrinks."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster import DagsterInstance

from kcl_dagster.orchestration.reporting import CALM_PACE_SECONDS, LIVELY_SECONDS, Reporter
from kcl_dagster.orchestration.translator import KclTranslator
from tests.unit.orchestration.test_reporting import CALM, lease, things, worker

MEGABYTES_A_DAY = 10.0
TICK_SECONDS = 5.0
MEASURED_SECONDS = 2 * 3600.0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    return tmp_path


@pytest.fixture
def instance(home: Path) -> Iterator[DagsterInstance]:
    with DagsterInstance.from_config(str(home)) as sqlite:
        yield sqlite


def size(home: Path) -> int:
    return sum(path.stat().st_size for path in (home / "history").rglob("*") if path.is_file())


@pytest.mark.slow
def test_a_calm_day_of_a_full_lease_table_costs_less_than_ten_megabytes(
    home: Path, instance: DagsterInstance
) -> None:
    from dataclasses import replace

    seen = replace(
        CALM, leases=[lease(n) for n in range(40)], workers=[worker(f"worker-{n:03d}:a") for n in range(8)]
    )
    reporter = Reporter(things, KclTranslator())
    tick = 0.0
    while tick < LIVELY_SECONDS + CALM_PACE_SECONDS:  # the start is lively, and happens once
        for event in reporter.events(seen, tick):
            instance.report_runless_asset_event(event)
        tick += TICK_SECONDS
    before, until = size(home), tick + MEASURED_SECONDS
    while tick < until:
        for event in reporter.events(seen, tick):
            instance.report_runless_asset_event(event)
        tick += TICK_SECONDS
    a_day = (size(home) - before) * 86_400 / MEASURED_SECONDS / 1e6
    assert 1.0 < a_day < MEGABYTES_A_DAY, f"{a_day:.1f} MB a day"
