"""Leader and workers together, in real time, by enhanced fan-out over HTTP with AWS's rule for subscriptions."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from kcl_dagster.emulator import Emulator, Limits
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.fetch import Connection
from tests.integration.worker.fleet import Fleet, Process, Wire, eventually
from tests.integration.worker.pushing import PushedEngine

pytestmark = [pytest.mark.server, pytest.mark.slow]

BATCH = {"retrieval": "fanout", "consumer_name": "app", "idle_seconds": 0.1, "max_seconds": 1.0}
A_LONG_BATCH = 60.0


@pytest.fixture
def strict_aws() -> Iterator[Emulator]:
    """A second subscription within five seconds is refused, one after that takes the shard over."""
    with Emulator(limits=replace(Limits.none(), takeover_seconds=5)) as emulator:
        yield emulator


def pushed(aws: Emulator, wire: Wire, runtime: Runtime) -> PushedEngine:
    connection = Connection(endpoint_url=aws.endpoint_url, region="us-east-1", access_key="test", secret_key="test")
    return PushedEngine(wire, connection, "app", runtime)


def engine_of(process: Process) -> PushedEngine:
    assert isinstance(process.engine, PushedEngine)
    return process.engine


def reads_for_long(process: Process) -> bool:
    """Its subscription goes on from the batches before."""
    _, seconds = engine_of(process).began
    return seconds == A_LONG_BATCH and len(process.kinesis.subscriptions) > 0


def test_a_shard_goes_to_another_owner_while_its_former_one_is_subscribed(strict_aws: Emulator) -> None:
    """The former one stands still in all but its reading: nothing tells it but the subscription that is taken."""
    with Fleet(
        strict_aws, "pushed", shards=2, workers=2, new_engine=partial(pushed, strict_aws), batch=BATCH
    ) as fleet:
        fleet.produce(200)
        fleet.wait_until_everything_is_stored()
        eventually(lambda: [len(p.worker.holdings.keys()) for p in fleet.processes.values()] == [1, 1])
        former, follower = fleet.processes.values()
        [key] = former.worker.holdings.keys()
        engine_of(former).seconds = A_LONG_BATCH
        eventually(lambda: reads_for_long(former))
        before = engine_of(former).last
        former.dynamodb.passes.clear()
        fleet.produce(200)
        take(fleet, key, follower)
        eventually(lambda: engine_of(former).last is not before)
        read = engine_of(former).last
        assert read is not None
        assert read.progress[key].records > 0  # ended by the follower's subscription, and gave what it had
        assert not read.progress[key].ended
        assert key in {one.shard_id for one in follower.kinesis.subscriptions}
        fleet.wait_until_everything_is_stored()
        engine_of(former).seconds = None
        former.dynamodb.passes.set()
        eventually(lambda: former.worker.holdings.get(key) is None)
        fleet.produce(200)
        fleet.wait_until_everything_is_stored()
        fleet.check_exactly_once()


def take(fleet: Fleet, key: LeaseKey, process: Process) -> None:
    lease = fleet.leader.tables.leases.get(key)
    assert lease is not None
    assert fleet.leader.tables.leases.take(lease, process.worker.identity.worker) is not None
