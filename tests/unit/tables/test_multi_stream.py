"""Leases of an application with several streams."""

from dataclasses import replace

import pytest

from kcl_dagster.application import Application
from kcl_dagster.errors import UnreadableItem
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from tests.doubles.clock import FakeClock
from tests.doubles.dynamodb import FakeDynamoDB
from tests.unit.tables.kit import BERT, Tables, at, new_lease, runtime

ORDERS = StreamIdentifier("orders", "123456789012", 1680616058)
CLICKS = StreamIdentifier("clicks", "123456789012", 1680616059)
SHARD = "shardId-000000000000"


@pytest.fixture
def tables() -> Tables:
    app = Application(name="both-app", streams=("orders", "clicks"), multi_stream=True)
    clock = FakeClock()
    return Tables(FakeDynamoDB(clock), app, runtime(clock))


def of(stream: StreamIdentifier) -> LeaseKey:
    return LeaseKey(stream.lease_key(SHARD))


def test_one_shard_of_two_streams_is_two_leases(tables: Tables) -> None:
    both = [new_lease(of(stream), shard_id=SHARD, stream=stream) for stream in (CLICKS, ORDERS)]
    assert [tables.leases.create(lease) for lease in both] == [True, True]
    assert list(tables.leases.scan().leases) == both


def test_a_lease_keeps_its_stream_through_its_life(tables: Tables) -> None:
    lease = tables.holding(new_lease(of(ORDERS), shard_id=SHARD, stream=ORDERS))
    lease = tables.leases.checkpoint(tables.leases.prepare(lease, at(), batch=1), at())
    moved = tables.leases.assign(lease, BERT)
    assert moved == replace(lease, owner=BERT, counter=lease.counter + 1, owner_switches=1)
    item = tables.item(of(ORDERS))
    assert item is not None
    assert (item["streamName"], item["shardId"]) == ({"S": str(ORDERS)}, {"S": SHARD})


def test_a_lease_of_a_single_stream_application_is_reported_and_left_alone(tables: Tables) -> None:
    item = {
        "leaseKey": {"S": SHARD},
        "leaseCounter": {"N": "1"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "checkpoint": {"S": "LATEST"},
        "checkpointSubSequenceNumber": {"N": "0"},
    }
    tables.put(item)
    result = tables.leases.scan()
    assert result.leases == ()
    assert [(error.key, error.attribute) for error in result.unreadable] == [(SHARD, "streamName")]
    with pytest.raises(UnreadableItem):
        tables.leases.update_children(LeaseKey(SHARD), frozenset("c"))
    assert tables.item(SHARD) == item
