"""Batches that end the process of their worker."""

import contextlib
import itertools
from collections.abc import Callable

import pytest

from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.batch_retries import LOSS_PAUSE
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.pins import Pin, pin_of
from kcl_dagster.worker.stop import StopReason
from tests.unit.worker.failing import A, B, fails_on, stored, work
from tests.unit.worker.kit import Data, Killed, Run, World


def kills_on(*deadly: str) -> Callable[[Data], None]:
    def kill(data: Data) -> None:
        if any(text in deadly for _, _, text in data):
            raise Killed("out of memory")

    return kill


def work_of_owners(
    world: World, refuses: Callable[[Data], None], owners: int, rounds: int = 12, code: str | None = None
) -> list[Run]:
    """Workers follow each other; each has all leases until it is killed, or for `rounds`."""
    runs = []
    for number in range(owners):
        runs.append(world.worker(f"owner-{number}", code=code))
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


def hang_and_leave(world: World, run: Run, how: str) -> None:
    """The main thread does not return from the consumer's code while the worker leaves. The process ends then."""
    other = world.worker(f"after-{run.id}")

    def hang(_: Data) -> None:
        if how == "handed over":
            world.hand_over(A, other)
        else:
            run.worker.stop.request(StopReason.DRAINED)
        for _second in range(1 if how == "killed while it stops" else 70):
            world.clock.advance(1)
            run.worker.step_renewal()
            run.worker.step_housekeeping()
        assert (run.worker.holdings.keys() == {A}) == (how == "killed while it stops")
        raise Killed("the process is ended")

    run.sink.refuses = hang
    with contextlib.suppress(Killed):
        work(world, run, 400)
    assert pin_of(world.lease(A)) is not None


@pytest.mark.parametrize("action", ["stop", "skip", "dead_letter"])
@pytest.mark.parametrize("how", ["stopped", "handed over", "killed while it stops"])
def test_a_worker_that_leaves_while_its_code_hangs_is_no_loss(how: str, action: str) -> None:
    """Drains and replacements of hung workers set no record aside."""
    world = World(shards=1, batch={"failure": {"action": action, "attempts": 2, "dead_letter_path": "/dead"}})
    world.stream.put(A, "!")
    for number in range(5):
        run = world.worker(f"hung-{number}")
        run.worker.start()
        world.assign(run)
        hang_and_leave(world, run, how)
    assert pin_losses(world) == 0
    healed = world.worker("healed")
    world.assign(healed)
    work(world, healed, 3)
    assert stored(world) == "!"
    assert healed.worker.step_batch().stopped == ()
    world.check_exactly_once()


def test_a_worker_that_leaves_does_not_forget_the_losses_before_it() -> None:
    world = World(shards=1, batch={"failure": {"action": "skip"}})
    world.stream.put(A, "!")
    work_of_owners(world, kills_on("!"), owners=2)
    hung = world.worker("hung")
    hung.worker.start()
    world.assign(hung)
    hang_and_leave(world, hung, "stopped")
    assert pin_losses(world) == 2
    work_of_owners(world, kills_on("!"), owners=1)
    assert world.store.everything() == []
    [last] = work_of_owners(world, kills_on("!"), owners=1)
    assert EventKind.RECORD_SKIPPED in last.kinds()


def test_a_worker_that_waits_with_a_lost_record_and_leaves_does_not_forget_its_losses() -> None:
    world = World(shards=1, batch={"failure": {"action": "stop"}})
    world.stream.put(A, "!")
    work_of_owners(world, kills_on("!"), owners=3)
    waiting = world.worker("waiting")
    waiting.worker.start()
    world.assign(waiting)
    work(world, waiting, 3)
    waiting.worker.shut_down()
    following = world.worker("following")
    world.assign(following)
    work(world, following, 3)
    assert following.worker.step_batch().stopped == (A,)


@pytest.mark.parametrize("action", ["stop", "skip", "dead_letter"])
def test_a_new_version_of_the_code_tries_the_batch_at_once(action: str) -> None:
    world = World(shards=1, batch={"failure": {"action": action, "dead_letter_path": "/dead"}})
    world.stream.put(A, "!")
    work_of_owners(world, kills_on("!"), owners=3, code="1")
    [waiting] = [world.worker("waiting", code="1")] if action == "stop" else [None]
    if waiting is not None:
        world.assign(waiting)
        work(world, waiting, 3)
        assert waiting.worker.step_batch().stopped == (A,)
    work_of_owners(world, kills_on("!"), owners=1, code="2")
    assert pin_losses(world) == 0, "the new version has lost nothing yet"
    mended = world.worker("mended", code="3")
    world.assign(mended)
    work(world, mended, 3)
    assert stored(world) == "!"
    assert mended.worker.step_batch().stopped == ()


def test_the_losses_of_a_former_version_do_not_count_for_a_batch_that_kills_the_new_one_as_well() -> None:
    world = World(shards=1, batch={"failure": {"action": "skip"}})
    world.stream.put(A, "!")
    work_of_owners(world, kills_on("!"), owners=3, code="1")
    work_of_owners(world, kills_on("!"), owners=3, code="2")
    [last] = work_of_owners(world, kills_on("!"), owners=1, code="2")
    [skipped] = [event for event in last.events if event.kind is EventKind.RECORD_SKIPPED]
    assert "the processes of 3 workers ended" in skipped.message


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
