"""Runs are launched, scaled, replaced and left alone."""

import itertools

import pytest

from kcl_dagster.application import Application, FleetSettings, Timings
from kcl_dagster.leader.first_rows import FIRST_ROWS_SECONDS, JUST_LAUNCHED_SECONDS
from kcl_dagster.leader.fleet import ABANDONED_SECONDS
from kcl_dagster.leader.run_view import LoadedCode, RunView, SlotRun
from kcl_dagster.leader.start_watch import START_SECONDS, STUCK_SECONDS, StartWatch
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.worker_row import WorkerState
from kcl_dagster.operations.status import read_status
from kcl_dagster.tables.control import Control
from tests.integration.leader.town import TICK, Town, Worker, shard_id


def town_of(shards: int = 8, **settings: float) -> Town:
    fleet = FleetSettings.model_validate({"max_workers": 4, "shards_per_worker": 4, "cooldown": 60.0, **settings})
    return Town(Application(name="runs-app", streams="orders", fleet=fleet), shards)


def grown(town: Town) -> None:
    """Everything the leader asks for is launched."""
    for _ in range(4):
        town.obey(town.step())


def test_a_launch_is_asked_for_under_one_name_until_its_run_is_there() -> None:
    town = town_of()
    launches = {(launch.slot, launch.generation) for _ in range(5) for launch in town.step().launches}
    assert len(launches) == 2
    grown(town)
    assert town.step().launches == ()


def test_a_launch_that_leads_to_nothing_is_asked_for_under_another_name() -> None:
    """The run was deleted before anybody saw it, and the orchestrator drops a name it has seen."""
    town = town_of()
    first = {launch.generation for launch in town.step().launches}
    later = {launch.generation for _ in range(30) for launch in town.step().launches}
    assert later - first


def test_a_new_leader_does_not_use_a_name_again_that_was_used() -> None:
    town = town_of(shards=4)
    [first] = town.step().launches
    town.start(first.slot)
    town.clock.advance(600.0)
    town.step()
    town.leader.tables.memory.save({})
    town.restart_leader()
    town.end(first.slot)
    [second] = town.step().launches
    assert second.generation > first.generation


def test_a_slot_with_a_run_is_never_launched_again() -> None:
    town = town_of(shards=4)
    [launch] = town.step().launches
    for status in ("queued", "starting", "running", "canceling"):
        run = SlotRun("a-run", WorkerId("worker-000:a-run"), status, town.clock.now())
        town.runs[launch.slot] = run
        assert launch.slot not in {one.slot for one in town.step().launches}


def test_a_slot_whose_runs_fail_at_once_is_launched_less_and_less_often() -> None:
    town = town_of(shards=4)
    launched: list[float] = []
    for _ in range(120):
        report = town.step()
        for slot in list(town.runs):
            town.end(slot)
        for launch in report.launches:
            launched.append(town.clock.monotonic())
            town.runs[launch.slot] = SlotRun(
                f"run-{launch.generation}", WorkerId("w"), "starting", town.clock.now()
            )
    gaps = [later - earlier for earlier, later in itertools.pairwise(launched)]
    assert len(launched) < 10
    assert gaps == sorted(gaps)
    assert any("ended early" in note for report in town.reports for note in report.notes)


def test_lag_adds_a_worker_and_its_absence_takes_one_away() -> None:
    town = town_of()
    grown(town)
    assert len(town.runs) == 2
    for worker in town.workers.values():
        worker.heartbeat.lag_ms = 300_000
    took = town.until(lambda report: report.target_workers == 3)
    assert took <= 60.0 + 2 * TICK
    grown(town)
    assert len(town.runs) == 3
    for worker in town.workers.values():
        worker.heartbeat.lag_ms = 0
    took = town.until(lambda report: bool(report.retire), within=200.0)
    assert list(town.reports[-1].retire) == ["worker-002"]
    retired = town.workers[town.runs["worker-002"].worker_id]
    town.until(lambda report: not retired.shards(), within=60.0)
    assert retired.heartbeat.drain_requested
    town.kill(retired, seen=True)
    for _ in range(20):
        report = town.step()
        assert report.launches == ()
    assert len(town.runs) == 2


def test_there_are_never_more_workers_than_shards() -> None:
    town = town_of(shards=2, min_workers=4)
    grown(town)
    assert len(town.runs) == 2
    for worker in town.workers.values():
        worker.heartbeat.lag_ms = 10_000_000
    for _ in range(60):
        town.obey(town.step())
    assert len(town.runs) == 2


def test_an_old_worker_is_replaced_before_it_leaves() -> None:
    town = town_of(shards=8, lifetime=600.0)
    grown(town)
    served_gaps = 0
    replaced: set[str] = set()
    for _ in range(400):
        report = town.step()
        served_gaps += len(report.unserved)
        town.obey(report)
        for worker in list(town.workers.values()):
            if worker.alive and worker.heartbeat.drain_requested and not worker.shards():
                town.kill(worker, seen=True)
                replaced.add(worker.id)
        assert sum(worker.alive for worker in town.workers.values()) <= 3, "one at a time"
    assert len(replaced) >= 4
    assert served_gaps == 0


def test_a_worker_that_hangs_is_not_counted_on() -> None:
    town = town_of()
    grown(town)
    hung = next(iter(town.workers.values()))
    town.kill(hung, seen=False)
    town.until(lambda report: bool(report.launches), within=200.0)
    assert {launch.slot for launch in town.reports[-1].launches} == {"worker-002"}
    assert any("does not write its row" in note for note in town.reports[-1].notes)


def test_a_queued_run_that_is_not_wanted_any_more_is_named() -> None:
    town = town_of(shards=4)
    grown(town)
    town.runs["worker-003"] = SlotRun("waiting", WorkerId("worker-003:waiting"), "queued", town.clock.now())
    assert list(town.step().retire) == ["worker-003"]


def test_runs_that_wait_in_the_queue_are_told() -> None:
    town = town_of(shards=4)
    town.step()
    town.runs["worker-000"] = SlotRun("waiting", WorkerId("worker-000:waiting"), "queued", town.clock.now())
    town.until(lambda report: any("wait in the queue" in note for note in report.notes), within=100.0)


def test_rows_of_workers_whose_run_is_over_go() -> None:
    town = town_of(shards=4)
    grown(town)
    [worker] = town.workers.values()
    town.kill(worker, seen=True)
    replacement = town.start("worker-001")
    town.until(lambda _: [row.id for row in town.workers_table.list()] == [replacement.id], within=30.0)
    assert town.reports[-1].ok


def test_a_worker_that_outlives_its_run_is_asked_to_leave() -> None:
    town = town_of(shards=4)
    grown(town)
    [zombie] = town.workers.values()
    town.end("worker-000")  # the orchestrator takes it for failed; its process lives on
    successor = town.start("worker-000")
    town.until(lambda _: zombie.heartbeat.drain_requested, within=30.0)
    assert not successor.heartbeat.drain_requested
    asked = [note for report in town.reports for note in report.notes if "is asked to leave" in note]
    assert len(asked) == 1
    town.step(10)
    assert not successor.heartbeat.drain_requested


# --- two deployments of one application ---


@pytest.mark.audit("B7")
def test_runs_that_wait_in_another_deployments_queue_take_nothing_from_workers_that_read() -> None:
    town = town_of()
    grown(town)
    town.step(3)
    owners = town.owners()
    town.leader.resign()
    second = town.open_leader("another-deployment")
    queue: dict[str, SlotRun] = {}
    for _ in range(120):
        town.clock.advance(TICK)
        for worker in town.workers.values():
            worker.step()
        report = second.tick(RunView(dict(queue), lambda _: ()))
        for launch in report.launches:
            waiting = WorkerId(f"{launch.slot}:waiting")
            queue[launch.slot] = SlotRun(f"run-{launch.generation}", waiting, "queued", town.clock.now())
        assert report.leading
        assert report.unserved == {}
    assert queue == {}
    assert town.owners() == owners
    assert not any(worker.heartbeat.drain_requested for worker in town.workers.values())


@pytest.mark.audit("B7")
def test_a_run_replaces_the_worker_of_its_slot_when_its_own_worker_is_up() -> None:
    town = town_of(shards=4)
    grown(town)
    town.step(2)
    [old] = town.workers.values()
    town.runs["worker-000"] = SlotRun("new-run", WorkerId("worker-000:new-run"), "starting", town.clock.now())
    town.step(4)
    assert len(old.shards()) == 4
    assert not old.heartbeat.drain_requested
    new = town.start("worker-000", "new-run")
    town.until(lambda _: len(new.shards()) == 4, within=60.0)
    assert old.heartbeat.drain_requested


# --- shards that more workers would not help ---


@pytest.mark.audit("B12")
def test_a_stopped_shard_asks_for_no_workers() -> None:
    town = town_of()
    grown(town)
    worker, other = town.workers.values()
    stuck, healthy = LeaseKey(shard_id(0)), LeaseKey(shard_id(1))
    other.heartbeat.lag_ms = 0
    for _ in range(60):
        worker.heartbeat.lag_ms = 3_600_000
        worker.heartbeat.behind = {stuck: 3_600_000, healthy: 0}
        worker.heartbeat.stopped = (stuck,)
        report = town.step()
        assert report.launches == ()
    assert (report.target_workers, report.lag_ms) == (2, 3_600_000)
    worker.heartbeat.behind = {stuck: 3_600_000, healthy: 300_000}
    town.until(lambda report: report.target_workers == 3, within=90.0)


@pytest.mark.audit("B12")
def test_a_fleet_shrinks_although_a_shard_is_stopped_and_another_one_paused() -> None:
    town = town_of()
    grown(town)
    third = town.start("worker-002")
    town.step(3)
    town.leader.memory.target = 3
    stuck = LeaseKey(shard_id(0))
    town.leader.tables.control.save(Control(leases=frozenset({LeaseKey(shard_id(1))})))
    for worker in town.workers.values():
        worker.heartbeat.lag_ms = 0
    holder = next(worker for worker in town.workers.values() if shard_id(0) in worker.shards())
    holder.heartbeat.lag_ms, holder.heartbeat.behind, holder.heartbeat.stopped = 900_000, {stuck: 900_000}, (stuck,)
    town.until(lambda report: report.target_workers == 2, within=150.0)
    town.until(lambda _: third.heartbeat.drain_requested, within=30.0)


def lived(town: Town) -> list[WorkerId]:
    """One step in which runs start, and end once their workers have given up their shards; the runs that ended."""
    town.obey(town.step())
    ended: list[WorkerId] = []
    for worker in list(town.workers.values()):
        if worker.alive and worker.heartbeat.drain_requested and not worker.shards():
            town.kill(worker, seen=True)
            ended.append(worker.id)
    return ended


@pytest.mark.audit("F4")
def test_a_reload_with_other_code_replaces_every_worker_once_and_loses_no_reader() -> None:
    town = town_of(shards=8)
    grown(town)
    first = set(town.workers)
    town.clock.advance(30.0)
    town.code = LoadedCode("mended", town.clock.now())
    ended = [worker for _ in range(100) for worker in lived(town)]
    assert set(ended) == first
    assert len(ended) == len(first), "once"
    assert {run.code for run in town.runs.values()} == {"mended"}
    assert set(town.owners().values()) <= {run.worker_id for run in town.runs.values()}
    assert not any(report.unserved for report in town.reports[-100:])


@pytest.mark.audit("F4")
def test_a_worker_with_a_stopped_shard_is_the_first_to_be_replaced_after_a_reload() -> None:
    town = town_of(shards=8)
    grown(town)
    stuck = town.workers[town.runs["worker-000"].worker_id]
    stuck.heartbeat.stopped = (LeaseKey(shard_id(0)),)
    town.clock.advance(30.0)
    town.code = LoadedCode("mended", town.clock.now())
    ended: list[WorkerId] = []
    while not ended:
        ended = lived(town)
    assert ended == [stuck.id]


@pytest.mark.audit("F4")
def test_two_processes_that_lead_with_different_code_do_not_replace_workers_for_ever() -> None:
    """As two code locations with one application do, or the replicas of a code server that differ."""
    town = town_of(shards=8)
    grown(town)
    ended = []
    codes = [LoadedCode("blue", town.clock.now()), LoadedCode("green", town.clock.now() + 7.0)]
    for number in range(200):
        town.code = codes[number % 2]
        ended += lived(town)
    assert 2 <= len(ended) <= 4, "the workers from before, and what one of the two launched before the other began"
    assert not any("older code" in why for report in town.reports[-150:] for why in report.retire.values())


@pytest.mark.parametrize("heartbeat", [5.0, 60.0])
def test_a_run_whose_worker_is_gone_unnoticed_is_given_up_and_its_slot_is_launched_again(heartbeat: float) -> None:
    """A worker is killed while Dagster's database is away: Dagster says for ever that its run is going on. A worker
    that writes its row rarely is given more time: its row can look old if the clock of its machine is wrong."""
    fleet = FleetSettings(min_workers=2, max_workers=2, shards_per_worker=4, cooldown=60.0)
    timings = Timings(heartbeat=heartbeat)
    town = Town(Application(name="runs-app", streams="orders", fleet=fleet, timings=timings), 8)
    grown(town)
    town.step(20)
    victim = max(town.workers.values(), key=lambda worker: worker.id)
    slot = victim.id.rpartition(":")[0]
    run_id = town.runs[slot].run_id
    town.kill(victim, seen=False)
    waited = town.until(lambda report: run_id in report.abandoned, within=1200.0)
    assert waited >= max(ABANDONED_SECONDS, 7 * heartbeat), "four heartbeats are missed, and four more are awaited"
    assert {run for report in town.reports for run in report.abandoned} == {run_id}
    town.end(slot)  # what the sensor does with it
    town.until(lambda report: slot in {launch.slot for launch in report.launches})


def test_starts_that_are_given_up_are_one_episode_which_ends_when_a_worker_has_started() -> None:
    """After a deployment whose image does not start."""
    town = town_of(shards=8)
    grown(town)
    town.clock.advance(30.0)
    town.code = LoadedCode("mended", town.clock.now())
    given_up: list[str] = []
    while len(given_up) < 2:
        town.until(lambda report: bool(report.launches))
        [launch] = town.reports[-1].launches
        worker = town.start(launch.slot)
        worker.heartbeat.state = WorkerState.STARTING
        given_up.append(town.runs[launch.slot].run_id)
        town.until(lambda report: given_up[-1] in report.starts_given_up, within=3000.0)
        town.kill(worker, seen=True)
    assert set(town.step().starts_given_up) == set(given_up)
    status = read_status(town.application, town.dynamodb, town.runtime)
    assert set(status.to_document()["starts_given_up"]) == set(given_up)
    assert status.given_up[0].startswith("2 workers did not come to read in time and were given up, last at ")
    town.restart_leader()
    assert set(town.step().starts_given_up) == set(given_up), "the next leader goes on with the episode"
    for _ in range(400):
        lived(town)
    shown = [bool(report.starts_given_up) for report in town.reports]
    assert (shown[0], shown[-1]) == (False, False)
    assert sum(one != other for one, other in itertools.pairwise(shown)) == 2, "one episode"
    assert read_status(town.application, town.dynamodb, town.runtime).given_up == []


def behind(town: Town, seconds: float) -> None:
    for worker in town.workers.values():
        worker.heartbeat.lag_ms = round(1000 * seconds)


def test_two_daemons_of_one_deployment_do_not_launch_and_drain_in_turn() -> None:
    """One of them sees the lag that asks for a larger fleet, and the other one does not."""
    town = town_of(shards=8)
    grown(town)
    one, other = town.leader, town.open_leader()
    for leader in (other, one) * 10:
        town.leader = leader
        town.step()
    behind(town, 90.0)
    assert town.step().target_workers == 3
    ended: list[WorkerId] = []
    for number in range(200):
        behind(town, 30.0)
        town.leader = (other, one)[number % 2]
        ended += lived(town)
    assert ended == []
    assert len(town.runs) == 3
    assert {report.target_workers for report in town.reports[-10:]} == {3}


def test_a_daemon_that_cannot_read_what_the_other_one_decided_leads_all_the_same() -> None:
    town = town_of(shards=8)
    grown(town)
    other = town.open_leader()
    other.tick(town.view())
    town.dynamodb.fails = lambda method, request: (
        method == "get_item" and request["Key"] == {"leaseKey": {"S": "kdLeaderMemory"}}
    )
    report = town.step()
    assert (report.leading, report.ok) == (True, True)
    assert any("another process of this deployment" in note for note in report.notes)


def test_a_deployment_that_leads_again_goes_on_with_the_number_of_workers_of_the_one_that_led() -> None:
    town = town_of(shards=8)
    grown(town)
    one, other = town.leader, town.open_leader("another-deployment")
    behind(town, 30.0)
    assert town.step().target_workers == 2
    one.resign()
    town.leader = other
    for _ in range(15):
        behind(town, 90.0)
        town.obey(town.step())
    assert town.step().target_workers == 3
    other.resign()
    town.leader = one
    behind(town, 30.0)
    report = town.step()
    assert report.leading
    assert (report.target_workers, report.retire) == (3, {})


def test_a_leader_that_was_away_gives_nothing_to_a_worker_that_died_meanwhile() -> None:
    """The row of the dead worker has changed since the leader's last look, but that was minutes ago."""
    town = town_of(min_workers=2, max_workers=2)
    grown(town)
    town.step(20)
    victim, other = sorted(town.workers.values(), key=lambda worker: worker.id)
    for _ in range(10):  # no ticks: Dagster's database is away
        town.clock.advance(TICK)
        victim.step()
        other.step()
    town.kill(victim, seen=False)
    for shard in victim.shards():
        assert town.leader.tables.leases.release(town.lease(shard)) is not None  # taken without a leader
    for _ in range(30):
        town.clock.advance(TICK)
        other.step()
    before = len(town.reports)
    town.step(20)
    given = [move for report in town.reports[before:] for move in report.moves if move.to == victim.id]
    assert given == []


# --- runs that were launched just now ---


def launched(town: Town, seconds: float) -> Worker:
    """A run that was launched just now, and whose worker writes its row `seconds` later, before it can read."""
    slot = f"worker-{len(town.runs):03d}"
    worker = Worker(town, slot, f"run-{slot}")
    worker.heartbeat.state = WorkerState.STARTING
    town.runs[slot] = SlotRun(f"run-{slot}", worker.id, "running", town.clock.now())
    town.workers[worker.id] = worker
    town.clock.call_in(seconds, worker.heartbeat.write)
    return worker


def held(town: Town) -> list[int]:
    owners = list(town.owners().values())
    return [owners.count(str(worker)) for worker in town.workers]


def test_a_first_tick_waits_for_the_rows_of_workers_that_were_launched_together() -> None:
    town = town_of(min_workers=2, max_workers=2)
    town.step()
    launched(town, seconds=0.0)
    launched(town, seconds=3.0)
    began = town.clock.now()
    town.tick()
    assert held(town) == [4, 4], "otherwise the second gets its leases a tick later"
    assert 3.0 <= town.clock.now() - began <= 4.0


def test_a_tick_does_not_wait_while_leases_are_read() -> None:
    town = town_of(min_workers=2, max_workers=2)
    town.step()
    launched(town, seconds=0.0).heartbeat.state = WorkerState.RUNNING
    town.clock.advance(0.1)
    launched(town, seconds=3.0)
    began = town.clock.now()
    town.tick()
    assert town.clock.now() - began < 1.0
    assert held(town) == [8, 0]


def test_a_tick_waits_for_seconds_only_and_for_runs_that_were_launched_just_now() -> None:
    town = town_of(min_workers=2, max_workers=2)
    town.step()
    launched(town, seconds=600.0)
    began = town.clock.now()
    town.tick()
    assert town.clock.now() - began == pytest.approx(FIRST_ROWS_SECONDS, abs=0.5)
    town.clock.advance(JUST_LAUNCHED_SECONDS)
    began = town.clock.now()
    town.tick()
    assert town.clock.now() - began < 1.0


# --- runs that never come to read ---


def test_a_leader_whose_queue_does_not_move_lets_a_deployment_lead_whose_queue_does() -> None:
    """Both deployments tick every five seconds. The queue of the first moves again when the second reads."""
    town, queue = town_of(shards=4), dict[str, SlotRun]()
    first = town.open_leader("deployment-without-room")
    leads: list[str | None] = []

    def step() -> None:
        town.clock.advance(TICK)
        for worker in town.workers.values():
            worker.step()
        report = first.tick(RunView(dict(queue), lambda _: ()))
        for launch in report.launches:
            waiting = WorkerId(f"{launch.slot}:waiting")
            queue.setdefault(launch.slot, SlotRun(f"run-{launch.generation}", waiting, "queued", town.clock.now()))
        for slot in report.retire:
            queue.pop(slot, None)
        town.obey(town.tick())
        leads.append(report.leader if report.leading else town.reports[-1].leader)

    for _ in range(round(STUCK_SECONDS / TICK)):
        step()
    assert set(leads) == {"deployment-without-room"}
    for _ in range(round(120 / TICK)):
        step()
    assert set(leads[-10:]) == {"the-leader"}
    [worker] = town.workers.values()
    assert len(worker.shards()) == 4
    for _ in range(round(2 * STUCK_SECONDS / TICK)):
        step()
    assert set(leads[-40:]) == {"the-leader"}, "whose workers read"


def test_without_another_deployment_a_leader_with_a_stuck_queue_leads_on_and_launches_when_it_moves() -> None:
    town = town_of(shards=4)
    led = 0
    for _ in range(240):
        report = town.step()
        led += report.leading
        for launch in report.launches:
            waiting = WorkerId(f"{launch.slot}:waiting")
            town.runs.setdefault(
                launch.slot, SlotRun(f"run-{launch.generation}", waiting, "queued", town.clock.now())
            )
    assert 0.9 * 240 < led < 240
    town.runs.clear()
    for _ in range(24):
        town.obey(town.step())
    [worker] = town.workers.values()
    assert len(worker.shards()) == 4


@pytest.mark.parametrize("lasts", [10.0, 70.0, 200.0])
def test_a_leader_whose_runs_end_before_they_read_lets_a_healthy_deployment_lead(lasts: float) -> None:
    town, runs = town_of(shards=4), dict[str, SlotRun]()
    broken = town.open_leader("deployment-whose-runs-fail")
    leads: list[str | None] = []
    launched = 0
    for _ in range(240):
        town.clock.advance(TICK)
        for worker in town.workers.values():
            worker.step()
        report = broken.tick(RunView(dict(runs), lambda _: ()))
        runs = {slot: run for slot, run in runs.items() if town.clock.now() - run.started_at < lasts}
        for launch in report.launches:
            if launch.slot not in runs:
                launched += 1
                name = WorkerId(f"{launch.slot}:{launched}")
                runs[launch.slot] = SlotRun(f"run-{launched}", name, "starting", town.clock.now())
        town.obey(town.tick())
        leads.append(report.leader if report.leading else town.reports[-1].leader)
    assert leads[0] == "deployment-whose-runs-fail"
    assert set(leads[round(STUCK_SECONDS / TICK) + 12 :]) == {"the-leader"}
    [worker] = town.workers.values()
    assert len(worker.shards()) == 4
    assert 1 <= launched < 10


def test_a_worker_that_takes_minutes_to_start_is_waited_for() -> None:
    town = town_of(shards=4)
    [launch] = town.step().launches
    worker = town.start(launch.slot)
    worker.heartbeat.state = WorkerState.STARTING
    town.step(round(500 / TICK))
    worker.heartbeat.state = WorkerState.RUNNING
    town.step(3)
    assert all(report.leading for report in town.reports)
    assert len(worker.shards()) == 4


def test_the_first_runs_are_waited_for_and_no_later_ones() -> None:
    watch = StartWatch(tick_interval=5.0)
    assert not watch.see(0.0, is_short=True, reads=False, starting=["run-1"])
    assert not watch.see(STUCK_SECONDS + 1, is_short=True, reads=False, starting=["run-1"])
    assert watch.see(STUCK_SECONDS + 2, is_short=True, reads=False, starting=["run-2"]), "run-1 has ended"
    assert watch.waits(STUCK_SECONDS + 5) == 27.0
    assert watch.waits(STUCK_SECONDS + 32) == 0.0


def test_a_run_that_starts_for_too_long_is_not_waited_for() -> None:
    town = town_of(shards=4)
    [launch] = town.step().launches
    town.start(launch.slot).heartbeat.state = WorkerState.STARTING
    took = town.until(lambda report: not report.leading, within=START_SECONDS + 60)
    assert took == pytest.approx(START_SECONDS, abs=3 * TICK)


def test_what_was_seen_before_another_deployment_led_does_not_count() -> None:
    watch = StartWatch(tick_interval=5.0)
    assert not watch.see(0.0, is_short=True, reads=False)
    watch.forget()
    assert not watch.see(STUCK_SECONDS, is_short=True, reads=False)


def test_a_leader_with_a_stuck_queue_gives_up_more_and_more_seldom() -> None:
    watch, moments = StartWatch(tick_interval=5.0), list[float]()
    for second in range(30_000):
        now = float(second)
        if not watch.waits(now) and watch.see(now, is_short=True, reads=False):
            moments.append(now)
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert gaps[:4] == [510.0, 990.0, 1950.0, 3630.0]
    assert set(gaps[4:]) == {3630.0}
    assert not watch.see(40_000.0, is_short=True, reads=True)
    assert watch.given_up == 0


def test_a_fleet_that_has_its_workers_or_is_paused_is_not_stuck() -> None:
    watch = StartWatch(tick_interval=5.0)
    assert not watch.see(0.0, is_short=True, reads=False)
    assert not watch.see(STUCK_SECONDS / 2, is_short=False, reads=False)
    assert not watch.see(STUCK_SECONDS + 1, is_short=True, reads=False)
