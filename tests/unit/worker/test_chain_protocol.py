"""Batches in chains: each record is stored once, whatever ends, pauses or moves, and whatever user code does."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError

from kcl_dagster.application import BatchSettings, FailureAction, FailurePolicy
from kcl_dagster.chains.deletion import MIN_AGE_SECONDS, delete_chains
from kcl_dagster.errors import KclError, ServiceError, SinkError
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.claim import ChainId, Claim, ClaimId
from kcl_dagster.model.stored import BatchCounts, StoredRows
from kcl_dagster.model.windows import FixedWindows
from kcl_dagster.worker.batch import Batch
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.held_lease import Unwritten
from kcl_dagster.worker.pins import pin_of
from kcl_dagster.worker.processor import ProcessRecordsInput, RecordProcessorBase
from kcl_dagster.worker.report import Outcome
from kcl_dagster.worker.staging import StagedBatch
from tests.unit.chains.memory import MemoryFiles
from tests.unit.worker.chains import A, B, ChainWorld, loses_its_lease_at, put, working
from tests.unit.worker.kit import Data, Killed


@pytest.fixture
def world() -> ChainWorld:
    return ChainWorld()


def test_everything_is_stored_once_and_rows_are_written_by_renewals_only(world: ChainWorld) -> None:
    put(world, records=30)
    run = working(world)
    run.round()
    run.client.calls.clear()
    run.until_idle()
    assert "update_item" not in run.client.calls
    assert world.lease(A).checkpoint == TRIM_HORIZON
    world.check()
    world.clock.advance(20)
    run.worker.step_renewal()
    assert run.client.calls.count("update_item") == 1
    assert world.lease(A).checkpoint == Checkpoint(str(world.stream.everything()[-1][1]))


def test_what_was_read_ahead_is_what_the_next_batch_asks_for() -> None:
    world = ChainWorld(shards=2)
    for shard in (A, B):
        put(world, shard, 9)
    run = working(world)
    for _ in range(3):
        run.round()
        world.clock.advance(1)
    assert [len(ranges) for ranges in run.engine.hints] == [2, 2, 2]
    assert run.engine.asked[1:] == run.engine.hints[:2]


def test_a_shard_without_records_is_read_ahead_with_the_others() -> None:
    """Else it is read after they were, and what arrives there waits for two batches."""
    world = ChainWorld(shards=2)
    put(world, A, 3)
    run = working(world)
    run.round()
    assert [sorted(range_.lease for range_ in ranges) for ranges in run.engine.hints] == [[A, B]]
    put(world, A, 3)
    put(world, B, 3)
    run.round()
    assert run.engine.asked[1] == run.engine.hints[0]
    run.until_idle()
    world.check()


def test_a_lease_that_comes_back_without_a_record_has_a_new_number() -> None:
    """It may have been deleted and made again meanwhile, by others who used numbers."""
    world = ChainWorld(shards=2)
    put(world, B, 3)
    run, other = working(world), world.chain_worker("w2")
    run.round()
    world.hand_over(A, other)
    run.hand_over(A)
    other.until_idle()
    world.clock.advance(1)
    world.hand_over(A, run)
    other.hand_over(A)
    run.until_idle()
    numbers = [range_.number for ranges in run.engine.asked for range_ in ranges if range_.lease == A]
    assert numbers[-1] > numbers[0]
    world.check()


def lose_first_answer(files: MemoryFiles) -> None:
    """The next file that is created raises OSError afterwards, as if the answer to the request were lost."""
    create = files.create

    def lost(path: str, content: bytes) -> bool:
        files.create = create  # type: ignore[method-assign]
        create(path, content)
        raise OSError("no answer")

    files.create = lost  # type: ignore[method-assign]


def test_the_sink_knows_the_chain_of_a_batch_before_it_is_read(world: ChainWorld) -> None:
    """Also of the first one, and of the first one in another chain."""
    put(world, records=4)
    run = working(world)
    sink, known, staged = world.sinks["w1"], [], []
    fetch, stage = run.engine.fetch, sink.stage

    def fetched(*arguments: Any) -> Any:
        known.append(sink.chain)
        return fetch(*arguments)

    def staged_for(data: Data, batch: Batch, chain: ChainId, number: int) -> StagedBatch:
        staged.append(chain)
        return stage(data, batch, chain, number)

    run.engine.fetch, sink.stage = fetched, staged_for  # type: ignore[method-assign, assignment]
    lose_first_answer(sink.files)
    run.round()
    world.clock.advance(5)
    put(world, records=2)
    run.until_idle()
    world.check()
    assert len(set(staged)) == 2
    assert known[: len(staged)] == staged


@pytest.mark.parametrize("successor", ["w1", "w2"])
def test_a_worker_that_is_killed_anywhere_loses_and_repeats_nothing(successor: str) -> None:
    for point in itertools.count(1):
        world = ChainWorld(shards=2)
        for shard in (A, B):
            put(world, shard)
        run = working(world)
        run.fuse.burns_at = point
        try:
            run.until_idle()
            world.clock.advance(20)
            run.worker.step_renewal()
            run.fuse.burns_at = None
        except Killed:
            pass
        was_killed = run.fuse.burns_at is not None
        following = working(world, successor)
        following.until_idle()
        world.check()
        assert not world.shared.staged()
        if not was_killed:
            assert point > 50
            return


def test_a_worker_that_pauses_anywhere_stores_nothing_after_its_successor() -> None:
    """Its lease is taken, and read to the end, while it pauses: it cannot publish what it has staged or decided."""
    for point in itertools.count(1):
        world = ChainWorld()
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
        world.check()
        if is_over:
            assert point > 30
            return


def test_a_handoff_leaves_nothing_to_settle(world: ChainWorld) -> None:
    put(world)
    run, following = working(world), world.chain_worker("w2")
    run.until_idle()
    world.hand_over(A, following)
    run.hand_over(A)
    lease = world.lease(A)
    assert (lease.actual_owner, lease.claim) == (following.id, None)
    assert lease.checkpoint == Checkpoint(str(world.stream.everything()[-1][1]))
    put(world)
    following.until_idle()
    world.check()
    assert None not in itertools.chain(*world.chains().values())  # no chain was closed


def test_a_worker_that_stops_leaves_nothing_to_settle(world: ChainWorld) -> None:
    put(world)
    run = working(world)
    run.until_idle()
    run.worker.shut_down()
    assert world.lease(A).claim is None
    assert world.lease(A).checkpoint == Checkpoint(str(world.stream.everything()[-1][1]))


def test_a_lease_that_is_given_away_during_a_batch_takes_no_part_in_it() -> None:
    world = ChainWorld(shards=2)
    put(world, A)
    put(world, B)
    run, following = working(world), world.chain_worker("w2")

    def overdue(_: Batch) -> None:
        world.sinks["w1"].hooks.clear()
        world.hand_over(A, following)
        run.worker.holdings.renew(A)
        run.worker.holdings.handover.transfer(A)

    world.sinks["w1"].hooks.append(overdue)
    report = run.round()
    assert {lease.outcome for lease in report.leases} == {Outcome.DROPPED}
    for one in (following, run):
        one.until_idle()
    world.check()
    assert None not in itertools.chain(*world.chains().values())


def test_the_loss_of_one_lease_costs_the_others_one_batch() -> None:
    world = ChainWorld(shards=2)
    put(world, A)
    put(world, B)
    run, following = working(world), world.chain_worker("w2")
    run.round()
    world.assign(following, A)
    following.until_idle()  # closes the chain, of which the first worker has not heard
    assert {lease.outcome for lease in run.round().leases} == {Outcome.DROPPED}
    run.until_idle()
    world.check()
    assert len(world.chains()) == 3


def test_a_lease_that_moves_on_before_it_was_claimed_is_settled_by_the_next_owner(world: ChainWorld) -> None:
    """Its row names the chain of the worker before, which may have decided what no row says."""
    put(world, records=3)
    first, second, third = working(world), world.chain_worker("w2"), world.chain_worker("w3")
    first.round()
    world.assign(second)
    second.worker.step_discovery()
    world.hand_over(A, third)
    second.hand_over(A)
    assert world.lease(A).actual_owner == third.id
    assert world.lease(A).claim is not None
    third.until_idle()
    world.check()


def test_a_batch_that_may_have_been_decided_is_settled_by_the_next_owner_after_a_handoff(world: ChainWorld) -> None:
    put(world, records=3)
    run, following = working(world), world.chain_worker("w2")
    files = world.sinks["w1"].files
    create = files.create

    def lost(path: str, content: bytes) -> bool:
        create(path, content)
        raise ServiceError("no answer")

    files.create = lost  # type: ignore[method-assign]
    (report,) = run.round().leases
    assert report.outcome is Outcome.UNCOMMITTED
    world.hand_over(A, following)
    run.hand_over(A)
    assert world.lease(A).actual_owner == following.id
    assert world.lease(A).claim is not None
    following.until_idle()
    world.check()


def test_a_worker_whose_create_was_not_answered_settles_its_own_chain(world: ChainWorld) -> None:
    put(world)
    run = working(world)
    files = world.sinks["w1"].files
    lose_first_answer(files)
    run.round()
    world.clock.advance(5)
    run.until_idle()
    world.check()
    assert len(world.chains()) == 2


def test_a_batch_that_could_not_be_published_is_published_first(world: ChainWorld) -> None:
    put(world)
    run = working(world)
    files = world.sinks["w1"].files
    move = files.move

    def broken(names: object) -> list[str]:
        files.move = move  # type: ignore[method-assign]
        raise OSError("the disk is full")

    files.move = broken  # type: ignore[method-assign]
    run.round()
    assert world.stored() == []
    run.worker.holdings.renew(A)
    assert world.lease(A).checkpoint == TRIM_HORIZON
    world.clock.advance(5)
    run.until_idle()
    world.check()


def test_a_lease_that_is_put_back_is_read_again(world: ChainWorld) -> None:
    put(world)
    run = working(world)
    run.until_idle()
    run.worker.shut_down()
    world.leases.rewind(world.lease(A), TRIM_HORIZON)
    following = working(world, "w2")
    following.until_idle()
    assert len(world.stored()) == 14


def test_a_lease_that_is_put_back_after_a_crash_is_read_again(world: ChainWorld) -> None:
    put(world)
    run = working(world)
    run.until_idle()
    free = world.leases.vacate(world.lease(A))
    assert free is not None
    world.leases.rewind(free, TRIM_HORIZON)
    following = working(world, "w2")
    following.until_idle()
    assert len(world.stored()) == 14


def test_a_java_worker_in_between_moves_the_lease_on(world: ChainWorld) -> None:
    put(world)
    run = working(world)
    run.until_idle()
    java = world.leases.take(world.lease(A), world.chain_worker("java").id)
    assert java is not None
    world.leases.checkpoint(java, Checkpoint("103"))  # of 100 to 106, all of which are stored
    following = working(world, "w2")
    following.until_idle()
    world.check()


def test_entries_are_deleted_when_rows_have_what_they_say(world: ChainWorld) -> None:
    put(world, records=30)
    run = working(world)
    for _ in range(4):
        run.round()
    ((_, entries),) = world.chains().items()
    assert len(entries) == 4
    world.clock.advance(20)
    run.round()
    ((_, entries),) = world.chains().items()
    assert len(entries) == 1
    run.until_idle()
    world.check()


def test_entries_for_a_lease_that_was_lost_are_kept() -> None:
    world = ChainWorld(shards=2)
    put(world, A, records=3)
    put(world, B, records=30)
    run, following = working(world), world.chain_worker("w2")
    run.round()
    world.assign(following, A)
    world.clock.advance(20)
    run.worker.step_renewal()  # A is lost
    for _ in range(3):
        run.round()
        world.clock.advance(20)
    following.until_idle()
    for _ in range(12):
        run.round()
    world.check()


def test_splits_and_merges_are_followed(world: ChainWorld) -> None:
    put(world)
    run = working(world)
    run.round()
    low, high = world.stream.split(A)
    for shard in (low, high):
        world.stream.put(shard, "in the child")
    run.until_idle()
    assert world.lease(A).is_finished
    assert world.lease(A).claim is None
    world.assign(run, low, high)
    run.until_idle()
    child = world.stream.merge(low, high)
    world.stream.put(child, "in the grandchild")
    run.until_idle()
    world.assign(run, child)
    run.until_idle()
    world.check()


def refuse(bad: str) -> Callable[[Data], None]:
    def refuses(data: Data) -> None:
        if any(row[2] == bad for row in data):
            raise ValueError(f"{bad} is bad")

    return refuses


@pytest.mark.parametrize("action", [FailureAction.SKIP, FailureAction.DEAD_LETTER])
def test_a_record_that_fails_is_set_aside_and_nothing_else(action: FailureAction) -> None:
    path = "letters" if action is FailureAction.DEAD_LETTER else None
    policy = FailurePolicy(action=action, attempts=1, dead_letter_path=path)
    world = ChainWorld(batch=BatchSettings(failure=policy))
    put(world)
    run = working(world)
    world.sinks["w1"].refuses = refuse("record 2")
    for _ in range(20):
        run.round()
        world.clock.advance(5)
    missing = set(world.stream.everything()) - set(world.stored())
    assert [row[2] for row in missing] == ["record 2"]
    assert len(world.stored()) == 6
    assert len(run.letters.letters) == (action is FailureAction.DEAD_LETTER)
    assert world.lease(A).checkpoint == Checkpoint(str(world.stream.everything()[-1][1]))


def test_a_record_that_fails_stops_its_shard(world: ChainWorld) -> None:
    put(world)
    run = working(world)
    world.sinks["w1"].refuses = refuse("record 4")
    for _ in range(20):
        run.round()
        world.clock.advance(11)
    assert EventKind.SHARD_STOPPED in run.kinds()
    assert len(world.stored()) == 3
    world.sinks["w1"].refuses = None
    for _ in range(12):
        world.clock.advance(11)
        run.round()
    world.check()


def test_a_sink_that_fails_is_tried_again(world: ChainWorld) -> None:
    put(world)
    run = working(world)

    def away(_: Data) -> None:
        world.sinks["w1"].refuses = None
        raise SinkError("the bucket is away")

    world.sinks["w1"].refuses = away
    run.round()
    world.clock.advance(5)
    run.until_idle()
    world.check()


def test_a_chain_that_cannot_be_read_is_not_passed_over(world: ChainWorld) -> None:
    put(world)
    run = working(world)
    run.round()
    (entry,) = [path for path in world.shared.content if path.startswith("_chains/")]
    world.shared.content[entry] = b"{}"
    following = working(world, "w2")
    following.round()
    assert len(world.stored()) == 3
    assert "is not an entry of a chain" in str(following.events[-1].message)


def test_a_claim_of_a_chain_that_is_gone_is_no_progress(world: ChainWorld) -> None:
    put(world)
    claim = Claim(ChainId("gone"), ClaimId("gone"))
    other = world.chain_worker("other")
    world.assign(other)
    world.leases.checkpoint(world.leases.renew(world.lease(A)), TRIM_HORIZON, claim=claim)
    run = working(world)
    run.until_idle()
    world.check()


def test_what_is_stored_is_counted_once_although_answers_of_renewals_are_lost(world: ChainWorld) -> None:
    """The renewal that was applied has counted two batches, and the next one counts the third."""
    run = working(world)
    run.worker.step_discovery()
    holdings = run.worker.holdings
    (holding,) = holdings.holdings()
    token = holding.token

    def stored(through: int) -> Unwritten:
        return Unwritten(Checkpoint(str(through)), through, BatchCounts((StoredRows(0, 1, 10, 1),), 0, 0, 60))

    claim = Claim(ChainId("chain"), ClaimId("claim"))
    holdings.claims.claim(A, token, claim, lambda _: Unwritten(TRIM_HORIZON))
    holdings.claims.stored(A, token, stored(1))
    holdings.claims.stored(A, token, stored(2))
    applied = len(run.client.calls)

    def lose(method: str, _: object) -> None:
        if method == "get_item" or len(run.client.calls) > applied + 1:
            raise ReadTimeoutError(endpoint_url="dynamodb")

    update_item = run.client.service.update_item

    def answer_lost(**request: Any) -> dict[str, Any]:
        update_item(**request)
        raise ReadTimeoutError(endpoint_url="dynamodb")

    run.client.service.update_item = answer_lost  # type: ignore[method-assign]
    run.client.before.append(lose)
    with pytest.raises(KclError):
        holdings.renew(A)
    run.client.before.clear()
    run.client.service.update_item = update_item  # type: ignore[method-assign]
    holdings.claims.stored(A, token, stored(3))
    assert holdings.claims.stored_to(A) == Checkpoint("3")
    holdings.renew(A)
    lease = world.lease(A)
    assert lease.checkpoint == Checkpoint("3")
    assert lease.stored_through == 3
    assert lease.stored is not None
    assert sum(rows.rows for rows in lease.stored.windows) == 3
    assert lease.stored.is_of(lease.checkpoint)


def test_what_a_renewal_could_not_write_is_written_by_the_next(world: ChainWorld) -> None:
    put(world)
    run = working(world)
    run.until_idle()
    world.clock.advance(12)

    def refuse_writes(method: str, _: object) -> None:
        raise ReadTimeoutError(endpoint_url="dynamodb")

    run.client.before.append(refuse_writes)
    with pytest.raises(KclError):
        run.worker.holdings.renew(A)
    assert run.worker.holdings.claims.stored_to(A) == Checkpoint("106")
    run.client.before.clear()
    run.worker.holdings.renew(A)
    assert world.lease(A).checkpoint == Checkpoint("106")
    put(world)
    run.until_idle()
    world.check()


def test_chains_that_no_lease_names_are_deleted_after_a_day(world: ChainWorld) -> None:
    put(world)
    former = working(world)
    former.round()
    (chain,) = world.chains()
    run = working(world, "w2")
    run.until_idle()
    for hours in range(1, 28):
        world.clock.advance(3600)  # the lease is lost and acquired again, so the worker begins another chain
        run.until_idle()
        assert (chain in world.chains()) == (hours < 24)
        put(world, records=1)
        run.until_idle()
    world.check()
    assert len(world.chains()) < 28


def test_a_chain_that_no_lease_named_is_not_used_again(world: ChainWorld) -> None:
    """Another worker may be about to delete it: it has read the rows before they name the chain again."""
    put(world)
    idle, other = working(world), world.chain_worker("w2")
    idle.until_idle()
    world.hand_over(A, other)
    idle.hand_over(A)
    put(world)
    other.until_idle()
    claim = world.lease(A).claim
    assert claim is not None
    new_id = map("id-{}".format, itertools.count()).__next__

    def delete() -> None:
        """As the other worker does, with what it read of the row while it was its own."""
        before = world.clock.now() - MIN_AGE_SECONDS
        delete_chains(world.entries(), world.application.name, {claim.chain}, before, "w2", new_id)

    world.clock.advance(MIN_AGE_SECONDS + 1)
    delete()  # it is open, and is closed
    world.clock.advance(MIN_AGE_SECONDS + 1)
    put(world)
    world.assign(idle)
    sink = world.sinks["w1"]
    stage = sink.stage

    def stage_and_pause(*arguments: Any) -> StagedBatch:
        staged = stage(*arguments)
        delete()
        return staged

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sink, "stage", stage_and_pause)
        idle.until_idle()
    world.check()


def test_rows_that_the_sink_did_not_count_are_not_known() -> None:
    world = ChainWorld()
    world.stream.arrival_ms = 1_798_761_600_000
    put(world)
    run = world.chain_worker("w1", windows=FixedWindows())
    world.assign(run)
    run.until_idle()
    run.worker.shut_down()
    assert world.lease(A).stored is None


def entries_of(world: ChainWorld) -> int:
    return sum(len(entries) for entries in world.chains().values())


def test_entries_are_deleted_after_the_lease_of_a_finished_shard_was_cleaned_up() -> None:
    world = ChainWorld(shards=2)
    put(world, A, 1)
    put(world, B, 1)
    run = working(world)
    run.round()
    put(world, A, 1)
    run.round()
    children = world.stream.split(A)
    for _ in range(4):
        run.round()
        world.clock.advance(5)
        run.worker.step_renewal()
    world.assign(run, *children)
    for _ in range(3):
        run.round()
        world.clock.advance(5)
        run.worker.step_renewal()
    world.leases.delete(world.lease(A))
    for _ in range(3):
        run.worker.step_housekeeping()
        world.clock.advance(5)
        run.worker.step_renewal()
    for _ in range(20):
        put(world, B, 1)
        run.round()
        world.clock.advance(5)
        run.worker.step_renewal()
    assert entries_of(world) <= 3
    world.check()


@pytest.mark.parametrize("is_taken", [True, False])
def test_entries_do_not_wait_for_a_lease_that_was_lost(is_taken: bool) -> None:
    """A Java worker has it, or no worker: its row names the chain, which no worker settles."""
    world = ChainWorld(shards=2)
    put(world, A, 1)
    put(world, B, 1)
    run, following = working(world), world.chain_worker("w2")
    run.round()
    if is_taken:
        world.assign(following, B)
    else:
        world.leases.release(world.lease(B))
    for _ in range(20):
        put(world, A, 1)
        run.round()
        world.clock.advance(5)
        run.worker.step_renewal()
    assert entries_of(world) <= 7  # of the chain that B waits for, closed, and of the one that goes on
    assert sum(None not in entries for entries in world.chains().values()) == 1
    world.assign(following, B)
    following.until_idle()
    world.check()


def test_settling_a_chain_moves_only_what_is_staged(world: ChainWorld) -> None:
    put(world, records=30)
    run = working(world)
    for _ in range(8):
        run.round()
    following = working(world, "w2")
    files = world.sinks["w2"].files
    moved: list[str] = []
    move = files.move

    def counted(names: Mapping[str, str]) -> list[str]:
        moved.extend(names)
        return move(names)

    files.move = counted  # type: ignore[method-assign]
    following.worker.step_discovery()
    following.worker.step_batch()
    assert len(world.chains()) == 2
    assert all(path.split("/")[1] == max(world.chains()) for path in moved)
    following.until_idle()
    world.check()


class NeverCheckpoints(RecordProcessorBase):
    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Keeps its places elsewhere."""


@pytest.mark.parametrize("owners", [1, 3])
def test_a_chain_that_follows_a_processor_reads_ordinary_batches_from_the_checkpoint(owners: int) -> None:
    world = ChainWorld(shards=1)
    for number in range(owners):
        processor = world.worker(f"p{number}", processors=NeverCheckpoints)
        world.assign(processor)
        for record in range(40):
            world.stream.put(A, f"r{number}-{record}")
            processor.round()
            world.clock.advance(5)
            processor.worker.step_renewal()
    assert pin_of(world.lease(A)) is not None
    run = world.chain_worker("w1")
    world.assign(run)
    run.round()
    assert len(world.stored()) + len(world.store.everything()) == 3
    run.until_idle()
    world.check_both()
    assert pin_of(world.lease(A)) is None
    assert world.lease(A).claim is not None
    assert EventKind.FETCH_FAILED not in run.kinds()


def set_back(world: ChainWorld, sequence: str) -> None:
    """As users of the KCL do it, with a tool that does not know claims."""
    world.service.update_item(
        TableName=world.application.lease_table,
        Key={"leaseKey": {"S": str(A)}},
        UpdateExpression="SET #c = :c",
        ExpressionAttributeNames={"#c": "checkpoint"},
        ExpressionAttributeValues={":c": {"S": sequence}},
    )


@pytest.mark.parametrize(("sequence", "again"), [("TRIM_HORIZON", 5), ("101", 3)])
def test_a_lease_that_is_put_back_by_another_tool_is_read_again(
    world: ChainWorld, sequence: str, again: int
) -> None:
    run = working(world)
    for number in range(5):
        put(world, records=1)
        run.round()
        world.clock.advance(5)
        if number < 4:
            run.worker.step_renewal()
    set_back(world, sequence)
    following = working(world, "w2")
    following.until_idle()
    assert len(world.stored()) == 5 + again


def test_a_lease_whose_entries_were_removed_is_not_read(world: ChainWorld) -> None:
    run = working(world)
    for _ in range(3):
        put(world, records=1)
        run.round()
    first = min(path for path in world.shared.content if path.startswith("_chains/"))
    world.shared.content.pop(first)
    following = working(world, "w2")
    following.round()
    assert world.lease(A).checkpoint == TRIM_HORIZON
    assert "are missing" in str(following.events[-1].message)
    assert len(world.stored()) == 3


def test_records_that_were_set_aside_between_two_entries_are_no_missing_part() -> None:
    world = ChainWorld(batch=BatchSettings(failure=FailurePolicy(action=FailureAction.SKIP, attempts=1)))
    run = working(world)
    put(world)
    world.sinks["w1"].refuses = refuse("record 2")
    for _ in range(20):
        run.worker.step_batch()  # no renewal
        run.worker.step_discovery()
        world.clock.advance(0.3)
    assert len(world.stored()) == 6
    following = working(world, "w2")
    following.until_idle()
    assert len(world.stored()) == 6
