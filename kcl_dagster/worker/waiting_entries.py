"""Stores since when entries of a worker's chains have been waiting for a commit of the table."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kcl_dagster.model.claim import ChainId


@dataclass(slots=True)
class WaitingEntries:
    """For each chain, the entries that were found to wait, and when each of them was first found (monotonic)."""

    _since: dict[ChainId, deque[tuple[int, float]]] = field(default_factory=dict)

    def note(self, wanted: Mapping[ChainId, int], visible: Callable[[ChainId], int], now: float) -> None:
        """Record which entries wait now. `wanted`: for each chain, the last entry that possibly waits. `visible`:
        returns the last entry of a chain that the table contains; this entry and earlier ones do not wait any
        more."""
        for chain in self._since.keys() - wanted.keys():
            del self._since[chain]
        for chain, number in wanted.items():
            seen = self._since.setdefault(chain, deque())
            if number > visible(chain) and (not seen or number > seen[-1][0]):
                seen.append((number, now))
            while seen and seen[0][0] <= visible(chain):
                seen.popleft()

    @property
    def oldest(self) -> float:
        """The time at which the entry that waits longest was first found (monotonic). Infinite if no entry
        waits."""
        return min((seen[0][1] for seen in self._since.values() if seen), default=float("inf"))
