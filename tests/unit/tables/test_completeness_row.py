"""The moment through which an application is complete never falls, but by a reset or an import."""

import pytest

from kcl_dagster.errors import UnreadableItem
from kcl_dagster.model.first_moment import FirstMoment
from kcl_dagster.tables.completeness_row import (
    COMPLETENESS_KEY,
    MOST_RESETS,
    CompletenessRow,
    SetBack,
    WrittenThrough,
    with_reset,
)
from tests.doubles.clock import FakeClock
from tests.doubles.dynamodb import FakeDynamoDB
from tests.unit.tables.kit import FaultyClient, Tables, answer_lost, application

NOTHING = WrittenThrough()
NOW = int(FakeClock().now())


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
    assert row.set_back(200) == row.load() == WrittenThrough(200, NOW, 200)


def test_a_reset_never_goes_forward(row: CompletenessRow) -> None:
    row.advance(NOTHING, 300)
    assert row.set_back(500) == WrittenThrough(300, NOW, 300)


def test_a_reset_to_nothing_that_is_known_leaves_no_moment(row: CompletenessRow) -> None:
    row.advance(NOTHING, 300)
    known = row.set_back(None)
    assert known == row.load() == WrittenThrough(None, NOW, None)
    assert row.advance(known, 20) == WrittenThrough(20, NOW)


def test_a_reset_of_an_application_that_was_never_complete(row: CompletenessRow) -> None:
    assert row.set_back(200) == row.load() == WrittenThrough(None, NOW, None)


def test_a_leader_that_read_the_leases_before_a_reset_does_not_advance_after_it(row: CompletenessRow) -> None:
    known = row.advance(NOTHING, 300)
    row.set_back(200)
    assert row.advance(known, 400) == row.load() == WrittenThrough(200, NOW, 200)
    row.set_back(None)
    assert row.advance(NOTHING, 400) == row.load() == WrittenThrough(None, NOW + 1, None)


def test_an_advance_whose_answer_is_lost_is_applied_once(row: CompletenessRow, client: FaultyClient) -> None:
    client.fail("update_item", answer_lost)
    known = row.advance(NOTHING, 100)
    client.fail("update_item", answer_lost)
    assert row.advance(known, 200) == row.load() == WrittenThrough(200)


def test_a_reset_whose_answer_is_lost_is_applied_once(row: CompletenessRow, client: FaultyClient) -> None:
    row.advance(NOTHING, 300)
    client.fail("update_item", answer_lost)
    assert row.set_back(200) == row.load() == WrittenThrough(200, NOW, 200)


def test_the_row_is_no_lease_and_no_worker(row: CompletenessRow, tables: Tables) -> None:
    row.advance(NOTHING, 100)
    result = tables.leases.scan()
    assert (result.leases, result.workers, result.unreadable) == ((), (), ())


def test_a_row_of_another_kind_is_not_believed(row: CompletenessRow, tables: Tables) -> None:
    tables.put({"leaseKey": {"S": COMPLETENESS_KEY}, "entityType": {"S": "LEADER"}, "kdEpoch": {"N": "1"}})
    with pytest.raises(UnreadableItem):
        row.load()


def test_resets_are_kept_unless_a_later_one_went_back_further(row: CompletenessRow) -> None:
    known = row.advance(NOTHING, 300)
    known = row.set_back(100)
    assert known.resets == (SetBack(NOW, 100),)
    row.advance(known, 300)
    first, second, third = SetBack(NOW, 100), SetBack(NOW + 1, 200), SetBack(NOW + 2)
    assert row.set_back(200).resets == row.load().resets == (first, second)
    assert row.set_back(None).resets == row.load().resets == (first, second, third)
    row.advance(row.load(), 300)
    assert row.set_back(150).resets == row.load().resets == (first, third, SetBack(NOW + 3, 150))


def test_the_oldest_of_too_many_resets_is_part_of_the_next_one() -> None:
    known: tuple[SetBack, ...] = ()
    for number in range(MOST_RESETS + 1):
        known = with_reset(known, SetBack(number + 1, 100 + number))
    assert known[:2] == (SetBack(2, 100), SetBack(3, 102))
    assert len(known) == MOST_RESETS


def test_epochs_do_not_repeat_where_the_row_was_lost(row: CompletenessRow, tables: Tables) -> None:
    row.advance(NOTHING, 300)
    before = row.set_back(200)
    tables.client.delete_item(
        TableName=tables.layout.coordinator.table, Key={tables.layout.coordinator.key: {"S": COMPLETENESS_KEY}}
    )
    clock = tables.runtime.clock
    assert isinstance(clock, FakeClock)
    clock.advance(60)
    assert row.set_back(100).epoch == before.epoch + 60


def test_a_row_of_a_former_version_has_its_last_reset(row: CompletenessRow, tables: Tables) -> None:
    former = {"leaseKey": {"S": COMPLETENESS_KEY}, "entityType": {"S": "KD_COMPLETE"}, "kdEpoch": {"N": "4"}}
    tables.put(former | {"kdBackTo": {"N": "200"}})
    assert row.load().resets == (SetBack(4, 200),)
    tables.put(former | {"kdResets": {"S": "nonsense"}})
    with pytest.raises(UnreadableItem):
        row.load()


FIRST = FirstMoment(50)


def test_the_first_moment_is_stored_once(row: CompletenessRow) -> None:
    known = row.advance(NOTHING, 100, FIRST)
    assert known == row.load() == WrittenThrough(100, first=FIRST)
    assert row.advance(NOTHING, 200, FirstMoment(60)) == row.load() == known, "another leader was faster"
    assert row.advance(known, 200, FirstMoment(60)) == row.load() == WrittenThrough(200, first=FIRST)


def test_the_first_moment_is_stored_once_although_an_answer_is_lost(
    row: CompletenessRow, client: FaultyClient
) -> None:
    client.fail("update_item", answer_lost)
    assert row.advance(NOTHING, 100, FIRST) == row.load() == WrittenThrough(100, first=FIRST)


def test_an_application_that_is_complete_already_gets_no_first_moment(row: CompletenessRow) -> None:
    known = row.advance(NOTHING, 100)
    assert row.advance(known, 200, FIRST).first is None
    assert row.set_back(150, unless_known=FIRST, all_from=FirstMoment(10)).first is None


def test_a_reset_of_a_part_leaves_the_first_moment(row: CompletenessRow) -> None:
    row.advance(NOTHING, 100, FIRST)
    assert row.set_back(20, unless_known=FirstMoment(70)).first == row.load().first == FIRST


def test_a_reset_of_all_moves_the_first_moment_back_and_never_forward(row: CompletenessRow) -> None:
    row.advance(NOTHING, 100, FIRST)
    assert row.set_back(70, all_from=FirstMoment(70, is_settled=False)).first == FIRST
    anew = FirstMoment(20, is_settled=False)
    known = row.set_back(20, all_from=anew)
    assert known.first == row.load().first == anew
    settled = FirstMoment(25)
    assert row.advance(known, 200, settled).first == row.load().first == settled, "records have left meanwhile"
    assert row.set_back(30, all_from=FirstMoment(40, is_creation=True)).first == FirstMoment(40, is_creation=True)


def test_a_reset_of_a_part_before_the_first_advance_decides_the_first_moment(row: CompletenessRow) -> None:
    known = row.set_back(None, unless_known=FIRST)
    assert row.advance(known, 100, FirstMoment(20)).first == row.load().first == FIRST


@pytest.mark.parametrize(
    "first", [FIRST, FirstMoment(50, is_creation=True), FirstMoment(50, is_creation=True, is_settled=False)]
)
def test_a_first_moment_is_read_as_it_was_written(first: FirstMoment) -> None:
    assert FirstMoment.unpacked(first.packed) == first


@pytest.mark.parametrize("packed", ["", "soon", "50:", "50:later"])
def test_a_first_moment_that_no_leader_wrote_is_not_believed(
    row: CompletenessRow, tables: Tables, packed: str
) -> None:
    item = {"leaseKey": {"S": "kdComplete"}, "entityType": {"S": "KD_COMPLETE"}, "kdEpoch": {"N": "4"}}
    tables.put(item | {"kdFirst": {"S": packed}})
    with pytest.raises(UnreadableItem):
        row.load()
