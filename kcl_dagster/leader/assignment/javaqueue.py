"""Java's priority queue and comparison of doubles.

If workers have equal ranks, the KCL assigns leases to them in the order of its queue. To behave like the KCL, this
queue must have the same order.
"""

import math
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


def compare(left: float, right: float) -> int:
    """Compare as `Double.compare` does: NaN equals itself and is greater than everything else."""
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) - math.isnan(right)
    return (left > right) - (left < right)


class HighestFirst(Generic[T]):
    """A binary heap with the highest rank first. Values with equal ranks have the same order as in Java's queue."""

    def __init__(self, entries: Iterable[tuple[float, T]] = ()) -> None:
        self._heap: list[tuple[float, T]] = []
        for rank, value in entries:
            self.add(rank, value)

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, rank: float, value: T) -> None:
        self._heap.append((rank, value))
        place = len(self._heap) - 1
        while place > 0:
            parent = (place - 1) // 2
            if not self._goes_before(place, parent):
                break
            self._swap(place, parent)
            place = parent

    def poll(self) -> T | None:
        """Remove and return the first value; None if the heap is empty."""
        if not self._heap:
            return None
        front, last = self._heap[0], self._heap.pop()
        if self._heap:
            self._heap[0] = last
            self._sink()
        return front[1]

    def _sink(self) -> None:
        place = 0
        while (child := 2 * place + 1) < len(self._heap):
            if child + 1 < len(self._heap) and self._goes_before(child + 1, child):
                child += 1
            if not self._goes_before(child, place):
                break
            self._swap(child, place)
            place = child

    def _goes_before(self, one: int, other: int) -> bool:
        return compare(self._heap[one][0], self._heap[other][0]) > 0

    def _swap(self, one: int, other: int) -> None:
        self._heap[one], self._heap[other] = self._heap[other], self._heap[one]
