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

    def create(
        self, stream: StreamIdentifier, owner: str | None = None, stored_through: int | None = None
    ) -> LeaseKey:
        key = LeaseKey(stream.lease_key(SHARD))
        holder = WorkerId(owner) if owner else None
        lease = Lease(
            key, SHARD, checkpoint=Checkpoint("1"), stream=stream, owner=holder, stored_through=stored_through
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


def existing(shops: Shops, name: str = "taps") -> StreamIdentifier:
    shops.kinesis.create_stream(StreamName=name, ShardCount=1)
    summary = shops.kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
    created = summary["StreamCreationTimestamp"]
    epoch = created if isinstance(created, (int, float)) else created.timestamp()
    return StreamIdentifier(name, ACCOUNT, int(epoch))


def test_a_stream_that_exists_is_forgotten_only_by_its_name(shops: Shops) -> None:
    """What is deployed may read it, although the list of streams on this machine does not have it."""
    taps = existing(shops)
    key, other = shops.create(taps), shops.create(LEFT)
    with pytest.raises(Unsafe, match=f"{taps}: 1 lease would be deleted; .*--former {taps}.: it exists"):
        forget(shops.desk)
    assert {key, other} <= shops.lease_keys()
    assert "forget" not in {entry.action for entry in shops.desk.audit.all()}
    assert forget(shops.desk, dry=True).lines()[-1] == f"{taps} has to be named (--former {taps}): it exists"
    assert forget(shops.desk, [str(taps)]).lines() == [f"{taps}: 1 lease deleted"]
    assert other in shops.lease_keys()


def test_a_stream_of_another_creation_time_has_only_the_name_of_one_that_exists(shops: Shops) -> None:
    taps = existing(shops)
    assert taps.creation_epoch is not None
    key = shops.create(StreamIdentifier("taps", ACCOUNT, taps.creation_epoch - 1000))
    assert forget(shops.desk).leases.values()
    assert key not in shops.lease_keys()


@pytest.mark.parametrize(("hours", "is_refused"), [(1, True), (23, True), (25, False)])
def test_leases_that_were_served_lately_are_deleted_only_by_name(
    shops: Shops, hours: int, is_refused: bool
) -> None:
    key = shops.create(LEFT, stored_through=int(shops.clock.now()) - hours * 3600)
    if is_refused:
        with pytest.raises(Unsafe, match=f"--former {LEFT}.: its leases were served until"):
            forget(shops.desk)
        assert key in shops.lease_keys()
        forget(shops.desk, [str(LEFT)])
    else:
        forget(shops.desk)
    assert key not in shops.lease_keys()


def test_a_stream_of_which_nothing_can_be_found_out_has_to_be_named(shops: Shops) -> None:
    key = shops.create(LEFT)
    shops.kinesis.denied["describe_stream_summary"] = "AccessDeniedException"
    with pytest.raises(Unsafe, match="could not be found out"):
        forget(shops.desk)
    assert key in shops.lease_keys()
