"""Batches of several tables: visible in all of them or in none, whichever worker ends or pauses at any moment."""

import itertools
from collections import Counter
from collections.abc import Mapping

import pytest

from kcl_dagster.chains.chain import Chain
from kcl_dagster.chains.entry import (
    FIRST,
    ONE_TABLE_VERSION,
    VERSION,
    PublishingEntry,
    StagedFile,
    TableOutput,
)
from kcl_dagster.chains.publication import beginning_of, chain_id, file_name, staged_path
from kcl_dagster.chains.store import Entries
from kcl_dagster.errors import SinkError
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.runtime import Runtime
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.publishing import publisher_of
from kcl_dagster.worker.staging import Destination
from kcl_dagster.worker.table_committer import RETRY_SECONDS, TableCommitter
from tests.doubles.clock import FakeClock
from tests.unit.chains.memory import MemoryFiles
from tests.unit.chains.memory_table import MemoryTable, TableState
from tests.unit.worker.chains import A, B, loses_its_lease_at, put, working
from tests.unit.worker.kit import Killed, Run
from tests.unit.worker.several import COMMIT_SECONDS, FOLDER, TABLE, SeveralWorld

pytestmark = pytest.mark.slow

KINDS = [(FOLDER, FOLDER), (FOLDER, TABLE), (TABLE, FOLDER), (TABLE, TABLE)]


@pytest.fixture(params=KINDS, ids=" ".join)
def kinds(request: pytest.FixtureRequest) -> tuple[str, ...]:
    found: tuple[str, ...] = request.param
    return found


def failures(run: Run) -> str:
    kinds = (EventKind.BATCH_FAILED, EventKind.FETCH_FAILED)
    return " ".join(event.message for event in run.events if event.kind in kinds)


def check_rows(world: SeveralWorld) -> None:
    """Everything through the checkpoints is visible, and nothing is twice."""
    seen = Counter(world.stored())
    assert not seen or max(seen.values()) == 1
    for shard in (A, B):
        checkpoint = world.lease(shard).checkpoint or TRIM_HORIZON
        for row in world.stream.everything():
            is_passed = checkpoint.is_shard_end or Checkpoint(str(row[1])) <= checkpoint
            assert row[0] != shard or not is_passed or row in seen


def test_a_worker_that_is_killed_anywhere_loses_and_repeats_nothing(kinds: tuple[str, ...]) -> None:
    for point in itertools.count(1):
        world = SeveralWorld(*kinds, shards=2)
        for shard in (A, B):
            put(world, shard)
        run = working(world)
        run.fuse.burns_at = point
        try:
            run.until_idle()
            for _ in range(3):
                world.clock.advance(COMMIT_SECONDS / 2)
                run.round()
            run.worker.step_renewal()
            run.fuse.burns_at = None
        except Killed:
            pass
        was_killed = run.fuse.burns_at is not None
        check_rows(world)
        following = working(world, "w2")
        following.until_idle()
        check_rows(world)
        following.worker.protocol.close()
        world.check()
        if not was_killed:
            assert point > 60
            assert all(place.stored() for place in world.places.values())
            return


def test_a_worker_that_pauses_anywhere_stores_nothing_after_its_successor(kinds: tuple[str, ...]) -> None:
    for point in itertools.count(1):
        world = SeveralWorld(*kinds)
        put(world)
        run, following = world.chain_worker("w1"), world.chain_worker("w2")
        world.assign(run)
        loses_its_lease_at(world, run, following, point)
        for _ in range(8):
            run.round()
        is_over = run.fuse.passed < point
        world.assign(following)
        put(world, records=1)
        following.until_idle()
        following.worker.protocol.close()
        world.check()
        if is_over:
            assert point > 30
            return


def test_one_commit_of_all_tables_has_the_same_number() -> None:
    world = SeveralWorld(TABLE, TABLE, TABLE)
    put(world, records=30)
    run = working(world)
    for _ in range(20):
        world.clock.advance(COMMIT_SECONDS / 5)
        run.round()
    run.worker.protocol.close()
    numbers = [[number for number, _ in place.state.commits] for place in world.places.values()]
    assert len(numbers[0]) > 1
    assert numbers[0] == numbers[1] == numbers[2]
    world.check()


def test_a_table_that_takes_no_commit_keeps_all_tables_from_going_on(kinds: tuple[str, ...]) -> None:
    if TABLE not in kinds:
        kinds = (TABLE, TABLE)
    world = SeveralWorld(*kinds)
    put(world)
    run = working(world)
    name = next(name for name, place in reversed(world.places.items()) if place.kind == TABLE)
    world.places[name].state.refuses = "altered by hand"
    for _ in range(4):
        world.clock.advance(COMMIT_SECONDS)
        run.round()
    assert "takes no commit" in failures(run)
    run.worker.step_renewal()
    assert world.lease(A).checkpoint == TRIM_HORIZON, "the row does not run ahead of the last table"
    world.places[name].state.refuses = None
    world.clock.advance(COMMIT_SECONDS)
    run.until_idle()
    run.worker.protocol.close()
    world.check()


def test_a_batch_for_a_table_that_the_sink_does_not_have_is_not_lost() -> None:
    """A redeployment without the table, after a crash."""
    world = SeveralWorld(FOLDER, TABLE)
    put(world)
    working(world).round()
    former = world.places.pop("t1")
    following = working(world, "w2")
    following.round()
    assert "'t1'" in failures(following)
    assert world.lease(A).checkpoint == TRIM_HORIZON
    world.places["t1"] = former
    mended = working(world, "w3")
    mended.until_idle()
    mended.worker.protocol.close()
    world.check()


def test_a_table_is_added_to_a_sink_of_one() -> None:
    world = SeveralWorld(TABLE)
    put(world)
    working(world).round()
    assert {entry.version for entry in publishing(world)} == {ONE_TABLE_VERSION}, "a former version may read it"
    world.places["t1"] = SeveralWorld(TABLE, TABLE).places["t1"]
    following = working(world, "w2")
    put(world)
    following.round()
    assert VERSION in {entry.version for entry in publishing(world)}, "a former version would lose the new table"
    following.until_idle()
    following.worker.protocol.close()
    world.check()
    assert world.places["t1"].stored()


def test_a_table_that_had_commits_of_its_own_gets_those_of_a_sink_with_another_first_one() -> None:
    """Their numbers have nothing to do with each other."""
    alone = SeveralWorld(TABLE)
    put(alone, records=30)
    run = working(alone)
    for _ in range(20):
        alone.clock.advance(COMMIT_SECONDS)
        run.round()
    world = SeveralWorld(TABLE, TABLE)
    world.places["t1"].state = alone.places[FIRST].state
    before = len(world.places["t1"].state.paths)
    put(world)
    run = working(world)
    run.until_idle()
    run.worker.protocol.close()
    del world.places["t1"].state.paths[:before]
    assert world.places["t1"].stored()
    world.check()


@pytest.mark.parametrize("kind", [FOLDER, TABLE])
@pytest.mark.parametrize("change", ["another place", "names are swapped"])
def test_a_batch_that_was_decided_for_another_place_is_not_lost(kind: str, change: str) -> None:
    """A redeployment after a crash, at whatever moment that was. With the former places, everything is stored."""
    refused = 0
    for point in itertools.count(1):
        world = SeveralWorld(FOLDER, kind, kind)
        put(world)
        run = working(world)
        run.fuse.burns_at = point
        try:
            run.until_idle()
            run.fuse.burns_at = None
        except Killed:
            pass
        former = dict(world.places)
        if change == "another place":
            world.places["t1"] = SeveralWorld(FOLDER, kind).places["t1"]
        else:
            world.places["t1"], world.places["t2"] = world.places["t2"], world.places["t1"]
        following = working(world, "w2")
        following.until_idle()
        following.worker.protocol.close()
        if "at another place" in failures(following):
            refused += 1
            world.places = former
            mended = working(world, "w3")
            mended.until_idle()
            mended.worker.protocol.close()
            world.check()
        else:  # nothing was under way
            places = {id(one): one for one in (*world.places.values(), *former.values())}
            rows = [row for place in places.values() for row in place.stored()]
            assert Counter(rows) == Counter(world.stream.everything())
        if run.fuse.burns_at is None:
            assert refused > 5
            return


@pytest.mark.parametrize(
    "order",
    [("", "t1"), ("t1", ""), ("t1",), ("",)],
    ids=["same", "reversed", "without the first", "without the last"],
)
def test_after_an_orderly_stop_the_tables_may_change(kinds: tuple[str, ...], order: tuple[str, ...]) -> None:
    world = SeveralWorld(*kinds)
    put(world)
    run = working(world)
    run.until_idle()
    run.worker.protocol.close()
    run.worker.shut_down()
    before = dict(world.places)
    world.places = {FIRST if not place else f"t{place}": before[name] for place, name in enumerate(order)}
    world.shared = world.places[FIRST].files
    following = working(world, "w2")
    put(world)
    following.until_idle()
    following.worker.protocol.close()
    rows = [row for place in before.values() for row in place.stored()]
    assert Counter(rows) == Counter(world.stream.everything())


@pytest.mark.parametrize("folders", [1, 2])
def test_a_table_is_appended_behind_folders_whose_worker_was_killed(folders: int) -> None:
    """It has deleted the first entries of its chain, which were for folders alone."""
    world = SeveralWorld(*[FOLDER] * folders)
    put(world, records=20)
    run = working(world)
    for _ in range(4):
        run.round()
        run.worker.holdings.renew(A)
    world.places[f"t{folders}"] = SeveralWorld(FOLDER, TABLE).places["t1"]
    following = working(world, "w2")
    put(world)
    following.until_idle()
    following.worker.protocol.close()
    world.check()


def test_what_is_staged_for_chains_beside_a_further_folder_remains() -> None:
    """The former sink had this folder alone, and its worker was killed."""
    first, further = MemoryFiles(), MemoryFiles()
    chain, left = chain_id("clicks", "w1", "1"), chain_id("clicks", "w2", "2")
    for one in (chain, left):
        further.put(staged_path(one, "a"), b"rows")
    assert Chain(Entries(further), chain, lambda: "1").decide([StagedFile("a", 1, 4)], ())
    publisher = publisher_of(
        Entries(first), {FIRST: Destination(first), "t1": Destination(further)}, "clicks", Runtime()
    )
    publisher.remove_left_behind(beginning_of("clicks"), float("inf"), ())
    assert further.staged() == {staged_path(chain, "a")}, "what no chain beside it names is removed"


def test_two_deployments_that_share_a_further_table_store_all_of_both() -> None:
    worlds = [SeveralWorld(TABLE, TABLE) for _ in range(2)]
    shared = worlds[1].places["t1"] = worlds[0].places["t1"]
    for number, world in enumerate(worlds):
        world.shared.root = f"region {number}"
        put(world, records=10)
    runs = [working(world) for world in worlds]
    for _ in range(12):
        for world, run in zip(worlds, runs, strict=True):
            world.clock.advance(COMMIT_SECONDS / 2)
            run.round()
    for run in runs:
        run.worker.protocol.close()
    rows = [*worlds[0].places[FIRST].stored(), *worlds[1].places[FIRST].stored(), *shared.stored()]
    assert len(rows) == 20


def publishing(world: SeveralWorld) -> list[PublishingEntry]:
    return [entry for entries in world.chains().values() for entry in entries if entry is not None]


def test_an_unknown_outcome_in_one_folder_is_settled_in_both(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SeveralWorld(FOLDER, FOLDER)
    put(world)
    run = working(world)
    move, moves = MemoryFiles.move, itertools.count()

    def fails(files: MemoryFiles, names: Mapping[str, str]) -> list[str]:
        if next(moves):
            raise SinkError("no answer")
        return move(files, names)

    with monkeypatch.context() as patched:
        patched.setattr(MemoryFiles, "move", fails)
        run.round()
    assert world.places[FIRST].stored()
    assert not world.places["t1"].stored()
    world.clock.advance(5)
    run.until_idle()
    world.check()


# Operators who remove or replace folders and tables

WITH_COMMITS = [(FOLDER, TABLE), (TABLE, TABLE)]


def works(world: SeveralWorld, run: Run) -> None:
    """For some commits."""
    for _ in range(30):
        world.clock.advance(COMMIT_SECONDS / 3)
        run.round()


def stops(run: Run) -> None:
    """In an orderly way: everything is stored, and no chain is left."""
    run.until_idle()
    run.worker.protocol.close()
    run.worker.shut_down()


def stored_by(world: SeveralWorld, name: str, records: int = 30) -> Run:
    """A worker stores so many further records, and stops."""
    put(world, records=records)
    run = working(world, name)
    works(world, run)
    stops(run)
    return run


def is_made_anew(state: TableState) -> None:
    state.numbers.clear()
    state.paths.clear()
    state.commits.clear()


def put_back(files: MemoryFiles, copy: tuple[dict[str, bytes], dict[str, float]]) -> None:
    """The folder contains what it contained when it was copied."""
    for now, then in zip((files.content, files.times), copy, strict=True):
        now.clear()  # type: ignore[attr-defined]  # both are dicts
        now.update(then)  # type: ignore[attr-defined]


def copy_of(files: MemoryFiles) -> tuple[dict[str, bytes], dict[str, float]]:
    return dict(files.content), dict(files.times)


@pytest.mark.parametrize("kinds", WITH_COMMITS, ids=" ".join)
def test_after_the_first_table_was_made_anew_further_tables_get_all_rows(kinds: tuple[str, ...]) -> None:
    """The plans begin again, and the numbers that the further table contains are not used a second time."""
    world = SeveralWorld(*kinds)
    stored_by(world, "w1")
    former = Counter(world.places[FIRST].stored())
    assert max(world.places["t1"].state.numbers.values()) > 2
    put_back(world.shared, ({}, {}))
    is_made_anew(world.places[FIRST].state)
    run = stored_by(world, "w2")
    assert not failures(run)
    assert former + Counter(world.stored()) == Counter(world.stream.everything())


def test_after_a_stop_the_plans_beside_a_folder_may_be_removed() -> None:
    """A rule of the bucket removes old files."""
    world = SeveralWorld(FOLDER, TABLE)
    stored_by(world, "w1")
    for path in [path for path in world.shared.content if path.startswith("_commits/")]:
        del world.shared.content[path]
    run = stored_by(world, "w2")
    assert not failures(run)
    world.check()


def test_without_plans_entries_that_a_table_may_contain_are_not_committed_again() -> None:
    """The plans were removed although a worker was killed. When they are put back, everything is stored."""
    world = SeveralWorld(FOLDER, TABLE, shards=2)
    put(world, records=30)
    works(world, working(world))
    plans = {path: content for path, content in world.shared.content.items() if path.startswith("_commits/")}
    assert plans
    for path in plans:
        del world.shared.content[path]
    put(world, records=30)
    following = working(world, "w2")
    works(world, following)
    assert "has no plan, and there are entries" in failures(following)
    check_rows(world)
    world.shared.content.update(plans)
    stored_by(world, "w3")
    world.check()


@pytest.mark.parametrize("kinds", WITH_COMMITS, ids=" ".join)
@pytest.mark.parametrize("place", ["the same place", "another place"])
def test_an_older_copy_of_the_first_folder_is_refused(kinds: tuple[str, ...], place: str) -> None:
    """New plans would have numbers that the further table contains."""
    world = SeveralWorld(*kinds)
    stored_by(world, "w1")
    older, root = copy_of(world.shared), world.shared.root
    stored_by(world, "w2")
    newest = copy_of(world.shared)
    put_back(world.shared, older)
    if place == "another place":
        world.shared.root = place
    put(world, records=30)
    run = working(world, "w3")
    works(world, run)
    assert "is an older copy" in failures(run)
    assert len(world.chains()) == 0, "no batch was decided"
    world.shared.root = root
    put_back(world.shared, newest)
    stored_by(world, "w4", records=1)
    world.check()


@pytest.mark.parametrize("kinds", WITH_COMMITS, ids=" ".join)
@pytest.mark.parametrize("commits", [1, 5])
def test_after_a_stop_a_further_table_may_be_made_anew(kinds: tuple[str, ...], commits: int) -> None:
    """The entries of the last commit are gone, and so is the number in the table."""
    world = SeveralWorld(*kinds)
    for place in range(commits):
        stored_by(world, f"w1-{place}", records=6)
    state = world.places["t1"].state
    former = Counter(world.places["t1"].stored())
    assert former
    is_made_anew(state)
    run = stored_by(world, "w2")
    assert not failures(run)
    assert world.places["t1"].stored()
    assert former + Counter(world.stored()) == Counter(world.stream.everything())


@pytest.mark.parametrize("kinds", WITH_COMMITS, ids=" ".join)
def test_a_table_that_is_made_anew_while_workers_run_is_missed(kinds: tuple[str, ...]) -> None:
    """Some entries of its last commit are gone, and it is not known which rows it lacks."""
    world = SeveralWorld(*kinds)
    put(world, records=30)
    run = working(world)
    works(world, run)
    run.worker.protocol.close()
    run.worker.step_renewal()
    put(world)
    run.round()  # decides a batch, and deletes entries of the last commit
    is_made_anew(world.places["t1"].state)
    following = working(world, "w2")
    put(world)
    works(world, following)
    assert "made anew before the workers had stopped" in failures(following)


@pytest.mark.parametrize("kinds", WITH_COMMITS, ids=" ".join)
def test_after_a_stop_the_first_folder_may_be_moved(kinds: tuple[str, ...]) -> None:
    world = SeveralWorld(*kinds)
    stored_by(world, "w1")
    first = world.shared.root
    for number, root in enumerate(("the same files, at another path", first)):
        world.shared.root = root
        run = stored_by(world, f"w2-{number}")
        assert not failures(run)
    world.check()


def moved_with_an_unfinished_commit() -> tuple[MemoryFiles, TableState, Chain]:
    """A worker was killed after one of two tables had got the commit, and the folder of the plans was moved."""
    files, states = MemoryFiles(), {"t1": TableState(), "t2": TableState()}
    chain = Chain(Entries(files), chain_id("clicks", "w1", "1"), map(str, itertools.count()).__next__)
    decide(chain, "t1", "t2")
    states["t2"].refuses = "its catalog is away"
    with pytest.raises(SinkError, match="its catalog is away"):
        committer_of(files, states).finish({chain.id: 1})
    states["t2"].refuses = None
    files.root = "another path"
    committer_of(files, states).finish({chain.id: 1})
    return files, states["t1"], chain


def committer_of(files: MemoryFiles, states: Mapping[str, TableState]) -> TableCommitter:
    """Of a sink whose first place is a folder."""
    tables = {name: MemoryTable(state, files) for name, state in states.items()}
    ids = map(str, itertools.count()).__next__
    return TableCommitter(Entries(files), tables, "clicks", ids, FakeClock(), folders=frozenset({FIRST}))


def decide(chain: Chain, *tables: str) -> None:
    number = chain.last + 1
    outputs = {name: TableOutput((StagedFile(file_name(chain.id, number, 0, 0), 1, 8),)) for name in tables}
    assert chain.decide((), (), None, outputs) is not None


def test_a_commit_is_finished_under_its_own_series_after_its_folder_was_moved() -> None:
    _, state, chain = moved_with_an_unfinished_commit()
    assert state.paths == [file_name(chain.id, 1, 0, 0)], "the table that had the commit does not get it again"


def test_a_copy_of_the_first_folder_and_the_original_store_all_of_both() -> None:
    worlds = [SeveralWorld(FOLDER, TABLE) for _ in range(2)]
    shared = worlds[1].places["t1"] = worlds[0].places["t1"]
    stored_by(worlds[0], "w1")
    put_back(worlds[1].shared, copy_of(worlds[0].shared))
    worlds[1].shared.root = "the copy"
    before = len(worlds[0].stored()), len(worlds[1].places[FIRST].stored()), len(shared.stored())
    for place in (1, 0, 1, 0):
        run = stored_by(worlds[place], f"w2-{place}", records=20)
        assert not failures(run)
    assert len(worlds[0].places[FIRST].stored()) + len(worlds[1].places[FIRST].stored()) + len(shared.stored()) == (
        before[0] + before[1] + 80
    )


def test_of_two_workers_that_begin_without_plans_each_entry_is_committed_once() -> None:
    """Whatever the other one does meanwhile, and at whatever moment."""
    for moment in itertools.count(1):
        files, state, ids = MemoryFiles(), TableState(), map(str, itertools.count()).__next__
        states = {"t1": state}
        former = committer_of(files, states)
        chain = Chain(Entries(files), chain_id("clicks", "w0", ids()), ids)
        for _ in range(3):
            decide(chain, "t1")
            former.finish({chain.id: chain.last})
        files.content.clear()
        decided = list(state.paths)
        files.moments = 0
        chains = [Chain(Entries(files), chain_id("clicks", worker, ids()), ids) for worker in ("w1", "w2")]

        def works_and_ends(
            chain: Chain = chains[1], files: MemoryFiles = files, states: Mapping[str, TableState] = states
        ) -> None:
            other = committer_of(files, states)
            other.check()
            for _ in range(2):
                decide(chain, "t1")
                other.finish({chain.id: chain.last})

        files.at[moment] = works_and_ends
        committer = committer_of(files, states)
        assert isinstance(committer.clock, FakeClock)
        for _ in range(2):
            try:
                committer.check()
                break
            except SinkError:
                committer.clock.advance(RETRY_SECONDS)
                committer.step({})
        decide(chains[0], "t1")
        committer.finish({chains[0].id: 1})
        expected = [*decided, file_name(chains[0].id, 1, 0, 0)]
        if chains[1].last:
            expected += [file_name(chains[1].id, number, 0, 0) for number in (1, 2)]
        assert sorted(state.paths) == sorted(expected)
        if files.at:
            assert moment > 15
            return
