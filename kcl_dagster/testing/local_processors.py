"""Record processors that run in this process, for tests of processors and of the worker without Spark."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.batch import Budget, Engine, Fetched, Range
from kcl_dagster.worker.hosted_processor import HostLost
from kcl_dagster.worker.instance import Instance, ProcessorContext
from kcl_dagster.worker.kclpy import checkpoint_error
from kcl_dagster.worker.processor import ProcessorFactory, record_of


@dataclass(slots=True, eq=False)
class LocalProcessor:
    """A processor that runs in this process. Its errors are raised unchanged."""

    lease: LeaseKey
    instance: Instance
    host: "LocalProcessorHost"
    is_gone: bool = False

    def initialize(self, start: Checkpoint) -> None:
        self.instance.initialize(start)

    def process(self, context: ProcessorContext, *, one_by_one: bool) -> Checkpoint | None:
        if self.is_gone:
            raise HostLost(f"the processor of {self.lease} is gone")
        read = self.host.read
        assert read is not None, "nothing was fetched"
        records = [record_of(record) for record in read.records(self.lease)]
        behind = read.progress[self.lease].millis_behind
        return self.instance.process([records], behind, context, one_by_one=one_by_one)

    def shard_ended(self, context: ProcessorContext) -> None:
        self.instance.shard_ended(context)

    def lease_lost(self) -> None:
        self.discard()
        self.instance.lease_lost()

    def shutdown_requested(self, context: ProcessorContext) -> None:
        self.discard()
        self.instance.shutdown_requested(context)

    def discard(self) -> None:
        if self in self.host.processors:
            self.host.processors.remove(self)


@dataclass(slots=True)
class LocalProcessorHost:
    """Implements `worker.hosted_processor.ProcessorHosts` in this process, with any engine."""

    new_processor: ProcessorFactory
    engine: Engine[Any]
    read: Fetched[Any] | None = None
    processors: list[LocalProcessor] = field(default_factory=list)

    def fetch(self, ranges: Sequence[Range], budget: Budget) -> Fetched[Any]:
        self.read = self.engine.fetch(ranges, budget)
        return self.read

    def prefetch(self, ranges: Sequence[Range], budget: Budget) -> None:
        self.engine.prefetch(ranges, budget)

    def create_processor(self, lease: LeaseKey, shard_id: str) -> LocalProcessor:
        processor = LocalProcessor(lease, Instance(self.new_processor(), shard_id, checkpoint_error()), self)
        self.processors.append(processor)
        return processor

    def run_in_parallel(self, tasks: Mapping[LeaseKey, Callable[[], None]]) -> Mapping[LeaseKey, Exception]:
        failed: dict[LeaseKey, Exception] = {}
        for lease, task in tasks.items():
            try:
                task()
            except Exception as error:
                failed[lease] = error
        return failed

    def close(self) -> None:
        """Do nothing, because no process was started."""

    def lose_all(self) -> None:
        """Let all processors fail from now on, as if their process had ended."""
        for processor in self.processors:
            processor.is_gone = True
        self.processors.clear()
