"""How the last bounded run ended is stored, and a run that was to read less does not replace it."""

import pytest

from kcl_dagster.errors import UnreadableItem
from kcl_dagster.tables.bounded_run_row import BOUNDED_RUN_KEY, LONGEST_PROBLEM, BoundedRunRow, EndedRun
from tests.doubles.dynamodb import FakeDynamoDB
from tests.unit.tables.kit import FaultyClient, Tables, answer_lost, application

FAILED = EndedRun("run-1", 130, 100, "shardId-0: stopped: ValueError: no price")


@pytest.fixture
def client() -> FaultyClient:
    return FaultyClient(FakeDynamoDB())


@pytest.fixture
def tables(client: FaultyClient) -> Tables:
    return Tables(client, application())


@pytest.fixture
def row(tables: Tables) -> BoundedRunRow:
    return BoundedRunRow(tables.client, tables.application, tables.layout, tables.runtime)


def test_a_failure_is_kept_until_a_run_stores_as_much(row: BoundedRunRow) -> None:
    assert row.load() is None
    assert row.save(FAILED)
    assert row.load() == FAILED
    assert FAILED.failed
    assert not row.save(EndedRun("run-2", 140, 99)), "it has stored less"
    assert row.load() == FAILED
    well = EndedRun("run-3", 120, 100)
    assert row.save(well)
    assert row.load() == well
    assert not well.failed


def test_a_run_that_was_to_read_less_fails_without_a_word_after_one_that_read_more(row: BoundedRunRow) -> None:
    well = EndedRun("run-2", 120, 110)
    assert row.save(well)
    assert not row.save(FAILED)
    assert row.load() == well


def test_a_write_whose_answer_is_lost_is_applied_once(row: BoundedRunRow, client: FaultyClient) -> None:
    client.fail("put_item", answer_lost)
    assert row.save(FAILED)
    assert row.load() == FAILED


def test_a_long_problem_is_cut(row: BoundedRunRow) -> None:
    assert row.save(EndedRun("run-1", 130, 100, "x" * 400_000))
    stored = row.load()
    assert stored is not None
    assert len(stored.problem) == LONGEST_PROBLEM


def test_the_row_is_no_lease_and_no_worker(row: BoundedRunRow, tables: Tables) -> None:
    row.save(FAILED)
    scan = tables.leases.scan()
    assert (scan.leases, scan.workers, scan.unreadable) == ((), (), ())


def test_a_row_of_another_kind_is_neither_believed_nor_replaced(row: BoundedRunRow, tables: Tables) -> None:
    tables.put({"leaseKey": {"S": BOUNDED_RUN_KEY}, "entityType": {"S": "LEADER"}, "kdBound": {"N": "1"}})
    with pytest.raises(UnreadableItem):
        row.load()
    assert not row.save(FAILED)
