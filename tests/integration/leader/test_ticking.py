"""Ticks that fail, overlap, run out of time, are repeated, or only think."""

from collections.abc import Callable
from typing import Any

import pytest

from kcl_dagster.application import Application, FleetSettings, Timings
from kcl_dagster.leader.failure_count import LONGEST_PAUSE
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.leader.standby import lead
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.standing import Standing
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.tables.control import Control
from kcl_dagster.tables.lock import LeaderLock
from kcl_dagster.tables.places import TableLayout
from kcl_dagster.tables.state import ClientVersion
from kcl_dagster.tables.table_layout import detect_layout
from kcl_dagster.worker.leader_watch import LockWatch
from tests.integration.leader.town import TICK, Town, shard_id

LEASE_TABLE = "orders-app"


def tables(town: Town) -> Any:
    found = town.dynamodb.scan(TableName=LEASE_TABLE, ConsistentRead=True)["Items"]
    return sorted(found, key=lambda item: item["leaseKey"]["S"])


def test_a_stream_that_cannot_be_listed_does_not_stop_assignment(town: Town) -> None:
    town.tick()
    town.kinesis.fails = lambda method, request: True
    worker = town.start("worker-000")
    town.step()
    assert set(town.owners().values()) == {worker.id}
    town.until(lambda report: not report.ok)
    report = town.reports[-1]
    assert not report.stage("sync").ok  # type: ignore[union-attr]
    assert [stage.name for stage in report.stages if not stage.ok] == ["sync"]
    town.kill(worker, seen=True)
    successor = town.start("worker-000", "another-run")
    town.step()
    assert set(town.owners().values()) == {successor.id}


def test_tables_that_cannot_be_read_do_not_stop_the_fleet(town: Town) -> None:
    town.tick()
    town.start("worker-000")
    town.step()
    town.clock.advance(100.0)
    town.end("worker-000")
    town.dynamodb.fails = lambda method, request: method == "scan"
    report = town.step()
    assert report.leading
    assert [stage.name for stage in report.stages if stage.ok] == ["lead", "fleet", "report"]
    assert [launch.slot for launch in report.launches] == ["worker-000", "worker-001"]


def test_a_write_that_fails_is_reported_and_tried_again(town: Town) -> None:
    town.tick()
    town.start("worker-000")
    one = shard_id(2)
    town.dynamodb.fails = lambda method, request: (
        method == "update_item" and request["Key"]["leaseKey"]["S"] == one and "leaseOwner" in str(request)
    )
    report = town.step()
    assert len(report.moves) == 3
    assert set(report.unserved) == {one}
    assert report.stage("assign").error is not None  # type: ignore[union-attr]
    town.dynamodb.fails = lambda method, request: False
    assert town.step().unserved == {}


def test_a_leader_that_cannot_assign_lets_another_one_try(town: Town) -> None:
    town.tick()
    town.dynamodb.fails = lambda method, request: method == "scan"
    assert town.step(2).leading
    assert not town.step().leading
    town.dynamodb.fails = lambda method, request: False
    town.restart_leader("another-leader")
    assert town.step().leading


def test_a_mistake_in_one_stage_is_not_the_end_of_the_others(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    town.tick()

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(town.leader.syncer, "run", broken)
    town.start("worker-000")
    report = town.step()
    assert report.stage("sync").error == "ZeroDivisionError: a mistake"  # type: ignore[union-attr]
    assert report.unserved == {}


def test_an_orchestrator_that_does_not_answer_costs_time_only(town: Town) -> None:
    town.tick()
    worker = town.start("worker-000")
    town.step(2)

    def finished(_: object) -> set[str]:
        raise ConnectionError("the run storage is away")

    report = town.leader.tick(RunView({}, finished))
    assert report.stage("observe").ok  # type: ignore[union-attr]
    assert any("the run storage is away" in note for note in report.notes)
    assert set(town.owners().values()) == {worker.id}


def test_a_tick_that_overlaps_another_does_nothing(town: Town) -> None:
    town.tick()
    town.start("worker-000")
    inner: list[TickReport] = []

    def overlap(method: str, request: dict[str, Any]) -> bool:
        if method == "scan" and not inner:
            inner.append(town.leader.tick(town.view()))
        return False

    town.dynamodb.fails = overlap
    report = town.step()
    assert inner[0].skipped is not None
    assert "another tick is running" in inner[0].skipped
    assert report.ok
    assert len(report.moves) == 4
    assert town.step().skipped is None


def test_a_plan_writes_nothing_and_is_what_the_tick_then_does(town: Town) -> None:
    town.tick()
    town.start("worker-000")
    town.start("worker-001")
    town.clock.advance(TICK)
    before = tables(town)
    memory = town.leader.memory.to_document(0.0)
    planned = town.leader.plan(town.view())
    assert tables(town) == before
    assert town.leader.memory.to_document(0.0) == memory
    assert planned.moves == ()
    assert len(planned.planned) == 4
    assert town.tick().moves == planned.planned


def test_the_plan_of_a_new_application_shows_the_leases_it_would_make(town: Town) -> None:
    planned = town.leader.plan(town.view())
    assert len(planned.leases) == 4
    assert [launch.slot for launch in planned.launches] == ["worker-000", "worker-001"]
    assert town.owners() == {}


def test_a_tick_that_runs_out_of_time_is_continued_by_the_next() -> None:
    timings = Timings(tick_budget=4.0)
    application = Application(
        name="orders-app", streams="orders", timings=timings, fleet=FleetSettings(max_workers=1)
    )
    town = Town(application, shards=150)
    town.tick()
    town.start("worker-000")
    town.clock.advance(TICK)
    town.dynamodb.latency = 0.05
    before = town.clock.monotonic()
    first = town.tick()
    assert town.clock.monotonic() - before < timings.tick_budget + 64 * 0.05 + 1.0
    assert 0 < len(first.moves) < 150
    assert "postponed" in (first.stage("assign").error or "")  # type: ignore[union-attr]
    for _ in range(3):
        last = town.tick()
    assert last.unserved == {}


def slow_town(shards: int, budget: float = 8.0, latency: float = 0.05) -> Town:
    """Many shards behind requests that take their time."""
    timings = Timings(tick_budget=budget)
    fleet = FleetSettings(max_workers=1, shards_per_worker=1000)
    town = Town(Application(name="orders-app", streams="orders", timings=timings, fleet=fleet), shards=shards)
    town.dynamodb.latency = latency
    return town


def spent(town: Town) -> tuple[float, TickReport]:
    began = town.clock.monotonic()
    report = town.tick()
    return town.clock.monotonic() - began, report


@pytest.mark.audit("C5")
def test_leases_of_many_new_shards_are_made_over_several_ticks_and_served_from_the_first() -> None:
    town = slow_town(shards=400)

    def slow_transactions(method: str, _: object) -> bool:
        if method == "transact_write_items":
            town.clock.advance(1.5)  # 12 s for eight, one after the other
        return False

    town.dynamodb.fails = slow_transactions
    worker = town.start("worker-000")
    made: list[int] = []
    while len(made) < 10 and (not made or made[-1] < 400):
        town.dynamodb.latency = 0.0
        worker.step()
        town.dynamodb.latency = 0.05
        seconds, report = spent(town)
        assert seconds <= 8.0 + 3.2 + 0.5, "a tick's budget, and one chunk of moves"
        assert report.moves
        town.clock.advance(TICK)
        made.append(len(town.scan()))
    assert made[-1] == 400
    assert made == sorted(set(made)), "each tick makes some"
    assert "new leases are made; the next tick goes on" in (town.reports[0].stage("sync").error or "")  # type: ignore[union-attr]
    town.dynamodb.latency = 0.0
    assert town.step(3).ok
    assert set(town.owners().values()) == {worker.id}


@pytest.mark.audit("C5")
def test_many_leases_of_a_former_stream_are_let_go_over_several_ticks() -> None:
    def application(*streams: str) -> Application:
        timings = Timings(tick_budget=8.0)
        fleet = FleetSettings(max_workers=1, shards_per_worker=1000)
        return Application(name="many-app", streams=streams, multi_stream=True, timings=timings, fleet=fleet)

    town = Town(application("orders", "clicks"), shards={"orders": 2, "clicks": 200})
    town.tick()
    town.start("worker-000")
    town.step()
    town.application = application("orders")
    town.restart_leader()
    town.dynamodb.latency = 0.05
    owned: list[int] = []
    while not owned or (owned[-1] > 2 and len(owned) < 10):
        seconds, _ = spent(town)
        assert seconds <= 8.0
        owned.append(sum(owner is not None for owner in town.owners().values()))
    assert len(owned) > 1
    assert owned[-1] == 2


@pytest.mark.audit("C5")
def test_many_paused_leases_are_taken_away_over_several_ticks() -> None:
    town = slow_town(shards=200, latency=0.0)
    town.tick()
    town.start("worker-000")
    town.step()
    town.leader.tables.control.save(Control(leases=frozenset(town.scan())))
    town.dynamodb.latency = 0.06
    owned = [200]
    while owned[-1] and len(owned) < 10:
        seconds, _ = spent(town)
        assert seconds <= 8.5
        owned.append(sum(owner is not None for owner in town.owners().values()))
    assert len(owned) > 2
    assert owned[-1] == 0


@pytest.mark.parametrize("seen", [True, False])
def test_leases_of_workers_that_end_while_the_application_is_paused_become_free(town: Town, seen: bool) -> None:
    """Nobody takes them over, so resets would refuse for as long as the pause lasts."""
    town.tick()
    dead, living = town.start("worker-000"), town.start("worker-001")
    town.until(lambda _: set(town.owners().values()) == {dead.id, living.id})
    town.leader.tables.control.save(Control(paused=True))
    town.kill(dead, seen=seen)
    lease_duration = town.application.timings.lease_duration
    town.until(lambda _: dead.id not in town.owners().values(), within=TICK if seen else lease_duration + 2 * TICK)
    assert set(town.owners().values()) == {None, living.id}  # who lives keeps its leases until it has finished
    assert any("is released: " in note for report in town.reports for note in report.notes)


def test_a_paused_leader_takes_no_lease_whose_owner_wrote_it_in_the_last_moment(town: Town) -> None:
    town.tick()
    worker = town.start("worker-000")
    town.until(lambda _: set(town.owners().values()) == {worker.id})
    town.step(2)
    town.leader.tables.control.save(Control(paused=True))
    town.clock.advance(town.application.timings.lease_duration + 1)
    wrote: set[str] = set()

    def renews_first(method: str, request: dict[str, Any]) -> bool:
        key = request.get("Key", {}).get("leaseKey", {}).get("S", "")
        if method == "update_item" and key in town.owners() and key not in wrote:
            wrote.add(key)
            town.leases.renew(town.lease(key))
        return False

    town.dynamodb.fails = renews_first
    town.tick()
    assert wrote == town.owners().keys()
    assert set(town.owners().values()) == {worker.id}


@pytest.mark.audit("C5")
def test_many_leases_without_hash_range_are_completed_over_several_ticks() -> None:
    town = slow_town(shards=100, latency=0.0)
    for shard in town.listed():
        town.leases.create(Lease(LeaseKey(shard.id), shard.id, checkpoint=TRIM_HORIZON))
    town.dynamodb.latency = 0.06
    lacking = [100]
    while lacking[-1] and len(lacking) < 10:
        seconds, _ = spent(town)
        assert seconds <= 8.0
        lacking.append(sum(lease.hash_range is None for lease in town.scan().values()))
    assert len(lacking) > 2
    assert lacking[-1] == 0


def test_a_leader_that_is_only_busy_keeps_leading() -> None:
    timings = Timings(tick_budget=2.0)
    application = Application(name="orders-app", streams="orders", timings=timings)
    town = Town(application, shards=300)
    town.tick()
    town.start("worker-000")
    town.dynamodb.latency = 0.03
    for _ in range(12):
        assert town.tick().leading
    assert town.reports[-1].unserved == {}


def test_replayed_and_lost_memory_breaks_nothing(town: Town) -> None:
    town.tick()
    first = town.start("worker-000")
    second = town.start("worker-001")
    town.step(3)
    town.kill(first, seen=False)
    town.step(4)
    old = town.leader.tables.memory.load()
    town.until(lambda report: bool(report.moves))
    owners = town.owners()
    for document in (old, {}, {"version": 1, "standing": "nonsense", "generations": [1]}, {"version": 99}):
        town.leader.tables.memory.save(document)
        town.restart_leader()
        assert town.step().moves == ()
        assert town.owners() == owners
    assert set(owners.values()) == {second.id}


def test_two_leaders_of_one_name_do_not_assign_twice(town: Town) -> None:
    """A code server that was replaced and one that replaces it both believe that they lead."""
    town.tick()
    town.start("worker-000")
    town.start("worker-001")
    other = town.open_leader()
    for _ in range(10):
        town.step()
        report = other.tick(town.view())
        assert report.leading
        assert all(not stage.error for stage in report.stages), report.stages
    counters = {lease.key: lease.counter for lease in town.scan().values()}
    town.step(2)
    assert all(town.scan()[key].counter - counter <= 2 for key, counter in counters.items()), "leases moved about"


def test_a_standby_leads_while_nobody_else_does_and_lets_go_when_it_stops(town: Town) -> None:
    town.tick()
    town.leader.resign()
    standby = town.open_leader("standby")
    worker = town.start("worker-000")
    reports: list[TickReport] = []
    lead(standby, town.clock, lambda: len(reports) >= 3, reports.append)
    assert [report.leading for report in reports] == [True] * 3
    assert all(report.launches == () for report in reports)
    assert set(town.owners().values()) == {worker.id}
    assert town.leader.tables.lock.peek() is None


def test_foreign_rows_are_left_as_they_are(town: Town) -> None:
    foreign = {"leaseKey": {"S": "Something"}, "entityType": {"S": "SOMETHING_NEW"}, "x": {"N": "1"}}
    broken = {"leaseKey": {"S": "shardId-9"}, "leaseOwner": {"S": "w"}}
    town.dynamodb.put_item(TableName=LEASE_TABLE, Item=foreign)
    town.dynamodb.put_item(TableName=LEASE_TABLE, Item=broken)
    town.start("worker-000")
    report = town.step(20)
    assert foreign in tables(town)
    assert broken in tables(town)
    assert len(report.unreadable) == 1
    assert report.unserved == {}


# --- a leader that cannot do its work -----------------------------------------------------------------------------


def silence_of_the_lock(town: Town, steps: int) -> tuple[float, TickReport]:
    """For how long workers saw no leader, at most."""
    watch = LockWatch(town.dynamodb, TableLayout.single(town.application), town.runtime)
    longest = 0.0
    for _ in range(steps):
        report = town.step()
        longest = max(longest, watch.silent_for())
    return longest, report


@pytest.mark.audit("B8")
def test_a_leader_that_cannot_read_leaves_the_lock_alone_until_it_can(town: Town) -> None:
    town.tick()
    town.dynamodb.fails = lambda method, request: method == "scan"
    town.until(lambda report: not report.leading)
    silence, report = silence_of_the_lock(town, steps=60)
    assert silence > town.application.timings.leaderless
    assert [stage.name for stage in report.stages if not stage.ok] == ["lead"]
    town.dynamodb.fails = lambda method, request: False
    assert town.step().leading


@pytest.mark.audit("B8")
def test_a_leader_that_cannot_assign_leads_more_and_more_seldom(town: Town) -> None:
    town.tick()
    town.start("worker-000")
    town.dynamodb.fails = lambda method, request: (
        method == "update_item" and request["Key"]["leaseKey"]["S"].startswith("shardId")
    )
    silence, _ = silence_of_the_lock(town, steps=360)
    assert silence > 2 * town.application.timings.leaderless
    led = [report.leading for report in town.reports[-180:]]
    assert 0 < sum(led) < 18, "it tries again, and leads for less than a tenth of the time"
    town.dynamodb.fails = lambda method, request: False
    town.until(lambda report: report.leading and not report.unserved, within=LONGEST_PAUSE + 10.0)


# --- a fleet that changes its protocol ----------------------------------------------------------------------------


def switch(town: Town, version: str) -> None:
    """As the KCL's own migration tool does, while everything runs."""
    town.dynamodb.update_item(
        TableName=LEASE_TABLE,
        Key={"leaseKey": {"S": "Migration3.0"}},
        UpdateExpression="SET cv = :version",
        ExpressionAttributeValues={":version": {"S": version}},
    )


@pytest.mark.audit("B13")
def test_a_leader_writes_nothing_to_a_fleet_that_was_switched_back_to_2x(town: Town) -> None:
    town.tick()
    worker = town.start("worker-000")
    town.step(2)
    town.kill(worker, seen=True)
    switch(town, "CLIENT_VERSION_2X")
    before = tables(town)
    for _ in range(30):
        report = town.step()
        assert "changed its protocol" in (report.refused or "")
        assert not report.leading
        assert not report.ok
    assert tables(town) == before
    switch(town, "CLIENT_VERSION_3X")
    assert town.step().leading


def test_a_leader_whose_table_was_emptied_declares_the_protocol_before_it_makes_leases(town: Town) -> None:
    """Without the declaration, new workers took the leases for those of KCL 2.x and refused to start."""
    town.tick()
    assert tables(town)
    for item in tables(town):
        town.dynamodb.delete_item(TableName=LEASE_TABLE, Key={"leaseKey": item["leaseKey"]})
    town.until(lambda _: bool(town.owners()))
    assert detect_layout(town.dynamodb, town.application, town.runtime) == TableLayout.single(
        town.application, ClientVersion.THREE
    )


# --- under a Java leader ------------------------------------------------------------------------------------------


def java_leader(town: Town, name: str = "java-1") -> Callable[[], None]:
    """Holds the lock, writes its row, and assigns nothing; call it every five seconds."""
    lock = LeaderLock(town.dynamodb, town.application, TableLayout.single(town.application), town.runtime, name)
    standing = Standing()

    def step() -> None:
        assert lock.hold(standing).held
        row = WorkerRow(WorkerId(name), int(town.clock.now()), averages={}, operating_range={})
        town.workers_table.put(row)

    return step


def under_a_java_leader() -> tuple[Town, Callable[[], None]]:
    fleet = FleetSettings(max_workers=3, shards_per_worker=2)
    town = Town(Application(name="orders-app", streams="orders", fleet=fleet))
    for number in range(4):
        town.leases.create(town.first_lease(shard_id(number)))
    step = java_leader(town)
    step()
    return town, step


@pytest.mark.audit("B11")
def test_workers_are_launched_under_a_java_leader_and_leases_are_left_to_it() -> None:
    town, java = under_a_java_leader()
    before = town.scan()
    asked = set()
    for _ in range(4):
        java()
        report = town.step()
        assert not report.leading
        assert report.moves == ()
        asked |= {(launch.slot, launch.generation) for launch in report.launches}
        town.restart_leader()
    assert {slot for slot, _ in asked} == {"worker-000", "worker-001"}
    assert len(asked) == 2, "under one name, whoever asks"
    assert len(report.leases) == 4
    assert town.scan() == before
    town.obey(report)
    for _ in range(30):
        java()
        assert town.step().launches == ()
    assert len(town.runs) == 2


@pytest.mark.audit("B11")
def test_a_fleet_is_drained_under_a_java_leader_when_it_is_paused() -> None:
    town, java = under_a_java_leader()
    worker = town.start("worker-000")
    town.leader.tables.control.save(Control(paused=True))
    java()
    town.step(2)
    assert worker.heartbeat.drain_requested


@pytest.mark.audit("B11")
@pytest.mark.parametrize("name", ["dagster:another", "standby:laptop"])
def test_nothing_is_launched_while_another_leader_of_ours_leads(name: str) -> None:
    fleet = FleetSettings(max_workers=3, shards_per_worker=2)
    town = Town(Application(name="orders-app", streams="orders", fleet=fleet))
    java_leader(town, name)()
    town.leader = town.open_leader("standby:us")
    town.dynamodb.calls.clear()
    report = town.tick()
    assert report.launches == ()
    assert "scan" not in town.dynamodb.calls
