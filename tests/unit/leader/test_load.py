"""What leases cost, seen over time."""

from dataclasses import replace
from random import Random

import pytest

from kcl_dagster.leader.liveness import WorkerSight
from kcl_dagster.leader.load import (
    HALF_LIFE_SECONDS,
    IDLE_AFTER_SECONDS,
    PATIENCE,
    SETTLE_SECONDS,
    TOGETHER_SECONDS,
    Estimate,
    LoadBook,
)
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.worker_row import WorkerRow, WorkerState

A, B = WorkerId("worker-000:aaaaaaaa"), WorkerId("worker-001:bbbbbbbb")
TICK = 5.0


def lease(name: str = "s1", owner: WorkerId | None = A, kbps: float | None = 100.0, at: int = 0) -> Lease:
    return Lease(LeaseKey(name), name, owner=owner, checkpoint=Checkpoint(str(at)), throughput_kbps=kbps)


def sight(worker: WorkerId, cpu: float) -> WorkerSight:
    row = WorkerRow(worker, 1, averages={"C": (cpu,)}, operating_range={"C": (100,)}, slot=worker.split(":")[0])
    return WorkerSight(row, alive=True, run_is_over=False, accepts=True)


def test_the_first_value_is_taken_as_it_is() -> None:
    book = LoadBook()
    book.see([lease(kbps=80.0), lease("s2", kbps=None)], [], 0.0)
    assert book.kbps(lease(kbps=80.0)) == 80.0
    assert book.kbps(lease("s2", kbps=None)) is None


def test_jitter_is_smoothed() -> None:
    book, random = LoadBook(), Random(1)
    seen: list[float] = []
    for number in range(200):
        now = lease(kbps=100.0 * random.uniform(0.9, 1.1), at=number)
        book.see([now], [], number * TICK)
        seen.append(book.kbps(now) or 0.0)
    assert max(abs(value - 100.0) for value in seen[10:]) < 5.0


def test_a_change_is_followed_within_a_minute_or_two() -> None:
    book = LoadBook()
    book.see([lease(kbps=100.0)], [], 0.0)
    for number in range(1, 20):
        book.see([lease(kbps=900.0, at=number)], [], number * TICK)
    assert book.kbps(lease()) == pytest.approx(900.0, rel=0.1)


def test_a_value_that_nothing_confirms_fades() -> None:
    """A worker of a Java fleet leaves the last throughput standing when its shard falls silent."""
    book, now = LoadBook(), 0.0
    while now <= IDLE_AFTER_SECONDS:
        book.see([lease()], [], now)
        assert book.kbps(lease()) == 100.0
        now += TICK
    while now <= IDLE_AFTER_SECONDS + 10 * HALF_LIFE_SECONDS:
        book.see([lease()], [], now)
        now += TICK
    assert (book.kbps(lease()) or 0.0) < 1.0


def test_a_constant_flow_does_not_fade() -> None:
    book = LoadBook()
    for number in range(100):
        book.see([lease(at=number)], [], number * TICK)
    assert book.kbps(lease()) == pytest.approx(100.0)


def test_the_slot_that_held_a_lease_last_is_its_home() -> None:
    book = LoadBook()
    book.see([lease()], [], 0.0)
    book.see([lease(owner=None)], [], TICK)
    assert book.load(lease(owner=None), unserved="no worker owns it", pinned=False, age=0.0).home == "worker-000"


def test_what_a_machine_charges_for_its_work_is_learnt_and_not_believed_at_once() -> None:
    book = LoadBook()
    leases = [lease("s1", A), lease("s2", B)]
    for number in range(60):
        moved = [replace(one, checkpoint=Checkpoint(str(number))) for one in leases]
        book.see(moved, [sight(A, 80.0), sight(B, 20.0)], number * TICK)
        if number == 5:
            assert book.worker(sight(A, 80.0)).cost is None, "averages lag behind a change of leases"
    slow, fast = book.worker(sight(A, 80.0)).cost, book.worker(sight(B, 20.0)).cost
    assert slow == pytest.approx(0.8)
    assert fast == pytest.approx(0.2)


def test_an_absurd_price_is_cut() -> None:
    book = LoadBook()
    leases = [lease("s1", A), lease("s2", B), lease("s3", WorkerId("c"))]
    for number in range(60):
        moved = [replace(one, checkpoint=Checkpoint(str(number))) for one in leases]
        book.see(moved, [sight(A, 100.0), sight(B, 1.0), sight(WorkerId("c"), 1.0)], number * TICK)
    assert book.worker(sight(A, 100.0)).cost == pytest.approx(0.04)


def test_imbalance_is_believed_when_it_lasts() -> None:
    book = LoadBook()
    for _ in range(PATIENCE - 1):
        book.note_outside(frozenset({A, B}))
    assert book.settled == frozenset()
    book.note_outside(frozenset({A}))
    assert book.settled == {A}
    book.note_outside(frozenset())
    book.note_outside(frozenset({A}))
    assert book.settled == frozenset()


def test_a_lasting_change_of_a_noisy_value_is_followed_within_a_minute() -> None:
    random = Random(2)
    estimate = Estimate(100.0, 100.0)
    for _ in range(200):
        estimate.see(100.0 * random.uniform(0.7, 1.3), TICK)
    assert estimate.value == pytest.approx(100.0, rel=0.05)
    for _ in range(12):
        estimate.see(200.0 * random.uniform(0.7, 1.3), TICK)
    assert estimate.value == pytest.approx(200.0, rel=0.2)


def test_what_an_earlier_leader_learnt_of_a_machine_is_known_at_once() -> None:
    book = LoadBook()
    book.recall_costs({A: 0.8})
    book.see([lease("s1", A), lease("s2", B)], [sight(A, 80.0), sight(B, 20.0)], 0.0)
    assert book.worker(sight(A, 80.0)).cost == 0.8
    assert book.worker(sight(B, 20.0)).cost is None
    assert book.costs == {A: 0.8}


BACKLOG, USUAL = 1500.0, 100.0


def test_leases_are_not_balanced_by_the_first_records_of_a_shard() -> None:
    """They are a backlog, which is read many times faster than records arrive. A mean over minutes counts."""
    book = LoadBook()
    book.see([lease(kbps=None)], [], 0.0)
    balanced_by: list[float] = []
    for number in range(1, 120):
        kbps = BACKLOG if number <= 4 else USUAL
        book.see([lease(kbps=kbps, at=number)], [], number * TICK)
        load = book.load(lease(kbps=kbps), unserved=None, pinned=False, age=0.0)
        if number * TICK < SETTLE_SECONDS:
            assert load.balanced_kbps is None
            assert load.kbps is not None, "caps count it"
        elif load.balanced_kbps is not None:
            balanced_by.append(load.balanced_kbps)
    assert max(balanced_by) < BACKLOG / 5
    assert balanced_by[-1] < 2 * USUAL


def test_a_backlog_after_a_handoff_is_no_reason_to_balance() -> None:
    book = LoadBook()
    for number in range(200):
        kbps = BACKLOG if 100 <= number < 104 else USUAL
        book.see([lease(kbps=kbps, at=number)], [], number * TICK)
        balanced_by = book.load(lease(), unserved=None, pinned=False, age=0.0).balanced_kbps
        assert balanced_by is not None
        assert USUAL * 0.99 < balanced_by < BACKLOG / 5


def test_what_was_measured_before_a_leader_began_counts_at_once() -> None:
    book = LoadBook()
    book.see([lease(kbps=80.0)], [], 0.0)
    assert book.load(lease(kbps=80.0), unserved=None, pinned=False, age=0.0).balanced_kbps == 80.0


def slow(worker: WorkerId) -> WorkerSight:
    row = WorkerRow(worker, 1, slot=worker.split(":")[0], state=WorkerState.STARTING)
    return WorkerSight(row, alive=True, run_is_over=False, accepts=True, starts_slowly=True)


def test_a_worker_that_was_launched_with_the_first_one_that_reads_has_time_to_come_to_read() -> None:
    book = LoadBook()
    book.see([], [slow(A), slow(B)], 0.0)
    book.see([], [sight(A, 1.0), slow(B)], 40.0)
    assert not book.worker(slow(B)).starts_slowly
    book.see([], [sight(A, 1.0), slow(B)], 40.0 + TOGETHER_SECONDS)
    assert book.worker(slow(B)).starts_slowly
    other = LoadBook()
    other.see([], [sight(A, 1.0), slow(B)], 0.0)
    assert other.worker(slow(B)).starts_slowly, "A may have read for long when the leader began"


def test_leases_that_are_gone_are_forgotten() -> None:
    book = LoadBook()
    book.see([lease()], [], 0.0)
    book.see([], [], TICK)
    book.see([lease(kbps=7.0)], [], 2 * TICK)
    assert book.kbps(lease()) == 7.0
