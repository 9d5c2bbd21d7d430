"""The end of a shard: children first, parents before children, and nothing waits for ever."""

import pytest

from kcl_dagster.model.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.parents import sibling_key
from kcl_dagster.worker.report import Outcome
from tests.unit.worker.kit import World

A, B = "shardId-000000000000", "shardId-000000000001"


def test_a_split_shard_leaves_two_leases_that_name_it() -> None:
    world = World()
    world.stream.put(A, *"abcd")
    low, high = world.stream.split(A)
    run = world.worker("w1")
    world.assign(run)

    run.until_idle()

    parent = world.lease(A)
    assert (parent.checkpoint, parent.children, parent.pending_checkpoint) == (
        SHARD_END,
        frozenset({low, high}),
        None,
    )
    for child in (low, high):
        lease = world.lease(child)
        assert (lease.checkpoint, lease.parents, lease.owner) == (TRIM_HORIZON, frozenset({A}), None)
        assert lease.hash_range == world.stream.shards[child].hash_range
    assert EventKind.SHARD_FINISHED in run.kinds()


def test_child_leases_exist_before_the_parent_is_finished() -> None:
    world = World()
    low, high = world.stream.split(A)
    run = world.worker("w1")
    world.assign(run)
    seen: list[list[str]] = []

    def look(method: str, request: object) -> None:
        if method == "update_item" and "SHARD_END" in str(request):
            seen.append(world.lease_keys())

    run.client.before.append(look)
    run.until_idle()
    assert seen == [[A, low, high]]


def test_children_are_read_after_their_parent_by_the_same_worker_at_once() -> None:
    world = World()
    world.stream.put(A, *"abcdefgh")
    for child in world.stream.split(A):
        world.stream.put(child, "x", "y")
        world.create(child)  # the leader knew them before
    run = world.worker("w1")
    world.assign(run)

    run.until_idle()

    order = [part.shard_id for batch in run.sink.batches for part in batch.parts]
    assert order[:3] == [A] * 3
    assert set(order[3:]) == {"shardId-000000000001", "shardId-000000000002"}
    world.check_exactly_once()


def test_children_wait_for_a_parent_that_another_worker_reads() -> None:
    world = World()
    world.stream.put(A, *"abc")
    low, _ = world.stream.split(A)
    world.stream.put(low, "x")
    world.create(low)
    slow, fast = world.worker("slow"), world.worker("fast")
    world.assign(slow, A)
    world.assign(fast, low)
    slow.worker.step_discovery()

    report = fast.round()
    assert (report.held, report.blocked, report.leases) == (1, 1, ())
    fast.client.calls.clear()
    fast.worker.step_batch()
    assert fast.client.calls == []  # it does not ask again at once

    slow.until_idle()
    world.clock.advance(2)
    fast.until_idle()
    assert world.lease(low).checkpoint != TRIM_HORIZON


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_a_merge_with_parents_on_two_workers(order: tuple[str, str]) -> None:
    world = World(shards=2)
    world.stream.put(A, *"abcd")
    world.stream.put(B, *"wxyz")
    child = world.stream.merge(A, B)
    world.stream.put(child, "m", "n")
    runs = {A: world.worker("wa"), B: world.worker("wb")}
    for key, run in runs.items():
        world.assign(run, key)

    runs[order[0]].until_idle()
    assert world.lease(order[0]).is_finished
    assert world.lease(child).parents == {A, B}
    world.assign(runs[order[0]], child)
    assert runs[order[0]].round().blocked == 1

    runs[order[1]].until_idle()
    world.clock.advance(2)
    runs[order[0]].until_idle()
    world.check_exactly_once()


@pytest.mark.parametrize("deleted", [{B}, {A, B}])
def test_a_merged_shard_is_not_begun_while_the_lease_of_its_other_parent_is_lost(deleted: set[str]) -> None:
    world = World(shards=2)
    world.stream.put(A, *"abcd")
    world.stream.put(B, *"wxyz")
    child = world.stream.merge(A, B)
    world.stream.put(child, "m", "n")
    run = world.worker("w1")
    world.assign(run, A)
    run.until_idle()
    assert world.lease(child).ended_parent == A
    for key in deleted:
        world.leases.delete(world.lease(key), forced=True)
    world.assign(run, child)
    assert run.round().blocked == 1
    assert world.lease(child).checkpoint == TRIM_HORIZON

    world.create(B)  # the leader's sync
    world.assign(run, B)
    world.clock.advance(60)
    run.until_idle()
    world.check_exactly_once()


def test_a_merged_shard_is_begun_if_its_other_parent_has_left_the_stream_without_a_lease() -> None:
    world = World(shards=2)
    child = world.stream.merge(A, B)
    run = world.worker("w1")
    world.assign(run, A)
    run.until_idle()
    world.leases.delete(world.lease(B), forced=True)
    world.assign(run, child)
    assert run.round().blocked == 1
    world.stream.expire(B)
    world.clock.advance(60)
    run.until_idle()
    renewed = world.leases.renew(world.lease(child), stored_through=1_800_000_000)
    assert (renewed.ended_parent, world.lease(child).ended_parent) == (None, None), "it is quiet, and was read"
    world.stream.put(child, "m", "n")
    world.clock.advance(60)
    run.until_idle()
    assert world.lease(child).checkpoint != TRIM_HORIZON


def test_a_merged_shard_waits_for_a_parent_that_has_no_lease_yet() -> None:
    world = World(shards=2)
    world.stream.put(A, *"abc")
    world.stream.put(B, *"xyz")
    child = world.stream.merge(A, B)
    world.leases.delete(world.lease(B), forced=True)
    run = world.worker("w1")
    world.assign(run)

    run.round()
    report = run.worker.step_batch()
    assert [lease.outcome for lease in report.leases if lease.outcome is Outcome.FINISHED] == []
    assert EventKind.SHARD_END_WAITS in run.kinds()
    assert world.lease_keys() == [A]
    assert world.lease(A).checkpoint == Checkpoint(str(world.stream.shards[A].records[-1][0]))

    world.create(B)  # the leader's sync
    world.assign(run, B)
    world.clock.advance(60)
    run.until_idle()
    assert world.lease(A).children == world.lease(B).children == {child}


def test_a_merged_shard_does_not_wait_for_a_parent_that_left_the_stream() -> None:
    world = World(shards=2)
    child = world.stream.merge(A, B)
    world.leases.delete(world.lease(B), forced=True)
    world.stream.expire(B)
    run = world.worker("w1")
    world.assign(run)
    run.until_idle()
    assert world.lease(A).children == {child}


def test_a_closed_shard_without_named_children_asks_the_stream() -> None:
    world = World()
    low, high = world.stream.split(A)
    world.stream.shards[A].children = ()
    run = world.worker("w1")
    world.assign(run)
    run.until_idle()
    assert world.lease(A).children == {low, high}


def test_a_closed_shard_whose_children_nobody_knows_is_not_finished() -> None:
    world = World()
    low, high = world.stream.split(A)
    world.stream.shards[A].children = ()
    world.stream.gone |= {low, high}
    run = world.worker("w1")
    world.assign(run)
    run.until_idle()
    assert not world.lease(A).is_finished
    assert EventKind.SHARD_END_WAITS in run.kinds()
    run.engine.asked.clear()
    run.worker.step_batch()
    assert run.engine.asked == []  # not in a tight loop


@pytest.mark.parametrize("policy", ["stop", "continue"])
def test_a_shard_that_expired_while_nobody_read_it(policy: str) -> None:
    world = World(batch={"on_data_loss": policy})
    world.stream.put(A, *"abc")
    low, high = world.stream.split(A)
    world.stream.expire(A)
    run = world.worker("w1")
    world.assign(run)
    run.until_idle()

    assert run.kinds().count(EventKind.DATA_LOST) == 1
    if policy == "stop":
        assert not world.lease(A).is_finished
        assert run.worker.step_batch().stopped == (A,)
    else:
        assert world.lease(A).children == {low, high}


def test_what_was_read_is_committed_even_when_the_children_cannot_be_made() -> None:
    world = World()
    world.stream.put(A, "a")
    low, _ = world.stream.split(A)
    run = world.worker("w1")
    world.assign(run)
    run.worker.step_discovery()

    def refuse(method: str, _: object) -> None:
        if method == "transact_write_items":
            raise ConnectionError("the table cannot be reached")

    run.client.before.append(refuse)
    with pytest.raises(ConnectionError):  # not one of ours: a bug, and the process ends
        run.worker.step_batch()
    assert world.lease(A).pending_checkpoint is not None
    run.client.before.clear()
    run.until_idle()
    assert world.lease(A).is_finished
    assert world.lease(low).parents == {A}
    world.check_exactly_once()


def test_a_worker_that_rested_at_the_end_does_not_bring_a_childs_lease_back() -> None:
    """Others finish the shard, read its children and clean up before it goes on."""
    world = World()
    world.stream.put(A, *"abc")
    low, high = world.stream.split(A)
    for child in (low, high):
        world.stream.put(child, "x")
    world.stream.split(low)
    slow, quick = world.worker("slow"), world.worker("quick")
    world.assign(slow)
    rested = False

    def rest(method: str, _: object) -> None:
        nonlocal rested
        if method != "transact_write_items" or rested:
            return
        rested = True
        world.assign(quick, A)
        quick.until_idle()
        world.assign(quick, low, high)
        quick.until_idle()
        for key in (A, low):
            assert world.leases.delete(world.lease(key))

    slow.client.before.append(rest)
    slow.until_idle()

    assert rested
    assert low not in world.lease_keys()
    assert A not in world.lease_keys()
    world.check_exactly_once()


def test_keys_of_siblings_carry_the_stream() -> None:
    world = World()
    lease = world.lease(A)
    assert sibling_key(lease, B) == B
    stream = StreamIdentifier.parse("123456789012:orders:1680616058")
    multi = world.create(A, key=LeaseKey(f"{stream}:{A}"), stream=stream)
    assert sibling_key(multi, B) == f"123456789012:orders:1680616058:{B}"
