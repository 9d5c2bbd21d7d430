"""Fleets whose workers decide their batches in chains keep every property."""

import pytest

from tests.simulation.chained import Chained
from tests.simulation.scenario import CHAINED_SEEDS, FIRST_MIXED_SEED, draw
from tests.simulation.shrink import run

# Of each sort: a folder and a table, of fleets and of bounded runs, with Java workers, for days, and with a setting
# that changes. The last ones found something.
SEEDS = (40010, 40012, 40013, 40014, 40022, 40041, 40030, 40099)


@pytest.mark.parametrize("seed", SEEDS)
def test_batches_in_chains_keep_every_property(seed: int) -> None:
    outcome = run(draw(seed))
    assert outcome.violations == []
    assert outcome.records > 0


def test_the_seeds_are_of_folders_and_tables() -> None:
    drawn = [draw(seed).chained for seed in CHAINED_SEEDS[:100]]
    assert all(isinstance(chained, Chained) for chained in drawn)
    assert 20 < sum(chained is not None and chained.is_table for chained in drawn) < 80


def test_other_seeds_have_no_chains_or_one_in_two() -> None:
    assert all(draw(seed).chained is None for seed in (1, CHAINED_SEEDS.start - 1, CHAINED_SEEDS.stop, 91003))
    shares = [draw(seed).chained is not None for seed in range(FIRST_MIXED_SEED, FIRST_MIXED_SEED + 100)]
    assert 20 < sum(shares) < 80
