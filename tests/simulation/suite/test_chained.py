"""Fleets whose workers decide their batches in chains keep every property."""

from collections import Counter

import pytest

from tests.simulation.chained import Chained
from tests.simulation.scenario import CHAINED_SEEDS, FIRST_MIXED_SEED, TWO_DESTINATIONS_SEEDS, draw
from tests.simulation.shrink import run

# Of each sort: a folder and a table, of fleets and of bounded runs, with Java workers, for days, and with a setting
# that changes. The last ones found something.
SEEDS = (40010, 40012, 40013, 40014, 40022, 40041, 40030, 40099)
# With two destinations: two folders, two tables, and both mixed.
OF_TWO_DESTINATIONS = (42010, 42009, 42004, 42014)


@pytest.mark.parametrize("seed", SEEDS + OF_TWO_DESTINATIONS)
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


def test_two_destinations_are_folders_and_tables_in_either_order() -> None:
    drawn = [draw(seed).chained for seed in TWO_DESTINATIONS_SEEDS[:40]]
    kinds = Counter(tuple(chained.tables.values()) for chained in drawn if chained is not None)
    assert sorted(kinds) == [(False, False), (False, True), (True, False), (True, True)]
    assert min(kinds.values()) > 3


def test_seeds_that_had_one_destination_still_have_one() -> None:
    stop = TWO_DESTINATIONS_SEEDS.stop
    assert all((chained := draw(seed).chained) and len(chained.tables) == 1 for seed in (*SEEDS, stop, 49_999))
    shares = [
        chained.second is not None
        for seed in range(FIRST_MIXED_SEED, FIRST_MIXED_SEED + 100)
        if (chained := draw(seed).chained)
    ]
    assert 5 < sum(shares) < len(shares) / 2
