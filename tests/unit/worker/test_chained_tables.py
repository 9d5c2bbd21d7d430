"""Batches that a table's commits make visible: each record once, and no row runs ahead of what readers see."""

import itertools
import random
from collections import Counter
from contextlib import suppress

import pytest

from kcl_dagster.application import BatchSettings, FailureAction, FailurePolicy
from kcl_dagster.chains.deletion import MIN_AGE_SECONDS
from kcl_dagster.chains.entry import ClosingEntry, PublishingEntry, StagedFile
from kcl_dagster.chains.publication import beginning_of
from kcl_dagster.errors import SinkError
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.claim import ChainId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.bound import Bound
from kcl_dagster.worker.chain_protocol import ChainProtocol
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.table_committer import COMMIT_SECONDS, RETRY_SECONDS
from tests.unit.worker.chains import A, B, TableWorld, loses_its_lease_at, put, working
from tests.unit.worker.kit import Data, Killed, Run

pytestmark = pytest.mark.slow


@pytest.fixture
def world() -> TableWorld:
    return TableWorld()


def publishes(run: Run) -> None:
    run.worker.protocol.close()


def last_of(world: TableWorld, shard: str = A) -> Checkpoint:
    return Checkpoint(str(max(sequence for of, sequence, _ in world.stream.everything() if of == shard)))


def check_rows(world: TableWorld, *shards: LeaseKey) -> None:
    """Everything through the checkpoint is in the table."""
    seen = set(world.stored())
    for shard in shards:
        checkpoint = world.lease(shard).checkpoint or TRIM_HORIZON
        for row in world.stream.everything():
            is_passed = checkpoint.is_shard_end or Checkpoint(str(row[1])) <= checkpoint
            assert row[0] != shard or not is_passed or row in seen


def test_batches_are_committed_together_and_rows_follow_the_commit(world: TableWorld) -> None:
    put(world, records=30)
    run = working(world)
    for _ in range(4):
        run.round()
    assert len(world.table.commits) == 1, "the first one, at once"
    run.until_idle()
    assert len(world.table.commits) == 1
    run.worker.holdings.renew(A)
    check_rows(world, A)
    assert world.lease(A).checkpoint < last_of(world)  # type: ignore[operator]
    for _ in range(4):
        world.clock.advance(COMMIT_SECONDS / 4)
        run.round()
    assert len(world.table.commits) == 2
    run.worker.holdings.renew(A)
    assert world.lease(A).checkpoint == last_of(world)
    world.check()


@pytest.mark.parametrize("successor", ["w1", "w2"])
def test_a_worker_that_is_killed_anywhere_loses_and_repeats_nothing(successor: str) -> None:
    for point in itertools.count(1):
        world = TableWorld(shards=2)
        for shard in (A, B):
            put(world, shard)
        run = working(world)
        run.fuse.burns_at = point
        try:
            run.until_idle()
            world.clock.advance(20)
            run.round()
            world.clock.advance(15)
            run.round()
            run.worker.step_renewal()
            run.fuse.burns_at = None
        except Killed:
            pass
        was_killed = run.fuse.burns_at is not None
        check_rows(world, A, B)
        following = working(world, successor)
        following.until_idle()
        check_rows(world, A, B)
        publishes(following)
        world.check()
        if not was_killed:
            assert point > 80
            return


def test_a_worker_that_pauses_anywhere_stores_nothing_after_its_successor() -> None:
    for point in itertools.count(1):
        world = TableWorld()
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
        publishes(following)
        world.check()
        if is_over:
            assert point > 40
            return


def test_a_handoff_waits_for_the_commit_and_leaves_nothing_to_settle(world: TableWorld) -> None:
    put(world)
    run, following = working(world), world.chain_worker("w2")
    run.until_idle()
    world.hand_over(A, following)
    run.hand_over(A)
    assert world.lease(A).actual_owner == run.id, "what is decided is not in the table yet"
    run.worker.step_batch()
    run.worker.step_renewal()
    lease = world.lease(A)
    assert (lease.actual_owner, lease.claim, lease.checkpoint) == (following.id, None, last_of(world))
    world.check()
    put(world)
    following.until_idle()
    publishes(following)
    world.check()
    assert None not in itertools.chain(*world.chains().values())  # no chain was closed


def test_a_handoff_does_not_wait_for_a_table_that_takes_no_commit(world: TableWorld) -> None:
    put(world)
    run, following = working(world), world.chain_worker("w2")
    run.until_idle()
    world.table.refuses = "altered"
    world.hand_over(A, following)
    run.worker.holdings.renew(A)
    for _ in range(round(run.worker.settings.handoff_timeout / 5) + 1):
        run.worker.step_batch()
        run.worker.step_renewal()
        world.clock.advance(5)
    assert world.lease(A).actual_owner == following.id
    assert world.lease(A).claim is not None
    following.round()
    check_rows(world, A)
    world.table.refuses = None
    world.clock.advance(60)
    following.until_idle()
    publishes(following)
    world.check()


def test_a_worker_that_stops_commits_first_and_leaves_nothing(world: TableWorld) -> None:
    put(world)
    run = working(world)
    run.until_idle()
    run.worker.step_leaving()  # of the thread that looks after the worker, as soon as it is to stop
    assert world.lease(A).actual_owner == run.id
    publishes(run)
    run.worker.shut_down()
    lease = world.lease(A)
    assert (lease.claim, lease.checkpoint) == (None, last_of(world))
    world.check()
    assert world.chains() == {}


def test_an_entry_whose_repeated_request_arrives_late_is_not_committed_again(world: TableWorld) -> None:
    """The first request to make it had no answer, so it was sent again. It arrives when the worker has gone."""
    put(world, records=1)
    run = working(world)
    run.until_idle()
    late = {path: content for path, content in world.shared.content.items() if path.startswith("_chains/")}
    run.worker.step_leaving()
    publishes(run)
    run.worker.shut_down()
    assert world.chains() == {}
    for name in ("w2", "w3"):
        put(world, records=1)
        following = working(world, name)
        following.until_idle()
        publishes(following)
        world.clock.advance(COMMIT_SECONDS)
        following.worker.shut_down()
    for path, content in late.items():
        world.shared.create(path, content)
    put(world, records=1)
    last = working(world, "w4")
    last.until_idle()
    publishes(last)
    world.check()


def test_an_entry_in_a_chain_that_was_deleted_before_keeps_no_other_chain_from_being_deleted(
    world: TableWorld,
) -> None:
    """A worker that was paused for more than a day has made it. It means nothing."""
    put(world)
    run = working(world)
    run.until_idle()
    publishes(run)
    beginning = beginning_of(world.application.name)
    paused, other = ChainId(f"{beginning}paused"), ChainId(f"{beginning}waits")
    files = (StagedFile("paused.parquet", 1, 1),)
    assert world.entries().create(paused, 3, PublishingEntry("attempt", files, ()))
    assert world.entries().create(other, 1, ClosingEntry("closing", "w9"))
    world.clock.advance(2 * MIN_AGE_SECONDS)
    protocol = run.worker.protocol
    assert isinstance(protocol, ChainProtocol)
    claims = protocol.claims
    named = {claim.chain for shard in (A,) if (claim := world.lease(shard).claim) is not None}
    assert set(claims.delete_former(named, world.clock.now() - MIN_AGE_SECONDS)) == {paused, other}
    publishes(run)
    world.check()


def test_splits_and_merges_are_followed(world: TableWorld) -> None:
    put(world)
    run = working(world)
    run.round()
    low, high = world.stream.split(A)
    for shard in (low, high):
        world.stream.put(shard, "in the child")
    run.until_idle()
    assert world.lease(A).is_finished
    check_rows(world, A)
    world.assign(run, low, high)
    run.until_idle()
    child = world.stream.merge(low, high)
    world.stream.put(child, "in the grandchild")
    run.until_idle()
    world.assign(run, child)
    run.until_idle()
    publishes(run)
    world.check()


def test_the_end_of_a_shard_waits_for_the_table(world: TableWorld) -> None:
    put(world)
    run = working(world)
    run.round()
    low, high = world.stream.split(A)
    world.table.refuses = "altered"
    for _ in range(6):
        run.round()
        world.clock.advance(COMMIT_SECONDS)
    assert not world.lease(A).is_finished
    world.table.refuses = None
    for _ in range(12):
        run.round()
        world.clock.advance(10)
    assert world.lease(A).is_finished
    world.assign(run, low, high)
    world.check()


def test_a_table_that_takes_no_commit_stops_the_reading_and_nothing_is_lost(world: TableWorld) -> None:
    put(world, records=9)
    run = working(world)
    run.round()
    world.table.refuses = "column n is gone"
    for _ in range(20):
        run.round()
        world.clock.advance(10)
    assert world.stored() == []
    staged = [path for path in world.shared.content if path.endswith(".parquet")]
    assert len(staged) <= 2, "one batch was decided, and no other one was staged"
    assert world.lease(A).checkpoint == TRIM_HORIZON
    assert any("column n is gone" in str(event.message) for event in run.events if event.lease == A)
    assert EventKind.SHARD_STOPPED in run.kinds()
    world.table.refuses = None
    for _ in range(20):
        world.clock.advance(10)
        run.round()
    publishes(run)
    world.check()


def test_a_commit_that_failed_once_costs_some_seconds(world: TableWorld) -> None:
    put(world)
    run = working(world)
    run.round()
    world.table.refuses = "the store is away"
    run.round()
    world.table.refuses = None
    world.clock.advance(RETRY_SECONDS)
    run.until_idle()
    publishes(run)
    world.check()


def test_the_moment_through_which_a_shard_is_stored_follows_the_commit(world: TableWorld) -> None:
    arrived = int(world.clock.now()) - 3600
    world.stream.arrival_ms = arrived * 1000
    put(world)
    run = working(world)
    for _ in range(6):
        run.round()  # the shard is read to its end, and only its first batch is committed
        world.clock.advance(1)
    run.worker.holdings.renew(A)
    assert len(world.stored()) == 3
    assert (world.lease(A).stored_through or 0) <= arrived
    for _ in range(4):
        world.clock.advance(COMMIT_SECONDS / 4)
        run.round()
    run.worker.holdings.renew(A)
    assert (world.lease(A).stored_through or 0) > arrived
    world.check()


def test_what_waits_for_a_commit_counts_once_although_its_chain_was_closed_meanwhile() -> None:
    world = TableWorld(shards=2)
    put(world, A, 9)
    run, following = working(world), world.chain_worker("w2")
    for _ in range(4):
        run.round()
    assert len(world.stored()) == 3, "two batches wait"
    put(world, B, 1)
    world.assign(following, B)
    following.until_idle()  # settles the chain
    put(world, A, 12)
    for _ in range(2):
        run.round()  # finds its chain closed, and claims its lease with another one
    reached = TRIM_HORIZON
    for _ in range(12):
        run.round()
        publishes(run)
        run.worker.holdings.renew(A)
        checkpoint = world.lease(A).checkpoint or TRIM_HORIZON
        assert checkpoint >= reached
        reached = checkpoint
        world.clock.advance(7)
    for one in (run, following):
        publishes(one)
    world.check()
    assert len(world.chains()) == 3


def put_back(world: TableWorld, to: Checkpoint) -> None:
    """As a reset does it, and let another worker read on."""
    free = world.leases.vacate(world.lease(A))
    assert free is not None
    assert world.leases.rewind(free, to) is not None
    following = working(world, "w2")
    put(world, records=2)
    following.until_idle()
    publishes(following)


@pytest.mark.parametrize("place", ["the end", "the middle", "the beginning", "a beginning whose records are gone"])
def test_what_a_killed_worker_has_decided_is_not_lost_by_a_reset(world: TableWorld, place: str) -> None:
    """It comes into the table, also where it is read again: no reset may take away what is stored."""
    put(world)
    run = working(world)
    run.until_idle()
    decided = world.stream.everything()
    assert len(world.stored()) < len(decided), "the rest waits for a commit"
    to = Checkpoint(
        str([sequence for _, sequence, _ in decided][len(decided) // 2 if place == "the middle" else -1])
    )
    if place.startswith("a beginning"):
        del world.stream.shards[A].records[:]
    put_back(world, TRIM_HORIZON if "beginning" in place else to)
    stored = Counter(world.stored())
    assert stored.keys() >= set(decided) | set(world.stream.everything())
    assert place != "the end" or max(stored.values()) == 1


def test_a_record_that_fails_is_set_aside_and_nothing_else() -> None:
    policy = FailurePolicy(action=FailureAction.SKIP, attempts=1)
    world = TableWorld(batch=BatchSettings(failure=policy))
    put(world)
    run = working(world)

    def refuses(data: Data) -> None:
        if any(row[2] == "record 2" for row in data):
            raise ValueError("record 2 is bad")

    world.tables["w1"].refuses = refuses
    for _ in range(20):
        run.round()
        world.clock.advance(5)
    missing = set(world.stream.everything()) - set(world.stored())
    assert [row[2] for row in missing] == ["record 2"]
    assert len(world.stored()) == 6
    assert world.lease(A).checkpoint == last_of(world)


def test_a_sink_that_fails_is_tried_again(world: TableWorld) -> None:
    put(world)
    run = working(world)

    def away(_: Data) -> None:
        world.tables["w1"].refuses = None
        raise SinkError("the bucket is away")

    world.tables["w1"].refuses = away
    run.round()
    world.clock.advance(5)
    run.until_idle()
    publishes(run)
    world.check()


def test_nothing_grows_with_time(world: TableWorld) -> None:
    run = working(world)
    for _ in range(200):
        put(world, records=1)
        run.round()
        world.clock.advance(5)
    kept = [path for path in world.shared.content if not path.endswith(".parquet")]
    assert len(kept) <= 1 + 2 + 2 * COMMIT_SECONDS / 5
    assert len(world.table.commits) <= 1000 / COMMIT_SECONDS + 1
    publishes(run)
    world.check()


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_each_record_is_in_the_table_once_and_no_row_is_ahead_of_it(seed: int) -> None:
    chance = random.Random(seed)
    world = TableWorld(shards=2)
    names = map("w{}".format, itertools.count())
    workers = [world.chain_worker(next(names)) for _ in range(3)]
    world.assign(workers[0])
    for _ in range(60):
        rare = ["put", "put", "take", "hand over", "kill", "pause", "refuse", "wait", "stop"]
        what = chance.choice(["round"] * 6 + rare)
        run = chance.choice(workers)
        shard = chance.choice([A, B])
        if what == "put":
            put(world, shard, chance.randrange(1, 6))
        elif what == "take":
            world.assign(run, shard)
        elif what == "hand over":
            lease = world.lease(shard)
            if lease.owner not in (None, run.id) and not lease.in_handoff:
                world.hand_over(shard, run)
        elif what == "refuse":
            world.table.refuses = chance.choice([None, "altered"])
        elif what == "wait":
            world.clock.advance(chance.choice([1, 5, 9]))
        elif what in ("kill", "stop"):
            if what == "stop":
                publishes(run)
                run.worker.shut_down()
            else:
                run.fuse.burns_at = run.fuse.passed + chance.randrange(1, 40)
                with suppress(Killed):
                    run.round()
                    run.round()
            workers[workers.index(run)] = world.chain_worker(next(names))
        elif what == "pause":
            run.fuse.burns_at = None
            other = chance.choice(workers)
            moment = run.fuse.passed + chance.randrange(1, 40)

            def others_go_on(run: Run = run, other: Run = other, moment: int = moment) -> None:
                run.fuse.passed += 1
                if run.fuse.passed == moment and other is not run:
                    world.assign(other, A, B)
                    for _ in range(4):
                        other.round()

            point, run.fuse.point = run.fuse.point, others_go_on  # type: ignore[method-assign]
            run.round()
            run.fuse.point = point  # type: ignore[method-assign]
        else:
            run.round()
        check_rows(world, A, B)
    world.table.refuses = None
    last = working(world, "last")
    for _ in range(30):
        last.round()
        world.clock.advance(10)
    last.until_idle()
    publishes(last)
    world.check()
    check_rows(world, A, B)


def test_a_bounded_run_commits_what_it_has_read_and_does_not_wait_for_the_interval(world: TableWorld) -> None:
    """The interval may be longer than the patience of the run, which would then end as stuck."""
    put(world, records=9)
    run = world.chain_worker("w1", bound=Bound(world.clock.now(), 10.0))
    world.assign(run)
    for _ in range(3):
        run.round()
    assert len(world.stored()) == 3
    run.until_idle()
    world.check()
    run.worker.holdings.renew(A)
    assert world.lease(A).checkpoint == last_of(world)
