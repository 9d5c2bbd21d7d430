"""Two daemons, two standbys and replayed ticks on one application: no double assignment, no lost lease."""

from dataclasses import replace

import pytest

from tests.simulation.contest import ACTIVE_SECONDS, draw_contest, run_contest
from tests.simulation.faults import Fault, FaultKind
from tests.simulation.fleet import Outcome

SEEDS = range(1, 9)


def leaders(outcome: Outcome) -> set[str]:
    return {what.removeprefix("led by ") for what in outcome.counts if what.startswith("led by ")}


@pytest.mark.parametrize("seed", SEEDS)
def test_five_leaders_assign_nothing_twice_and_lose_nothing(seed: int) -> None:
    outcome = run_contest(draw_contest(seed))
    assert outcome.violations == []
    assert outcome.simulated >= ACTIVE_SECONDS
    assert {"daemon-0.0", "daemon-0.1", "replayer"} <= leaders(outcome), "they really led, side by side"
    assert outcome.records > 0


def test_a_standby_leads_while_the_daemons_are_away_and_not_a_moment_longer() -> None:
    scenario = draw_contest(1)
    away = Fault(id=0, kind=FaultKind.SKIPPED_TICKS, at=200.0, target="", seconds=250.0)
    outcome = run_contest(replace(scenario, faults=(away,)))
    assert outcome.violations == []
    tick = scenario.application.timings.tick_interval + 1.0
    standing_in = tick * sum(ticks for what, ticks in outcome.counts.items() if what.startswith("led by standby:"))
    assert 60.0 < standing_in <= 250.0 + 3 * tick  # some are at the end, when the daemons have stopped


def test_a_fleet_of_which_nobody_but_standbys_is_left_goes_on() -> None:
    away = Fault(id=0, kind=FaultKind.SKIPPED_TICKS, at=150.0, target="", seconds=430.0)
    killed = Fault(id=1, kind=FaultKind.KILL, at=300.0, target="worker", number=0)
    outcome = run_contest(replace(draw_contest(2), faults=(away, killed)))
    assert outcome.violations == []
