"""Who holds a lease, for how long, and who may write it."""

from collections.abc import Callable, Mapping
from threading import Thread
from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from kcl_dagster.errors import KclError, LeaseLost
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.events import EventKind
from tests.unit.worker.kit import Run, World

A = LeaseKey("shardId-000000000000")
NINE = Checkpoint("9")


@pytest.fixture
def world() -> World:
    return World()


def holder(world: World, name: str = "w1") -> Run:
    run = world.worker(name)
    world.assign(run)
    assert run.worker.step_discovery() == [A]
    return run


def token(run: Run) -> int:
    holding = run.worker.holdings.get(A)
    assert holding is not None
    return holding.token


def throttled() -> ClientError:
    error = {"Error": {"Code": "ThrottlingException", "Message": "slow down"}}
    return ClientError(error, "UpdateItem")  # type: ignore[arg-type]


def test_a_lease_is_renewed_when_it_is_acquired(world: World) -> None:
    """How long its counter had been standing is unknown, so the time of trust begins with a write of our own."""
    world.assign(world.worker("w1"))
    before = world.lease(A).counter
    world.clock.advance(29)
    run = holder(world)
    assert world.lease(A).counter == before + 2  # assigned again, and renewed
    world.clock.advance(29)
    assert run.worker.holdings.is_ours(A, token(run))


def test_a_lease_is_trusted_from_when_its_last_write_was_sent(world: World) -> None:
    run = holder(world)
    run.client.before.append(lambda *_: world.clock.advance(4))  # every answer takes four seconds
    run.worker.holdings.renew(A)
    world.clock.advance(25)
    assert run.worker.holdings.get(A) is not None
    world.clock.advance(1)
    assert run.worker.holdings.get(A) is None
    assert run.worker.holdings.holdings() == []


def test_a_lease_that_is_no_longer_trusted_is_not_written(world: World) -> None:
    run = holder(world)
    mine = token(run)
    world.clock.advance(30)
    run.client.calls.clear()
    for write in every_write(run, mine):
        with pytest.raises(LeaseLost):
            write()
    assert run.client.calls == []


def test_a_lost_lease_is_never_written_again(world: World) -> None:
    run = holder(world)
    mine = token(run)
    world.assign(world.worker("w2"))
    with pytest.raises(LeaseLost):
        run.worker.holdings.renew(A)
    run.client.calls.clear()
    for write in every_write(run, mine):
        with pytest.raises(LeaseLost):
            write()
    assert not run.worker.holdings.handover.transfer(A)
    assert not run.worker.holdings.handover.release(A)
    assert run.client.calls == []
    assert run.kinds() == [EventKind.LEASE_ACQUIRED, EventKind.LEASE_LOST]


def every_write(run: Run, mine: int) -> list[Callable[[], None]]:
    held = run.worker.holdings
    return [
        lambda: held.renew(A),
        lambda: held.prepare(A, mine, NINE, b"", 1),
        lambda: held.checkpoint(A, mine, NINE),
    ]


def test_work_begun_under_one_ownership_cannot_be_finished_under_the_next(world: World) -> None:
    run = holder(world)
    before = token(run)
    world.clock.advance(31)
    run.worker.holdings.expire()
    assert run.worker.step_discovery() == [A]  # nobody had taken it
    assert not run.worker.holdings.is_ours(A, before)
    with pytest.raises(LeaseLost):
        run.worker.holdings.checkpoint(A, before, NINE)
    assert run.worker.holdings.is_ours(A, token(run))


def test_renewals_and_checkpoints_of_one_lease_never_overtake_each_other(world: World) -> None:
    """Whatever a renewal does in the middle of a checkpoint waits for it."""
    run = holder(world)
    mine = token(run)
    held_now: list[bool] = []
    lock = run.worker.holdings._held[A].lock

    def look(method: str, _: Mapping[str, Any]) -> None:
        if method == "update_item":
            held_now.append(lock._is_owned())  # type: ignore[attr-defined]

    run.client.before.append(look)
    for write in every_write(run, mine):
        write()
    run.worker.holdings.handover.release(A)
    assert held_now == [True] * 4


def test_a_checkpoint_counts_as_a_renewal(world: World) -> None:
    run = holder(world)
    world.clock.advance(9)
    run.worker.holdings.checkpoint(A, token(run), NINE)
    world.clock.advance(9)
    assert run.worker.holdings.due(interval=10) == []
    assert run.worker.renewer.step().renewed == []
    world.clock.advance(2)
    assert run.worker.renewer.step().renewed == [A]


def test_the_throughput_travels_with_checkpoints_and_renewals(world: World) -> None:
    run = holder(world)
    run.worker.holdings.delivered(A, 11 * 1024 * 100)
    world.clock.advance(11)
    run.worker.holdings.checkpoint(A, token(run), NINE)
    assert world.lease(A).throughput_kbps == 100.0
    world.clock.advance(11)
    run.worker.renewer.step()
    assert world.lease(A).throughput_kbps == 50.0


def test_a_lease_stays_ours_while_the_table_does_not_answer(world: World) -> None:
    run = holder(world)

    def refuse(*_: object) -> None:
        raise throttled()

    run.client.before.append(refuse)
    world.clock.advance(11)
    assert run.worker.renewer.step().failed == [A]
    assert run.worker.holdings.get(A) is not None
    assert EventKind.RENEWAL_FAILED in run.kinds()
    run.client.before.clear()
    world.clock.advance(1)
    assert run.worker.renewer.step().renewed == [A]


@pytest.mark.parametrize("was_applied", [True, False])
def test_after_a_write_with_an_unknown_outcome_the_table_is_asked(world: World, was_applied: bool) -> None:
    """A process is interrupted in the middle of a request, for one."""
    run = holder(world)
    mine, counter = token(run), world.lease(A).counter
    run.fuse.burns_at = run.fuse.passed + (2 if was_applied else 1)
    with pytest.raises(BaseException, match="at point"):
        run.worker.holdings.prepare(A, mine, NINE, b"state", 1)
    assert world.lease(A).counter == counter + was_applied

    run.worker.holdings.renew(A)

    assert world.lease(A).counter == counter + was_applied + 1
    holding = run.worker.holdings.get(A)
    assert holding is not None
    assert holding.lease == world.lease(A)
    assert holding.token == mine


def test_after_an_unknown_outcome_a_lease_that_others_had_is_not_taken_for_ours(world: World) -> None:
    run = holder(world)
    run.fuse.burns_at = run.fuse.passed + 1
    with pytest.raises(BaseException, match="at point"):
        run.worker.holdings.renew(A)
    world.assign(world.worker("w2"))
    world.assign(run)  # and back
    with pytest.raises(LeaseLost):
        run.worker.holdings.renew(A)


def test_a_lease_in_handoff_is_not_acquired(world: World) -> None:
    old, new = holder(world, "old"), world.worker("new")
    world.hand_over(A, new)
    assert new.worker.step_discovery() == []
    old.worker.renewer.step()
    assert world.lease(A).owner == new.id


def test_a_renewal_learns_of_a_handoff_and_completes_it_at_rest(world: World) -> None:
    old, new = holder(world, "old"), world.worker("new")
    world.hand_over(A, new)
    world.clock.advance(11)
    assert old.worker.renewer.step().renewed == [A]
    assert old.worker.renewer.step().transferred == [A]
    assert world.lease(A).checkpoint_owner is None
    assert new.worker.step_discovery() == [A]
    assert old.kinds()[-2:] == [EventKind.HANDOFF_ASKED, EventKind.HANDOFF_DONE]


def test_a_handoff_waits_for_the_batch_but_not_for_ever(world: World) -> None:
    old, new = holder(world, "old"), world.worker("new")
    old.worker.holdings.begin([A])
    world.hand_over(A, new)
    world.clock.advance(11)
    old.worker.renewer.step()
    for _ in range(2):
        world.clock.advance(11)
        assert old.worker.renewer.step().transferred == []
    world.clock.advance(11)
    assert old.worker.renewer.step().transferred == [A]
    assert new.worker.step_discovery() == [A]


def test_a_lease_that_is_handed_over_while_it_is_given_up_reaches_its_next_owner(world: World) -> None:
    old, new = holder(world, "old"), world.worker("new")
    world.hand_over(A, new)  # the old owner has not heard of it
    assert old.worker.holdings.handover.release(A)
    assert (world.lease(A).owner, world.lease(A).checkpoint_owner) == (new.id, None)


def test_a_lease_whose_handoff_was_ended_by_others_is_dropped(world: World) -> None:
    old, new, third = holder(world, "old"), world.worker("new"), world.worker("third")
    world.hand_over(A, new)
    world.clock.advance(11)
    old.worker.renewer.step()
    world.assign(third)
    assert old.worker.renewer.step().transferred == []
    assert old.worker.holdings.keys() == set()
    assert world.lease(A).owner == third.id


def test_discovery_survives_a_lease_that_cannot_be_read(world: World) -> None:
    run = world.worker("w1")
    world.assign(run)
    world.service.put_item(TableName="clicks", Item={"leaseKey": {"S": "broken"}, "leaseOwner": {"S": "w1"}})
    assert run.worker.step_discovery() == [A]
    assert EventKind.DISCOVERY_FAILED in run.kinds()


def test_discovery_survives_a_table_that_does_not_answer(world: World) -> None:
    run = world.worker("w1")
    world.assign(run)

    def refuse(*_: object) -> None:
        raise throttled()

    run.client.before.append(refuse)
    assert run.worker.step_discovery() == []
    run.client.before.clear()
    world.clock.advance(1)
    assert run.worker.step_discovery() == [A]


def test_errors_of_the_table_do_not_cross_the_steps(world: World) -> None:
    run = holder(world)

    def refuse(*_: object) -> None:
        raise throttled()

    run.client.before.append(refuse)
    world.clock.advance(11)
    with pytest.raises(KclError):
        run.worker.holdings.renew(A)
    run.worker.step_renewal()
    run.worker.step_housekeeping()
    run.worker.shut_down()
    assert run.worker.holdings.keys() == set()


def test_counting_what_is_delivered_does_not_wait_for_a_write(world: World) -> None:
    """Else a worker that asked in time whether a lease is still its own would write the sink when it is not."""
    run = holder(world)
    waited: list[bool] = []

    def count(*_: object) -> None:
        counting = Thread(target=run.worker.holdings.delivered, args=(A, 1024))
        counting.start()
        counting.join(5.0)
        waited.append(counting.is_alive())

    run.client.before.append(count)
    run.worker.holdings.renew(A)
    assert waited == [False]


class LosesAnswers:
    """Applies updates and loses their answers, as often as told; then does not answer reads of single items."""

    def __init__(self, service: Any, losses: int) -> None:
        self._service, self._losses = service, losses

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(**request: Any) -> Any:
            if method == "get_item" and self._losses == 0:
                raise ReadTimeoutError(endpoint_url="dynamodb")
            answer = getattr(self._service, method)(**request)
            if method == "update_item" and self._losses:
                self._losses -= 1
                raise ReadTimeoutError(endpoint_url="dynamodb")
            return answer

        return call


@pytest.mark.audit("C6")
@pytest.mark.parametrize(("number", "losses"), [(0, 1), (0, 2), (0, 3), (0, 4), (1, 1), (2, 1)])
def test_a_lease_is_kept_however_many_answers_one_write_lost(world: World, number: int, losses: int) -> None:
    """The table is some writes ahead of what the worker knows, and all of them are its own."""
    run = holder(world)
    mine = token(run)
    counter = world.lease(A).counter
    run.client.service = LosesAnswers(world.service, losses)  # type: ignore[assignment]
    with pytest.raises(KclError):
        every_write(run, mine)[number]()
    assert world.lease(A).counter == counter + losses
    run.client.service = world.service
    run.worker.holdings.renew(A)
    assert run.worker.holdings.is_ours(A, mine)
    assert EventKind.LEASE_LOST not in run.kinds()


@pytest.mark.audit("C6")
def test_a_lease_that_had_another_owner_meanwhile_is_dropped_after_lost_answers(world: World) -> None:
    run = holder(world)
    mine = token(run)
    run.client.service = LosesAnswers(world.service, 2)  # type: ignore[assignment]
    with pytest.raises(KclError):
        run.worker.holdings.renew(A)
    run.client.service = world.service
    world.assign(world.worker("w2"))
    world.assign(run)
    with pytest.raises(LeaseLost):
        run.worker.holdings.renew(A)
    assert not run.worker.holdings.is_ours(A, mine)
