"""Worker rows in either layout."""

from dataclasses import replace
from typing import Any

import pytest

from kcl_dagster.errors import UnreadableItem
from kcl_dagster.model.lease import WorkerId
from kcl_dagster.model.worker_row import WorkerRow, WorkerState
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.places import TableLayout
from kcl_dagster.tables.workers import WorkerTable, newest_by_id
from tests.doubles.clock import FakeClock
from tests.doubles.dynamodb import FakeDynamoDB
from tests.unit.tables.kit import (
    ANNA,
    BERT,
    LOST_ON_THE_WAY,
    THROTTLED,
    FaultyClient,
    answer_lost,
    application,
    new_lease,
    runtime,
)


class Office:
    """The tables of one layout, made directly, and the worker table on them."""

    def __init__(self, layout: TableLayout) -> None:
        self.layout = layout
        self.clock = FakeClock()
        self.client = FaultyClient(FakeDynamoDB(self.clock))
        for place in {layout.leases, layout.workers, layout.coordinator}:
            self.client.inner.create_table(
                TableName=place.table,
                KeySchema=[{"AttributeName": place.key, "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": place.key, "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )
        self.runtime = runtime(self.clock)
        self.workers = WorkerTable(self.client, application(), layout, self.runtime)
        self.leases = LeaseTable(self.client, application(), layout, self.runtime)

    def row(self, worker: WorkerId = ANNA, **fields: Any) -> WorkerRow:
        values = {"averages": {"C": (10.0, 12.0)}, "operating_range": {"C": (100,)}, **fields}
        return WorkerRow(id=worker, last_update=int(self.clock.now()), **values)

    def item(self, worker: WorkerId = ANNA) -> dict[str, Any]:
        key = {self.layout.workers.key: {"S": worker}}
        item: dict[str, Any] = self.client.inner.get_item(TableName=self.layout.workers.table, Key=key)["Item"]
        return item


@pytest.fixture(params=["single", "legacy"])
def office(request: pytest.FixtureRequest) -> Office:
    return Office((TableLayout.single if request.param == "single" else TableLayout.legacy)(application()))


def test_a_heartbeat_is_a_row_java_understands(office: Office) -> None:
    office.workers.put(office.row())
    expected = {
        office.layout.workers.key: {"S": ANNA},
        "lut": {"N": str(int(office.clock.now()))},
        "sts": {"M": {"C": {"L": [{"N": "10"}, {"N": "12"}]}}},
        "opr": {"M": {"C": {"L": [{"N": "100"}]}}},
    }
    if office.layout.shares_one_table:
        expected["entityType"] = {"S": "WORKER_METRIC_STATS"}
    assert office.item() == expected


def test_what_a_heartbeat_leaves_out_stays(office: Office) -> None:
    office.workers.put(office.row(slot="worker-000", run_id="r", zone="a"))
    after = office.workers.put(office.row(averages={"M": (10.0,)}, operating_range=None))
    assert after.averages == {"M": (10.0,)}
    assert after.operating_range == {"C": (100,)}
    assert (after.slot, after.run_id, after.zone) == ("worker-000", "r", "a")
    assert office.workers.get(ANNA) == after


def test_our_own_attributes_come_back(office: Office) -> None:
    row = office.row(slot="worker-000", run_id="r", zone="a", state=WorkerState.STARTING, beat=3, lag_ms=17)
    assert office.workers.put(row) == row
    assert office.workers.list() == [row]


def test_a_worker_learns_from_its_heartbeat_that_it_should_drain(office: Office) -> None:
    assert not office.workers.put(office.row()).drain_requested
    assert office.workers.request_drain(ANNA)
    assert office.workers.put(office.row()).drain_requested
    assert office.workers.request_drain(ANNA, wanted=False)
    assert not office.workers.put(office.row()).drain_requested


def test_a_worker_without_a_row_is_not_asked_to_drain(office: Office) -> None:
    assert not office.workers.request_drain(ANNA)
    assert office.workers.get(ANNA) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"last_update": None}, "has no last_update"),
        ({"averages": None}, "has no averages"),
        ({"averages": {"C": ()}}, "has an empty series of C"),
        ({"last_update": 1_000_000_000}, "more than 60 s"),
    ],
)
def test_what_the_kcl_refuses_to_write_is_refused(office: Office, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        office.workers.put(replace(office.row(), **change))
    assert office.workers.list() == []


def test_a_row_is_deleted_unless_it_was_written_since(office: Office) -> None:
    row = office.workers.put(office.row())
    assert not office.workers.delete(replace(row, last_update=0))
    assert office.workers.get(ANNA) == row
    assert office.workers.delete(row)
    assert office.workers.get(ANNA) is None
    assert office.workers.delete(row)


@pytest.mark.parametrize("fault", [answer_lost, LOST_ON_THE_WAY, THROTTLED])
def test_one_fault_makes_no_difference(office: Office, fault: Any) -> None:
    office.client.fail("update_item", fault)
    row = office.workers.put(office.row())
    assert office.workers.get(ANNA) == row == office.row()
    office.client.fail("delete_item", fault)
    assert office.workers.delete(row)
    assert office.workers.list() == []


def test_rows_nobody_can_read_are_reported_and_do_not_hide_the_others(office: Office) -> None:
    office.workers.put(office.row())
    broken = {**office.item(), office.layout.workers.key: {"S": BERT}, "lut": {"S": "now"}}
    office.client.put_item(TableName=office.layout.workers.table, Item=broken)
    rows, unreadable = office.workers.scan()
    assert [row.id for row in rows] == [ANNA]
    assert [(error.key, error.attribute) for error in unreadable] == [(BERT, "lut")]


def test_a_scan_of_the_leases_brings_the_workers_along(office: Office) -> None:
    office.workers.put(office.row())
    office.leases.create(new_lease())
    result = office.leases.scan()
    assert [lease.key for lease in result.leases] == [new_lease().key]
    assert [row.id for row in result.workers] == [ANNA]
    assert result.unreadable == ()


def test_a_worker_may_not_have_the_key_of_another_row() -> None:
    office = Office(TableLayout.single(application()))
    lease = new_lease()
    office.leases.create(lease)
    with pytest.raises(UnreadableItem, match="a worker may not have the id of another row"):
        office.workers.put(office.row(WorkerId(lease.key)))
    assert office.leases.get(lease.key) == lease


def test_in_three_tables_we_do_not_announce_support_for_one() -> None:
    office = Office(TableLayout.legacy(application()))
    after = office.workers.put(office.row(support_code=1, support_update=5))
    assert (after.support_code, after.support_update) == (None, None)


def test_in_one_table_support_is_announced() -> None:
    office = Office(TableLayout.single(application()))
    after = office.workers.put(office.row(support_code=1, support_update=5))
    assert (after.support_code, after.support_update) == (1, 5)


def test_a_worker_with_rows_in_both_tables_counts_once() -> None:
    """The KCL counts it twice, in averages and in targets."""
    old, new = WorkerRow(ANNA, 5), WorkerRow(ANNA, 6)
    assert newest_by_id([old, new, WorkerRow(BERT, None)]) == (new, WorkerRow(BERT, None))
    assert newest_by_id([new, old]) == (new,)
