"""Where streams start, decided once."""

from dataclasses import replace
from typing import Any

import pytest

from kcl_dagster.application import Position
from kcl_dagster.errors import OtherStream, UnreadableItem
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.tables.starts import StartPosition, StartTable
from tests.doubles.clock import FakeClock
from tests.doubles.dynamodb import FakeDynamoDB
from tests.unit.tables.kit import LOST_ON_THE_WAY, FaultyClient, Tables, answer_lost, application, runtime

ORDERS = StartPosition("orders", Position.LATEST, 1_784_600_000_123, 1_680_616_058)


@pytest.fixture
def client() -> FaultyClient:
    return FaultyClient(FakeDynamoDB(FakeClock()))


@pytest.fixture
def tables(client: FaultyClient) -> Tables:
    return Tables(client, application(), runtime())


@pytest.fixture
def starts(tables: Tables) -> StartTable:
    return StartTable(tables.client, tables.application, tables.layout, tables.runtime)


def test_the_first_decision_stands(starts: StartTable) -> None:
    assert starts.get("orders") is None
    assert starts.record(ORDERS) == ORDERS
    assert starts.record(replace(ORDERS, timestamp_ms=9)) == ORDERS
    assert starts.get("orders") == ORDERS


def test_streams_decide_for_themselves(starts: StartTable) -> None:
    clicks = StartPosition(
        "123456789012:clicks:17", Position.TRIM_HORIZON, None, 17, is_adopted=True, counted_since=19
    )
    starts.record(ORDERS)
    starts.record(clicks)
    assert starts.all() == {"orders": ORDERS, "123456789012:clicks:17": clicks}


def test_a_stream_other_than_the_recorded_one_is_refused(starts: StartTable) -> None:
    single, other = StreamIdentifier.single("orders"), StreamIdentifier.single("orders-v2")
    starts.refuse_other("app", other)
    starts.record(replace(ORDERS, stream="123456789012:clicks:17"))
    starts.refuse_other("app", other)
    starts.record(ORDERS)
    starts.refuse_other("app", single)
    starts.refuse_other("app", StreamIdentifier("orders-v2", "123456789012", 17))
    with pytest.raises(OtherStream, match="application app belong to stream orders, and it is to read orders-v2"):
        starts.refuse_other("app", other)


def test_the_moment_that_latest_means_is_asked_for_by_stream(starts: StartTable, client: FaultyClient) -> None:
    stream = StreamIdentifier.single("orders")
    assert starts.resolved(stream) is None
    starts.record(ORDERS)
    assert starts.resolved(stream) == ORDERS.timestamp_ms
    client.calls.clear()
    assert starts.resolved(stream) == ORDERS.timestamp_ms
    assert client.calls == []


def test_a_reset_decides_anew(starts: StartTable) -> None:
    starts.record(ORDERS)
    anew = replace(ORDERS, position=Position.AT_TIMESTAMP, timestamp_ms=5)
    starts.replace(anew)
    assert starts.record(ORDERS) == anew


@pytest.mark.parametrize("fault", [answer_lost, LOST_ON_THE_WAY])
def test_a_lost_answer_makes_no_difference(starts: StartTable, client: FaultyClient, fault: Any) -> None:
    client.fail("put_item", fault)
    assert starts.record(ORDERS) == ORDERS
    assert starts.get("orders") == ORDERS


def test_the_rows_are_no_leases(starts: StartTable, tables: Tables) -> None:
    starts.record(ORDERS)
    assert not tables.leases.has_leases()
    assert tables.leases.scan().unreadable == ()


@pytest.mark.parametrize(
    ("change", "attribute"),
    [({"position": {"S": "HERE"}}, "position"), ({"streamCreated": {"S": "x"}}, "streamCreated")],
)
def test_a_row_we_did_not_write_is_refused(
    starts: StartTable, tables: Tables, change: dict[str, Any], attribute: str
) -> None:
    starts.record(ORDERS)
    item = tables.item("kdStart:orders")
    assert item is not None
    tables.put({**item, **change})
    with pytest.raises(UnreadableItem, match=f"'kdStart:orders': attribute '{attribute}'"):
        starts.get("orders")
