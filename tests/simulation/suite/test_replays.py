"""What is replayed is visible once, whichever processes end on the way. Broken code is noticed."""

from dataclasses import replace

import pytest

from kcl_dagster.worker.parts_chain import PartsChain
from tests.simulation.replays import LETTERS, LONG_ACTIVE_SECONDS, draw_replays, replays_of, run_replays

# The later ones found something: a process that was paused for a day, a note of letters that were gone, and letters
# that were noted under two numbers.
SEEDS = (1, 2, 3, 5, 23, 440)
SOUND = 2


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_replayed_is_visible_once(seed: int) -> None:
    outcome = run_replays(draw_replays(seed))
    assert outcome.violations == []
    assert outcome.records > 0


def test_a_seed_is_one_run() -> None:
    assert run_replays(draw_replays(23)).digest == run_replays(draw_replays(23)).digest


def test_the_seeds_are_of_folders_and_tables_of_hours_and_of_days() -> None:
    drawn = [draw_replays(seed) for seed in range(1, 101)]
    assert 30 < sum(one.chained is not None and one.chained.is_table for one in drawn) < 70
    assert 15 < sum(one.active == LONG_ACTIVE_SECONDS for one in drawn) < 45
    assert all(len(starts) > 1 for one in drawn for starts in replays_of(one).starts.values())
    assert all(replays_of(one).windows and LETTERS in replays_of(one).starts for one in drawn)


def test_a_replay_that_stores_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a fault: each window is replayed several times."""
    monkeypatch.setattr(PartsChain, "holds", lambda _self, _part: False)
    found = run_replays(replace(draw_replays(SOUND), faults=())).violations
    assert {violation.name for violation in found} == {"S21"}
    assert "2 times" in found[0].what


def test_a_replay_that_ends_before_all_is_visible_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartsChain, "holds", lambda _self, part: part.number == 1)
    found = run_replays(replace(draw_replays(SOUND), faults=())).violations
    assert {violation.name for violation in found} == {"S21"}
    assert "do not see" in found[0].what
