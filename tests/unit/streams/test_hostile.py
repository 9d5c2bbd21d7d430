"""Records that were made to be expensive cost what they weigh: a short search finds none that does not."""

import pytest

from tests.hostile.cost import cost_of, scale
from tests.hostile.limits import MOST_CPU, MOST_MEMORY
from tests.hostile.search import climb
from tests.hostile.shapes import ENDINGS, EXTRAS, Shape

pytestmark = pytest.mark.slow

SIZE = 64 * 1024

# What broke earlier versions, and what searches found to be the most expensive since then.
KNOWN = [
    Shape(key_bytes=20_000, payload_bytes=0),  # a long key that all records share
    Shape(hash_keys=1, hash_key_bytes=16_000, ending="bad hash key"),
    Shape(keys=5000, key_bytes=2, names_a_key=5000, hash_keys=1, hash_key_bytes=16_000, hash_key_filling="zeros"),
    Shape(keys=20_000, key_bytes=0),
    Shape(keys=1, key_bytes=1, payload_bytes=0, names_a_key=2, extra="tags", between=100, ending="bad index"),
    Shape(payload_bytes=0),
    *(Shape(extra=extra, names_a_key=2) for extra in EXTRAS),
    *(Shape(ending=ending) for ending in ENDINGS),
]


@pytest.mark.audit("B4", "B5")
def test_no_record_that_a_short_search_finds_costs_more_than_it_weighs() -> None:
    honest = scale(SIZE)
    by_cpu = [(shape, honest.cpu(cost_of(shape.record(SIZE)))) for shape in KNOWN]
    by_cpu += climb(lambda shape: honest.cpu(cost_of(shape.record(SIZE))), seed=1, evaluations=12)
    by_memory = [(shape, honest.memory(cost_of(shape.record(SIZE), memory=True))) for shape in KNOWN[:6]]
    by_memory += climb(lambda shape: honest.memory(cost_of(shape.record(SIZE), memory=True)), seed=2, evaluations=8)
    assert [found for found in by_cpu if found[1] > MOST_CPU] == []
    assert [found for found in by_memory if found[1] > MOST_MEMORY] == []


def test_the_search_climbs() -> None:
    def price(shape: Shape) -> float:
        return float(min(shape.hash_key_bytes, 10_000) * (shape.ending == "bad hash key"))

    assert max(found for _, found in climb(price, seed=1, evaluations=300)) > 7_000


def test_the_same_seed_looks_at_the_same_shapes() -> None:
    looks = [
        [shape for shape, _ in climb(lambda shape: float(shape.payload_bytes), seed=5, evaluations=40)]
        for _ in "ab"
    ]
    assert looks[0] == looks[1]
