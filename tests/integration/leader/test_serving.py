"""Leases get served: at the start, after a death, after a handoff that goes wrong."""

import pytest

from kcl_dagster.application import Application, FleetSettings, PolicySettings
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.model.lease import WorkerId
from kcl_dagster.model.worker_row import WorkerRow
from tests.integration.leader.town import TICK, Town, Worker, shard_id

LEASE_DURATION = 30.0


def everything_is_served(report: TickReport) -> bool:
    return bool(report.leases) and not report.unserved


def settled(town: Town, workers: int) -> list[Worker]:
    """A fleet that has its leases."""
    started = [town.start(f"worker-{index:03d}") for index in range(workers)]
    town.step(3)
    assert sum(len(worker.shards()) for worker in started) == len(town.owners())
    return started


def test_the_first_tick_makes_leases_and_asks_for_workers(town: Town) -> None:
    report = town.tick()
    assert report.leading
    assert report.ok
    assert [launch.slot for launch in report.launches] == ["worker-000", "worker-001"]
    assert sorted(town.owners()) == [shard_id(number) for number in range(4)]
    assert set(report.unserved) == set(town.owners())


def test_a_worker_gets_its_leases_with_the_first_tick_after_it_reported(town: Town) -> None:
    town.tick()
    worker = town.start("worker-000")
    report = town.step()
    assert len(report.moves) == 4
    assert report.unserved == {}
    assert set(town.owners().values()) == {worker.id}


def test_a_fleet_that_is_settled_is_left_alone(town: Town) -> None:
    settled(town, 2)
    for _ in range(60):
        report = town.step()
        assert report.ok, report
        assert report.moves == ()
        assert report.launches == ()


def test_a_worker_that_dies_unseen_loses_its_leases_after_the_lease_duration_and_not_before(town: Town) -> None:
    dead, successor = settled(town, 2)
    lost = set(dead.shards())
    town.kill(dead, seen=False)
    took = town.until(lambda report: bool(report.moves))
    assert took + town.application.timings.renewal_interval > LEASE_DURATION
    assert took <= LEASE_DURATION + 2 * TICK
    assert {move.lease for move in town.reports[-1].moves} == lost
    assert all("has not renewed it for" in move.because for move in town.reports[-1].moves)
    town.step()
    assert lost <= set(successor.shards())


def test_a_counter_that_lacks_next_to_nothing_is_watched_to_the_end_within_the_tick(town: Town) -> None:
    dead, _ = settled(town, 2)
    shard = dead.shards()[0]
    counter = town.lease(shard).counter
    town.until(lambda _: town.lease(shard).counter != counter)
    town.kill(dead, seen=False)
    assert LEASE_DURATION % TICK == 0, "at a tick the counter will have stood for exactly the duration"
    took = town.until(lambda report: any(move.lease == shard for move in report.moves))
    assert LEASE_DURATION < took < LEASE_DURATION + TICK


def test_a_worker_whose_run_is_over_loses_its_leases_with_the_next_tick(town: Town) -> None:
    dead, successor = settled(town, 2)
    lost = set(dead.shards())
    town.kill(dead, seen=True)
    report = town.step()
    assert {move.lease for move in report.moves} == lost
    assert all(f"the run of {dead.id} is over" == move.because for move in report.moves)
    town.step()
    assert lost <= set(successor.shards())


def test_a_run_that_is_over_is_known_by_its_leases_when_its_row_is_gone(town: Town) -> None:
    dead, _ = settled(town, 2)
    [row] = [row for row in town.workers_table.list() if row.id == dead.id]
    town.kill(dead, seen=True)
    town.workers_table.delete(row)
    assert town.step().moves != ()


def test_a_zombie_whose_leases_were_given_away_cannot_write_them(town: Town) -> None:
    zombie, _ = settled(town, 2)
    lost = zombie.shards()
    town.end("worker-000")  # the orchestrator says so, and is wrong
    zombie.heartbeat.state = zombie.heartbeat.state
    town.tick()
    for shard in lost:
        with pytest.raises(Exception, match="is no longer ours"):
            zombie.progress(shard, "49")


def test_a_leader_that_never_lives_long_still_finds_the_dead(town: Town) -> None:
    dead, _ = settled(town, 2)
    town.kill(dead, seen=False)
    for _ in range(40):
        town.restart_leader()
        if any("has not renewed" in move.because for move in town.step(2).moves):
            break
        if any("has not renewed" in move.because for move in town.reports[-2].moves):
            break
    else:
        pytest.fail("the dead worker kept its leases")


def test_another_leader_takes_over_after_the_lock_stood_still_and_knows_what_was_seen(town: Town) -> None:
    dead, _ = settled(town, 2)
    town.restart_leader("another-leader")
    assert not town.tick().leading
    town.kill(dead, seen=False)
    lock = town.application.timings.leader_lock
    took = town.until(lambda report: report.leading)
    assert lock < took <= lock + 2 * TICK
    assert town.reports[-1].leader == "another-leader"
    assert town.until(lambda report: bool(report.moves)) <= LEASE_DURATION + 2 * TICK


def test_a_leader_that_resigns_is_followed_at_once(town: Town) -> None:
    settled(town, 1)
    town.leader.resign()
    town.restart_leader("another-leader")
    assert town.step().leading


def test_a_handoff_goes_through_the_old_owner(town: Town) -> None:
    [first] = settled(town, 1)
    second = town.start("worker-001")
    report = town.step()
    assert {move.kind for move in report.moves} == {"balance"}
    moved = {move.lease for move in report.moves}
    assert len(moved) == 2
    assert all(town.lease(key).checkpoint_owner == first.id for key in moved)
    town.step(4)
    assert set(second.shards()) == moved
    assert all(not town.lease(key).in_handoff for key in moved)
    assert town.step().moves == ()


def test_nobody_is_asked_to_hand_over_what_it_has_not_found_yet(town: Town) -> None:
    town.tick()
    first = town.start("worker-000")
    assert len(town.tick().moves) == 4
    second = town.start("worker-001")
    town.clock.advance(TICK)
    assert town.tick().moves == (), "the first one does not know of its leases yet"
    town.until(lambda _: len(second.shards()) == 2, within=5 * TICK)
    assert len(first.shards()) == 2


def test_an_owner_that_does_not_hand_over_is_forced_to(town: Town) -> None:
    """It renews, so its counter never stands still."""
    [first] = settled(town, 1)
    second = town.start("worker-001")
    first.renewer = type(first.renewer)(first.holdings, 10.0, 1e9, town.clock)  # would wait for ever
    first.busy = True
    moved = {move.lease for move in town.step().moves}
    timings = town.application.timings
    took = town.until(lambda report: moved <= {move.lease for move in report.moves})
    assert timings.handoff_timeout < took <= timings.handoff_timeout + timings.lease_duration + 3 * TICK
    assert all("did not hand it over in time" in move.because for move in town.reports[-1].moves)
    town.step()
    assert set(second.shards()) == moved


@pytest.mark.parametrize("seen", [True, False])
def test_a_handoff_whose_old_owner_dies_ends_with_the_new_one(town: Town, seen: bool) -> None:
    [first] = settled(town, 1)
    second = town.start("worker-001")
    first.busy = True
    moved = {move.lease for move in town.step().moves}
    town.kill(first, seen=seen)
    town.until(lambda report: moved <= set(second.shards()), within=LEASE_DURATION + 4 * TICK)
    town.until(lambda report: len(second.shards()) == 4, within=LEASE_DURATION + 4 * TICK)


def test_a_handoff_whose_new_owner_dies_comes_back(town: Town) -> None:
    [first] = settled(town, 1)
    second = town.start("worker-001")
    town.step()
    town.kill(second, seen=True)
    town.until(lambda report: len(first.shards()) == 4, within=LEASE_DURATION + 4 * TICK)


def test_a_handoff_survives_its_leader(town: Town) -> None:
    [first] = settled(town, 1)
    second = town.start("worker-001")
    first.busy = True
    moved = {move.lease for move in town.step().moves}
    first.renewer = type(first.renewer)(first.holdings, 10.0, 1e9, town.clock)
    for _ in range(12):
        town.restart_leader()
        town.step(3)
    assert set(second.shards()) == moved, "the deadline started again with every leader"


def test_a_worker_that_is_asked_to_drain_gives_everything_away(town: Town) -> None:
    first, second = settled(town, 2)
    town.workers_table.request_drain(first.id)
    report = town.step()
    assert {move.kind for move in report.moves} == {"drain"}
    town.step(3)
    assert first.shards() == []
    assert len(second.shards()) == 4


def test_the_old_worker_of_a_slot_gives_way_to_the_new_one(town: Town) -> None:
    """The orchestrator launched a slot again although its old process lives on."""
    [old] = settled(town, 1)
    new = town.start("worker-000", "relaunched-run")
    town.step(4)
    assert old.shards() == []
    assert len(new.shards()) == 4


def test_a_java_worker_is_served_like_any_other(town: Town) -> None:
    town.tick()
    town.workers_table.put(WorkerRow(WorkerId("host-a:1f0c"), int(town.clock.now()), {"C": (40.0,)}, {"C": (100,)}))
    assert town.step().unserved == {}
    assert set(town.owners().values()) == {"host-a:1f0c"}


def test_a_java_worker_that_died_before_the_leader_came_gets_nothing(town: Town) -> None:
    town.workers_table.put(WorkerRow(WorkerId("host-a:1f0c"), int(town.clock.now()), {}, {}))
    town.clock.advance(600.0)
    assert len(town.tick().unserved) == 4
    assert len(town.step().unserved) == 4


def test_clocks_that_disagree_do_not_kill_a_worker(town: Town) -> None:
    settled(town, 2)
    town.clock.jump(3600.0)  # the leader's machine; rows were written with the old time
    report = town.tick()
    assert all(worker.alive for worker in report.workers)
    assert report.moves == ()


def test_without_grace_leases_move_at_once(town: Town) -> None:
    town = Town(
        Application(
            name="abrupt-app",
            streams="orders",
            policy=PolicySettings(graceful=False),
            fleet=FleetSettings(min_workers=2),
        )
    )
    settled(town, 1)
    second = town.start("worker-001")
    moved = {move.lease for move in town.step().moves}
    assert all(town.lease(key).owner == second.id and not town.lease(key).in_handoff for key in moved)


@pytest.mark.parametrize("policy", ["balanced", "count", "throughput", "kcl", "taker"])
def test_every_policy_serves_a_fleet(policy: str) -> None:
    settings = PolicySettings.model_validate({"name": policy})
    fleet = FleetSettings(min_workers=2)
    town = Town(Application(name=f"{policy}-app", streams="orders", policy=settings, fleet=fleet), shards=6)
    town.tick()
    workers = [town.start(f"worker-{index:03d}") for index in range(2)]
    town.until(everything_is_served)
    town.step(2)
    assert sum(len(worker.shards()) for worker in workers) == 6
    town.kill(workers[0], seen=False)
    town.until(lambda report: len(workers[1].shards()) == 6)
