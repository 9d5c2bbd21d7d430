"""A leader obeys the control row."""

from kcl_dagster.leader.run_view import RunView, SlotRun
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.tables.control import Control
from tests.unit.operations.conftest import ANNA, Shop

FIRST, SECOND = LeaseKey("shardId-000000000000"), LeaseKey("shardId-000000000001")


def test_without_a_row_nothing_is_paused(shop: Shop) -> None:
    shop.tick()
    assert shop.opened.control.load() == Control()


def test_a_paused_application_gets_no_leases_and_its_workers_are_drained(shop: Shop) -> None:
    shop.tick()
    shop.opened.control.save(Control(paused=True, changed_by="olga"))
    shop.beat()
    report = shop.tick()
    assert report.ok, report.stages
    assert not report.moves
    assert not report.launches
    assert "the application is paused by olga" in report.notes
    row = shop.opened.workers.get(ANNA)
    assert row is not None
    assert row.drain_requested


def test_a_resumed_application_is_served_again(shop: Shop) -> None:
    shop.tick()
    shop.opened.control.save(Control(paused=True))
    shop.tick()
    shop.opened.control.save(Control())
    shop.serve()


def test_a_paused_lease_is_taken_away_and_given_to_nobody(shop: Shop) -> None:
    shop.serve()
    shop.opened.control.save(Control(leases=frozenset({FIRST})))
    for _ in range(3):
        shop.beat()
        lease = shop.leases()[SECOND]
        shop.opened.leases.renew(lease)
        shop.tick()
    assert shop.leases()[FIRST].actual_owner is None
    assert shop.leases()[SECOND].actual_owner == ANNA


def test_a_lease_that_is_being_handed_over_is_taken_from_both(shop: Shop) -> None:
    shop.serve()
    assert shop.opened.leases.initiate_handoff(shop.leases()[FIRST], WorkerId("worker-001:bert"))
    shop.opened.control.save(Control(leases=frozenset({FIRST})))
    shop.tick()
    assert shop.leases()[FIRST].actual_owner is None


def test_a_plan_takes_nothing_away(shop: Shop) -> None:
    shop.serve()
    shop.opened.control.save(Control(paused=True, leases=frozenset({FIRST})))
    before = shop.leases()
    shop.leader.plan(shop.leader_runs())
    row = shop.opened.workers.get(ANNA)
    assert shop.leases() == before
    assert row is not None
    assert not row.drain_requested


def test_a_leader_that_cannot_read_the_row_keeps_to_what_it_knew(shop: Shop) -> None:
    shop.tick()
    shop.opened.control.save(Control(paused=True))
    shop.tick()
    item = {"leaseKey": {"S": "kdControl"}, "entityType": {"S": "KD_CONTROL"}, "paused": {"S": "yes"}}
    shop.dynamodb.put_item(TableName=shop.application.lease_table, Item=item)
    shop.beat()
    report = shop.tick()
    assert not report.moves
    assert any("whether the application is paused could not be read" in note for note in report.notes)


def test_a_lease_that_cannot_be_taken_away_does_not_keep_others_from_being_served(shop: Shop) -> None:
    shop.serve()
    shop.opened.control.save(Control(leases=frozenset({FIRST})))
    shop.opened.leases.release(shop.leases()[SECOND])
    shop.dynamodb.denied_key = FIRST
    shop.beat()
    report = shop.tick()
    assert shop.leases()[SECOND].actual_owner == ANNA
    assert any(f"{FIRST} could not be taken away" in note for note in report.notes)


def test_the_worker_of_a_paused_slot_is_drained_and_its_slot_stays_empty(shop: Shop) -> None:
    shop.serve()
    shop.opened.control.save(Control(slots=frozenset({"worker-000"})))
    shop.beat()
    shop.clock.advance(5)
    run = SlotRun("anna", ANNA, "running", shop.clock.now() - 100)
    report = shop.leader.tick(RunView({"worker-000": run}))
    row = shop.opened.workers.get(ANNA)
    assert row is not None
    assert row.drain_requested
    assert report.retire == {"worker-000": "an operator paused worker-000"}
    assert [launch.slot for launch in report.launches] == ["worker-001"]
