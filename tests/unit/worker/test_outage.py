"""What fails for all leases alike is tried seldom, reported seldom, and noticed soon when it works again."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from botocore.exceptions import ClientError

from kcl_dagster.worker.events import EventKind
from tests.unit.worker.kit import Run, World

SHARDS = 64


def expired(*_: object) -> None:
    error = {"Error": {"Code": "ExpiredTokenException", "Message": "The security token is expired"}}
    raise ClientError(error, "UpdateItem")  # type: ignore[arg-type]


@pytest.fixture
def world() -> World:
    return World(shards=SHARDS)


@pytest.fixture
def run(world: World) -> Run:
    run = world.worker("w1")
    world.assign(run)
    assert len(run.worker.step_discovery()) == SHARDS
    run.events.clear()
    run.client.calls.clear()
    world.clock.advance(11)
    return run


def work(world: World, run: Run, seconds: float) -> None:
    """Renewals and discovery, as their threads call them."""
    until, next_discovery = world.clock.monotonic() + seconds, 0.0
    while world.clock.monotonic() < until:
        pause = min(0.5, max(0.02, run.worker.step_renewal()))
        if world.clock.monotonic() >= next_discovery:
            run.worker.step_discovery()
            next_discovery = world.clock.monotonic() + 1.0
        world.clock.advance(pause)


@pytest.mark.audit("C3")
def test_expired_credentials_cost_some_requests_a_second_and_some_events_a_minute(world: World, run: Run) -> None:
    run.client.before.append(expired)
    work(world, run, 9.0)
    assert len(run.client.calls) < 5 * 9
    assert len(run.events) <= 2
    assert len(run.worker.holdings.keys()) == SHARDS
    work(world, run, 600.0)
    assert len(run.client.calls) < 5 * 609
    failures = Counter(kind for kind in run.kinds() if kind is not EventKind.LEASE_LOST)
    assert failures.total() <= 2 * (609 / 60 + 1)


@pytest.mark.audit("C3")
def test_leases_are_renewed_within_a_second_when_credentials_are_good_again(world: World, run: Run) -> None:
    run.client.before.append(expired)
    work(world, run, 15.0)
    run.client.before.clear()
    work(world, run, 1.5)
    assert run.worker.holdings.due(10) == []
    assert len(run.worker.holdings.holdings()) == SHARDS
    assert EventKind.LEASE_LOST not in run.kinds()


@pytest.mark.audit("C3")
def test_leases_that_were_lost_meanwhile_are_found_again(world: World, run: Run) -> None:
    run.client.before.append(expired)
    work(world, run, 60.0)
    assert run.worker.holdings.keys() == set()
    run.client.before.clear()
    work(world, run, 3.0)
    assert len(run.worker.holdings.keys()) == SHARDS


def refusing(keys: set[str]) -> Callable[[str, Mapping[str, Any]], None]:
    def refuse(method: str, request: Mapping[str, Any]) -> None:
        if method == "update_item" and request["Key"]["leaseKey"]["S"] in keys:
            expired()

    return refuse


@pytest.mark.parametrize("bad", [1, 3, 20])
def test_leases_that_cannot_be_written_keep_no_other_from_being_renewed(world: World, run: Run, bad: int) -> None:
    refused = set(sorted(world.lease_keys())[:bad])
    run.client.before.append(refusing(refused))
    work(world, run, 90.0)
    held = run.worker.holdings.holdings()
    assert {str(holding.key) for holding in held} == set(world.lease_keys()) - refused
    lost = [event.lease for event in run.events if event.kind is EventKind.LEASE_LOST]
    assert set(lost) == refused


def test_a_single_failure_names_its_lease(world: World, run: Run) -> None:
    run.client.before.append(refusing({"shardId-000000000007"}))
    run.worker.step_renewal()
    [event] = run.events
    assert (event.kind, event.lease) == (EventKind.RENEWAL_FAILED, "shardId-000000000007")


@pytest.mark.audit("C3")
def test_a_worker_that_may_write_nothing_ends_without_trying_every_lease(world: World, run: Run) -> None:
    run.client.before.append(refusing(set(world.lease_keys())))
    run.worker.shut_down()
    assert run.client.calls.count("update_item") <= 5
    assert len(run.events) <= 2
