"""The simulated fleet keeps every property; and it would not, if it were broken."""

import importlib.util
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kcl_dagster.worker.bound import Bound
from kcl_dagster.worker.parents import Parents
from tests.simulation.__main__ import figure, replay_command
from tests.simulation.campaign import Result, Tally, run_seed
from tests.simulation.chained import REMAKES
from tests.simulation.fleet import Outcome
from tests.simulation.incidents import CREATES_LEASE, RELEASES_LOCK
from tests.simulation.planted import MUTANTS, Mutant
from tests.simulation.scenario import FIRST_BOUNDED_SEED, draw
from tests.simulation.shrink import only, run, shrink

# CPU seconds for seeds that no run has used before.
FRESH_SECONDS = [5.0, pytest.param(300.0, marks=pytest.mark.nightly)]

# Seeds that found something once; docs/track-record.md says what.
REGRESSIONS = (
    3,
    4,
    15,
    23,
    28,
    41,
    44,
    71,
    144,
    189,
    282,
    293,
    353,
    372,
    413,
    493,
    543,
    955,
    977,
    1157,
    1279,
    1285,
    1295,
    1376,
    1568,
    1645,
    2006,
    2085,
    4063,
    20014,
)


REGRESSIONS_WITH_INCIDENTS = (322, 349, 635, 803, 806, 1172, 1960, 2202, 2278, 2495, 2498, 2680)


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_a_seed_that_once_found_a_bug_finds_it_no_more(seed: int) -> None:
    # Without incidents, which were not there when the seed found its bug.
    assert run(draw(seed, incidents=False)).violations == []


@pytest.mark.parametrize("seed", REGRESSIONS_WITH_INCIDENTS)
def test_a_seed_that_found_something_with_incidents_finds_it_no_more(seed: int) -> None:
    assert run(draw(seed)).violations == []


# Of each sort: led by daemons or by the runs themselves; runs that end well, are killed, or cannot read a shard.
# The last ones found something.
READ_BY_BOUNDED_RUNS = (30005, 30012, 30015, 30022, 30033, 30053, 32655)


@pytest.mark.parametrize("seed", READ_BY_BOUNDED_RUNS)
def test_bounded_runs_keep_every_property(seed: int) -> None:
    scenario = draw(seed)
    assert scenario.schedule is not None
    assert run(scenario).violations == []


def test_a_bounded_run_that_ends_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bound, "is_reached", lambda _self, stored_through: stored_through is not None)
    assert {one.name for one in run(draw(READ_BY_BOUNDED_RUNS[0])).violations} == {"S16"}


def test_seeds_from_before_there_were_bounded_runs_have_fleets() -> None:
    assert all(draw(seed).schedule is None for seed in (*REGRESSIONS, FIRST_BOUNDED_SEED - 1))
    shares = [draw(seed).schedule is not None for seed in range(FIRST_BOUNDED_SEED, FIRST_BOUNDED_SEED + 200)]
    assert 5 < sum(shares) < 40


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seconds", FRESH_SECONDS)
def test_seeds_that_nobody_has_run_before_keep_every_property(seconds: float) -> None:
    seed, until = time.time_ns() % 10**9, time.process_time() + seconds
    while time.process_time() < until:
        found = run_seed(seed).violations
        assert not found, f"{found[0]}\nreplay: python -m tests.simulation --seed {seed} --trace"
        seed += 1


def test_a_run_is_replayed_by_one_command() -> None:
    scenario = draw(9)
    ids = [fault.id for fault in scenario.faults]
    left = {frozenset(ids): "", frozenset(ids[:1]): f" --faults {ids[0]}", frozenset[int](): " --faults none"}
    for kept, option in left.items():
        outcome = Outcome(only(scenario, kept), [], 0.0, 0, 0, 0, {}, [])
        assert replay_command(outcome) == f"python -m tests.simulation --seed 9{option} --trace"


def test_the_figure_says_whether_the_bar_is_met() -> None:
    result = Result(1, (), 0, hours=50.0, cpu_seconds=3.0, steps=1, records=1, faults=1)
    tally = Tally()
    tally.add(result)
    assert (figure(tally)["value"], figure(tally)["ok"]) == (1000, True)
    tally.add(replace(result, cpu_seconds=4.0))
    assert (figure(tally)["value"], figure(tally)["ok"]) == (857, False)


def digest_elsewhere(seed: int, hash_seed: str) -> str:
    """Of a run in another process, where the hash seed decides how sets are ordered."""
    program = f"from tests.simulation.campaign import run_seed; print(run_seed({seed}).digest)"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_one_seed_is_one_run_in_every_process() -> None:
    assert digest_elsewhere(7, "1") == digest_elsewhere(7, "2")


@pytest.fixture
def impatient_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug on purpose."""
    monkeypatch.setattr(Parents, "is_blocked", lambda _self, _lease: False)


def first_failure(seeds: range) -> Outcome:
    for seed in seeds:
        outcome = run(draw(seed))
        if not outcome.ok and outcome.scenario.faults:
            return outcome
    raise AssertionError("the bug was not found")


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("impatient_children")
def test_a_bug_is_found_and_its_run_made_small() -> None:
    outcome = first_failure(range(1, 60))
    assert outcome.violations[0].name == "S6"
    small = shrink(outcome)
    assert small.violations[0].name == "S6"
    assert len(small.scenario.faults) < len(outcome.scenario.faults)
    # What is left is enough to see it again.
    again = run(only(draw(outcome.scenario.seed), frozenset(fault.id for fault in small.scenario.faults)))
    assert again.digest == small.digest


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_planted_bugs_are_up_to_date(mutant: Mutant) -> None:
    for change in mutant.changes:
        spec = importlib.util.find_spec(change.module)
        assert spec is not None
        assert spec.origin is not None
        text = Path(spec.origin).read_text()
        assert change.applied(text) != text
    assert mutant.needs is None or mutant.needs.operation in {CREATES_LEASE, RELEASES_LOCK, REMAKES}
