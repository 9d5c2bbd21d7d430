"""Making a failing run small: leave faults out as long as it still fails in the same way."""

from collections.abc import Callable
from dataclasses import replace

from tests.simulation.faults import Fault
from tests.simulation.fleet import Outcome, Simulation
from tests.simulation.scenario import Scenario
from tests.simulation.trace import Trace


def run(scenario: Scenario, *, keep_trace: bool = False) -> Outcome:
    """One scenario, from the beginning to its end or its first violation."""
    return Simulation(scenario, Trace(keep=keep_trace)).run()


def shrink(outcome: Outcome, on_try: Callable[[int], None] = lambda _left: None) -> Outcome:
    """The smallest run found that violates the same property. Deterministic; tries about as many runs as there are
    faults, twice. on_try: told how many faults the next run has."""
    wanted = outcome.violations[0].name
    best = outcome
    size = max(1, len(best.scenario.faults) // 2)
    while size:
        smaller = _without_a_slice(best, size, wanted, on_try)
        if smaller is None:
            size //= 2
        else:
            best = smaller
            size = min(size, max(1, len(best.scenario.faults) // 2)) if best.scenario.faults else 0
    return best


def _without_a_slice(best: Outcome, size: int, wanted: str, on_try: Callable[[int], None]) -> Outcome | None:
    faults = best.scenario.faults
    for start in range(0, len(faults), size):
        rest = (*faults[:start], *faults[start + size :])
        on_try(len(rest))
        found = run(replace(best.scenario, faults=rest))
        if any(violation.name == wanted for violation in found.violations):
            return found
    return None


def only(scenario: Scenario, ids: frozenset[int]) -> Scenario:
    """The scenario with these faults and no others."""
    kept: tuple[Fault, ...] = tuple(fault for fault in scenario.faults if fault.id in ids)
    return replace(scenario, faults=kept)
