"""A fleet with `min_workers` 0 has no worker while nothing is unread."""

import pytest

from kcl_dagster.application import Application, FleetSettings
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.orchestration import application_state
from kcl_dagster.tables.control import Control
from tests.integration.leader.town import TICK, Town, shard_id

FLEET = FleetSettings(min_workers=0, max_workers=2, scale_up_lag=60, cooldown=120)


@pytest.fixture
def resting() -> Town:
    town = Town(Application(name="orders-app", streams="orders", fleet=FLEET), shards=2)
    town.step(3)
    return town


def put(town: Town) -> dict[str, str]:
    """The record's shard and sequence number."""
    answer: dict[str, str] = town.kinesis.put_record(StreamName="orders", Data=b"x", PartitionKey="key")
    return answer


def is_launched(report: TickReport) -> bool:
    return bool(report.launches)


def test_leases_are_there_and_no_worker_is_wanted(resting: Town) -> None:
    report = resting.reports[-1]
    assert sorted(resting.owners()) == [shard_id(0), shard_id(1)]
    assert not any(is_launched(one) for one in resting.reports)
    assert report.unserved == {}
    assert report.resting == {LeaseKey(shard_id(0)): 0.0, LeaseKey(shard_id(1)): 0.0}
    assert report.lag_ms == 0
    seen = application_state.of_tick(report, {}, resting.clock.now())
    assert [lag.seconds for lag in seen.lags] == [0.0, 0.0]
    assert not seen.unserved


def test_a_worker_starts_when_a_record_has_waited_and_goes_when_it_is_read(resting: Town) -> None:
    town = resting
    answer = put(town)
    took = town.until(is_launched)
    assert FLEET.scale_up_lag <= took <= FLEET.scale_up_lag + 3 * TICK
    assert [launch.slot for launch in town.reports[-1].launches] == ["worker-000"]
    assert "a record has waited for" in town.reports[-1].launches[0].because
    waited = [one.lag_ms for one in town.reports if one.lag_ms]
    assert waited == sorted(waited)
    town.obey(town.reports[-1])
    [worker] = town.workers.values()
    town.step(2)
    assert set(town.owners().values()) == {worker.id}
    worker.progress(answer["ShardId"], answer["SequenceNumber"])
    asked = town.kinesis.calls.count("get_records")
    worker.heartbeat.lag_ms = 0
    took = town.until(lambda report: bool(report.retire))
    assert took <= FLEET.cooldown + 2 * TICK
    assert town.reports[-1].retire == {"worker-000": "0 workers are enough: everything is read"}
    assert town.kinesis.calls.count("get_records") == asked  # nobody looks while a worker reads
    for key in list(worker.holdings.keys()):
        worker.holdings.handover.release(key)
    worker.heartbeat.stop()
    town.kill(worker, seen=True)
    del town.workers[worker.id]
    report = town.step(3)
    assert report.unserved == {}
    assert len(report.resting) == 2


def test_a_stream_that_does_not_answer_is_read(resting: Town) -> None:
    resting.kinesis.fails = lambda method, _: method == "get_shard_iterator"
    resting.until(is_launched)
    assert "is not known" in resting.reports[-1].launches[0].because
    assert not resting.reports[-1].resting


def test_a_shard_that_is_split_gets_a_worker(resting: Town) -> None:
    resting.split(shard_id(0))
    resting.until(is_launched)


def test_what_is_paused_starts_no_worker(resting: Town) -> None:
    resting.leader.tables.control.save(Control(leases=frozenset(map(LeaseKey, resting.owners()))))
    put(resting)
    resting.step(40)
    assert not any(is_launched(one) for one in resting.reports)


def test_another_leader_leaves_a_fleet_at_rest(resting: Town) -> None:
    resting.leader.resign()
    resting.restart_leader("another")
    resting.step(5)
    assert not any(is_launched(one) for one in resting.reports)
