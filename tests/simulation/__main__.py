"""`python -m tests.simulation --seeds 1-200`: simulate fleets and say which seeds broke a property."""

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Iterable

from tests.simulation.campaign import KINDS, Tally, run_seeds
from tests.simulation.fleet import Outcome
from tests.simulation.scenario import draw
from tests.simulation.shrink import only, run, shrink

PROGRESS_SECONDS = 5.0
BAR_FLEET_HOURS = 1000  # per CPU-minute
FLEET = "fleet"


def say(text: str = "") -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def seeds_of(text: str) -> list[int]:
    """`7`, `1-200` or `3,9,20-30`."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        seeds += range(int(first), int(last if dash else first) + 1)
    return seeds


def replay_command(outcome: Outcome) -> str:
    kept = [fault.id for fault in outcome.scenario.faults]
    every = [fault.id for fault in draw(outcome.scenario.seed).faults]
    faults = "" if sorted(kept) == sorted(every) else f" --faults {','.join(map(str, kept)) or 'none'}"
    return f"python -m tests.simulation --seed {outcome.scenario.seed}{faults} --trace"


def describe(outcome: Outcome) -> None:
    scenario = outcome.scenario
    say(
        f"seed {scenario.seed}: {scenario.application.policy.name} policy, {scenario.stretch}x, "
        f"shards {scenario.shards}, {scenario.deployments} deployments of {scenario.daemons} daemons, "
        f"{outcome.simulated / 3600:.1f} h, {outcome.steps} steps, digest {outcome.digest:08x}"
    )
    for fault in scenario.faults:
        say(f"  fault {fault}")
    for violation in outcome.violations:
        say(f"  VIOLATION {violation}")
    if outcome.ok:
        say("  all properties held")


def replay(arguments: argparse.Namespace) -> int:
    draw_it, rerun = KINDS[arguments.scenario]
    scenario = draw_it(arguments.seed)
    if arguments.faults is not None:
        ids = () if arguments.faults == "none" else map(int, arguments.faults.split(","))
        scenario = only(scenario, frozenset(ids))
    outcome = rerun(scenario, keep_trace=arguments.trace)
    for line in outcome.lines:
        say(line)
    if not outcome.ok and arguments.shrink and arguments.scenario == FLEET:
        outcome = shrink(outcome)
    describe(outcome)
    return 0 if outcome.ok else 1


def campaign(seeds: Iterable[int], arguments: argparse.Namespace) -> int:
    tally, told = Tally(), time.monotonic()
    until = time.monotonic() + arguments.minutes * 60 if arguments.minutes else None
    results = run_seeds(seeds, arguments.jobs, arguments.scenario)
    again = "" if arguments.scenario == FLEET else f" --scenario {arguments.scenario}"
    for result in results:
        tally.add(result)
        if result.violations:
            say(f"seed {result.seed} FAILED: {result.violations[0]}")
            say(f"  replay: python -m tests.simulation --seed {result.seed}{again} --trace")
            if arguments.shrink and not again:
                small = shrink(run(draw(result.seed)))
                describe(small)
                say(f"  replay: {replay_command(small)}")
        if time.monotonic() - told > PROGRESS_SECONDS:
            told = time.monotonic()
            say(f"... {tally}")
        if until is not None and time.monotonic() > until:
            break
    say(str(tally))
    say(json.dumps(figure(tally)))
    return 1 if tally.failed else 0


def figure(tally: Tally) -> dict[str, object]:
    """How fast it was, as the benches tell theirs. The bar is for the machine it runs on; nothing fails by it."""
    value = round(tally.hours_per_cpu_minute)
    return {
        "figure": "simulated fleet-hours",
        "value": value,
        "unit": "per CPU-minute",
        "bar": BAR_FLEET_HOURS,
        "ok": value >= BAR_FLEET_HOURS,
        "seeds": tally.seeds,
        "failed": len(tally.failed),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="1-200", help="which seeds: 7, 1-200 or 3,9,20-30")
    parser.add_argument(
        "--minutes", type=float, help="stop after this; without --seeds go on with new seeds until then"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per CPU)")
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument(
        "--scenario",
        choices=sorted(KINDS),
        default=FLEET,
        help="everything, many leaders of one application, or replays",
    )
    parser.add_argument("--faults", help="with --seed: only these faults, by number, or 'none'")
    parser.add_argument("--trace", action="store_true", help="with --seed: everything that happened")
    parser.add_argument("--shrink", action="store_true", help="make failing runs small")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return replay(arguments)
    if arguments.minutes and arguments.seeds == parser.get_default("seeds"):
        return campaign(itertools.count(int(time.time())), arguments)
    return campaign(seeds_of(arguments.seeds), arguments)


if __name__ == "__main__":
    sys.exit(main())
