"""Measures how well policies assign leases: `balanced`, and the rules of KCL 3.x (`kcl`) and 2.x (`taker`).

    python -m benchmarks.leader            a table, the bars, and one JSON line per row
    python -m benchmarks.leader --small    without the large fleets and the whole tick

Fleets are made from a fixed seed, so every run and every policy gets the same shards. A pass is one call of a
policy, at the interval of this policy: 5 s for `balanced`, and 20 s for the two others. `kcl` balances only in
every third pass.

The moves of a policy are compared with a lower bound. This is the smallest number of leases that must get another
owner, so that all leases are served and each worker has between 90 % and 105 % of its share. `max/even` is the load
of the worker with the highest load, divided by the load that it would have if shards could be divided. If a shard
is heavier than a worker's share, its load counts as the share of its worker.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import accumulate, chain
from random import Random

from benchmarks import leader_tick
from kcl_dagster.leader.assignment.assignment_state import fair_share
from kcl_dagster.leader.assignment.balanced import balanced
from kcl_dagster.leader.assignment.policy import Assignment, AssignmentLimits, LeaseLoad, Policy, WorkerLoad
from kcl_dagster.leader.assignment.taker import TakerPolicy
from kcl_dagster.leader.assignment.variance import Variance
from kcl_dagster.leader.load import PATIENCE
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.lease_taking import TakingRules

SEED = 20_270_101
LOW, HIGH = 0.90, 1.05  # the loads between which a worker counts as balanced, as parts of its share
MOST_PASSES, MOST_MOVES, MOST_SECONDS = 2, 1.2, 1.0  # the bars for `balanced`
GIVE_UP = 120  # passes
GIVE_UP_LARGE = 5  # passes of fleets with 1,000 workers, because a pass of `kcl` or `taker` then takes a second
QUIET = 15  # after this many passes without a move, the policy will make no more moves
JITTER = 0.10
JITTER_SECONDS = 3600.0
EVEN_CPU = 50.0  # percent of CPU of a worker with an even share, for policies that balance CPU


@dataclass
class Fleet:
    """The real state of a fleet: the throughput of every shard, and the worker that reads it."""

    name: str
    kbps: dict[LeaseKey, float]
    workers: list[WorkerId]
    owner: dict[LeaseKey, WorkerId | None] = field(default_factory=dict)

    def copy(self) -> "Fleet":
        return Fleet(self.name, dict(self.kbps), list(self.workers), dict(self.owner))

    def loads(self) -> dict[WorkerId, float]:
        loads = dict.fromkeys(self.workers, 0.0)
        for lease, worker in self.owner.items():
            if worker in loads:
                loads[worker] += self.kbps[lease]
        return loads

    def share(self) -> float:
        """The load of each worker if shards could be divided. A shard that is heavier than this load fills one
        worker alone."""
        return fair_share(self.kbps.values(), [1.0] * len(self.workers))

    def even(self) -> float:
        """The lowest load that the worker with the highest load can have, without shards that are heavier than a
        share. If n workers have more than n times k shards, at least one worker has k + 1 of them, so this load can
        be higher than a share."""
        share, workers = self.share(), len(self.workers)
        shared = sorted((kbps for kbps in self.kbps.values() if kbps <= share), reverse=True)
        workers -= len(self.kbps) - len(shared)
        crowded = [(k // workers + 1) * shared[k] for k in range(workers, len(shared), max(1, workers))]
        return max(share, *crowded) if workers and crowded else share

    def max_by_even(self) -> float:
        even = self.even()
        heaviest = dict.fromkeys(self.workers, 0.0)
        for lease, worker in self.owner.items():
            if worker in heaviest:
                heaviest[worker] = max(heaviest[worker], self.kbps[lease])
        return max(load / max(even, heaviest[worker]) for worker, load in self.loads().items() if load)

    def unserved(self) -> int:
        return sum(worker not in set(self.workers) for worker in self.owner.values())

    def fewest_moves(self) -> int:
        """A lower bound for the number of moves in plans that move each lease at most once."""
        even, loads = self.even(), self.loads()
        held: dict[WorkerId, list[float]] = {worker: [] for worker in self.workers}
        for lease, worker in self.owner.items():
            if worker in held:
                held[worker].append(self.kbps[lease])
        highest = {worker: max([even, *held[worker]]) * HIGH for worker in held}
        excess = {worker: loads[worker] - highest[worker] for worker in held}
        # A worker above its share has no room, even if it has a hot shard, beside which another lease would weigh
        # little.
        rooms = sorted((max(0.0, even * HIGH - loads[worker]) for worker in held), reverse=True)
        spare = {worker: min(rooms[0], max(loads[worker] - even * LOW, excess[worker])) for worker in held}
        given = sum(
            _fewest([weight for weight in held[worker] if weight <= spare[worker]], excess[worker])
            for worker in held
        )
        orphans = [self.kbps[lease] for lease, worker in self.owner.items() if worker not in held]
        homeless = sorted((weight for weight in orphans if weight <= even), reverse=True)
        surplus = sum(each for each in excess.values() if each > 0)
        # If a lease is heavier than the room of each worker, other leases have to leave the worker that gets it.
        # Each of these leases gets a worker of its own, or takes no more room than its new worker has.
        driven_out = max(
            _fewest(rooms, surplus + weight) - heaviest
            for heaviest, weight in enumerate(accumulate(homeless, initial=0.0))
        )
        fitting = [weight for weight in self.kbps.values() if weight <= even * HIGH]
        needed = min(even * LOW, self.share() - min(self.kbps.values()))
        received = sum(_fewest(fitting, needed - load) for load in loads.values())
        return max(self.unserved() + max(given, driven_out), received)


def _fewest(amounts: list[float], needed: float) -> int:
    """The smallest number of `amounts` whose sum is at least `needed`. The largest amounts are used first."""
    count = 0
    for amount in sorted(amounts, reverse=True):
        if needed <= 1e-9:
            break
        needed -= amount
        count += 1
    return count


@dataclass(frozen=True)
class Candidate:
    """A policy, with the seconds between its passes. It balances in every `balances_every`-th pass."""

    name: str
    seconds: float
    balances_every: int
    make: Callable[[], Policy]


CANDIDATES = [
    Candidate("balanced", 5.0, 1, lambda: balanced),
    Candidate("kcl", 20.0, 3, lambda: Variance(Random(SEED).shuffle)),
    Candidate("taker", 20.0, 1, lambda: TakerPolicy(TakingRules(10.0), Random(SEED))),
]


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    scenario: str
    policy: str
    passes: int
    seconds: float
    moves: int
    fewest: int
    max_by_even: float
    unserved: int
    jitter_moves: int
    decision_seconds: float

    def figures(self) -> list[tuple[str, float, str, float]]:
        """The figures of the row: name, value, unit, and the largest value that is allowed for `balanced`."""
        return [
            ("max/even", self.max_by_even, "x", HIGH),
            ("passes", self.passes, "passes", MOST_PASSES),
            ("moves", self.moves, "leases", MOST_MOVES * self.fewest),
            ("unserved at the end", self.unserved, "leases", 0),
            ("moves under jitter", self.jitter_moves, "leases", 0),
            ("decision", self.decision_seconds, "s", MOST_SECONDS),
        ]

    def missed(self) -> list[str]:
        """The bars that the figures of this row exceed. The bars apply only to `balanced`."""
        return [f"{name} <= {bar:g} {unit}" for name, value, unit, bar in self.figures() if value > bar]

    def to_json(self) -> list[str]:
        is_held = self.policy == "balanced"
        return [
            json.dumps(
                {
                    "figure": f"{self.scenario}, {self.policy}: {name}",
                    "value": value,
                    "unit": unit,
                    "bar": bar if is_held else None,
                    "ok": value <= bar if is_held else None,
                }
            )
            for name, value, unit, bar in self.figures()
        ]


class Trial:
    """Applies one policy to one fleet, pass by pass."""

    def __init__(self, candidate: Candidate, fleet: Fleet) -> None:
        self.candidate, self.fleet = candidate, fleet
        self.policy = candidate.make()
        self.passes = 0
        self.slowest = 0.0
        self.outside: dict[WorkerId, int] = {}

    def step(self, jitter: Random | None = None) -> int:
        """Carry out one pass. Returns the number of leases that were moved. `jitter`: changes the observed
        throughputs at random."""
        seen = {
            lease: kbps * (1 + (jitter.uniform(-JITTER, JITTER) if jitter is not None else 0.0))
            for lease, kbps in self.fleet.kbps.items()
        }
        decided = self._decide(seen)
        for move in decided.moves:
            self.fleet.owner[move.lease] = move.to
        self.passes += 1
        return len(decided.moves)

    def _decide(self, seen: Mapping[LeaseKey, float]) -> Assignment:
        alive = set(self.fleet.workers)
        leases = [
            LeaseLoad(
                lease,
                owner=self.fleet.owner[lease],
                kbps=kbps,
                unserved=None if self.fleet.owner[lease] in alive else "nobody serves it",
                age=0.0 if self.fleet.owner[lease] in alive else 60.0,
            )
            for lease, kbps in seen.items()
        ]
        loads = dict.fromkeys(self.fleet.workers, 0.0)
        for load in leases:
            if load.owner in loads:
                loads[load.owner] += load.kbps or 0.0
        share = sum(seen.values()) / len(loads)
        workers = [
            WorkerLoad(worker, averages={"C": EVEN_CPU * load / share}, ceilings={"C": 100.0})
            for worker, load in loads.items()
        ]
        settled = frozenset(worker for worker, passes in self.outside.items() if passes >= PATIENCE)
        limits = AssignmentLimits(
            moves=len(leases), settled=settled, balance=self.passes % self.candidate.balances_every == 0
        )
        gc.disable()
        started = time.perf_counter()
        decided = self.policy(leases, workers, limits)
        self.slowest = max(self.slowest, time.perf_counter() - started)
        gc.enable()
        self.outside = {worker: self.outside.get(worker, 0) + 1 for worker in decided.outside}
        return decided


def run(candidate: Candidate, fleet: Fleet, jitter_seconds: float) -> Row:
    """Apply a policy to a fleet until it makes no more moves, and then for `jitter_seconds` with jitter in the
    observed throughputs."""
    fleet = fleet.copy()
    fewest = fleet.fewest_moves()
    trial = Trial(candidate, fleet)
    moves, last = 0, 0
    patience = GIVE_UP if len(fleet.workers) < 500 else GIVE_UP_LARGE
    while trial.passes < patience and trial.passes - last < QUIET:
        moved = trial.step()
        moves += moved
        last = trial.passes if moved else last
    max_by_even, unserved = fleet.max_by_even(), fleet.unserved()
    jitter = Random(SEED + 1)
    jitter_moves = sum(trial.step(jitter) for _ in range(int(jitter_seconds / candidate.seconds)))
    return Row(
        scenario=fleet.name,
        policy=candidate.name,
        passes=last,
        seconds=last * candidate.seconds,
        moves=moves,
        fewest=fewest,
        max_by_even=round(max_by_even, 3),
        unserved=unserved,
        jitter_moves=jitter_moves,
        decision_seconds=round(trial.slowest, 4),
    )


def zipf(shards: int, mean_kbps: float = 50.0, exponent: float = 0.9) -> dict[LeaseKey, float]:
    """The throughputs of a few hot shards and many cool ones, in random order."""
    weights = [1 / (rank + 1) ** exponent for rank in range(shards)]
    scale = mean_kbps * shards / sum(weights)
    Random(SEED).shuffle(weights)
    return {LeaseKey(f"shardId-{index:012d}"): weight * scale for index, weight in enumerate(weights)}


def names(workers: int, first: int = 0) -> list[WorkerId]:
    return [WorkerId(f"worker-{index:03d}:{index:08x}") for index in range(first, first + workers)]


def settled(fleet: Fleet) -> Fleet:
    """Assign the shards of a fleet evenly: each shard, the heaviest first, to the worker with the lowest load.
    Every policy begins with this assignment."""
    loads = dict.fromkeys(fleet.workers, 0.0)
    for lease in sorted(fleet.kbps, key=lambda lease: (-fleet.kbps[lease], lease)):
        worker = min(loads, key=lambda name: (loads[name], name))
        fleet.owner[lease] = worker
        loads[worker] += fleet.kbps[lease]
    return fleet


def cold(name: str, kbps: dict[LeaseKey, float], workers: list[WorkerId]) -> Fleet:
    return Fleet(name, kbps, workers, dict.fromkeys(kbps))


def scenarios(*, large: bool) -> Iterator[tuple[Fleet, float]]:
    """Yield fleets right after an event, and for how many seconds jitter is applied to each of them afterwards."""
    yield cold("cold start, 10 workers, 1,000 shards", zipf(1000), names(10)), JITTER_SECONDS

    added = settled(Fleet("a worker is added to 10", zipf(1000), names(10)))
    added.workers = names(11)
    yield added, JITTER_SECONDS

    removed = settled(Fleet("a worker of 10 dies", zipf(1000), names(10)))
    removed.workers = names(9)
    yield removed, JITTER_SECONDS

    hot = settled(Fleet("a shard gets hot", zipf(1000), names(10)))
    hot.kbps[sorted(hot.kbps, key=lambda lease: hot.kbps[lease])[900]] += hot.share() * 0.7
    yield hot, JITTER_SECONDS

    yield cold("500 shards start on 100 workers", dict.fromkeys(zipf(500), 50.0), names(100)), JITTER_SECONDS / 6
    doubled = settled(Fleet("100 workers become 200, 500 shards", dict.fromkeys(zipf(500), 50.0), names(100)))
    doubled.workers = names(200)
    yield doubled, JITTER_SECONDS / 6

    if large:
        yield cold("cold start, 1,000 workers, 10,000 shards", zipf(10_000), names(1000)), 0
        many = settled(Fleet("10 workers of 1,000 die", zipf(10_000), names(1000)))
        many.workers = names(990)
        yield many, 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="without the large fleets and the whole tick")
    options = parser.parse_args(arguments)
    header = (
        "scenario",
        "policy",
        "passes",
        "seconds",
        "moves",
        "fewest",
        "max/even",
        "unserved",
        "jitter",
        "decide",
    )
    layout = "{:41} {:9} {:>6} {:>8} {:>6} {:>7} {:>9} {:>9} {:>7} {:>9}"
    print(layout.format(*header))
    rows: list[Row] = []
    for fleet, jitter_seconds in scenarios(large=not options.small):
        for candidate in CANDIDATES:
            row = run(candidate, fleet, jitter_seconds)
            rows.append(row)
            values = list(asdict(row).values())
            values[-1] = f"{row.decision_seconds * 1000:.1f} ms"
            values[3] = f"{row.seconds:.0f} s"
            print(layout.format(*values), flush=True)
    print()
    for row in rows:
        if row.policy == "balanced":
            print(
                f"{row.scenario:41} {'MISSED: ' + ', '.join(missed) if (missed := row.missed()) else 'bars hold'}"
            )
    print(flush=True)
    ticks = [] if options.small else leader_tick.run()
    print()
    for line in (*chain.from_iterable(row.to_json() for row in rows), *(figure.to_json() for figure in ticks)):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
