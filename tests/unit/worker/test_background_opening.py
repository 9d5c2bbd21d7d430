"""A worker is seen, and given leases, before its engine can read."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kcl_dagster.errors import JavaMissing
from kcl_dagster.testing.local_processors import LocalProcessorHost
from kcl_dagster.worker.background_opening import Late, LateEngine, LateProcessorHosts
from kcl_dagster.worker.heartbeat import Identity
from kcl_dagster.worker.loop import Worker
from kcl_dagster.worker.processor import ProcessRecordsInput, RecordProcessorBase
from kcl_dagster.worker.stop import StopReason
from tests.unit.worker.kit import MemoryEngine, World, in_nobodys_background

A = "shardId-000000000000"
PATIENCE = 20.0  # seconds; a thread that is to be waited for has nothing else to do


class Opening:
    """Opens when it is told to."""

    def __init__(self, opened: Callable[[], Any]) -> None:
        self.may_open = threading.Event()
        self._opened = opened

    def __call__(self) -> Any:
        assert self.may_open.wait(PATIENCE)
        return self._opened()


def test_leases_are_held_and_renewed_while_the_engine_is_being_opened() -> None:
    world = World()
    world.stream.put(A, *"abc")
    opening = Opening(lambda: MemoryEngine(world.stream))
    late = Late[Any](opening)
    run = world.worker("w1", engine=LateEngine[Any](late))
    run.worker.start()
    assert [row.id for row in run.worker._around.workers.list()] == [run.id]
    world.assign(run)
    run.worker.step_discovery()
    assert run.worker.holdings.keys() == {A}
    assert late.if_opened() is None
    assert late.why_failed() is None

    batch = threading.Thread(target=run.worker.step_batch)
    batch.start()
    counter = world.lease(A).counter
    for _ in range(3):
        world.clock.advance(run.worker.settings.renewal_interval)
        run.worker.step_renewal()
    assert world.lease(A).counter == counter + 3
    assert batch.is_alive()
    opening.may_open.set()
    batch.join(PATIENCE)
    run.until_idle()
    world.check_exactly_once()
    assert late.if_opened() is not None


def test_processors_wait_until_their_hosts_are_opened() -> None:
    seen: list[bytes] = []

    class Collector(RecordProcessorBase):
        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            seen.extend(record.binary_data for record in process_records_input.records)

    world = World()
    world.stream.put(A, *"abc")
    opening = Opening(lambda: LocalProcessorHost(Collector, MemoryEngine(world.stream)))
    late = Late[Any](opening)
    hosts = LateProcessorHosts[Any](late)
    hosts.close()  # nothing to close yet
    opening.may_open.set()
    run = world.worker("w1")
    around = replace(run.worker._around, processors=hosts)
    worker = Worker(around, Identity(run.id), world.runtime, in_nobodys_background)
    hosts.prefetch([], worker.settings.budget)
    world.assign(run)
    worker.step_discovery()
    worker.step_batch()
    assert seen == [b"a", b"b", b"c"]
    worker.protocol.close()


def test_an_engine_that_cannot_be_opened_ends_the_worker() -> None:
    def fail() -> None:
        raise JavaMissing("there is no Java")

    world = World()
    late = Late[Any](fail)
    with pytest.raises(JavaMissing):
        late.get()
    run = world.worker("w1", engine=LateEngine[Any](late), watches=(late.why_failed,))
    world.assign(run)
    run.worker.start()
    run.worker.step_discovery()
    run.worker.step_batch()
    assert run.worker.stop.reason is StopReason.MISCONFIGURED
    assert "there is no Java" in str(run.worker.stop)
    with pytest.raises(JavaMissing):
        run.worker.run()
    assert world.lease(A).owner is None
    assert late.if_opened() is None
