"""Many seeds, one after another or side by side, and what to say about them."""

import gc
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from typing import Final

from tests.simulation.contest import draw_contest, run_contest
from tests.simulation.fleet import Outcome
from tests.simulation.properties import Violation
from tests.simulation.replays import draw_replays, run_replays
from tests.simulation.scenario import Scenario, draw
from tests.simulation.shrink import run

SECONDS_PER_HOUR = 3600.0
SECONDS_PER_MINUTE = 60.0
# Seeds handed to each process before their turn: enough to keep it busy while an earlier one takes long.
AHEAD = 4
# Allocations until the garbage collector looks at the youngest objects, and how often it looks at older ones.
RARELY = (50_000, 20, 20)


@dataclass(frozen=True, slots=True)
class Result:
    """A finished seed, small enough to travel between processes."""

    seed: int
    violations: tuple[Violation, ...]
    digest: int
    hours: float
    cpu_seconds: float
    steps: int
    records: int
    faults: int


# What a seed may stand for: a fleet under every fault there is, many leaders of one application, or replays.
KINDS: Final[dict[str, tuple[Callable[[int], Scenario], Callable[..., Outcome]]]] = {
    "fleet": (draw, run),
    "leaders": (draw_contest, run_contest),
    "replays": (draw_replays, run_replays),
}


@contextmanager
def _rare_collections() -> Iterator[None]:
    """A run makes many small objects and few cycles: by its usual thresholds the collector looks at all of them far
    too often. What was there before is not looked at again, and what the run leaves is collected at its end."""
    usual = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*RARELY)
    try:
        yield
    finally:
        gc.collect()
        gc.set_threshold(*usual)
        gc.unfreeze()


def run_seed(seed: int, kind: str = "fleet") -> Result:
    began = time.process_time()
    with _rare_collections():
        result = _result(seed, kind)
    return replace(result, cpu_seconds=time.process_time() - began)


def _result(seed: int, kind: str) -> Result:
    draw_it, run_it = KINDS[kind]
    outcome = run_it(draw_it(seed))
    return Result(
        seed=seed,
        violations=tuple(outcome.violations),
        digest=outcome.digest,
        hours=(outcome.simulated - outcome.scenario.asleep) / SECONDS_PER_HOUR,
        cpu_seconds=0.0,
        steps=outcome.steps,
        records=outcome.records,
        faults=len(outcome.scenario.faults),
    )


def run_seeds(seeds: Iterable[int], jobs: int = 1, kind: str = "fleet") -> Iterator[Result]:
    """In the order of the seeds. With several jobs each has its own process; the results are the same."""
    if jobs == 1:
        yield from (run_seed(seed, kind) for seed in seeds)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for seed in seeds:
                waiting.append(pool.submit(run_seed, seed, kind))
                if len(waiting) > AHEAD * jobs:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


@dataclass(slots=True)
class Tally:
    """What many results add up to."""

    seeds: int = 0
    hours: float = 0.0
    cpu_seconds: float = 0.0
    steps: int = 0
    records: int = 0
    faults: int = 0
    failed: list[Result] = field(default_factory=list)

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.hours += result.hours
        self.cpu_seconds += result.cpu_seconds
        self.steps += result.steps
        self.records += result.records
        self.faults += result.faults
        if result.violations:
            self.failed.append(result)

    @property
    def hours_per_cpu_minute(self) -> float:
        return self.hours / max(self.cpu_seconds / SECONDS_PER_MINUTE, 1e-9)

    def __str__(self) -> str:
        return (
            f"{self.seeds} seeds, {self.faults} faults, {self.hours:,.0f} fleet-hours, {self.records:,} records, "
            f"{self.steps:,} steps in {self.cpu_seconds:.0f} CPU-seconds "
            f"({self.hours_per_cpu_minute:,.0f} fleet-hours per CPU-minute): "
            + (f"{len(self.failed)} failed" if self.failed else "all properties held")
        )
