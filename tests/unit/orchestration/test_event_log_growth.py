"""How much an application adds to Dagster's event log, which Dagster never shrinks by itself."""

from pathlib import Path

import pytest
from dagster import DagsterInstance

from tests.unit.orchestration.growth import FLEETS, Fleet, measure

MEGABYTES_A_DAY = 10.0


@pytest.mark.nightly
def test_a_day_costs_less_than_ten_megabytes(tmp_path: Path) -> None:
    """Of the largest fleet that the defaults allow; smaller ones write less."""
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        a_day = measure(instance, tmp_path, Fleet(*max(FLEETS)))
    assert 1.0 < a_day < MEGABYTES_A_DAY, f"{a_day:.1f} MB a day"
