"""A search for the most expensive records: from some shape to neighbours that cost more, again and again."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from tests.hostile.shapes import Shape, any_shape

PATIENCE: Final = 12  # neighbours that cost no more, until another shape is begun with


def climb(price: Callable[[Shape], float], seed: int, evaluations: int) -> Iterator[tuple[Shape, float]]:
    """Each shape that was looked at, and its price. The same seed looks at the same shapes as long as prices
    compare in the same way."""
    chance = Random(seed)
    best, highest, patience = any_shape(chance), -1.0, 0
    for _ in range(evaluations):
        shape = best.changed(chance) if highest >= 0 else best
        found = price(shape)
        yield shape, found
        if found > highest:
            best, highest, patience = shape, found, 0
            continue
        patience += 1
        if patience == PATIENCE:
            best, highest, patience = any_shape(chance), -1.0, 0
