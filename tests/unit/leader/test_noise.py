"""Fleets under steady load whose figures jitter: leases find their places, and stay there."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from kcl_dagster.leader.assignment.balanced import balanced
from kcl_dagster.leader.assignment.policy import AssignmentLimits, Move
from kcl_dagster.leader.liveness import WorkerSight
from kcl_dagster.leader.load import WATCH_SECONDS, LoadBook
from kcl_dagster.leader.memory import Memory
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.worker_row import CPU, WorkerRow

pytestmark = pytest.mark.slow

TICK = 5.0
MINUTE = 12  # ticks
SETTLING = 20 * MINUTE
WATCHED = 70 * MINUTE
FLEETS = 10
NOISE = 0.3  # of every throughput and of every CPU figure, evenly distributed
PERCENT_PER_KBPS = 0.01  # on a machine of speed 1: half of a CPU for the largest share below


@dataclass
class NoisyFleet:
    """Workers on machines of different speeds, leases of different weights, and a leader's book."""

    seed: int
    book: LoadBook = field(default_factory=LoadBook)
    ticks: int = 0

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        workers = self.random.choice([2, 3, 4, 6, 8])
        self.workers = [WorkerId(f"worker-{index:03d}:run") for index in range(workers)]
        self.speeds = {worker: self.random.choice([0.5, 1.0, 1.0, 1.5, 2.0]) for worker in self.workers}
        leases = workers * self.random.choice([2, 4, 8])
        weigh: Callable[[], float] = self.random.choice([lambda: 200.0, lambda: self.random.uniform(50, 800)])
        self.kbps = {LeaseKey(f"shard-{index:04d}"): weigh() for index in range(leases)}
        self.owner = {key: self.workers[index % workers] for index, key in enumerate(self.kbps)}
        self.cpu: dict[WorkerId, list[float]] = {worker: [] for worker in self.workers}
        self.seen = dict(self.kbps)

    def noisy(self, value: float) -> float:
        return value * self.random.uniform(1 - NOISE, 1 + NOISE)

    def tick(self) -> tuple[Move, ...]:
        """Five seconds: workers publish, the leader decides, handoffs are done."""
        self.ticks += 1
        if self.ticks % 2:  # a lease is renewed every ten seconds
            self.seen = {key: self.noisy(kbps) for key, kbps in self.kbps.items()}
        for worker in self.workers:
            used = self.noisy(self.load(worker) * PERCENT_PER_KBPS)
            self.cpu[worker] = [*self.cpu[worker][-14:], min(100.0, used)]
        leases = [self.lease(key) for key in self.kbps]
        sights = [self.sight(worker) for worker in self.workers]
        self.book.see(leases, sights, self.ticks * TICK)
        loads = [self.book.load(lease, unserved=None, pinned=False, age=0.0) for lease in leases]
        limits = AssignmentLimits(settled=self.book.settled, watched=self.book.is_watched)
        decided = balanced(loads, [self.book.worker(sight) for sight in sights], limits)
        self.book.note_outside(decided.outside)
        self.owner |= {move.lease: move.to for move in decided.moves}
        return decided.moves

    def moves(self, ticks: int) -> int:
        return sum(len(self.tick()) for _ in range(ticks))

    def load(self, worker: WorkerId) -> float:
        """Work in units of a machine of speed 1."""
        held = (kbps for key, kbps in self.kbps.items() if self.owner[key] == worker)
        return sum(held) / self.speeds[worker]

    def lease(self, key: LeaseKey) -> Lease:
        at = Checkpoint(str(self.ticks))
        return Lease(key, key, owner=self.owner[key], checkpoint=at, throughput_kbps=self.seen[key])

    def sight(self, worker: WorkerId) -> WorkerSight:
        averages = {CPU: tuple(self.cpu[worker])}
        row = WorkerRow(worker, 1, averages=averages, operating_range={CPU: (100,)}, slot=worker.split(":")[0])
        return WorkerSight(row, alive=True, run_is_over=False, accepts=True)

    def restart_leader(self) -> None:
        """The next leader knows what the last one wrote down."""
        memory, restored = Memory(), Memory()
        memory.costs = {worker: float(f"{cost:.3g}") for worker, cost in self.book.costs.items()}
        restored.absorb(memory.to_document(1.0), 0.0)
        self.book = LoadBook()
        self.book.recall_costs(restored.costs)


@pytest.mark.audit("C9")
def test_fleets_under_steady_load_settle_whatever_the_noise() -> None:
    """Machines are up to four times as fast as others. After it has settled a fleet is watched for 70 minutes."""
    late: dict[int, int] = {}
    for seed in range(FLEETS):
        fleet = NoisyFleet(seed)
        fleet.moves(SETTLING)
        mean = sum(fleet.kbps.values()) / sum(fleet.speeds.values())
        coarse = max(fleet.kbps.values()) / min(fleet.speeds.values())
        assert max(map(fleet.load, fleet.workers)) <= mean * 1.25 + coarse
        late[seed] = fleet.moves(WATCHED)
    assert max(late.values()) <= 4, late
    assert sum(late.values()) <= FLEETS / 2, late


@pytest.mark.audit("C9")
def test_a_leader_that_is_restarted_moves_nothing_of_what_has_settled() -> None:
    moved = 0
    for seed in range(FLEETS):
        fleet = NoisyFleet(seed)
        fleet.moves(SETTLING)
        fleet.restart_leader()
        moved += fleet.moves(10 * MINUTE)
    assert moved <= FLEETS / 2


@pytest.mark.audit("C9")
def test_a_lasting_change_moves_leases_within_minutes() -> None:
    fleet = NoisyFleet(3)
    fleet.moves(SETTLING)
    busiest = max(fleet.workers, key=fleet.load)
    for key in [key for key, owner in fleet.owner.items() if owner == busiest]:
        fleet.kbps[key] *= 3
    before = fleet.load(busiest)
    assert fleet.moves(3 * MINUTE) > 0
    assert fleet.load(busiest) < before


@pytest.mark.audit("C9")
def test_loads_that_were_only_just_seen_are_no_reason_for_a_handoff() -> None:
    for seed in range(FLEETS):
        assert NoisyFleet(seed).moves(int(WATCH_SECONDS / TICK)) == 0
