"""How much an application adds to Dagster's event log, which nothing but our pruning ever shrinks."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from dagster import AssetKey, DagsterInstance

from kcl_dagster.model import worker as worker_row
from kcl_dagster.orchestration.diary import LIVELY_SECONDS, Diary
from kcl_dagster.orchestration.reporting import Reporter
from kcl_dagster.orchestration.translator import KclTranslator
from tests.unit.orchestration.test_reporting import CALM, Table, lease, stored, things, worker

MEGABYTES_A_DAY = 10.0
TICK_SECONDS = 5.0
MEASURED_SECONDS = 3600.0
LOG = logging.getLogger(__name__)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    return tmp_path


@pytest.fixture
def instance(home: Path) -> Iterator[DagsterInstance]:
    with DagsterInstance.from_config(str(home)) as sqlite:
        yield sqlite


def quiet(*_: object) -> None:
    """Nothing goes wrong on a calm day."""


def size(home: Path) -> int:
    return sum(path.stat().st_size for path in (home / "history").rglob("*") if path.is_file())


@dataclass(frozen=True)
class Fleet:
    """In good health. A day on which all of it is behind costs 3 MB more."""

    shards: int
    workers: int


FLEETS = {
    "what the defaults make of a stream of sixteen shards": Fleet(16, 1),
    "what they make of twice as many": Fleet(32, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FLEETS)
def test_a_day_costs_less_than_ten_megabytes(name: str, home: Path, instance: DagsterInstance) -> None:
    fleet = FLEETS[name]
    leases = [lease(number) for number in range(fleet.shards)]
    behind = {known.key: 200 for known in leases[: worker_row.SHARDS_TOLD]}
    rows = [worker(f"worker-{number:03d}:a", behind=behind) for number in range(fleet.workers)]
    seen = replace(CALM, leases=leases, workers=rows, lag_seconds=0.2, retention={"stream": 86_400.0})
    reporter = Reporter(things, KclTranslator())
    now = 0.0
    # An event of a run is stored twice, as one without: in the run's file and in the index.
    diaries = [
        Diary(AssetKey("things"), f"worker-{n:03d}", instance.report_runless_asset_event, LOG, quiet, lambda: now)
        for n in range(fleet.workers)
    ]
    for diary in diaries:
        diary.noting_columns(lambda _: Table(columns=8))("records")

    def report(start: float, seconds: float) -> None:
        nonlocal now
        for tick in range(int(start / TICK_SECONDS), int((start + seconds) / TICK_SECONDS)):
            now = tick * TICK_SECONDS
            for event in reporter.events(seen, now):
                instance.report_runless_asset_event(event)
            for diary in diaries:
                diary.batch(stored(1000))

    report(0.0, LIVELY_SECONDS)  # the start is lively, and happens once
    before = size(home)
    report(LIVELY_SECONDS, MEASURED_SECONDS)
    a_day = (size(home) - before) * 86_400 / MEASURED_SECONDS / 1e6
    assert 1.0 < a_day < MEGABYTES_A_DAY, f"{a_day:.1f} MB a day"
