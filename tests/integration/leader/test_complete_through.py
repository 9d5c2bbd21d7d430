"""The leader finds out through which moment everything is stored, and writes it down."""

import pytest

from kcl_dagster.application import Application
from kcl_dagster.leader.application_completeness import Hindrance
from kcl_dagster.tables.completeness_row import WrittenThrough
from tests.integration.leader.town import Town, shard_id

MARGIN = 10


@pytest.fixture
def town() -> Town:
    town = Town(Application(name="orders-app", streams="orders"), 2)
    town.start("worker-000")
    town.until(lambda report: bool(report.leases) and all(lease.owner for lease in report.leases))
    town.step()
    return town


def store(town: Town, number: int, through: float) -> None:
    """The worker that has the shard says through when it is stored."""
    [worker] = town.workers.values()
    [holding] = [held for held in worker.holdings.holdings() if held.lease.shard_id == shard_id(number)]
    worker.holdings.stored_through(holding.key, holding.token, through)
    worker.holdings.renew(holding.key)


def test_an_application_is_complete_once_every_shard_says_so(town: Town) -> None:
    now = int(town.clock.now())
    store(town, 0, now)
    held = town.tick().completeness
    assert held is not None
    assert (held.through, held.reached) == (None, None)
    assert str(held.held_by) == f"{shard_id(1)}: {Hindrance.NO_VALUE}"

    store(town, 1, now - 30)
    complete = town.tick().completeness
    assert complete is not None
    assert (complete.through, complete.reached, complete.epoch) == (now - 30 - MARGIN, now - 30 - MARGIN, 0)
    assert complete.held_by is not None
    assert complete.held_by.lease == shard_id(1)
    row = town.leader.tables.completeness.load()
    assert (row.through, row.first) == (now - 30 - MARGIN, complete.first)
    assert complete.first is not None
    assert complete.first.is_creation


def test_the_next_leader_goes_on_with_what_was_written(town: Town) -> None:
    now = int(town.clock.now())
    for number in range(2):
        store(town, number, now)
    town.tick()
    town.leases.delete(town.lease(shard_id(1)), forced=True)  # by hand; it is made again
    town.restart_leader()
    for _ in range(3):
        report = town.step()
        assert report.completeness is not None
        assert report.completeness.through == now - MARGIN
    assert report.completeness is not None
    assert report.completeness.reached is None


def test_after_a_reset_the_leader_does_not_go_on_from_what_it_knew(town: Town) -> None:
    now = int(town.clock.now())
    for number in range(2):
        store(town, number, now)
    town.tick()
    town.leader.tables.completeness.set_back(now - 500)
    town.clock.advance(5)
    for number in range(2):
        store(town, number, now + 1)
    report = town.tick()  # what it knew was read before the reset
    assert report.completeness is not None
    assert (report.completeness.through, report.completeness.epoch) == (now - 500, now)
    assert [reset.back_to for reset in report.resets] == [now - 500]
    row = town.leader.tables.completeness.load()
    assert (row.through, row.epoch, row.back_to) == (now - 500, now, now - 500)


def test_a_lease_without_a_worker_holds_the_application_back(town: Town) -> None:
    for number in range(2):
        store(town, number, town.clock.now())
    [worker] = town.workers.values()
    town.kill(worker, seen=True)
    report = town.tick()
    assert report.completeness is not None
    assert report.completeness.held_by is not None
    assert report.completeness.held_by.why is Hindrance.UNSERVED


def test_a_plan_finds_it_out_and_writes_nothing(town: Town) -> None:
    for number in range(2):
        store(town, number, town.clock.now())
    planned = town.leader.plan(town.view()).completeness
    assert planned is not None
    assert planned.reached is not None
    assert planned.through is None
    assert town.leader.tables.completeness.load() == WrittenThrough()
