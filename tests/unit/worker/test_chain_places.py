"""Chains beside other data, of workers that stopped, and of rows that cannot be read."""

from kcl_dagster.model.lease import LeaseKey
from tests.unit.worker.chains import ChainWorld
from tests.unit.worker.kit import Run

A = LeaseKey("shardId-000000000000")


def working(world: ChainWorld, name: str) -> Run:
    run = world.chain_worker(name)
    world.assign(run)
    return run


def test_a_worker_that_stops_removes_its_chain() -> None:
    world = ChainWorld()
    for number in range(5):
        run = working(world, f"w{number}")
        world.stream.put(A, f"record {number}")
        run.until_idle()
        run.worker.shut_down()
    assert not world.chains()
    world.check()


def test_a_worker_that_stops_without_its_lease_leaves_the_chain_to_the_next_owner() -> None:
    world = ChainWorld()
    run, following = working(world, "w1"), world.chain_worker("w2")
    world.stream.put(A, "one")
    run.round()
    world.assign(following)
    run.worker.shut_down()
    assert len(world.chains()) == 1
    following.until_idle()
    world.check()


def test_a_sink_at_another_path_does_not_read_a_lease_whose_chain_is_beside_the_former_one() -> None:
    world = ChainWorld()
    world.stream.put(A, "one", "two")
    working(world, "w1").round()
    following = working(world, "w2")
    world.sinks["w2"].files.root = "elsewhere"
    following.round()
    assert len(world.stored()) == 2
    assert "the former path of the sink" in str(following.events[-1].message)


def test_numbers_of_batches_grow_with_each_checkpoint_of_a_chain() -> None:
    world = ChainWorld()
    run = working(world, "w1")
    numbers = [world.lease(A).batch]
    for number in range(3):
        world.stream.put(A, f"record {number}")
        run.round()
        world.clock.advance(20)
        run.worker.step_renewal()
        numbers.append(world.lease(A).batch)
    assert numbers == sorted(set(numbers))
    assert numbers[1] > 1_000_000_000_000


def test_no_chain_is_deleted_while_a_row_cannot_be_read() -> None:
    world = ChainWorld()
    world.stream.put(A, "one")
    working(world, "w1").round()
    (chain,) = world.chains()
    run = working(world, "w2")
    run.until_idle()
    world.service.put_item(
        TableName=world.application.lease_table,
        Item={"leaseKey": {"S": "b"}, "leaseCounter": {"S": "not a number"}},
    )
    for _ in range(27):
        world.clock.advance(3600)
        run.round()
    assert chain in world.chains()
    assert any("cannot be read" in event.message for event in run.events)
