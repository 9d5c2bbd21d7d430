"""How much an application adds to Dagster's event log, which nothing but our pruning ever shrinks."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from dagster import DagsterInstance

from kcl_dagster.orchestration.reporting import LIVELY_SECONDS, Reporter
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
def test_a_calm_day_of_a_large_fleet_costs_less_than_ten_megabytes(home: Path, instance: DagsterInstance) -> None:
    workers = [worker(f"worker-{number:03d}:a") for number in range(8)]
    seen = replace(CALM, leases=[lease(number) for number in range(40)], workers=workers)
    reporter = Reporter(things, KclTranslator())

    def report(start: float, seconds: float) -> None:
        for tick in range(int(start / TICK_SECONDS), int((start + seconds) / TICK_SECONDS)):
            for event in reporter.events(seen, tick * TICK_SECONDS):
                instance.report_runless_asset_event(event)

    report(0.0, LIVELY_SECONDS)  # the start is lively, and happens once
    before = size(home)
    report(LIVELY_SECONDS, MEASURED_SECONDS)
    a_day = (size(home) - before) * 86_400 / MEASURED_SECONDS / 1e6
    assert 1.0 < a_day < MEGABYTES_A_DAY, f"{a_day:.1f} MB a day"
