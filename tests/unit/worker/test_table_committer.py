"""What is decided comes into the table, once and in order, whichever worker ends or pauses at whatever moment."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_dagster.chains.chain import Chain
from kcl_dagster.chains.entry import FIRST, StagedFile, StoredRange
from kcl_dagster.chains.publication import chain_id, file_name
from kcl_dagster.chains.settlement import close
from kcl_dagster.chains.store import Entries
from kcl_dagster.chains.table_commits import KEPT_SECONDS, TableCommits
from kcl_dagster.errors import OutcomeUnknown, SinkError
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.claim import ChainId, ClaimId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.storage import StoredFile
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.table_committer import (
    COMMIT_SECONDS,
    MERGE_PATIENCE_SECONDS,
    PATIENCE_SECONDS,
    RETRY_SECONDS,
    TableCommitter,
)
from tests.doubles.clock import FakeClock
from tests.unit.chains.memory import Killed, MemoryFiles
from tests.unit.chains.memory_table import MemoryTable, TableState

APPLICATION = "clicks"
LEASE = LeaseKey("s-0")


@dataclass
class World:
    files: MemoryFiles = field(default_factory=MemoryFiles)
    state: TableState = field(default_factory=TableState)
    clock: FakeClock = field(default_factory=FakeClock)
    ids: Callable[[], str] = field(default_factory=lambda: map(str, itertools.count()).__next__)
    decided: list[str] = field(default_factory=list)
    chains: dict[str, Chain] = field(default_factory=dict)
    wanted: dict[ChainId, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.entries = Entries(self.files)

    def committer(self, complete: WrittenThrough | None = None) -> TableCommitter:
        table = MemoryTable(self.state, self.files)
        return TableCommitter(
            self.entries, {FIRST: table}, APPLICATION, self.ids, self.clock, complete=lambda: complete
        )

    def decide(self, worker: str = "w1", files: int = 1) -> None:
        """A worker decides a batch."""
        chain = self.chains.get(worker)
        if chain is None:
            chain = self.chains[worker] = Chain(self.entries, chain_id(APPLICATION, worker, self.ids()), self.ids)
        number = self.wanted.get(chain.id, 0) + 1
        staged = [StagedFile(file_name(chain.id, number, 0, place), 1, 8) for place in range(files)]
        ranges = [StoredRange(LEASE, ClaimId("c"), TRIM_HORIZON, Checkpoint(str(number)), 1, 8)]
        self.files.now += 1
        assert chain.decide(staged, ranges) is not None
        self.wanted[chain.id] = number
        self.decided.extend(file.path for file in staged)

    def delete_committed(self, committer: TableCommitter) -> None:
        """As the owners of the chains do it: the last entry remains."""
        for chain, number in self.wanted.items():
            contained = min(committer.visible(chain), number - 1)
            self.entries.delete(chain, [one for one in self.entries.numbers(chain) if one <= contained])

    def finish(self, committer: TableCommitter) -> None:
        """As a process that tries again after a failure."""
        for _ in range(5):
            with suppress(SinkError):
                committer.finish(dict(self.wanted))
                return
            self.clock.advance(RETRY_SECONDS)
        raise AssertionError(committer)

    def check(self) -> None:
        assert sorted(self.state.paths) == sorted(self.decided)
        for chain in self.chains.values():
            mine = [path for path in self.decided if path.startswith(str(chain.id))]
            assert [path for path in self.state.paths if path in mine] == mine
        numbers = [number for number, _ in self.state.commits]
        assert numbers == sorted(set(numbers))


def with_three_entries() -> World:
    world = World()
    for worker in ("w1", "w2", "w1"):
        world.decide(worker)
    world.files.moments = 0
    return world


def killed() -> None:
    raise Killed


def moments() -> range:
    world = with_three_entries()
    world.finish(world.committer())
    return range(1, world.files.moments + 1)


@pytest.mark.parametrize("moment", moments())
def test_a_committer_that_ends_at_any_moment_is_followed_by_another(moment: int) -> None:
    world = with_three_entries()
    world.files.at[moment] = killed
    with pytest.raises(Killed):
        world.committer().finish(dict(world.wanted))
    following = world.committer()
    world.decide("w2")
    world.finish(following)
    world.check()


@pytest.mark.parametrize("moment", moments())
def test_two_committers_at_once_commit_each_entry_once(moment: int) -> None:
    world = with_three_entries()
    first, second = world.committer(), world.committer()
    world.files.at[moment] = lambda: world.finish(second)
    world.finish(first)
    world.check()
    assert len(world.state.commits) == 1


@pytest.mark.parametrize("moment", moments())
def test_a_committer_that_pauses_while_others_go_on_commits_nothing_twice(moment: int) -> None:
    """Meanwhile its plan was carried out, and its number, and those of the entries, were deleted."""
    world = with_three_entries()
    first, second = world.committer(), world.committer()

    def others_go_on() -> None:
        for _ in range(3):
            world.finish(second)
            world.delete_committed(second)
            world.decide("w1")
            world.decide("w3")

    world.files.at[moment] = others_go_on
    world.finish(first)
    world.finish(second)
    world.check()
    assert first.visible(world.chains["w1"].id) <= second.visible(world.chains["w1"].id)


@given(
    st.dictionaries(
        st.integers(1, 80), st.sampled_from(["other", "decide", "delete", "kill"]), min_size=1, max_size=6
    )
)
@settings(max_examples=200, deadline=None)
def test_any_interleaving_commits_each_entry_once(plan: dict[int, str]) -> None:
    world = with_three_entries()
    other = world.committer()
    happens = {
        "other": lambda: world.finish(other),
        "decide": world.decide,
        "delete": lambda: world.delete_committed(other),
        "kill": killed,
    }
    for moment, what in plan.items():
        world.files.at[moment] = happens[what]
    for _ in range(3):
        with suppress(Killed):
            world.finish(world.committer())
        waiting, world.files.at = world.files.at, {}
        world.decide("w1")
        world.files.at = waiting
    world.files.at.clear()
    world.finish(world.committer())
    world.check()


def test_a_commit_whose_answer_was_lost_is_looked_up() -> None:
    world = with_three_entries()
    committer = world.committer()
    table: Any = committer.tables[FIRST]
    commit = table.commit

    def lost(*args: object) -> None:
        commit(*args)
        raise SinkError("no answer")

    table.commit = lost
    committer.finish(dict(world.wanted))
    world.check()


def test_a_table_gets_a_commit_per_interval_however_many_workers_there_are() -> None:
    world = World()
    committers = {f"w{number}": world.committer() for number in range(8)}
    for second in range(600):
        for worker, committer in committers.items():
            if second % 3 == 0:
                world.decide(worker)
            committer.step(dict(world.wanted))
        world.clock.advance(1)
    assert 600 / COMMIT_SECONDS <= len(world.state.commits) <= 600 / COMMIT_SECONDS + 1
    for committer in committers.values():
        world.finish(committer)
    world.check()


def test_a_worker_that_has_nothing_to_commit_sends_no_request() -> None:
    world = with_three_entries()
    committer = world.committer()
    world.finish(committer)
    world.files.moments = 0
    world.clock.advance(3600)
    committer.step(dict(world.wanted))
    assert world.files.moments == 0


def test_an_entry_after_a_pause_is_committed_at_once() -> None:
    world = with_three_entries()
    committer = world.committer()
    committer.step(dict(world.wanted))
    world.check()
    world.clock.advance(COMMIT_SECONDS)
    world.decide()
    committer.step(dict(world.wanted))
    world.check()


def test_another_worker_goes_on_when_the_committer_ends() -> None:
    world = with_three_entries()
    first, second = world.committer(), world.committer()
    first.step(dict(world.wanted))
    for _ in range(2 * round(COMMIT_SECONDS)):
        world.decide("w2")
        second.step(dict(world.wanted))
        world.clock.advance(1)
    assert len(world.state.commits) == 2


@pytest.mark.parametrize("phase", range(0, round(COMMIT_SECONDS), 3))
def test_no_entry_waits_longer_than_the_interval_when_the_committing_worker_falls_quiet(phase: int) -> None:
    """The other worker sees the last commit when it looks, which may be long after the commit."""
    world = World()
    quiet, busy = world.committer(), world.committer()
    waiting: dict[int, float] = {}
    for second in range(round(5 * COMMIT_SECONDS)):
        now = world.clock.monotonic()
        if len(world.state.commits) < 3:
            world.decide("w1")
            quiet.step({world.chains["w1"].id: world.wanted[world.chains["w1"].id]})
        if second >= phase:
            world.decide("w2")
            chain = world.chains["w2"].id
            waiting[world.wanted[chain]] = now
            busy.step({chain: world.wanted[chain]})
            waiting = {number: since for number, since in waiting.items() if number > busy.visible(chain)}
            assert now - min(waiting.values(), default=now) <= COMMIT_SECONDS
        world.clock.advance(1)
    assert len(world.state.commits) <= 6


@pytest.mark.parametrize(("stages", "patience"), [(False, PATIENCE_SECONDS), (True, MERGE_PATIENCE_SECONDS)])
def test_a_commit_that_was_planned_only_is_carried_out_by_another_worker(stages: bool, patience: float) -> None:
    world = with_three_entries()
    first, second = world.committer(), world.committer()
    second.staging = (world.files,) if stages else ()
    table: Any = first.tables[FIRST]
    table.commit = lambda *_: killed()
    with pytest.raises(Killed):
        first.step(dict(world.wanted))
    second.step(dict(world.wanted))
    world.clock.advance(patience - 1)
    second.step(dict(world.wanted))
    assert world.state.commits == []  # its worker may just be at it
    world.clock.advance(PATIENCE_SECONDS)
    second.step(dict(world.wanted))
    world.check()


def test_a_table_that_takes_no_commit_is_seen_and_takes_everything_once_it_is_repaired() -> None:
    world = with_three_entries()
    committer = world.committer()
    world.state.refuses = "its columns were altered"
    with pytest.raises(SinkError, match="its columns were altered"):
        committer.step(dict(world.wanted))
    with pytest.raises(SinkError, match=r"safe in its files.*altered"):
        committer.check()
    committer.step({})  # not yet: it has just failed
    world.clock.advance(RETRY_SECONDS)
    with pytest.raises(SinkError):
        committer.step({})
    world.state.refuses = None
    world.clock.advance(RETRY_SECONDS)
    committer.step({})
    committer.check()
    world.check()


def test_no_batch_is_decided_after_a_commit_has_failed_before_the_first_check() -> None:
    world = with_three_entries()
    world.state.refuses = "its columns were altered"
    with pytest.raises(SinkError):
        world.committer().step(dict(world.wanted))
    other = world.committer()
    with pytest.raises(SinkError):
        other.finish(dict(world.wanted))  # the commit that is planned
    world.clock.advance(RETRY_SECONDS)
    with pytest.raises(SinkError, match="its columns were altered"):
        other.check()


def test_a_batch_without_files_needs_no_commit() -> None:
    world = World()
    world.decide(files=0)
    committer = world.committer()
    world.finish(committer)
    assert world.state.commits == []
    assert [committer.visible(chain) for chain in world.wanted] == [1]
    world.decide()
    world.finish(committer)
    world.check()


def test_records_of_chains_that_are_gone_disappear() -> None:
    world = with_three_entries()
    committer = world.committer()
    world.finish(committer)
    gone = world.chains.pop("w2").id
    close(world.entries, gone, "w1", world.ids)
    world.entries.forget(gone)
    del world.wanted[gone]
    world.decide("w1")
    world.finish(committer)
    world.files.now += KEPT_SECONDS  # until then, a request that is under way may make its entry anew
    world.decide("w1")
    world.finish(committer)
    _, plan = TableCommits(world.files, APPLICATION).newest()
    assert plan is not None
    assert set(plan.contained) == {world.chains["w1"].id}
    assert len([path for path in world.files.content if path.startswith("_commits/")]) == 1


def test_a_chain_that_was_deleted_needs_no_commit() -> None:
    world = with_three_entries()
    first, second = world.committer(), world.committer()
    world.finish(first)
    gone = world.chains["w2"].id
    world.entries.forget(gone)
    world.decide("w1")
    first.finish({world.chains["w1"].id: 3})
    second.finish({gone: 1})


def test_entries_that_were_removed_before_they_were_committed_are_missed() -> None:
    world = with_three_entries()
    world.entries.delete(world.chains["w1"].id, [1])
    world.decide("w2")
    committer = world.committer()
    world.wanted = {world.chains["w2"].id: 2}
    world.finish(committer)  # the chain whose beginning is missing is passed over
    with pytest.raises(SinkError, match="were removed before they were committed"):
        world.committer().finish({world.chains["w1"].id: 2})
    world.decide("w2")
    world.decide("w2")
    world.entries.delete(world.chains["w2"].id, [3])
    world.wanted[world.chains["w2"].id] = 4
    with pytest.raises(SinkError, match="were removed before they were committed"):
        committer.finish(dict(world.wanted))


def test_plans_that_were_removed_are_missed() -> None:
    world = with_three_entries()
    world.finish(world.committer())
    for path in [path for path in world.files.content if path.startswith("_commits/")]:
        world.files.content.pop(path)
    world.decide()
    with pytest.raises(SinkError, match="has no plan"):
        world.committer().finish(dict(world.wanted))


def test_an_older_copy_of_the_plans_is_refused_by_workers_that_run() -> None:
    world = with_three_entries()
    committer = world.committer()
    world.finish(committer)
    older = plans(world)
    world.decide()
    world.finish(committer)
    newest = plans(world)
    put_back(world, older)
    world.decide()
    with pytest.raises(SinkError, match=r"this worker has seen plan 2, and the newest plan in memory is 1"):
        committer.finish(dict(world.wanted))
    with pytest.raises(SinkError, match="older copy"):
        committer.check()
    put_back(world, newest)
    world.clock.advance(RETRY_SECONDS)
    world.finish(committer)
    world.check()


def plans(world: World) -> dict[str, bytes]:
    return {path: content for path, content in world.files.content.items() if path.startswith("_commits/")}


def put_back(world: World, copied: dict[str, bytes]) -> None:
    for path in plans(world):
        del world.files.content[path]
    world.files.content.update(copied)


def test_the_moment_through_which_the_application_is_complete_is_stored_with_the_commit() -> None:
    world = with_three_entries()
    known = WrittenThrough(1_700_000_000, 3)
    committer = world.committer(known)
    world.finish(committer)
    table = committer.tables[FIRST]
    assert isinstance(table, MemoryTable)
    assert table.complete == [known]


def test_a_chain_whose_entries_a_list_does_not_show_is_not_forgotten() -> None:
    """Its owner makes an entry and deletes the former one while a local folder is listed."""
    world = with_three_entries()
    committer = world.committer()
    world.finish(committer)
    world.decide("w1")
    files, hidden = world.files.files, str(world.chains["w2"].id)

    def listed(prefix: str = "", *, hidden_too: bool = True, **more: bool) -> Iterator[StoredFile]:
        whole = files(prefix, hidden=hidden_too or more["hidden"])
        is_of_all = hidden not in prefix
        return (file for file in list(whole) if not (is_of_all and hidden in file.path))

    world.files.files = listed  # type: ignore[method-assign]
    with suppress(OutcomeUnknown, SinkError):
        committer.finish(dict(world.wanted))
    world.files.files = files  # type: ignore[method-assign]
    world.clock.advance(RETRY_SECONDS)
    world.decide("w2")
    world.finish(committer)
    world.check()
    assert world.state.paths.count(world.decided[1]) == 1
