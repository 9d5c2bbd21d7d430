"""What is decided is published, and nothing else, whichever process ends or pauses at whatever moment."""

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_dagster.chains.chain import Chain
from kcl_dagster.chains.deletion import delete_chains
from kcl_dagster.chains.entry import PublishingEntry, StagedFile, StoredRange
from kcl_dagster.chains.publication import chain_id, discard, file_name, publish, staged_for, staged_path
from kcl_dagster.chains.settlement import Settlement, close, settle
from kcl_dagster.chains.store import Entries
from kcl_dagster.model.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint
from kcl_dagster.model.claim import ClaimId
from kcl_dagster.model.lease import LeaseKey
from tests.unit.chains.memory import Killed, MemoryFiles, Moment

LEASES = [LeaseKey("s-0"), LeaseKey("s-1")]
CLAIM = ClaimId("claim")
APPLICATION = "clicks"
BATCHES = 3


@dataclass
class Owner:
    """A worker with a chain. Its batches hold one record of each lease, in one file."""

    files: MemoryFiles
    chain: Chain
    done: int = 0
    """How far the worker believes that its leases are stored."""

    row: int = 0
    """How far its leases' rows are: the checkpoint."""

    merged: set[str] = field(default_factory=set)

    def work(self) -> None:
        for _ in range(BATCHES):
            number = self.done + 1
            path = file_name(self.chain.id, number, 0, 0)
            self.files.put(staged_path(self.chain.id, path), f"record {number}".encode())
            entry = self.chain.decide([StagedFile(path, 1, 8)], ranges(number))
            if entry is None:
                discard(self.files, self.chain.id, [path])
                return
            self.done = number
            if not publish(self.files, self.chain.id, entry):
                return  # another process settles the chain
            self.row = number
            self.chain.written({lease: Checkpoint(str(number)) for lease in LEASES})
            self.chain.delete_entries()

    def merge(self) -> None:
        """What a compaction does with the files that it finds."""
        for path in sorted(self.files.published()):
            staged = staged_for(path)
            assert staged is not None
            self.files.delete([staged])
            self.merged.add(path)
            self.files.delete([path])


def ranges(number: int) -> list[StoredRange]:
    after = Checkpoint(str(number - 1)) if number > 1 else TRIM_HORIZON
    return [StoredRange(lease, CLAIM, after, Checkpoint(str(number)), 1, 8) for lease in LEASES]


@dataclass
class World:
    files: MemoryFiles = field(default_factory=MemoryFiles)
    ids: Callable[[], str] = field(default_factory=lambda: map(str, itertools.count()).__next__)

    def __post_init__(self) -> None:
        self.entries = Entries(self.files)
        chain = Chain(self.entries, chain_id(APPLICATION, "worker-000", "1"), self.ids)
        self.owner = Owner(self.files, chain)
        self.row_at_settlement = 0

    def settle(self) -> Settlement:
        return settle(self.entries, self.owner.chain.id, "worker-001", self.ids)

    def check(self, settlement: Settlement) -> None:
        """What a successor finds is what is stored: its first record is the next one."""
        row = Checkpoint(str(self.owner.row)) if self.owner.row else TRIM_HORIZON
        for lease in LEASES:
            found = settlement.progress(lease, CLAIM, row)
            assert [int(one.through.sequence) for one in found] == list(
                range(self.owner.row + 1, self.owner.row + 1 + len(found))
            )
            stored = self.owner.row + len(found)
            names = {file_name(self.owner.chain.id, number, 0, 0) for number in range(1, stored + 1)}
            assert self.files.published() | self.owner.merged == names
            assert not self.files.published() & self.owner.merged
        assert self.files.staged() == set()
        assert self.owner.done <= stored

    def attempts(self) -> list[PublishingEntry]:
        return [
            entry
            for number in self.entries.numbers(self.owner.chain.id)
            if isinstance(entry := self.entries.read(self.owner.chain.id, number), PublishingEntry)
        ]


def killed() -> None:
    raise Killed


def moments() -> range:
    world = World()
    world.owner.work()
    return range(1, world.files.moments + 1)


def moments_of_settlement() -> range:
    world = World()
    world.files.at[moments()[-5]] = killed
    with pytest.raises(Killed):
        world.owner.work()
    world.files.moments = 0
    world.settle()
    return range(1, world.files.moments + 1)


@pytest.mark.parametrize("moment", moments())
def test_an_owner_that_ends_at_any_moment_leaves_what_it_decided(moment: int) -> None:
    world = World()
    world.files.at[moment] = killed
    with pytest.raises(Killed):
        world.owner.work()
    world.check(world.settle())


@pytest.mark.parametrize("moment", moments())
def test_an_owner_that_pauses_at_any_moment_stores_nothing_afterwards(moment: int) -> None:
    world = World()
    found: list[Settlement] = []
    world.files.at[moment] = lambda: found.append(world.settle())
    world.owner.work()
    done = world.settle()  # removes nothing but what a batch that was never decided has left
    assert found
    assert [entry.attempt for entry in found[0].entries] == [entry.attempt for entry in world.attempts()] or (
        all(entry in found[0].entries for entry in world.attempts())
    )
    world.check(done)


@pytest.mark.parametrize("moment", moments_of_settlement())
def test_a_settlement_that_ends_at_any_moment_is_finished_by_the_next(moment: int) -> None:
    for end in moments():
        world = World()
        world.files.at[end] = killed
        with pytest.raises(Killed):
            world.owner.work()
        world.files.moments = 0
        world.files.at[moment] = killed
        with suppress(Killed):
            world.settle()
        world.files.at.clear()
        world.check(world.settle())


@pytest.mark.parametrize("moment", moments_of_settlement())
def test_two_settlements_at_once_find_the_same(moment: int) -> None:
    world = World()
    world.files.at[moments()[-5]] = killed
    with pytest.raises(Killed):
        world.owner.work()
    world.files.moments = 0
    found: list[Settlement] = []
    world.files.at[moment] = lambda: found.append(world.settle())
    assert [world.settle()] == found
    world.check(found[0])


def test_a_lost_answer_is_no_failure() -> None:
    world = World()
    create = world.files.create

    def twice(path: str, content: bytes) -> bool:
        """The store's client sends the request again when the answer was lost."""
        create(path, content)
        return create(path, content)

    world.files.create = twice  # type: ignore[method-assign]
    world.owner.work()
    assert world.owner.done == BATCHES
    world.check(world.settle())


def test_the_entry_of_another_process_is_no_success() -> None:
    world = World()
    close(world.entries, world.owner.chain.id, "worker-001", world.ids)
    world.owner.work()
    assert world.owner.done == 0
    assert world.files.published() == set()
    assert world.files.staged() == set()


def test_a_create_that_fails_ends_the_chain() -> None:
    world = World()

    def broken(path: str, content: bytes) -> bool:
        raise OSError("no answer")

    create, world.files.create = world.files.create, broken  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no answer"):
        world.owner.work()
    world.files.create = create  # type: ignore[method-assign]
    assert world.owner.chain.is_over
    assert world.owner.chain.decide([], []) is None


def test_a_chain_is_closed_behind_an_owner_that_deletes_entries_meanwhile() -> None:
    """The closing entry takes the number of an entry that was deleted since the list: it closes nothing."""
    world = World()
    world.files.at[2] = world.owner.work  # after the list
    world.settle()
    assert world.owner.done == BATCHES
    assert world.owner.chain.decide([], []) is None


def test_an_owner_keeps_its_last_entry_and_those_that_rows_wait_for() -> None:
    world = World()
    chain = world.owner.chain
    for number in (1, 2, 3):
        chain.decide([], ranges(number))
    assert chain.delete_entries() == 0
    chain.written({LEASES[0]: SHARD_END})
    assert chain.delete_entries() == 0
    chain.written({LEASES[1]: Checkpoint("1")})
    assert chain.delete_entries() == 1
    chain.written({LEASES[1]: Checkpoint("3")})
    assert chain.delete_entries() == 1
    assert world.entries.numbers(chain.id) == [3]


def test_a_chain_is_deleted_when_no_lease_names_it_and_it_was_closed_long_ago() -> None:
    world = World()
    world.owner.work()
    chain = world.owner.chain.id
    world.files.now += 100
    later = world.files.now

    def deleted(named: set[str], before: float) -> list[str]:
        return list(map(str, delete_chains(world.entries, APPLICATION, named, before, "b", world.ids)))  # type: ignore[arg-type]

    assert deleted(set(), later - 101) == []
    assert deleted({chain}, later) == []
    assert world.entries.numbers(chain) == [BATCHES]
    assert deleted(set(), later) == []  # it was open, and is closed now
    assert deleted(set(), later - 1) == []
    assert deleted(set(), later) == [chain]
    assert world.entries.numbers(chain) == []
    assert len(world.files.published()) == BATCHES


def test_a_batch_that_is_decided_in_a_deleted_chain_has_no_files() -> None:
    world = World()
    path = file_name(world.owner.chain.id, 1, 0, 0)
    world.files.put(staged_path(world.owner.chain.id, path), b"record 1")
    world.settle()
    for _ in range(2):
        delete_chains(world.entries, APPLICATION, (), world.files.now, "b", world.ids)
    entry = world.owner.chain.decide([StagedFile(path, 1, 8)], ranges(1))
    assert entry is not None
    assert not publish(world.files, world.owner.chain.id, entry)
    assert world.files.published() == set()


def test_what_was_staged_for_a_chain_that_never_began_is_removed() -> None:
    world = World()
    world.files.put(staged_path(world.owner.chain.id, "x"), b"")
    world.files.put(staged_path(chain_id("another", "w", "1"), "x"), b"")
    delete_chains(world.entries, APPLICATION, (), world.files.now - 1, "b", world.ids)
    assert len(world.files.staged()) == 2
    delete_chains(world.entries, APPLICATION, (), world.files.now, "b", world.ids)
    assert len(world.files.staged()) == 1


@given(
    st.dictionaries(
        st.integers(1, 60), st.sampled_from(["settle", "merge", "close", "kill"]), min_size=1, max_size=6
    )
)
@settings(max_examples=200, deadline=None)
def test_any_interleaving_stores_each_record_once(plan: dict[int, str]) -> None:
    world = World()
    happens: dict[str, Moment] = {
        "settle": world.settle,
        "merge": world.owner.merge,
        "close": lambda: close(world.entries, world.owner.chain.id, "worker-002", world.ids),
        "kill": killed,
    }
    for moment, what in plan.items():
        world.files.at[moment] = happens[what]
    for work in (world.owner.work, world.settle, world.settle):
        with suppress(Killed):
            work()
    world.files.at.clear()
    world.check(world.settle())
