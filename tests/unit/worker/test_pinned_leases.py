"""Workers that decide batches in chains follow workers that decided them in leases, or the other way round."""

import itertools
from contextlib import suppress

import pytest

from kcl_dagster.errors import SinkError
from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.claim import ChainId, Claim, ClaimId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.chain_protocol import ChainProtocol
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.pins import pin_of
from kcl_dagster.worker.processor import ProcessRecordsInput, RecordProcessorBase
from kcl_dagster.worker.report import Outcome
from tests.unit.worker.chains import ChainWorld, TableWorld, loses_its_lease_at
from tests.unit.worker.kit import Data, Killed, Run

pytestmark = pytest.mark.slow

A, B = LeaseKey("shardId-000000000000"), LeaseKey("shardId-000000000001")


def new_world(kind: type[ChainWorld] = ChainWorld) -> ChainWorld:
    world = kind(shards=2)
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
    for _ in range(8):  # what may have ended its former owners waits before it is read, apart from the others
        world.clock.advance(20)
        run.worker.step_renewal()
        run.until_idle()
    assert isinstance(run.worker.protocol, ChainProtocol)
    run.worker.protocol.publish_all()
    world.check_both()
    assert not world.shared.staged()


@pytest.mark.audit("A8")
@pytest.mark.parametrize("kind", [ChainWorld, TableWorld])
def test_batches_that_a_former_version_has_begun_are_found_or_read_again(kind: type[ChainWorld]) -> None:
    for point in itertools.count(1):
        world = new_world(kind)
        was_killed = ends_at(world, world.worker("w1"), point)
        follows(world, world.chain_worker("w2"))
        assert all(world.lease(shard).pending_checkpoint is None for shard in (A, B))
        assert world.stored(), "chains are used afterwards"
        if not was_killed:
            assert point > 20
            return


@pytest.mark.parametrize("kind", [ChainWorld, TableWorld])
@pytest.mark.parametrize("begun_at", [6, 9, 12, 15, 18])
def test_who_looks_for_a_batch_of_a_former_version_may_be_killed_anywhere(
    kind: type[ChainWorld], begun_at: int
) -> None:
    for point in itertools.count(1):
        world = new_world(kind)
        ends_at(world, world.worker("w1"), begun_at)
        was_killed = ends_at(world, world.chain_worker("w2"), point)
        follows(world, world.chain_worker("w3"))
        assert all(world.lease(shard).pending_checkpoint is None for shard in (A, B))
        if not was_killed:
            assert point > 30
            return


def test_a_table_takes_nothing_from_a_former_worker_that_was_paused() -> None:
    """A folder cannot refuse it: docs/how-to/sinks.md."""
    for point in itertools.count(1):
        world = new_world(TableWorld)
        run, following = world.worker("w1"), world.chain_worker("w2")
        world.assign(run)
        loses_its_lease_at(world, run, following, point)
        for _ in range(8):
            run.round()
        is_over = run.fuse.passed < point
        follows(world, following)
        if is_over:
            assert point > 15
            return


def test_former_workers_may_follow_each_other_before_chains_are_used() -> None:
    for seed in range(40):
        world = new_world(ChainWorld if seed % 2 else TableWorld)
        for turn in range(6):
            worker = world.worker if turn < 3 else world.chain_worker
            ends_at(world, worker(f"w{turn}"), 3 + (7 * seed + 11 * turn) % 60)
            world.stream.put(B, f"turn {turn}")
        follows(world, world.chain_worker("last"))


def test_a_failing_batch_of_a_former_version_is_narrowed_anew() -> None:
    """What it was cut into before does not count: the function may be another one."""
    world = ChainWorld(shards=1, batch={"failure": {"action": "skip", "attempts": 1}})
    world.stream.put(A, *"abc!efg")
    former = world.worker("w1")
    former.sink.refuses = refuses_the_mark
    world.assign(former)
    while EventKind.BATCH_NARROWED not in former.kinds():
        former.round()
        world.clock.advance(5)
        former.worker.step_renewal()
    pin = pin_of(world.lease(A))
    assert pin is not None
    assert pin.instead_of is not None
    run = world.chain_worker("w2")
    world.sinks["w2"].refuses = refuses_the_mark
    world.assign(run)
    for _ in range(200):
        run.round()
        world.clock.advance(5)
        run.worker.step_renewal()
    stored = [text for _, _, text in sorted([*world.stored(), *world.store.everything()])]
    assert "".join(stored) == "abcefg"


def refuses_the_mark(data: Data) -> None:
    if any(text == "!" for _, _, text in data):
        raise ValueError("not this one")


def test_a_worker_with_another_sink_does_not_read_a_lease_that_a_chain_may_have_stored() -> None:
    world = new_world()
    ends_at(world, world.chain_worker("w1"), 40)
    assert world.lease(A).claim is not None
    run = world.worker("w2")  # its sink is no place for chains
    world.assign(run)
    run.round()
    assert world.store.writes == 0
    assert "had another sink" in str(
        [event.message for event in run.events if event.kind is EventKind.FETCH_FAILED]
    )


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


def test_a_lease_that_a_former_version_has_pinned_without_settling_its_chain_is_not_read() -> None:
    for point in itertools.count(5):
        world = new_world()
        assert ends_at(world, world.worker("w1"), point)
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
    run = world.chain_worker("w2")
    world.assign(run)
    report = run.round()
    assert all(one.outcome is not Outcome.COMMITTED for one in report.leases if one.lease == A)
    assert [row for row in [*world.store.everything(), *world.stored()] if row[0] == A] == stored
    assert "Reset it" in str([event.message for event in run.events])


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


def killed_after_it_stored(world: ChainWorld) -> None:
    """A worker of a former version, that cannot write any more that it has stored its batch."""
    former = world.worker("w1")
    world.assign(former)

    def ends(_method: str, _request: object) -> None:
        if world.store.writes:
            raise Killed

    former.client.before.append(ends)
    with suppress(Killed):
        former.round()
    assert world.store.writes == 1
    assert world.lease(A).pending_checkpoint is not None


@pytest.mark.parametrize("policy", ["stop", "continue"])
def test_a_batch_that_a_table_has_is_no_loss_after_its_records_left_the_stream(policy: str) -> None:
    world = TableWorld(shards=1, batch={"on_data_loss": policy})
    world.stream.put(A, *"abc")
    killed_after_it_stored(world)
    world.stream.put(A, *"de")
    world.stream.shards[A].trimmed_through = 100
    run = world.chain_worker("w2")
    world.assign(run)
    for _ in range(8):
        run.round()
        world.clock.advance(10)
        run.worker.step_renewal()
    assert EventKind.DATA_LOST not in run.kinds()
    assert "".join(row[2] for row in sorted([*world.stored(), *world.store.everything()])) == "abcde"


def test_what_a_folder_may_have_is_left_there_after_the_records_left_the_stream() -> None:
    """It is not known whether all of the batch is stored. To remove what is there would lose it for good."""
    world = ChainWorld(shards=1, batch={"on_data_loss": "continue"})
    world.stream.put(A, *"abc")
    killed_after_it_stored(world)
    world.stream.put(A, *"de")
    world.stream.shards[A].trimmed_through = 100
    run = world.chain_worker("w2")
    world.assign(run)
    run.until_idle()
    assert EventKind.DATA_LOST in run.kinds()
    assert "".join(row[2] for row in sorted([*world.stored(), *world.store.everything()])) == "abcde"


@pytest.mark.parametrize(("trimmed", "left"), [(100, "bcde"), (101, "cde"), (102, "de"), (103, "e")])
def test_of_a_begun_batch_that_no_table_has_what_is_left_is_read(trimmed: int, left: str) -> None:
    world = TableWorld(shards=1, batch={"on_data_loss": "continue"})
    begun_and_not_stored(world)
    world.stream.put(A, *"de")
    world.stream.shards[A].trimmed_through = trimmed
    run = world.chain_worker("w2")
    world.assign(run)
    for _ in range(8):
        run.round()
        world.clock.advance(10)
        run.worker.step_renewal()
    assert "".join(row[2] for row in sorted(world.stored())) == left
    losses = [event for event in run.events if event.kind is EventKind.DATA_LOST]
    assert losses[0].facts["since"] == "TRIM_HORIZON"
    assert int(losses[-1].facts["until"]) == trimmed + 1


def test_a_pinned_lease_that_keeps_failing_delays_no_other_shard() -> None:
    world = ChainWorld(shards=2, batch={"on_data_loss": "stop"})
    begun_and_not_stored(world)
    world.stream.shards[A].trimmed_through = 102
    world.stream.put(B, *"xyz")
    run = world.chain_worker("w2")
    world.assign(run)
    report = run.round()
    outcomes = {one.lease: one.outcome for one in report.leases}
    assert outcomes[A] is Outcome.NOT_READ
    assert outcomes[B] is Outcome.COMMITTED, "in the round in which the pinned lease fails"
    assert "".join(row[2] for row in sorted(world.stored())) == "xyz"


def begun_and_not_stored(world: ChainWorld) -> None:
    """A worker of a former version, whose sink takes nothing, pins the lease of A to a batch."""
    world.stream.put(A, *"abc")
    former = world.worker("w1")
    former.sink.refuses = refuses_everything
    world.assign(former)
    former.round()
    assert world.lease(A).pending_checkpoint is not None


def refuses_everything(_: Data) -> None:
    raise SinkError("no space")
