"""What an operator may ask of a running application."""

import pytest

from kcl_dagster.errors import ConfigurationError, Unsafe
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.operations.pausing import drain, pause, resume
from kcl_dagster.tables.control import Control
from tests.unit.operations.conftest import ANNA, Shop

FIRST = LeaseKey("shardId-000000000000")


def test_a_pause_is_written_down_with_who_and_when(shop: Shop) -> None:
    shop.tick()
    pause(shop.opened)
    control = shop.opened.control.load()
    assert control == Control(paused=True, changed_by="olga@laptop", changed_at=int(shop.clock.now() * 1000))
    assert [entry.action for entry in shop.opened.audit.all()] == ["pause"]


def test_a_shard_is_paused_and_resumed_alone(shop: Shop) -> None:
    shop.tick()
    pause(shop.opened, [FIRST])
    assert shop.opened.control.load().leases == {FIRST}
    assert not shop.opened.control.load().paused
    resume(shop.opened, [FIRST])
    assert shop.opened.control.load().leases == frozenset()


def test_resuming_everything_resumes_shards_too(shop: Shop) -> None:
    shop.tick()
    pause(shop.opened, [FIRST])
    pause(shop.opened)
    resume(shop.opened)
    control = shop.opened.control.load()
    assert (control.paused, control.leases) == (False, frozenset())


def test_a_dry_run_changes_nothing(shop: Shop) -> None:
    shop.serve()
    assert pause(shop.opened, dry=True).after.paused
    assert drain(shop.opened, ANNA, dry=True) == [ANNA]
    assert shop.opened.control.load() == Control()
    row = shop.opened.workers.get(ANNA)
    assert row is not None
    assert not row.drain_requested


def test_what_is_not_there_cannot_be_paused_resumed_or_drained(shop: Shop) -> None:
    shop.tick()
    with pytest.raises(ConfigurationError, match="no lease of shard shardId-9"):
        pause(shop.opened, ["shardId-9"])
    with pytest.raises(ConfigurationError, match="none of shardId-9 is paused"):
        resume(shop.opened, ["shardId-9"])
    with pytest.raises(ConfigurationError, match="no worker or slot worker-7"):
        drain(shop.opened, "worker-7")


@pytest.mark.parametrize("name", [str(ANNA), "worker-000"])
def test_a_worker_is_drained_by_its_name_or_its_slot(shop: Shop, name: str) -> None:
    shop.serve()
    assert drain(shop.opened, name) == [ANNA]
    row = shop.opened.workers.get(ANNA)
    assert row is not None
    assert row.drain_requested
    drain(shop.opened, name, wanted=False)
    row = shop.opened.workers.get(ANNA)
    assert row is not None
    assert not row.drain_requested


def test_java_workers_can_neither_be_paused_nor_drained(shop: Shop) -> None:
    shop.tick()
    shop.opened.workers.put(WorkerRow(WorkerId("java"), int(shop.clock.now()), averages={}))
    with pytest.raises(Unsafe, match="java are workers of the KCL"):
        pause(shop.opened)
    with pytest.raises(Unsafe, match="cannot be asked to drain"):
        drain(shop.opened, "java")


def test_a_worker_is_paused_by_its_name_or_its_slot_and_resumed_alone(shop: Shop) -> None:
    shop.serve()
    pause(shop.opened, workers=[ANNA])
    assert shop.opened.control.load().slots == {"worker-000"}
    assert not shop.opened.control.load().paused
    pause(shop.opened, workers=["worker-004"])  # has no worker, and shall get none
    assert shop.opened.control.load().slots == {"worker-000", "worker-004"}
    resume(shop.opened, workers=["worker-000"])
    assert shop.opened.control.load().slots == {"worker-004"}
    resume(shop.opened)
    assert shop.opened.control.load().slots == frozenset()


def test_a_worker_that_is_not_there_or_not_ours_cannot_be_paused(shop: Shop) -> None:
    shop.tick()
    shop.opened.workers.put(WorkerRow(WorkerId("java"), int(shop.clock.now()), averages={}))
    with pytest.raises(ConfigurationError, match="no worker or slot anna"):
        pause(shop.opened, workers=["anna"])
    with pytest.raises(Unsafe, match="java is a worker of the KCL"):
        pause(shop.opened, workers=["java"])
    with pytest.raises(ConfigurationError, match="none of worker-000 is paused"):
        resume(shop.opened, workers=["worker-000"])
