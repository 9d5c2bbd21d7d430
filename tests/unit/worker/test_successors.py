"""Who gets the leases of a worker that stops."""

from dataclasses import replace

import pytest
from botocore.exceptions import ClientError

from kcl_dagster.model.checkpoint import SHARD_END, TRIM_HORIZON
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.worker_row import WorkerRow, WorkerState
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.report import Outcome
from kcl_dagster.worker.successors import SuccessorRules, choose_successors
from tests.unit.worker.kit import Run, World

A, B = "shardId-000000000000", "shardId-000000000001"
ME = WorkerId("me")
NOW = 1_000_000.0
RULES = SuccessorRules(fresh_seconds=10.0)


def lease(key: str, owner: str | None, kbps: float | None = None) -> Lease:
    named = WorkerId(owner) if owner is not None else None
    return Lease(LeaseKey(key), key, owner=named, checkpoint=TRIM_HORIZON, throughput_kbps=kbps)


def row(name: str, *, age: int = 2, slot: str | None = "slot") -> WorkerRow:
    return WorkerRow(WorkerId(name), int(NOW) - age, slot=slot)


def chosen(leases: list[Lease], rows: list[WorkerRow], rules: SuccessorRules = RULES) -> dict[str, str]:
    mine = {lease.key for lease in leases if lease.owner == ME}
    successors = choose_successors(mine, leases, rows, ME, NOW, rules)
    return {str(key): str(successor) for key, successor in successors.items()}


def test_silent_leases_are_shared_by_number() -> None:
    leases = [lease(str(number), "me") for number in range(4)] + [lease("old", "a")]
    successors = list(chosen(leases, [row("a"), row("b"), row("me")]).values())
    assert (successors.count("a"), successors.count("b")) == (2, 2)


def test_loud_leases_are_shared_by_load() -> None:
    leases = [lease("1", "me", 900.0), lease("2", "me", 500.0), lease("3", "me", 400.0), lease("x", "a", 50.0)]
    assert chosen(leases, [row("a"), row("b")]) == {"1": "b", "2": "a", "3": "a"}


@pytest.mark.parametrize(
    "unfit",
    [
        row("me"),
        row("java", slot=None),
        row("gone", age=11),
        row("ahead", age=-11),
        replace(row("leaving"), state=WorkerState.DRAINING),
        replace(row("asked"), drain_requested=True),
        replace(row("never"), last_update=None),
    ],
    ids=lambda row: row.id,
)
def test_nobody_inherits_who_may_not_go_on(unfit: WorkerRow) -> None:
    assert chosen([lease("1", "me")], [unfit]) == {}


def test_a_worker_that_is_starting_inherits_where_none_is_running() -> None:
    starting = replace(row("new"), state=WorkerState.STARTING)
    assert chosen([lease("1", "me")], [starting]) == {"1": "new"}
    assert chosen([lease("1", "me"), lease("x", "old")], [starting, row("old")]) == {"1": "old"}


def test_caps_hold_and_what_exceeds_them_is_left() -> None:
    leases = [lease("1", "me", 600.0), lease("2", "me", 600.0), lease("3", "me", 10.0), lease("x", "a")]
    assert len(chosen(leases, [row("a")], replace(RULES, max_leases=2))) == 1
    assert chosen(leases, [row("b")], replace(RULES, max_kbps=700.0)) == {"1": "b", "3": "b"}


def test_finished_leases_are_not_inherited() -> None:
    assert chosen([replace(lease("1", "me"), checkpoint=SHARD_END)], [row("a")]) == {}


def small_fleet() -> tuple[World, Run, Run]:
    world = World(shards=2)
    world.stream.put(A, *"abc")
    world.stream.put(B, *"xyz")
    old, new = world.worker("old"), world.worker("new")
    for run in (old, new):
        run.worker.start()
        run.worker.step_heartbeat()
    world.assign(old)
    return world, old, new


def test_a_worker_that_stops_gives_its_leases_to_one_that_runs() -> None:
    world, old, new = small_fleet()
    old.round()
    old.worker.shut_down()
    assert {world.lease(key).owner for key in (A, B)} == {new.id}
    new.until_idle()
    world.check_exactly_once()
    assert EventKind.LEASE_LOST not in old.kinds()


def test_the_batch_it_had_pinned_goes_with_them() -> None:
    world, old, new = small_fleet()

    def fail(_: object) -> None:
        raise RuntimeError("no luck")

    old.sink.refuses = fail
    old.round()
    pinned = world.lease(A)
    assert pinned.pending_checkpoint is not None
    old.worker.shut_down()
    assert world.lease(A).pending_checkpoint == pinned.pending_checkpoint
    world.clock.advance(60)
    new.until_idle()
    world.check_exactly_once()


def test_a_worker_that_slept_gives_nothing_away_that_others_have_now() -> None:
    world, old, new = small_fleet()
    third = world.worker("third")
    old.round()
    world.clock.advance(600)
    new.worker.step_heartbeat()
    world.assign(third, A)
    before = world.lease(A)
    old.worker.shut_down()
    assert world.lease(A) == before
    assert world.lease(B).owner == new.id, "nobody else took it: it is still its own"


def test_a_lease_on_its_way_goes_where_the_leader_wanted_it() -> None:
    world, old, _ = small_fleet()
    third = world.worker("third")
    old.round()
    world.hand_over(A, third)
    old.worker.shut_down()
    assert (world.lease(A).owner, world.lease(A).in_handoff) == (third.id, False)


def test_without_an_answer_from_the_tables_they_are_released() -> None:
    world, old, _ = small_fleet()
    old.round()

    def no_scans(method: str, _: object) -> None:
        if method == "scan":
            raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": "not today"}}, method)

    old.client.before.append(no_scans)
    old.worker.shut_down()
    assert {world.lease(key).owner for key in (A, B)} == {None}


def test_workers_that_imitate_the_kcl_release() -> None:
    world = World(policy={"name": "kcl"})
    old, new = world.worker("old"), world.worker("new")
    for run in (old, new):
        run.worker.start()
        run.worker.step_heartbeat()
    world.assign(old)
    old.round()
    old.worker.shut_down()
    assert world.lease(A).owner is None


def test_who_stops_at_the_same_time_is_no_heir() -> None:
    world, old, new = small_fleet()
    old.round()
    new.worker.stop.request()
    new.worker.step_housekeeping()
    old.worker.shut_down()
    assert {world.lease(key).owner for key in (A, B)} == {None}


def test_what_is_only_read_goes_at_once_and_not_with_the_end_of_the_batch() -> None:
    world, old, new = small_fleet()
    old.round()
    world.stream.put(A, *"def")

    def stop() -> None:
        old.engine.hooks.clear()
        old.worker.stop.request()
        old.worker.step_housekeeping()
        assert {world.lease(key).owner for key in (A, B)} == {new.id}

    old.engine.hooks.append(stop)
    old.worker.step_batch()
    new.until_idle()
    world.check_exactly_once()


def test_what_is_being_written_stays_until_it_is_committed() -> None:
    world, old, new = small_fleet()

    def stop(_: object) -> None:
        old.sink.hooks.clear()
        old.worker.stop.request()
        old.worker.step_housekeeping()
        assert {world.lease(key).owner for key in (A, B)} == {old.id}

    old.sink.hooks.append(stop)
    report = old.round()
    assert {lease.outcome for lease in report.leases} == {Outcome.COMMITTED}
    old.worker.shut_down()
    assert {world.lease(key).owner for key in (A, B)} == {new.id}
    new.until_idle()
    world.check_exactly_once()
