"""The setting of the sink is changed from batches in leases to batches in chains, or back, while a worker ends."""

import itertools

import pytest

from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.claim import ChainId, Claim, ClaimId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.processor import ProcessRecordsInput, RecordProcessorBase
from kcl_dagster.worker.report import Outcome
from tests.unit.worker.chains import ChainWorld, loses_its_lease_at
from tests.unit.worker.kit import Data, Killed, Run

A, B = LeaseKey("shardId-000000000000"), LeaseKey("shardId-000000000001")


def new_world() -> ChainWorld:
    world = ChainWorld(shards=2)
    for shard in (A, B):
        world.stream.put(shard, *(f"record {number}" for number in range(7)))
    return world


def ends_at(world: ChainWorld, run: Run, point: int) -> bool:
    """Let the worker work until it is killed at a point. False: it has nothing more to do before."""
    world.assign(run)
    run.fuse.burns_at = point
    try:
        run.until_idle()
        world.clock.advance(20)
        run.worker.step_renewal()
    except Killed:
        return True
    run.fuse.burns_at = None
    return False


def follows(world: ChainWorld, run: Run) -> None:
    world.assign(run)
    world.stream.put(A, "one more")
    run.until_idle()
    world.clock.advance(20)
    run.worker.step_renewal()
    world.check_both()
    assert not world.shared.staged()


def test_batches_that_were_begun_in_leases_are_finished_before_chains_are_used() -> None:
    for point in itertools.count(1):
        world = new_world()
        was_killed = ends_at(world, world.former_worker("w1"), point)
        follows(world, world.chain_worker("w2"))
        assert all(world.lease(shard).pending_checkpoint is None for shard in (A, B))
        assert world.stored(), "chains are used afterwards"
        if not was_killed:
            assert point > 20
            return


def test_batches_that_were_decided_in_a_chain_are_not_stored_again_by_leases() -> None:
    for point in itertools.count(1):
        world = new_world()
        was_killed = ends_at(world, world.chain_worker("w1"), point)
        follows(world, world.former_worker("w2"))
        assert all(world.lease(shard).claim is None for shard in (A, B))
        if not was_killed:
            assert point > 50
            return


def test_the_settings_may_be_changed_with_every_worker_that_ends() -> None:
    for seed in range(40):
        world = new_world()
        for turn in range(6):
            worker = world.chain_worker if (seed + turn) % 2 else world.former_worker
            ends_at(world, worker(f"w{turn}"), 3 + (7 * seed + 11 * turn) % 60)
            world.stream.put(B, f"turn {turn}")
        follows(world, world.chain_worker("last"))


def test_a_paused_worker_with_chains_stores_nothing_after_a_worker_without() -> None:
    for point in itertools.count(1):
        world = new_world()
        run, following = world.chain_worker("w1"), world.former_worker("w2")
        world.assign(run)

        loses_its_lease_at(world, run, following, point)
        for _ in range(8):
            run.round()
        is_over = run.fuse.passed < point
        follows(world, following)
        if is_over:
            assert point > 30
            return


def test_a_worker_with_another_sink_does_not_read_a_lease_that_a_chain_may_have_stored() -> None:
    world = new_world()
    ends_at(world, world.chain_worker("w1"), 40)
    assert world.lease(A).claim is not None
    run = world.worker("w2")  # its sink is no place for chains
    world.assign(run)
    run.round()
    assert world.store.writes == 0
    assert 'commit="chains"' in str([event.message for event in run.events if event.kind is EventKind.FETCH_FAILED])


def test_after_a_reset_a_worker_with_another_sink_reads_the_lease() -> None:
    world = new_world()
    ends_at(world, world.chain_worker("w1"), 40)
    for shard in (A, B):
        free = world.leases.vacate(world.lease(shard))
        assert free is not None
        world.leases.rewind(free, TRIM_HORIZON)
    claim = world.lease(A).claim
    assert claim is not None
    run = world.worker("w2")
    world.assign(run)
    run.until_idle()
    assert sorted(world.store.everything()) == sorted(world.stream.everything())
    assert world.lease(A).claim == claim, "a worker with chains has to publish what the chain has decided"


@pytest.mark.parametrize("has_chains", [True, False])
def test_a_lease_that_a_former_version_has_pinned_without_settling_its_chain_is_not_read(has_chains: bool) -> None:
    for point in itertools.count(5):
        world = new_world()
        assert ends_at(world, world.former_worker("w1"), point)
        if world.lease(A).pending_checkpoint is not None:
            break
    key = {"leaseKey": {"S": str(A)}}
    world.service.update_item(
        TableName="clicks",
        Key=key,
        UpdateExpression="SET kdChain = :chain, kdClaim = :claim",
        ExpressionAttributeValues={":chain": {"S": "app~w0-1"}, ":claim": {"S": "c"}},
    )
    assert world.lease(A).claim == Claim(ChainId("app~w0-1"), ClaimId("c"))
    stored = [row for row in world.store.everything() if row[0] == A]
    run = world.chain_worker("w2") if has_chains else world.former_worker("w2")
    world.assign(run)
    report = run.round()
    assert all(one.outcome is not Outcome.COMMITTED for one in report.leases if one.lease == A)
    assert [row for row in [*world.store.everything(), *world.stored()] if row[0] == A] == stored
    assert "Reset the lease" in str([event.message for event in run.events])


class NeverCheckpoints(RecordProcessorBase):
    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Keeps its places elsewhere."""


def test_a_record_processor_reads_no_lease_that_names_a_chain() -> None:
    """What is stored beyond the checkpoint is in the chain, and a processor has no sink that could find it."""
    world = new_world()
    killed = world.chain_worker("w1")
    assert ends_at(world, killed, 45)
    claimed = {key for key in (A, B) if world.lease(key).claim is not None}
    assert claimed
    processor = world.worker("p", processors=NeverCheckpoints)
    world.assign(processor)
    for _ in range(20):
        processor.round()
        world.clock.advance(30)
        processor.worker.step_renewal()
    refused = {event.lease for event in processor.events if event.kind is EventKind.FETCH_FAILED}
    assert refused == claimed
    assert any("Start workers with that sink once more" in event.message for event in processor.events)
    assert all(world.lease(key).pending_checkpoint is None for key in claimed)
    follows(world, world.chain_worker("w3"))


def test_a_batch_that_another_sink_began_after_a_reset_is_finished_beside_the_chain_from_before() -> None:
    world = ChainWorld(shards=1)
    world.stream.put(A, *(f"record {number}" for number in range(7)))
    former = world.chain_worker("w1")
    world.assign(former)
    former.round()
    world.leases.release(world.lease(A))
    world.leases.rewind(world.lease(A), TRIM_HORIZON)
    assert world.lease(A).claim is not None
    other = world.worker("other")
    world.assign(other)
    other.sink.refuses = ends_with_the_batch
    with pytest.raises(Killed):
        other.round()
    assert world.lease(A).pending_checkpoint is not None
    run = world.chain_worker("w2")
    world.assign(run)
    for _ in range(10):
        run.round()
        world.clock.advance(30)
        run.worker.step_renewal()
    assert EventKind.FETCH_FAILED not in run.kinds()
    assert {row[1] for row in [*world.stored(), *world.store.everything()]} == {
        row[1] for row in world.stream.everything()
    }


def ends_with_the_batch(_: Data) -> None:
    raise Killed("before it is stored")
