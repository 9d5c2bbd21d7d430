"""A lease that is deleted and made again: what is stored under it is never taken for what a former one stored."""

import pytest

from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.sinks.record import StoredPart, compare
from kcl_dagster.spark.sinks.writing import file_stem
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
def test_no_file_name_is_used_again() -> None:
    first, second = read_twice(World())
    assert [part.after for part in first][:1] == [part.after for part in second][:1]
    names = [file_stem(part) for part in (*first, *second)]
    assert len(set(names)) == len(names) >= 4


@pytest.mark.audit("A3")
def test_a_table_that_knows_the_former_lease_takes_what_the_new_one_stores() -> None:
    first, second = read_twice(World())
    held = {StoredPart.of(part) for part in first}
    newest = max(part.number for part in first)
    found = compare(second, lambda _: newest, lambda part: StoredPart.of(part) in held)
    assert found.missing == tuple(second)
    assert found.strange == ()


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
    assert file_stem(part) == f"{A}.TRIM_HORIZON-0.18"  # as a batch that was pinned before the upgrade was named
