"""Batches of several tables: visible in all of them or in none, whichever worker ends or pauses at any moment."""

import itertools
from collections import Counter
from collections.abc import Mapping

import pytest

from kcl_dagster.chains.chain import Chain
from kcl_dagster.chains.entry import FIRST, ONE_TABLE_VERSION, VERSION, PublishingEntry, StagedFile
from kcl_dagster.chains.publication import beginning_of, chain_id, staged_path
from kcl_dagster.chains.store import Entries
from kcl_dagster.errors import SinkError
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.runtime import Runtime
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.publishing import publisher_of
from kcl_dagster.worker.staging import Destination
from tests.unit.chains.memory import MemoryFiles
from tests.unit.worker.chains import A, B, loses_its_lease_at, put, working
from tests.unit.worker.kit import Killed, Run
from tests.unit.worker.several import COMMIT_SECONDS, FOLDER, TABLE, SeveralWorld

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
