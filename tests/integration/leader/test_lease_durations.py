"""The lease duration of an application is changed while workers run that began with the former one."""

from dataclasses import replace

import pytest

from kcl_dagster.application import Application, FleetSettings, Timings
from kcl_dagster.model.lease_durations import LONGEST_BELIEVED
from tests.integration.leader.town import TICK, Town, Worker

SHORT, LONG = 10.0, 60.0


def application(lease_duration: float) -> Application:
    fleet = FleetSettings(min_workers=2, max_workers=2)
    timings = Timings(lease_duration=lease_duration, handoff_timeout=15)
    return Application(name="orders-app", streams="orders", timings=timings, fleet=fleet)


def running(lease_duration: float) -> tuple[Town, list[Worker]]:
    """Two workers that share four shards."""
    town = Town(application(lease_duration))
    town.tick()
    workers = [town.start("worker-000"), town.start("worker-001")]
    town.until(lambda _: sorted(len(worker.shards()) for worker in workers) == [2, 2])
    return town, workers


def owners(town: Town) -> dict[str, str | None]:
    return {lease.key: lease.actual_owner for lease in town.scan().values()}


@pytest.mark.parametrize(("before", "after"), [(LONG, SHORT), (SHORT, LONG)])
def test_no_lease_is_taken_from_a_worker_that_renews_by_the_former_duration(before: float, after: float) -> None:
    town, _ = running(before)
    had = owners(town)
    town.application = application(after)
    town.restart_leader()
    for _ in range(60):
        assert town.step().moves == ()
    assert owners(town) == had


def test_a_dead_worker_keeps_its_leases_for_the_duration_by_which_it_renewed() -> None:
    town, (living, dead) = running(LONG)
    town.application = application(SHORT)
    town.restart_leader()
    town.step()
    town.kill(dead, seen=False)
    lasted = town.until(lambda _: set(owners(town).values()) == {living.id})
    assert LONG - LONG / 2 <= lasted <= LONG + 3 * TICK


def test_a_duration_that_cannot_be_meant_is_not_believed() -> None:
    town, (living, dead) = running(LONG)
    dead.heartbeat._row = replace(dead.heartbeat._row, lease_ms=10**12)
    town.step()
    town.kill(dead, seen=False)
    assert town.until(lambda _: set(owners(town).values()) == {living.id}, within=2 * LONGEST_BELIEVED) > LONG
