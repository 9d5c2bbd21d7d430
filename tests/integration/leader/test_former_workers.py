"""Workers of version 0.1 share the leases of an application with workers of this version, while it is upgraded."""

import pytest

from kcl_dagster.application import Application, FleetSettings
from kcl_dagster.leader.run_view import LoadedCode
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.claim import ChainId, Claim, ClaimId
from tests.integration.leader.town import Town, Worker

SHARDS = 4
FLEET = FleetSettings(min_workers=4, max_workers=5)


@pytest.fixture
def town() -> Town:
    """Two former workers that share the leases."""
    town = Town(Application(name="orders-app", streams="orders", fleet=FLEET), SHARDS)
    town.tick()
    for slot in ("worker-000", "worker-001"):
        town.start(slot, is_former=True)
    town.until(lambda _: all(len(worker.shards()) == SHARDS / 2 for worker in town.workers.values()))
    return town


def served(town: Town) -> dict[str, str | None]:
    """Leases whose owners live, and hold them."""
    return {
        holding.key: worker.id
        for worker in town.workers.values()
        if worker.alive
        for holding in worker.holdings.holdings()
        if town.owners()[holding.key] == worker.id
    }


def claim(town: Town, worker: Worker) -> None:
    """The worker begins a chain for its leases, and ends without settling it."""
    for holding in worker.holdings.holdings():
        chain = Claim(ChainId(f"chain-of-{holding.key}"), ClaimId(f"claim-of-{holding.key}"))
        town.leases.checkpoint(holding.lease, Checkpoint("7"), claim=chain)


def test_a_worker_of_this_version_gets_the_leases_of_former_ones_that_end() -> None:
    town = Town(Application(name="orders-app", streams="orders", fleet=FLEET), SHARDS)
    town.tick()
    former = [town.start(f"worker-00{number}", is_former=True) for number in range(SHARDS)]
    town.until(lambda _: [len(worker.shards()) for worker in former] == [1, 1, 1, 1])
    present = town.start("worker-004")
    for worker in former[:2]:
        town.kill(worker, seen=True)
        town.until(lambda _: town.owners().keys() == served(town).keys())
    assert len(present.shards()) == 2


def test_a_lease_whose_claim_was_not_ended_waits_for_a_worker_of_this_version(town: Town) -> None:
    former = set(town.workers)
    present = town.start("worker-002")
    town.kill(town.workers[min(former)], seen=True)
    town.until(lambda _: len(present.shards()) == SHARDS / 2)
    claim(town, present)
    claimed = {lease.key for lease in town.scan().values() if lease.claim is not None}
    town.kill(present, seen=True)
    report = town.step(40)
    assert set(report.unserved) == claimed
    assert len(claimed) == SHARDS / 2
    successor = town.start("worker-002")
    town.until(lambda _: {town.lease(key).actual_owner for key in claimed} == {successor.id})


def test_a_lease_without_a_claim_does_not_wait(town: Town) -> None:
    [first, second] = town.workers.values()
    town.kill(first, seen=True)
    town.until(lambda _: set(town.owners().values()) == {second.id})


def test_the_leader_replaces_former_workers_one_after_the_other(town: Town) -> None:
    former = list(town.workers.values())
    fewest = len(former)
    town.code = LoadedCode("present", town.clock.now())
    town.restart_leader()

    def all_leases_are_elsewhere() -> bool:
        nonlocal fewest
        town.obey(town.reports[-1])
        for worker in former:
            if worker.alive and worker.heartbeat.drain_requested and not worker.shards():
                worker.heartbeat.stop()
                town.kill(worker, seen=True)
        fewest = min(fewest, sum(worker.alive for worker in town.workers.values()))
        owners = set(town.owners().values())
        return None not in owners and owners.isdisjoint(worker.id for worker in former)

    town.until(lambda _: all_leases_are_elsewhere())
    assert fewest == len(former)
