"""Batches that end the process of their worker."""

import contextlib
import itertools
from collections.abc import Callable

import pytest

from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.failure import LOSS_PAUSE
from kcl_dagster.worker.pending import Pin, pin_of
from tests.unit.worker.failing import A, B, fails_on, stored, work
from tests.unit.worker.kit import Data, Killed, Run, World


def kills_on(*deadly: str) -> Callable[[Data], None]:
    def kill(data: Data) -> None:
        if any(text in deadly for _, _, text in data):
            raise Killed("out of memory")

    return kill


def work_of_owners(world: World, refuses: Callable[[Data], None], owners: int, rounds: int = 12) -> list[Run]:
    """Workers follow each other; each has all leases until it is killed, or for `rounds`."""
    runs = []
    for number in range(owners):
        runs.append(world.worker(f"owner-{number}"))
        runs[-1].sink.refuses, runs[-1].engine.limit = refuses, 100
        world.assign(runs[-1])
        with contextlib.suppress(Killed):
            work(world, runs[-1], rounds)
    return runs


@pytest.mark.audit("B16")
@pytest.mark.parametrize("action", ["stop", "bisect", "skip", "dead_letter"])
def test_a_batch_that_kills_its_workers_is_narrowed_to_the_record(action: str) -> None:
    world = World(shards=2, batch={"failure": {"action": action, "attempts": 2, "dead_letter_path": "/dead"}})
    world.stream.put(A, *"abcde!gh")
    world.stream.put(B, *"xyz")
    runs = work_of_owners(world, kills_on("!"), owners=9)
    goes_on = action in {"skip", "dead_letter"}
    assert stored(world, A) == ("abcdegh" if goes_on else "abcde")
    assert stored(world, B) == "xyz"
    assert runs[-1].worker.step_batch().stopped == (() if goes_on else (A,))
    assert sum(run.kinds().count(EventKind.BATCH_NARROWED) for run in runs) >= 2


@pytest.mark.audit("B16")
def test_a_lone_record_that_kills_its_workers_is_tried_at_long_intervals() -> None:
    world = World(shards=1, batch={"failure": {"action": "stop"}})
    world.stream.put(A, "!")
    attempts: list[float] = []

    def kill(_: Data) -> None:
        attempts.append(world.clock.monotonic())
        raise Killed("out of memory")

    work_of_owners(world, kill, owners=6, rounds=4000)
    gaps = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    assert len(attempts) == 6
    assert gaps[2:] == sorted(gaps[2:])
    assert min(gaps[2:]) >= LOSS_PAUSE
    healed = world.worker("healed")
    world.assign(healed)
    work(world, healed, 4000)
    assert stored(world) == "!"
    assert healed.worker.step_batch().stopped == ()


@pytest.mark.audit("B16")
def test_a_batch_that_was_lost_is_written_without_the_leases_that_are_well() -> None:
    world = World(shards=2)
    world.stream.put(A, "!")
    work_of_owners(world, kills_on("!"), owners=2, rounds=3)
    assert pin_losses(world) == 1
    world.stream.put(B, *"xyz")
    third = world.worker("third")
    world.assign(third)
    work(world, third, 6)
    assert [{part.lease for part in batch.parts} for batch in third.sink.batches].count(
        {LeaseKey(A), LeaseKey(B)}
    ) == 0
    assert (stored(world, A), stored(world, B)) == ("!", "xyz")
    world.check_exactly_once()


def pin_losses(world: World) -> int | None:
    pin = pin_of(world.lease(A))
    return None if pin is None else pin.losses


@pytest.mark.audit("B16")
def test_a_failure_that_the_process_survives_is_no_loss() -> None:
    """Handing a failing batch on again and again narrows nothing."""
    world = World(shards=1, batch={"failure": {"action": "stop", "attempts": 2}})
    world.stream.put(A, *"ab!d")
    runs = work_of_owners(world, kills_on("!"), owners=2, rounds=3)
    assert pin_losses(world) == 1
    runs += work_of_owners(world, fails_on("!"), owners=5, rounds=5)
    assert pin_losses(world) == 0
    assert EventKind.BATCH_NARROWED not in {kind for run in runs for kind in run.kinds()}
    last = world.worker("mended")
    world.assign(last)
    work(world, last, 20)
    world.check_exactly_once()


@pytest.mark.audit("B16")
def test_a_pin_that_was_never_lost_says_nothing_of_losses() -> None:
    assert b"losses" not in Pin(7, "1").to_state()
    assert b"losses" in Pin(7, "1", losses=1).to_state()
