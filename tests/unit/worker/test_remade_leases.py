"""A lease that is deleted and made again: what is stored under it is never taken for what a former one stored."""

import pytest

from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.batch import Part
from tests.unit.worker.kit import Run, World

A = "shardId-000000000000"


def parts(run: Run) -> list[Part]:
    return [part for batch in run.sink.batches for part in batch.parts]


def read_twice(world: World) -> tuple[list[Part], list[Part]]:
    """All records, and after their lease was deleted and made again, all of them again and some more."""
    run = world.worker("w1")
    run.engine.limit = 2
    world.assign(run)
    world.stream.put(A, *"abcdef")
    run.until_idle()
    first = parts(run)
    run.worker.holdings.handover.release(LeaseKey(A))
    assert world.leases.delete(world.lease(A), forced=True)
    world.create(A)
    world.clock.advance(1)
    again = world.worker("w2")
    world.assign(again)
    world.stream.put(A, "g")
    again.until_idle()
    return first, parts(again)


@pytest.mark.audit("A3")
def test_no_number_is_used_again() -> None:
    """By which a function of the user's may key what it stores."""
    first, second = read_twice(World())
    assert [part.after for part in first][:1] == [part.after for part in second][:1]
    assert max(part.number for part in first) < min(part.number for part in second)


def test_a_lease_of_version_0_1_keeps_its_numbers() -> None:
    world = World()
    world.stream.put(A, "a")
    run = world.worker("w1")
    world.leases.delete(world.lease(A), forced=True)
    world.create(A, batch=17)
    world.assign(run)
    run.until_idle()
    [part] = parts(run)
    assert part.number == 18
