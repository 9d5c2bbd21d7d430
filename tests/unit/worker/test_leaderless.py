"""Consumption does not depend on one leader."""

import pytest
from botocore.exceptions import ClientError

from kcl_dagster.application import Application
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.standing import Standing
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.tables.control import Control, ControlRow
from kcl_dagster.tables.lock import LeaderLock
from kcl_dagster.tables.places import TableLayout
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.leader_watch import LockWatch
from tests.unit.worker.kit import Run, World

pytestmark = pytest.mark.slow

A, B = "shardId-000000000000", "shardId-000000000001"


class Fleet:
    """Workers without a leader, in lockstep."""

    def __init__(self, shards: int, workers: int) -> None:
        self.world = World(shards=shards)
        self.layout = TableLayout.single(self.world.application)
        self.runs = [self.start(f"w{index}") for index in range(workers)]

    def start(self, name: str, lease_duration: float | None = None) -> Run:
        """Start a worker. `lease_duration`: the setting with which it and all later ones begin."""
        world = self.world
        if lease_duration is not None:
            timings = world.application.timings.model_copy(update={"lease_duration": lease_duration})
            world.application = world.application.model_copy(update={"timings": timings})
        watch = LockWatch(world.service, self.layout, world.runtime, self.control_row())
        run = world.worker(name, leader=watch)
        run.worker.start()
        return run

    def control_row(self) -> ControlRow:
        return ControlRow(self.world.service, self.world.application, self.layout, self.world.runtime)

    def go_on(self, seconds: int, *runs: Run) -> None:
        for _ in range(seconds):
            for run in runs or self.runs:
                run.worker.step_housekeeping()
                run.worker.step_renewal()
                run.worker.step_batch()
            self.world.clock.advance(1)

    def owners(self) -> list[WorkerId | None]:
        return [self.world.lease(key).owner for key in self.world.lease_keys()]


def test_workers_share_the_leases_when_no_leader_shows_up() -> None:
    fleet = Fleet(shards=6, workers=3)
    fleet.go_on(119)
    assert set(fleet.owners()) == {None}
    fleet.go_on(300)
    assert sorted(fleet.owners().count(run.id) for run in fleet.runs) == [2, 2, 2]
    before = fleet.owners()
    fleet.go_on(120)
    assert fleet.owners() == before  # and then stand still


def test_workers_tell_once_that_no_leader_writes_its_lock() -> None:
    fleet = Fleet(shards=2, workers=1)
    fleet.go_on(300)
    [run] = fleet.runs
    assert run.kinds().count(EventKind.LEADER_SILENT) == 1


def test_leases_of_a_dead_worker_are_taken_by_the_others() -> None:
    fleet = Fleet(shards=4, workers=2)
    for shard in fleet.world.stream.shards:
        fleet.world.stream.put(shard, *"abc")
    fleet.go_on(300)
    alive, dead = fleet.runs
    assert dead.worker.holdings.keys()
    fleet.go_on(30, alive)
    assert dead.id in fleet.owners()  # the lease duration has to pass first
    fleet.go_on(60, alive)
    assert set(fleet.owners()) == {alive.id}
    assert EventKind.LEASE_TAKEN in alive.kinds()
    fleet.world.check_exactly_once()


def test_nothing_is_taken_from_a_live_worker_without_its_consent() -> None:
    fleet = Fleet(shards=4, workers=1)
    fleet.go_on(150)
    old = fleet.runs[0]
    assert set(fleet.owners()) == {old.id}
    fleet.runs.append(fleet.start("late"))
    fleet.go_on(400)
    assert sorted(fleet.owners().count(run.id) for run in fleet.runs) == [2, 2]
    assert EventKind.HANDOFF_DONE in old.kinds()
    assert EventKind.LEASE_LOST not in old.kinds()


@pytest.mark.parametrize("longer", [60.0, 90.0])
def test_nothing_is_taken_from_a_worker_that_renews_by_a_longer_duration(longer: float) -> None:
    fleet = Fleet(shards=4, workers=0)
    old = fleet.start("old", longer)
    fleet.runs = [old]
    fleet.go_on(150)
    assert set(fleet.owners()) == {old.id}
    fleet.runs.append(fleet.start("new", 10.0))
    fleet.go_on(400)
    assert [fleet.owners().count(run.id) for run in fleet.runs] == [2, 2]
    assert EventKind.LEASE_LOST not in old.kinds()
    assert EventKind.LEASE_TAKEN not in fleet.runs[1].kinds()


def test_a_dead_worker_keeps_its_leases_for_the_duration_by_which_it_renewed() -> None:
    fleet = Fleet(shards=4, workers=0)
    dead = fleet.start("dead", 60.0)
    fleet.runs = [dead, fleet.start("alive", 10.0)]
    fleet.go_on(400)
    alive = fleet.runs[1]
    held = fleet.owners().count(dead.id)
    assert held
    fleet.go_on(30, alive)  # it has renewed within the last 21 s
    assert fleet.owners().count(dead.id) == held
    fleet.go_on(60, alive)
    assert set(fleet.owners()) == {alive.id}


def test_the_own_duration_counts_if_the_row_of_the_owner_has_none() -> None:
    fleet = Fleet(shards=2, workers=0)
    java = WorkerId("java")  # its row, as the KCL writes it, has no lease duration
    fleet.world.worker_table(fleet.world.service).put(
        WorkerRow(id=java, last_update=int(fleet.world.clock.now()), averages={}, operating_range={})
    )
    for key in fleet.world.lease_keys():
        assert fleet.world.leases.assign(fleet.world.lease(key), java) is not None
    fleet.runs = [fleet.start("new", 10.0)]
    fleet.go_on(119)
    assert set(fleet.owners()) == {java}
    fleet.go_on(60)
    assert set(fleet.owners()) == {fleet.runs[0].id}


def test_while_there_is_a_leader_nobody_takes_anything() -> None:
    fleet = Fleet(shards=2, workers=2)
    world = fleet.world
    lock = LeaderLock(world.service, world.application, fleet.layout, world.runtime, "leader")
    for _ in range(20):
        assert lock.hold(Standing()).held
        fleet.go_on(20)
    assert set(fleet.owners()) == {None}
    fleet.go_on(300)  # it is gone
    assert None not in fleet.owners()


def test_a_worker_that_cannot_look_for_a_leader_takes_nothing() -> None:
    world = World()

    class Refusing:
        def silent_for(self) -> float:
            return LockWatch(self, TableLayout.single(world.application), world.runtime).silent_for()

        def control(self) -> Control:
            return Control()

        def get_item(self, **_: object) -> object:
            error = {"Error": {"Code": "AccessDeniedException", "Message": "no"}}
            raise ClientError(error, "GetItem")  # type: ignore[arg-type]

    run = world.worker("w1", leader=Refusing())
    run.worker.start()
    assert run.worker.step_leaderless() == []
    assert EventKind.DISCOVERY_FAILED in run.kinds()


def test_a_worker_that_leaves_takes_nothing() -> None:
    fleet = Fleet(shards=2, workers=1)
    run = fleet.runs[0]
    fleet.go_on(60)
    run.worker.heartbeat.drain_requested = True
    run.worker.step_drain()
    for _ in range(200):
        fleet.world.clock.advance(1)
        assert run.worker.step_leaderless() == []


def test_what_is_paused_is_left_alone_without_a_leader_too() -> None:
    fleet = Fleet(shards=2, workers=1)
    fleet.control_row().save(Control(leases=frozenset({LeaseKey(A)})))
    fleet.go_on(300)
    assert fleet.owners() == [None, fleet.runs[0].id]
    fleet.control_row().save(Control())
    fleet.go_on(60)
    assert fleet.owners() == [fleet.runs[0].id] * 2


def test_of_a_paused_application_nothing_is_taken() -> None:
    fleet = Fleet(shards=2, workers=1)
    fleet.control_row().save(Control(paused=True))
    fleet.go_on(300)
    assert set(fleet.owners()) == {None}


@pytest.mark.parametrize("seconds", [10.0, 600.0])
def test_how_long_is_long_is_configured(seconds: float) -> None:
    assert World(timings={"leaderless": seconds}).worker("w1").worker.settings.leaderless == seconds
    assert Application(name="app", streams=("s",)).timings.leaderless == 120
