"""What `make bench-leader` holds `balanced` to, on the same fleets; an hour of jitter is left to the bench."""

from itertools import islice

import pytest

from benchmarks.leader import CANDIDATES, run, scenarios

pytestmark = pytest.mark.slow

BALANCED = next(candidate for candidate in CANDIDATES if candidate.name == "balanced")
FLEETS = 8
JITTER_SECONDS = 120.0


@pytest.mark.parametrize("number", range(FLEETS))
def test_balanced_keeps_its_bars(number: int) -> None:
    fleet, _ = next(islice(scenarios(large=True), number, None))
    row = run(BALANCED, fleet, JITTER_SECONDS if len(fleet.workers) < 500 else 0.0)
    # How long a decision takes is measured on a quiet machine.
    assert [bar for bar in row.missed() if "decision" not in bar] == [], row


def test_no_fleet_is_left_out() -> None:
    assert len(list(scenarios(large=True))) == FLEETS
