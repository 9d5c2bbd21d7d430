"""Loads that come and go with a period: leases find their places, and stay there."""

from collections.abc import Callable
from random import Random

import pytest

from kcl_dagster.leader.assignment.balanced import throughput
from kcl_dagster.leader.assignment.policy import AssignmentLimits
from kcl_dagster.leader.liveness import WorkerSight
from kcl_dagster.leader.load import LoadBook
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.worker.throughput import Throughput

pytestmark = pytest.mark.slow

TICK = 5
RENEWAL = 10
MINUTE = 60
SETTLING = 20 * MINUTE
WATCHED = 70 * MINUTE
KB = 1024
WORKERS = [WorkerId(f"worker-{number:03d}:run") for number in range(2)]
LEASES = [LeaseKey(f"shard-{number:04d}") for number in range(16)]

Rate = Callable[[int, int], float]
"""The KB/s of a lease, by its number, at a second."""


def steady(_number: int, _at: int) -> float:
    return 200.0


def in_bursts(on: int, period: int) -> Rate:
    """The first half of the leases has bursts, at the same time; the others have little, and it is steady."""

    def rate(number: int, at: int) -> float:
        if number >= len(LEASES) // 2:
            return 50.0
        return 1000.0 if at % period < on else 10.0

    return rate


def late_moves(rate: Rate, batch_seconds: int, seed: int) -> int:
    """How many handoffs a leader begins after `SETTLING`. Workers measure and publish as they do in production."""
    random = Random(seed)
    clock = [0]
    meters = {worker: Throughput(lambda: clock[0], RENEWAL) for worker in WORKERS}
    owner = {key: WORKERS[number * len(WORKERS) // len(LEASES)] for number, key in enumerate(LEASES)}
    batch_offset = {worker: random.randrange(0, batch_seconds, TICK) for worker in WORKERS}
    renewal_offset = {key: random.randrange(0, RENEWAL, TICK) for key in LEASES}
    unread = dict.fromkeys(LEASES, 0.0)
    checkpoints = dict.fromkeys(LEASES, 0)
    published: dict[LeaseKey, float | None] = dict.fromkeys(LEASES)
    for key in LEASES:
        meters[owner[key]].start(key, None)
    book = LoadBook()
    sights = [
        WorkerSight(
            WorkerRow(worker, 1, slot=worker.split(":")[0]),
            alive=True,
            run_is_over=False,
            accepts=True,
            beats=True,
            proven=True,
        )
        for worker in WORKERS
    ]
    late = 0
    for now in range(TICK, SETTLING + WATCHED, TICK):
        clock[0] = now
        for number, key in enumerate(LEASES):
            unread[key] += rate(number, now) * random.uniform(0.9, 1.1) * KB * TICK
            if (now + batch_offset[owner[key]]) % batch_seconds == 0:
                meters[owner[key]].record(key, int(unread[key]))
                unread[key] = 0.0
                checkpoints[key] += 1
            if (now + renewal_offset[key]) % RENEWAL == 0:
                published[key] = meters[owner[key]].publish(key)
        leases = [
            Lease(
                key,
                key,
                owner=owner[key],
                checkpoint=Checkpoint(str(checkpoints[key] + 1)),
                throughput_kbps=published[key],
            )
            for key in LEASES
        ]
        book.see(leases, sights, float(now))
        loads = [book.load(lease, unserved=None, pinned=False, age=0.0) for lease in leases]
        limits = AssignmentLimits(settled=book.settled, watched=book.is_watched)
        decided = throughput(loads, [book.worker(sight) for sight in sights], limits)
        book.note_outside(decided.outside)
        for move in decided.moves:
            meters[owner[move.lease]].stop(move.lease)
            owner[move.lease] = move.to
            meters[move.to].start(move.lease, published[move.lease])
        late += len(decided.moves) if now > SETTLING else 0
    return late


@pytest.mark.parametrize(
    ("rate", "batch_seconds"),
    [
        pytest.param(in_bursts(30, 120), 5, id="30 s of 120 s"),
        pytest.param(in_bursts(60, 300), 5, id="60 s of 300 s"),
        pytest.param(steady, 120, id="steady, in batches of 120 s"),
    ],
)
def test_leases_of_periodic_load_stay_where_they_are_after_twenty_minutes(rate: Rate, batch_seconds: int) -> None:
    assert [late_moves(rate, batch_seconds, seed) for seed in range(2)] == [0, 0]
