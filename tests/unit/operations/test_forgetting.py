"""Deleting the leases of former streams, and no others."""

import pytest

from kcl_dagster.application import Application
from kcl_dagster.errors import ConfigurationError, Unsafe
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.operations.forgetting import forget
from kcl_dagster.operations.pausing import pause
from tests.unit.operations.conftest import STREAM, Shop

SHARD = "shardId-000000000000"
ACCOUNT = "123456789012"
LEFT = StreamIdentifier("clicks", ACCOUNT, 100)


class Shops(Shop):
    """Reads one of the streams that it once read; its leader is paused."""

    def __init__(self) -> None:
        super().__init__()
        self.application = Application(name="orders-app", streams=(STREAM,), multi_stream=True)
        self.tick()
        pause(self.desk)
        self.current = {lease.key for lease in self.desk.scan().leases}

    def create(self, stream: StreamIdentifier, owner: str | None = None) -> LeaseKey:
        key = LeaseKey(stream.lease_key(SHARD))
        lease = Lease(
            key, SHARD, checkpoint=Checkpoint("1"), stream=stream, owner=WorkerId(owner) if owner else None
        )
        assert self.desk.leases.create(lease)
        return key

    def lease_keys(self) -> set[LeaseKey]:
        return {lease.key for lease in self.desk.scan().leases}


@pytest.fixture
def shops() -> Shops:
    return Shops()


def test_leases_of_former_streams_are_deleted_and_no_others(shops: Shops) -> None:
    key = shops.create(LEFT)
    assert shops.current
    report = forget(shops.desk)
    assert report.leases == {str(LEFT): (key,)}
    assert report.lines() == [f"{LEFT}: 1 lease deleted"]
    assert shops.lease_keys() == shops.current
    assert ("forget", "olga@laptop") in {(entry.action, entry.by) for entry in shops.desk.audit.all()}
    assert forget(shops.desk).lines() == ["there are no leases of former streams"]


def test_a_dry_run_deletes_nothing(shops: Shops) -> None:
    key = shops.create(LEFT)
    report = forget(shops.desk, dry=True)
    assert report.lines() == [f"{LEFT}: 1 lease would be deleted"]
    assert key in shops.lease_keys()


def test_one_former_stream_can_be_named(shops: Shops) -> None:
    other = StreamIdentifier("taps", ACCOUNT, 100)
    key, kept = shops.create(LEFT), shops.create(other)
    assert forget(shops.desk, [str(LEFT)]).leases == {str(LEFT): (key,)}
    assert kept in shops.lease_keys()
    with pytest.raises(ConfigurationError, match=f"no former stream of the application: those are {other}"):
        forget(shops.desk, [f"{ACCOUNT}:orders:1"])


def test_it_is_refused_while_a_worker_reads(shops: Shops) -> None:
    key = shops.create(LEFT, "worker-000:anna")
    with pytest.raises(Unsafe, match="is owned by worker-000:anna"):
        forget(shops.desk)
    assert key in shops.lease_keys()


def test_it_is_refused_while_a_leader_may_give_the_leases_away() -> None:
    shops = Shops()
    shops.create(LEFT)
    control = shops.desk.control
    control.save(type(control.load())())
    with pytest.raises(Unsafe, match="may give them away"):
        forget(shops.desk)


def test_the_leases_of_the_stream_that_exists_are_not_deleted_for_those_of_a_younger_one(shops: Shops) -> None:
    """As a leader made them that asked another region."""
    shops.create(StreamIdentifier(STREAM, ACCOUNT, int(shops.clock.now()) + 1000))
    with pytest.raises(Unsafe, match="still exists"):
        forget(shops.desk)
