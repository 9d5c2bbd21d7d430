"""`python -m tests.simulation.mutants`: the simulator has to find every one of these planted bugs.

Each is planted while its module is imported, in a process of its own; nothing on disk changes. The list is in
`tests.simulation.planted`.
"""

import argparse
import importlib.abc
import importlib.machinery
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from types import CodeType, ModuleType
from typing import Final

from tests.simulation.planted import MUTANTS, Change, Mutant, Needed

# Every planted bug is to be found within this many seeds that are hunted with.
MOST_SEEDS: Final = 100
FEWEST_FAULTS: Final = 6


class _Planter(importlib.abc.MetaPathFinder):
    """Finds the mutant's module and compiles it with the bug in it."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        changes = [change for change in self._mutant.changes if change.module == fullname]
        if not changes:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(changes, fullname, spec.origin)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, changes: Sequence[Change], fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self._changes = changes

    def get_code(self, fullname: str) -> CodeType | None:
        text = self.get_data(self.get_filename(fullname)).decode()
        for change in self._changes:
            text = change.applied(text)
        return compile(text, self.path, "exec", dont_inherit=True)


def hunting_seeds(
    needs: Needed | None = None,
    *,
    in_chains: bool = False,
    has_two: bool = False,
    is_upgraded: bool = False,
    changes_duration: bool = False,
    has_long_scans: bool = False,
) -> Iterator[int]:
    """From 1 on, or from the first one in chains or with two destinations, those with several faults, and with the
    one that the bug needs. In the most stretched runs a bug shows as rarely in more hours.

    - `is_upgraded`: only fleets that began with version 0.1.
    - `changes_duration`: only fleets whose lease duration changes.
    - `has_long_scans`: only fleets whose scans take seconds.
    """
    from tests.simulation.scenario import (
        CHAINED_SEEDS,
        FIRST_DURATIONS_SEED,
        FIRST_LONG_SCANS_SEED,
        STRETCHES,
        TWO_DESTINATIONS_SEEDS,
        draw,
    )

    first = TWO_DESTINATIONS_SEEDS.start if has_two else CHAINED_SEEDS.start if in_chains else 1
    first = FIRST_DURATIONS_SEED if changes_duration else first
    first = FIRST_LONG_SCANS_SEED if has_long_scans else first
    for seed in itertools.count(first):
        scenario = draw(seed)
        pauses = {Needed(fault.target, fault.operation) for fault in scenario.faults}
        is_fit = len(scenario.faults) >= FEWEST_FAULTS and scenario.stretch < max(STRETCHES)
        if is_upgraded and (scenario.chained is None or not scenario.chained.is_upgraded):
            continue
        if changes_duration and scenario.lease_durations is None:
            continue
        if has_long_scans and not scenario.page_seconds:
            continue
        if is_fit and (needs is None or needs in pauses):
            yield seed


def hunt(mutant: Mutant, most: int) -> dict[str, object]:
    """Plant it and run seeds until one fails. In this process, which is spoilt by it."""
    sys.meta_path.insert(0, _Planter(mutant))
    from tests.simulation.campaign import run_seed

    seeds: Iterable[int] = itertools.count(1)
    if mutant.kind == "fleet":
        seeds = hunting_seeds(
            mutant.needs,
            in_chains=mutant.in_chains,
            has_two=mutant.has_two,
            is_upgraded=mutant.is_upgraded,
            changes_duration=mutant.changes_duration,
            has_long_scans=mutant.has_long_scans,
        )
    for count, seed in enumerate(itertools.islice(seeds, most), 1):
        result = run_seed(seed, mutant.kind)
        if result.violations:
            first = result.violations[0]
            return {"seeds": count, "seed": seed, "property": first.name, "what": first.what[:160]}
    return {"seeds": None}


def hunt_elsewhere(mutant: Mutant, most: int) -> dict[str, object]:
    """In a process of its own."""
    command = [sys.executable, "-m", "tests.simulation.mutants", "--hunt", mutant.name, "--most", str(most)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"seeds": None, "error": done.stderr.strip().splitlines()[-1:]}
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def _selected(text: str | None) -> Iterator[Mutant]:
    return (mutant for mutant in MUTANTS if text is None or text in mutant.name)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("--most", type=int, default=MOST_SEEDS, help="seeds within which each has to be found")
    parser.add_argument("--only", help="those whose name contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--hunt", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.hunt is not None:
        mutant = next(mutant for mutant in MUTANTS if mutant.name == arguments.hunt)
        sys.stdout.write(json.dumps(hunt(mutant, arguments.most)) + "\n")
        return 0
    began, escaped, most = time.monotonic(), 0, 0
    mutants = list(_selected(arguments.only))
    with ThreadPoolExecutor(arguments.jobs) as pool:
        hunts = {pool.submit(hunt_elsewhere, mutant, arguments.most): mutant for mutant in mutants}
        for hunted in as_completed(hunts):
            mutant, found = hunts[hunted], hunted.result()
            seeds = found["seeds"]
            if isinstance(seeds, int):
                most = max(most, seeds)
                sys.stdout.write(f"{seeds:4} seeds  {found['property']:4} {mutant.name} (seed {found['seed']})\n")
            else:
                escaped += 1
                sys.stdout.write(f"ESCAPED           {mutant.name} {found.get('error', '')}\n")
            sys.stdout.flush()
    verdict = f"{escaped} escaped" if escaped else f"all found, within {most} of {arguments.most} seeds"
    sys.stdout.write(f"{len(mutants)} planted bugs, {verdict} ({time.monotonic() - began:.0f} s)\n")
    return 1 if escaped else 0


if __name__ == "__main__":
    sys.exit(main())
