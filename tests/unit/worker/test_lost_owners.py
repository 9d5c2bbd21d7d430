"""Processes that end while they work on a batch in a chain, counted beside the claims of their leases."""

from kcl_dagster.application import BatchSettings, FailureAction, FailurePolicy
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.events import EventKind
from tests.unit.worker.chains import ChainWorld
from tests.unit.worker.kit import Data, Killed, Run

A, B = LeaseKey("shardId-000000000000"), LeaseKey("shardId-000000000001")


def working(world: ChainWorld, name: str) -> Run:
    run = world.chain_worker(name)
    world.assign(run)
    return run


def poisoned(data: Data) -> None:
    if any(row[2] == "poison" for row in data):
        raise Killed


def lives_until_killed(world: ChainWorld, name: str, *, rounds: int = 8) -> Run:
    run = working(world, name)
    world.sinks[name].refuses = poisoned
    try:
        for _ in range(rounds):
            run.round()
            world.clock.advance(3)
            run.worker.step_renewal()
    except Killed:
        pass
    return run


def test_a_record_that_ends_its_process_stops_its_shard_only_and_is_seen_in_the_lag() -> None:
    world = ChainWorld(shards=3)
    world.stream.arrival_ms = round(world.clock.now() * 1000)
    world.stream.put(A, "poison")
    for number in range(6):
        world.stream.put(B, f"healthy {number}")
        run = lives_until_killed(world, f"w{number}")
        world.clock.advance(40)
    assert EventKind.SHARD_STOPPED in run.kinds()
    assert len([row for row in world.stored() if row[0] == B]) >= 5
    run = working(world, "last")
    run.worker.step_discovery()
    run.worker.step_heartbeat()
    assert (run.worker.heartbeat.lag_ms or 0) >= 240_000


def test_a_record_that_ends_its_process_is_found_among_others_and_set_aside() -> None:
    world = ChainWorld(batch=BatchSettings(failure=FailurePolicy(action=FailureAction.SKIP)))
    world.stream.put(A, "one", "two", "poison")
    for number in range(12):
        world.stream.put(A, f"more {number}")
        lives_until_killed(world, f"w{number}")
        world.clock.advance(40)
    assert "poison" not in {row[2] for row in world.stored()}
    assert len(world.stored()) == len(world.stream.everything()) - 1


def test_workers_that_end_beside_a_quiet_shard_are_not_counted() -> None:
    world = ChainWorld()
    for number in range(6):
        lives_until_killed(world, f"w{number}", rounds=1)
        world.clock.advance(40)
    world.stream.put(A, *(f"record {number}" for number in range(7)))
    run = working(world, "last")
    run.until_idle()
    world.check()
    assert EventKind.BATCH_NARROWED not in run.kinds()
    assert EventKind.SHARD_STOPPED not in run.kinds()
