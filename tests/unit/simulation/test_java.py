"""The modelled KCL 3.x processes do what Java's do, as far as the simulator relies on it."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from tests.doubles.clock import FakeClock
from tests.doubles.dynamodb import FakeDynamoDB
from tests.simulation.java.leader import JavaLeader
from tests.simulation.java.tables import Place, Tables
from tests.simulation.java.worker import JavaSettings
from tests.simulation.kernel import Kernel, Process, ProcessClock
from tests.simulation.scenario import EPOCH

TABLE = "orders"
SETTINGS = JavaSettings(
    failover=10.0,
    handoff=30.0,
    lock=120.0,
    lock_heartbeat=30.0,
    report=30.0,
    cleanup=60.0,
    idle=1.0,
    parent_poll=10.0,
    discovery=10.0,
    variance=False,
    most_records=10,
    checkpoint_one_in=1,
)
Item = dict[str, Any]


@dataclass
class Town:
    """One table and as many Java processes as are asked for. Time moves when told."""

    kernel: Kernel = field(default_factory=Kernel)

    def __post_init__(self) -> None:
        self.dynamodb = FakeDynamoDB(FakeClock())
        self.dynamodb.create_table(
            TableName=TABLE,
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )

    def tables(self, name: str) -> Tables:
        place = Place(TABLE, "leaseKey")
        return Tables(Process(self.kernel, name), self.dynamodb, Random(1), place, place, place)

    def leader(self, name: str) -> JavaLeader:
        tables = self.tables(name)
        return JavaLeader(name, tables, SETTINGS, Random(name), ProcessClock(tables.process, EPOCH))

    def lease(self, key: str, owner: str | None = None, giver: str | None = None, counter: int = 3) -> None:
        item: Item = {
            "leaseKey": {"S": key},
            "entityType": {"S": "LEASE"},
            "leaseCounter": {"N": str(counter)},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
            "checkpoint": {"S": "100"},
        }
        item |= {"leaseOwner": {"S": owner}} if owner else {}
        item |= {"checkpointOwner": {"S": giver}} if giver else {}
        self.dynamodb.put_item(TableName=TABLE, Item=item)

    def report(self, *workers: str) -> None:
        for worker in workers:
            self.tables(worker).report(worker, EPOCH + self.kernel.now)

    def owners(self, key: str) -> tuple[str | None, str | None]:
        item = self.dynamodb.get_item(TableName=TABLE, Key={"leaseKey": {"S": key}}, ConsistentRead=True)["Item"]
        return item.get("leaseOwner", {}).get("S"), item.get("checkpointOwner", {}).get("S")

    def after(self, seconds: float) -> None:
        self.kernel.skip(seconds)


@pytest.fixture
def town() -> Town:
    return Town()


def test_the_lock_is_taken_when_one_version_was_watched_for_longer_than_the_row_says(town: Town) -> None:
    one, other = town.leader("a"), town.leader("b")
    assert one.is_leader()
    assert not other.is_leader()
    town.after(100)
    one.beat()
    assert not other.is_leader()
    town.after(120)
    assert not other.is_leader()
    town.after(1)
    assert other.is_leader()
    one.beat()
    assert not one.is_leader()


def test_a_leader_that_resigns_leaves_no_lock(town: Town) -> None:
    one, other = town.leader("a"), town.leader("b")
    assert one.is_leader()
    one.resign()
    assert other.is_leader()


def test_a_lease_without_an_owner_is_given_away_at_once_and_a_dead_ones_after_its_time(town: Town) -> None:
    leader = town.leader("a")
    town.lease("s0")
    town.lease("s1", owner="gone")
    town.report("a")
    leader.step()
    assert (town.owners("s0"), town.owners("s1")) == (("a", None), ("gone", None))
    town.after(11)
    leader.step()
    assert town.owners("s1") == ("a", None)


def test_balancing_asks_the_owner_and_is_forced_when_its_time_is_over_and_it_died(town: Town) -> None:
    leader = town.leader("a")
    for number in range(4):
        town.lease(f"s{number}", owner="a")
    town.report("a", "b")
    leader.step()
    moved = [f"s{number}" for number in range(4) if town.owners(f"s{number}") == ("b", "a")]
    assert len(moved) == 2
    town.after(5)
    leader.step()
    assert town.owners(moved[0]) == ("b", "a")
    town.after(11)
    town.report("b")
    leader.step()
    assert town.owners(moved[0])[1] is None


def test_workers_that_are_silent_get_nothing(town: Town) -> None:
    leader = town.leader("a")
    town.lease("s0")
    town.report("silent")
    town.after(61)
    leader.step()
    assert town.owners("s0") == (None, None)


def test_a_checkpoint_clears_what_was_pending_and_counts(town: Town) -> None:
    tables = town.tables("a")
    town.lease("s0", owner="a")
    town.dynamodb.update_item(
        TableName=TABLE,
        Key={"leaseKey": {"S": "s0"}},
        UpdateExpression="SET pendingCheckpoint = :p",
        ExpressionAttributeValues={":p": {"S": "120"}},
    )
    lease = tables.exact("s0")
    assert lease is not None
    assert tables.checkpoint(lease, "110")
    now = tables.exact("s0")
    assert now is not None
    assert (now.counter, now.checkpoint, now.pending) == (4, (0, 110, 0), None)
    assert not tables.checkpoint(lease, "111")


def test_a_renewal_fails_when_a_handoff_began_that_the_owner_does_not_know(town: Town) -> None:
    tables = town.tables("a")
    town.lease("s0", owner="a")
    lease = tables.exact("s0")
    assert lease is not None
    assert tables.hand_off(lease, "b")
    assert not tables.renew(lease)
    known = tables.exact("s0")
    assert known is not None
    assert tables.renew(known)
    known = tables.exact("s0")
    assert known is not None
    assert tables.assign(known, "b")
    assert town.owners("s0") == ("b", None)
