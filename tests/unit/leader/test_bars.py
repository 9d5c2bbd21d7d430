"""What `make bench-leader` holds `balanced` to, on the same fleets; an hour of jitter is left to the bench."""

import pytest

from benchmarks.leader import CANDIDATES, Fleet, run, scenarios

BALANCED = next(candidate for candidate in CANDIDATES if candidate.name == "balanced")
JITTER_SECONDS = 120.0


@pytest.mark.parametrize("fleet", [fleet for fleet, _ in scenarios(large=True)], ids=lambda fleet: fleet.name)
def test_balanced_keeps_its_bars(fleet: Fleet) -> None:
    row = run(BALANCED, fleet, JITTER_SECONDS if len(fleet.workers) < 500 else 0.0)
    # How long a decision takes is measured on a quiet machine.
    assert [bar for bar in row.missed() if "decided" not in bar] == [], row
