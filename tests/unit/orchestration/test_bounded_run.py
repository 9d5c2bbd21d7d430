"""What a bounded run finds out before it starts Spark."""

import logging

import pytest
from dagster import AssetKey

from kcl_dagster.application import Application, PolicySettings
from kcl_dagster.leader.application_completeness import Completeness, HeldBy, Hindrance
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.orchestration.bounded_outcome import BoundedOutcome, _without_caps
from kcl_dagster.orchestration.bounded_run import _judged, _Look, _worked
from kcl_dagster.orchestration.run_event_log import RunEventLog
from kcl_dagster.tables.control import Control, ControlRow
from kcl_dagster.tables.places import TableLayout
from kcl_dagster.worker.bound import PATIENCE_SECONDS, Bound
from kcl_dagster.worker.report import BatchReport, LeaseReport, Outcome
from kcl_dagster.worker.stop import StopReason, StopSignal
from kcl_dagster.worker.surroundings import Watch
from tests.unit.worker.kit import World
from tests.unit.worker.test_leaderless import A, B

FRESH_SECONDS = 12.5
ARRIVAL_MARGIN = 10.0


def look(world: World, stop: StopSignal | None = None, watches: tuple[Watch, ...] = ()) -> BoundedOutcome | None:
    layout = TableLayout.single(world.application)
    control = ControlRow(world.service, world.application, layout, world.runtime)
    bound = Bound(world.clock.now(), ARRIVAL_MARGIN)
    return _Look(bound, world.leases, control, FRESH_SECONDS, world.clock).wait(stop or StopSignal(), watches)


def reached(world: World, *keys: str) -> None:
    for key in keys:
        world.leases.renew(world.lease(key), stored_through=int(world.clock.now()) + 60)


def test_nothing_is_to_be_read_where_all_is_stored() -> None:
    world = World(shards=2)
    reached(world, A, B)
    found = look(world)
    assert found is not None
    assert (found.reason, found.worked, found.records) == (StopReason.CAUGHT_UP, False, 0)


def test_a_shard_that_no_worker_reads_is_read() -> None:
    world = World(shards=2)
    run = world.worker("fleet")
    run.worker.start()
    world.assign(run, A)
    assert look(world) is None


def test_what_can_be_read_is_read_while_a_shard_has_no_lease() -> None:
    world = World(shards=2)
    reached(world, A)
    world.leases.delete(world.lease(A), forced=True)
    assert look(world) is None, "B is not read yet"
    reached(world, B)
    found = look(world)
    assert found is not None
    assert found.reason is StopReason.STUCK
    assert "has no lease yet" in str(found)


def test_a_shard_of_a_worker_that_is_gone_is_read() -> None:
    world = World()
    run = world.worker("fleet")
    run.worker.start()
    world.assign(run)
    world.clock.advance(FRESH_SECONDS + 1)
    assert look(world) is None


def test_shards_that_are_read_by_others_are_waited_for() -> None:
    world = World(shards=2)
    run = world.worker("fleet")
    run.worker.start()
    world.assign(run)
    looks = 0

    def others_go_on() -> None:
        nonlocal looks
        looks += 1
        run.worker.heartbeat.write()
        if looks == 5:
            reached(world, A, B)

    found = look(world, watches=(others_go_on,))
    assert found is not None
    assert found.is_caught_up
    assert looks == 5


def test_it_does_not_wait_for_ever() -> None:
    world = World()
    run = world.worker("fleet")
    run.worker.start()
    world.assign(run)
    began = world.clock.monotonic()
    found = look(world, watches=(run.worker.heartbeat.write,))
    assert found is not None
    assert found.reason is StopReason.STUCK
    assert f"nothing has moved for 300 s: {A}: not read yet" in str(found)
    assert world.clock.monotonic() - began >= PATIENCE_SECONDS


def test_a_paused_application_is_not_read() -> None:
    world = World()
    layout = TableLayout.single(world.application)
    row = ControlRow(world.service, world.application, layout, world.runtime)
    row.save(Control(leases=frozenset({LeaseKey(A)}), changed_by="ann"))
    found = look(world)
    assert str(found) == f"{StopReason.STUCK}: {A}: paused by ann"


@pytest.mark.parametrize("reason", [StopReason.ASKED, StopReason.ORPHANED])
def test_it_stops_when_it_is_asked_to(reason: StopReason) -> None:
    world = World()
    run = world.worker("fleet")
    run.worker.start()
    world.assign(run)
    stop = StopSignal()
    if reason is StopReason.ASKED:
        stop.request()
    found = look(world, stop, (lambda: "its parent is gone",) if reason is StopReason.ORPHANED else ())
    assert found is not None
    assert found.reason is reason


def test_while_it_leads_one_worker_may_have_every_shard() -> None:
    policy = PolicySettings(max_leases_per_worker=1, max_throughput_kbps_per_worker=10.0, imbalance=0.2)
    application = Application(name="clicks", streams=("clicks",), policy=policy)
    uncapped = replace_policy(application, max_leases_per_worker=None, max_throughput_kbps_per_worker=None)
    assert _without_caps(application) == uncapped


def replace_policy(application: Application, **changes: object) -> Application:
    fields = {**application.policy.model_dump(), **changes}
    return application.model_copy(update={"policy": PolicySettings(**fields)})


@pytest.mark.parametrize(
    ("completeness", "reason"),
    [
        (None, StopReason.CAUGHT_UP),
        (Completeness(through=5, reached=5), StopReason.CAUGHT_UP),
        (Completeness(through=5, held_by=HeldBy("clicks", Hindrance.HOLE)), StopReason.STUCK),
    ],
)
def test_a_lease_that_is_missing_is_told_by_the_last_tick(
    completeness: Completeness | None, reason: StopReason
) -> None:
    outcome = BoundedOutcome(1.0, StopReason.CAUGHT_UP, tick=TickReport(completeness=completeness))
    assert _judged(outcome).reason is reason
    stuck = BoundedOutcome(1.0, StopReason.STUCK, "why", tick=TickReport(completeness=completeness))
    assert _judged(stuck) == stuck


def failed_in(shards: int) -> RunEventLog:
    """The event log of a run in which so many shards have failed."""
    event_log = RunEventLog(
        AssetKey("things"), "bounded", lambda _: None, logging.getLogger(__name__), lambda *_: None
    )
    stream = StreamIdentifier.single("things")
    keys = [LeaseKey(f"shard-{number}") for number in range(shards)]
    event_log.batch(
        BatchReport(
            tuple(LeaseReport(key, stream, key, Outcome.FAILED, 1, TRIM_HORIZON, error="refused") for key in keys)
        )
    )
    return event_log


def test_a_run_that_is_stopped_by_hand_names_what_failed() -> None:
    bound = Bound(0.0, ARRIVAL_MARGIN)
    told = str(_worked(bound, StopReason.ASKED, "interrupted", failed_in(7)))
    assert told.startswith("asked to stop: interrupted; shard-0: refused; shard-1: refused")
    assert told.endswith("shard-4: refused; and 2 more shards failed")
    assert str(_worked(bound, StopReason.ASKED, "", failed_in(0))) == "asked to stop"
    stuck = _worked(bound, StopReason.STUCK, "shard-0: refused", failed_in(1))
    assert stuck.detail == "shard-0: refused"
    assert not _worked(bound, StopReason.CAUGHT_UP, "", failed_in(1)).detail
