"""The moment through which an application is complete never falls, but by a reset or an import."""

import pytest

from kcl_dagster.errors import UnreadableItem
from kcl_dagster.tables.completeness_row import COMPLETENESS_KEY, CompletenessRow, WrittenThrough
from kcl_dagster.testing.dynamodb import FakeDynamoDB
from tests.unit.tables.kit import FaultyClient, Tables, answer_lost, application

NOTHING = WrittenThrough()


@pytest.fixture
def client() -> FaultyClient:
    return FaultyClient(FakeDynamoDB())


@pytest.fixture
def tables(client: FaultyClient) -> Tables:
    return Tables(client, application())


@pytest.fixture
def row(tables: Tables) -> CompletenessRow:
    return CompletenessRow(tables.client, tables.application, tables.layout, tables.runtime)


def test_it_advances(row: CompletenessRow) -> None:
    assert row.load() == NOTHING
    known = row.advance(NOTHING, 100)
    assert known == WrittenThrough(100)
    assert row.advance(known, 200) == row.load() == WrittenThrough(200)


def test_it_does_not_fall_whoever_writes_it(row: CompletenessRow) -> None:
    other = row.advance(NOTHING, 100)
    row.advance(other, 300)
    assert row.advance(other, 200) == WrittenThrough(300)
    assert row.advance(NOTHING, 50) == row.load() == WrittenThrough(300)


def test_an_equal_moment_is_not_written_again(row: CompletenessRow, client: FaultyClient) -> None:
    known = row.advance(NOTHING, 100)
    writes = client.count("update_item")
    assert row.advance(known, 100) == known
    assert client.count("update_item") == writes


def test_a_reset_goes_back_and_begins_another_epoch(row: CompletenessRow) -> None:
    row.advance(NOTHING, 300)
    assert row.set_back(200) == row.load() == WrittenThrough(200, 1, 200)


def test_a_reset_never_goes_forward(row: CompletenessRow) -> None:
    row.advance(NOTHING, 300)
    assert row.set_back(500) == WrittenThrough(300, 1, 300)


def test_a_reset_to_nothing_that_is_known_leaves_no_moment(row: CompletenessRow) -> None:
    row.advance(NOTHING, 300)
    known = row.set_back(None)
    assert known == row.load() == WrittenThrough(None, 1, None)
    assert row.advance(known, 20) == WrittenThrough(20, 1)


def test_a_reset_of_an_application_that_was_never_complete(row: CompletenessRow) -> None:
    assert row.set_back(200) == row.load() == WrittenThrough(None, 1, None)


def test_a_leader_that_read_the_leases_before_a_reset_does_not_advance_after_it(row: CompletenessRow) -> None:
    known = row.advance(NOTHING, 300)
    row.set_back(200)
    assert row.advance(known, 400) == row.load() == WrittenThrough(200, 1, 200)
    row.set_back(None)
    assert row.advance(NOTHING, 400) == row.load() == WrittenThrough(None, 2, None)


def test_an_advance_whose_answer_is_lost_is_applied_once(row: CompletenessRow, client: FaultyClient) -> None:
    client.fail("update_item", answer_lost)
    known = row.advance(NOTHING, 100)
    client.fail("update_item", answer_lost)
    assert row.advance(known, 200) == row.load() == WrittenThrough(200)


def test_a_reset_whose_answer_is_lost_is_applied_once(row: CompletenessRow, client: FaultyClient) -> None:
    row.advance(NOTHING, 300)
    client.fail("update_item", answer_lost)
    assert row.set_back(200) == row.load() == WrittenThrough(200, 1, 200)


def test_the_row_is_no_lease_and_no_worker(row: CompletenessRow, tables: Tables) -> None:
    row.advance(NOTHING, 100)
    result = tables.leases.scan()
    assert (result.leases, result.workers, result.unreadable) == ((), (), ())


def test_a_row_of_another_kind_is_not_believed(row: CompletenessRow, tables: Tables) -> None:
    tables.put({"leaseKey": {"S": COMPLETENESS_KEY}, "entityType": {"S": "LEADER"}, "kdEpoch": {"N": "1"}})
    with pytest.raises(UnreadableItem):
        row.load()
