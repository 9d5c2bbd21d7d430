"""Batches that were stored although they failed, and what their attempts leave behind."""

import pytest

from kcl_dagster.errors import (
    SinkError,
)
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.worker.batch import Batch, Part
from kcl_dagster.worker.dead_letter import DeadLetter
from kcl_dagster.worker.events import EventKind
from tests.unit.worker.failing import A, away_after, fails_on, stored, work, world_with
from tests.unit.worker.kit import Data, Killed, MemorySink, World


class StoresAndFails:
    """Keeps whatever it is given, keyed by number as tables are, and then raises what user code might."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.parts: dict[tuple[str, int], Data] = {}

    def write(self, data: Data, batch: Batch) -> None:
        for part in batch.parts:
            self.parts[part.shard_id, part.number] = [row for row in data if row[0] == part.shard_id]
        if self.failures:
            self.failures -= 1
            raise ValueError("after it was stored")

    def holds(self, part: Part) -> bool:
        return (part.shard_id, part.number) in self.parts


@pytest.mark.parametrize("action", ["bisect", "skip", "dead_letter"])
def test_a_batch_that_was_stored_before_it_failed_is_committed_and_not_cut(action: str) -> None:
    world, run = world_with({"action": action, "attempts": 2, "dead_letter_path": "/letters"})
    sink = StoresAndFails(failures=5)
    run = world.worker("w2", sink=sink)
    world.assign(run)
    world.stream.put(A, *"abcdefgh")
    work(world, run, 40)
    world.stream.put(A, *"ij")
    work(world, run, 10)
    assert sorted(row for rows in sink.parts.values() for row in rows) == world.stream.everything()
    assert run.letters.letters == {}


def test_what_a_table_may_still_be_given_keeps_its_number() -> None:
    """A former owner may yet store the batch; under another number it would be refused, though it is the same."""
    world = World(batch={"failure": {"action": "dead_letter", "attempts": 1, "dead_letter_path": "/letters"}})

    class Table(StoresAndFails):
        def write(self, data: Data, batch: Batch) -> None:
            raise ValueError("for the time being")

    class Full:
        def write(self, letter: DeadLetter) -> None:
            raise SinkError(f"no space for {letter.name}")

    sink = Table(failures=0)
    run = world.worker("w1", sink=sink, dead_letters=Full())
    world.assign(run)
    world.stream.put(A, "a")
    run.round()
    lease = world.lease(A)
    assert lease.pending_checkpoint == Checkpoint("100")
    sink.parts[A, lease.batch] = [(A, 100, "a")]  # by the former owner
    work(world, run, 5)
    assert world.lease(A).pending_checkpoint is None
    assert world.lease(A).checkpoint == lease.pending_checkpoint


class Files(MemorySink):
    """Named as files of Parquet are, and kept when user code fails."""

    def write(self, data: Data, batch: Batch) -> None:
        for part in batch.parts:
            for number in range(part.number if part.instead_of is None else part.instead_of, part.number):
                self._remove(part, number)
            self.fuse.point()
            rows = [row for row in data if row[0] == part.shard_id]
            self.store.parts[part.shard_id, f"{part.after}.{part.number}"] = rows
            self.fuse.point()
        for hook in list(self.hooks):
            hook(batch)
        if self.refuses is not None:
            self.refuses(data)
        self.batches.append(batch)

    def withdraw(self, part: Part) -> None:
        for number in range(part.number if part.instead_of is None else part.instead_of, part.number + 1):
            self._remove(part, number)
            self.fuse.point()

    def _remove(self, part: Part, number: int) -> None:
        self.store.parts.pop((part.shard_id, f"{part.after}.{number}"), None)


@pytest.mark.parametrize("action", ["skip", "dead_letter"])
def test_what_failed_attempts_left_is_removed_when_a_record_is_set_aside(action: str) -> None:
    world, _ = world_with({"action": action, "attempts": 2, "dead_letter_path": "/letters"})
    run = world.worker("w2", sink=Files(world.store, refuses=fails_on("!")))
    world.assign(run)
    world.stream.put(A, *"!abcdefg")
    work(world, run, 80)
    assert stored(world) == "abcdefg"
    aside = EventKind.RECORD_SKIPPED if action == "skip" else EventKind.RECORD_DEAD_LETTERED
    assert run.kinds().count(aside) == 1


@pytest.mark.parametrize("action", ["skip", "dead_letter"])
def test_a_batch_with_a_bad_record_is_stored_once_whenever_its_worker_dies(action: str) -> None:
    """Before and after each request, and each file, from the first attempt to the end: another worker goes on."""
    point, killed = 0, True
    while killed:
        point += 1
        world = World(batch={"failure": {"action": action, "attempts": 1, "dead_letter_path": "/letters"}})
        files = Files(world.store, refuses=fails_on("!"))
        old, new = (
            world.worker("old", sink=files),
            world.worker("new", sink=Files(world.store, refuses=fails_on("!"))),
        )
        files.fuse = old.fuse
        world.assign(old)
        old.worker.step_discovery()
        world.stream.put(A, *"ab!cd")
        old.fuse.passed, old.fuse.burns_at = 0, point
        killed = False
        try:
            work(world, old, 20)
        except Killed:
            killed = True
        world.assign(new)
        work(world, new, 40)
        assert stored(world) == "abcd", f"killed at point {point}"
    assert point > 50


@pytest.mark.parametrize("action", ["bisect", "skip", "dead_letter"])
@pytest.mark.parametrize("records", ["a", "abc"])
def test_who_gives_up_after_its_lease_has_gone_removes_nothing_of_the_next_owner(action: str, records: str) -> None:
    """User code hangs until the handoff is forced; the next owner stores the batch; then the hung code fails."""
    failure = {"action": action, "attempts": 1, "dead_letter_path": "/letters" if action == "dead_letter" else None}
    world = World(batch={"failure": failure})
    new = world.worker("new", sink=Files(world.store))

    def hangs_and_fails(batch: Batch) -> None:
        world.hand_over(A, new)
        while world.lease(A).actual_owner != new.id:
            world.clock.advance(1)
            old.worker.step_renewal()
        new.until_idle()
        assert world.lease(A).pending_checkpoint is None
        raise TimeoutError("at last")

    old = world.worker("old", sink=Files(world.store, hooks=[hangs_and_fails]))
    world.assign(old)
    world.stream.put(A, *records)
    old.round()
    work(world, new, 5)
    assert stored(world) == records
    assert old.letters.letters == {}


def test_an_owner_that_falls_asleep_while_it_sets_a_record_aside_removes_nothing_of_the_next_one() -> None:
    """It may remove what failed attempts left, and does so when the next owner has stored the record."""
    world = World(batch={"failure": {"action": "skip", "attempts": 1}})
    new = world.worker("new", sink=Files(world.store))

    class Sleeper(Files):
        def withdraw(self, part: Part) -> None:
            world.assign(new)
            new.until_idle()
            assert stored(world) == "a"
            super().withdraw(part)

    old = world.worker("old", sink=Sleeper(world.store, refuses=fails_on("a")))
    world.assign(old)
    world.stream.put(A, "a")
    old.round()
    work(world, new, 5)
    assert stored(world) == "a"


def test_a_piece_says_what_it_is_a_piece_of_whoever_writes_it() -> None:
    world, run = world_with({"action": "bisect", "attempts": 1})
    world.assign(run)
    world.stream.put(A, *"abcdefgh")
    run.sink.refuses = fails_on("a", "h")
    numbers: list[int] = []
    run.sink.hooks.append(lambda batch: numbers.append(batch.parts[0].number))
    for _ in range(4):
        run.round()
    assert run.kinds().count(EventKind.BATCH_NARROWED) >= 2
    second = world.worker("w2")
    world.assign(second)
    second.round()
    (piece,) = second.sink.batches[0].parts
    assert (piece.instead_of, piece.number) == (numbers[0], world.lease(A).batch)
    work(world, second, 20)
    assert all(part.instead_of is None for batch in second.sink.batches[1:] for part in batch.parts)


@pytest.mark.audit("A4")
def test_a_piece_whose_pin_got_no_answer_is_not_stored_under_the_number_of_the_whole() -> None:
    """The pin of the first half is written, its answer is lost, and DynamoDB is away until the worker gives up."""
    world, run = world_with({"action": "skip", "attempts": 1})
    world.assign(run)
    world.stream.put(A, *"abc!")
    run.sink.refuses = fails_on("!")
    with away_after(run, r'"instead_of":\d'):
        run.round()
    pinned = world.lease(A)
    assert pinned.pending_checkpoint is not None

    run.sink.refuses = None  # the next attempt would store whatever it is given
    run.worker.step_batch()

    assert all(part.number >= pinned.batch for batch in run.sink.batches for part in batch.parts)
    work(world, run)
    world.check_exactly_once()
