"""For how long records have waited in shards that no worker reads."""

import math
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kcl_dagster.application import Application, FleetSettings
from kcl_dagster.errors import ServiceError
from kcl_dagster.leader.kinesis_streams import KinesisStreams
from kcl_dagster.leader.unread import CLOCKS_APART, UnreadWatch
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.runtime import Runtime
from tests.doubles.clock import FakeClock
from tests.doubles.kinesis import FakeKinesis

STREAM = "clicks"
APPLICATION = Application(name="clicks", streams=(STREAM,), fleet=FleetSettings(min_workers=0))


class Street:
    """A stream of one shard, and a watch over it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.kinesis = FakeKinesis(self.clock)
        self.kinesis.create_stream(StreamName=STREAM, ShardCount=1)
        self.asked = 0
        self.fails = False
        streams = KinesisStreams(self, Runtime(clock=self.clock, random=random.Random(1)))
        starts: Any = SimpleNamespace(resolved=lambda _: None)
        self.watch = UnreadWatch(APPLICATION, starts, streams, self.clock)
        self.lease = Lease(LeaseKey("shardId-000000000000"), "shardId-000000000000", checkpoint=TRIM_HORIZON)

    def get_shard_iterator(self, **request: Any) -> Any:
        self.asked += 1
        if self.fails:
            raise ServiceError("no")
        return self.kinesis.get_shard_iterator(**request)

    def get_records(self, **request: Any) -> Any:
        return self.kinesis.get_records(**request)

    def put(self) -> str:
        return str(self.kinesis.put_record(StreamName=STREAM, Data=b"x", PartitionKey="key")["SequenceNumber"])

    def waited(self, **lease: Any) -> float:
        asked = replace(self.lease, **lease)
        return self.watch.waited([asked])[asked.key]


def test_a_record_waits_from_its_arrival_on() -> None:
    street = Street()
    assert street.waited() == 0
    street.put()
    street.clock.advance(20)
    assert street.waited() == pytest.approx(20, abs=0.1)
    street.clock.advance(5)
    assert street.waited() == pytest.approx(25, abs=0.1)  # without another look
    assert street.asked == 2


def test_a_record_waits_by_a_clock_that_is_slow() -> None:
    street = Street()
    street.put()
    street.clock.now = lambda: 0.0  # type: ignore[method-assign]
    assert street.waited() == 0
    street.clock.advance(20)
    assert street.waited() == 20
    street.clock.advance(20)
    assert street.waited() == 40


def test_what_is_behind_the_checkpoint_waits() -> None:
    street = Street()
    first = street.put()
    street.clock.advance(30)
    assert street.waited(checkpoint=Checkpoint(first)) == 0
    street.put()
    street.clock.advance(30)
    assert street.waited(checkpoint=Checkpoint(first)) == pytest.approx(30, abs=0.1)


def test_a_checkpoint_inside_of_an_aggregate_is_read_if_its_moment_is_stored() -> None:
    street = Street()
    first, arrived = street.put(), street.clock.now()
    street.clock.advance(30)
    inside = Checkpoint(first, 3)
    assert street.waited(checkpoint=inside, stored_through=int(arrived) + 5) == 0
    street.clock.advance(100)
    assert street.waited(checkpoint=inside, stored_through=int(arrived) - 5) == pytest.approx(130, abs=0.1)


def test_a_closed_shard_needs_a_worker_that_finishes_it() -> None:
    street = Street()
    middle = str(2**127)
    street.kinesis.split_shard(StreamName=STREAM, ShardToSplit=street.lease.shard_id, NewStartingHashKey=middle)
    assert street.waited() == math.inf


@pytest.mark.parametrize("lease", [{"checkpoint": None}, {"checkpoint": Checkpoint("LATEST")}, {}])
def test_what_cannot_be_found_out_needs_a_worker(lease: dict[str, Any]) -> None:
    street = Street()
    street.fails = True
    assert street.waited(**lease) == math.inf


def test_a_stream_that_is_named_by_its_arn_is_read_by_its_arn(monkeypatch: pytest.MonkeyPatch) -> None:
    street, named = Street(), {"StreamARN": f"arn:aws:kinesis:us-east-1:123456789012:stream/{STREAM}"}
    monkeypatch.setattr("kcl_dagster.aws.stream_arn", lambda *_: named)
    asked: list[dict[str, Any]] = []

    def answer(**request: Any) -> Any:
        asked.append(request)
        return {"Records": []}

    monkeypatch.setattr(street, "get_records", answer)
    street.waited()
    assert [request["StreamARN"] for request in asked] == [named["StreamARN"]]


def test_a_new_lease_is_looked_at_at_once() -> None:
    street = Street()
    street.waited()
    street.watch.waited([street.lease, replace(street.lease, key=LeaseKey("other"))])
    assert street.asked == 3


def test_a_shard_without_an_unread_record_is_read_through_the_look() -> None:
    street = Street()
    street.waited()
    looked = street.clock.now()
    street.clock.advance(1)
    assert street.watch.read_through([street.lease]) == {
        street.lease.key: pytest.approx(looked - CLOCKS_APART, abs=1)
    }
    moved = replace(street.lease, checkpoint=Checkpoint("17"))
    assert street.watch.read_through([moved]) == {}, "a lease that was put back may have something to read"
    street.put()
    street.clock.advance(3600)
    street.waited()
    assert street.watch.read_through([street.lease]) == {}
