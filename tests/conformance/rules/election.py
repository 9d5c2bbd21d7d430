"""Who leads a fleet that runs the algorithm of KCL 2.x.

There is no lock: every worker shuffles the same names with the same seed and looks for its own. Reproduces
`java.util.Collections.shuffle` with `java.util.Random`, since Java workers must come to the same result.
"""

from collections.abc import Iterable
from typing import Final

from kcl_dagster.model.lease import Lease, WorkerId

_SEED: Final = 1947
_MULTIPLIER: Final = 0x5DEECE66D
_INCREMENT: Final = 0xB
_STATE_MASK: Final = (1 << 48) - 1


class _JavaRandom:
    """The linear congruential generator that Java specifies."""

    def __init__(self, seed: int) -> None:
        self._state = (seed ^ _MULTIPLIER) & _STATE_MASK

    def _next(self, bits: int) -> int:
        self._state = (self._state * _MULTIPLIER + _INCREMENT) & _STATE_MASK
        return self._state >> (48 - bits)

    def below(self, bound: int) -> int:
        if bound & (bound - 1) == 0:
            return (bound * self._next(31)) >> 31
        while True:
            bits = self._next(31)
            value = bits % bound
            if bits - value + bound - 1 < 1 << 31:  # the last, incomplete block would be favoured
                return value


def _java_order(name: str) -> bytes:
    """Java compares UTF-16 units."""
    return name.encode("utf-16-be", "surrogatepass")


def elected(leases: Iterable[Lease], leaders: int = 1) -> list[WorkerId]:
    """The first `leaders` owners of the shuffled list; empty when no lease has an owner."""
    owners = sorted({lease.owner for lease in leases if lease.owner is not None}, key=_java_order)
    random = _JavaRandom(_SEED)
    for size in range(len(owners), 1, -1):
        chosen = random.below(size)
        owners[size - 1], owners[chosen] = owners[chosen], owners[size - 1]
    return owners[:leaders]


def leads(worker: WorkerId, leases: Iterable[Lease], leaders: int = 1) -> bool:
    """With no owner at all everyone leads: someone must create the first leases."""
    chosen = elected(leases, leaders)
    return not chosen or worker in chosen
