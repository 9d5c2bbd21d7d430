"""How much an application adds to Dagster's event log, which nothing but our pruning ever shrinks."""

from pathlib import Path

import pytest
from dagster import DagsterInstance

from tests.unit.orchestration.growth import FLEETS, measure

MEGABYTES_A_DAY = 10.0


@pytest.mark.slow
@pytest.mark.parametrize(("shards", "workers"), FLEETS)
def test_a_day_costs_less_than_ten_megabytes(shards: int, workers: int, tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        a_day = measure(instance, tmp_path, shards, workers)
    assert 1.0 < a_day < MEGABYTES_A_DAY, f"{a_day:.1f} MB a day"
