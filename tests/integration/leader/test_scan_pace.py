"""A leader whose reads take long does not read in each tick, and does what it did before."""

from collections.abc import Callable

import pytest

from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.tables.control import Control, ControlRow
from kcl_dagster.tables.places import TableLayout
from tests.integration.leader.town import TICK, Town, Worker, shard_id

SCAN_SECONDS = 3.0
STEPS = 24


def settled(town: Town, scan_seconds: float) -> list[Worker]:
    """Two workers that read all shards. Each scan takes so long."""
    town.tick()
    workers = [town.start(f"worker-{n:03d}") for n in range(2)]
    town.until(lambda report: not report.unserved and not report.moves)
    town.step(4)

    def slow(method: str, _request: object) -> bool:
        if method == "scan":
            town.clock.advance(scan_seconds)
        return False

    town.dynamodb.fails = slow
    town.step(2)
    return workers


def scans(town: Town, act: Callable[[], object]) -> int:
    town.dynamodb.calls.clear()
    act()
    return town.dynamodb.calls.count("scan")


def read(report: TickReport) -> bool:
    return report.skipped is None


def test_short_reads_are_made_in_each_tick(town: Town) -> None:
    settled(town, 0.1)
    assert scans(town, lambda: town.step(STEPS)) == STEPS


def test_long_reads_take_a_quarter_of_the_time_at_most(town: Town) -> None:
    settled(town, SCAN_SECONDS)
    began = town.clock.monotonic()
    made = scans(town, lambda: town.step(STEPS))
    took = town.clock.monotonic() - began
    assert 0 < made <= 1 + took / (4 * SCAN_SECONDS)
    assert all(report.leading for report in town.reports[-STEPS:])


def test_the_lead_is_kept_without_reads(town: Town) -> None:
    settled(town, SCAN_SECONDS)
    other = town.open_leader("another-deployment")
    for _ in range(STEPS):
        town.step()
        assert not other.tick(town.view()).leading
    assert town.reports[-1].leading


def test_a_run_that_ends_is_a_reason_to_read(town: Town) -> None:
    worker, other = settled(town, SCAN_SECONDS)
    town.until(lambda report: not read(report))
    town.kill(worker, seen=True)
    assert read(town.step())
    assert set(town.owners().values()) == {other.id}


def test_a_pause_by_an_operator_is_a_reason_to_read(town: Town) -> None:
    settled(town, SCAN_SECONDS)
    town.until(lambda report: not read(report))
    layout = TableLayout.single(town.application)
    control = ControlRow(town.dynamodb, town.application, layout, town.runtime)
    control.save(Control(leases=frozenset([LeaseKey(shard_id(0))]), changed_by="ops"))
    assert read(town.step())
    assert town.owners()[shard_id(0)] is None


@pytest.mark.parametrize("scan_seconds", [0.1, SCAN_SECONDS])
def test_a_silent_death_is_found_at_most_half_a_lease_duration_later(town: Town, scan_seconds: float) -> None:
    worker, other = settled(town, scan_seconds)
    town.kill(worker, seen=False)
    took = town.until(lambda report: {lease.owner for lease in report.leases} == {other.id})
    timings = town.application.timings
    slack = 2 * (TICK + scan_seconds)
    pause = 0.0 if scan_seconds < 1 else timings.lease_duration / 2
    assert timings.lease_duration - timings.renewal_interval <= took <= timings.lease_duration + pause + slack


def test_new_leases_wait_at_most_half_a_lease_duration_longer(town: Town) -> None:
    workers = settled(town, SCAN_SECONDS)
    town.until(lambda report: not read(report))
    town.split(shard_id(0))
    [owner] = [worker for worker in workers if shard_id(0) in worker.shards()]
    owner.finish(shard_id(0))
    took = town.until(lambda report: any(move.kind == "unserved" for move in report.moves))
    assert took <= town.application.timings.lease_duration / 2 + TICK + SCAN_SECONDS


def test_a_read_that_takes_the_whole_budget_leaves_time_to_decide(town: Town) -> None:
    """No tick of a table this large decided anything: each began with a read that took the budget of the tick."""
    budget = town.application.timings.tick_budget

    def slow(method: str, _request: object) -> bool:
        if method == "scan":
            town.clock.advance(budget + 5.0)
        return False

    town.tick()
    workers = [town.start(f"worker-{n:03d}") for n in range(2)]
    town.dynamodb.fails = slow
    report = town.tick()
    assert all(stage.ok for stage in report.stages)
    assert set(town.owners().values()) == {worker.id for worker in workers}
