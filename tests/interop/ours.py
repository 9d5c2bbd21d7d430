"""Our side of a mixed fleet: a leader that ticks, and workers that consume, in threads of the test's process."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kcl_dagster.application import Application
from kcl_dagster.emulator import Emulator
from kcl_dagster.leader.construction import open_leader
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.model.lease import WorkerId
from kcl_dagster.runtime import system
from kcl_dagster.streams.pacing import ShardLimits
from kcl_dagster.worker.batch import Batch, Engine, Sink
from kcl_dagster.worker.events import EventKind, WorkerEvent
from kcl_dagster.worker.heartbeat import Identity
from kcl_dagster.worker.loop import Worker
from kcl_dagster.worker.opening import open_surroundings
from kcl_dagster.worker.staging import StagingSink
from kcl_dagster.worker.stop import StopSignal
from tests.doubles.engine import MemoryEngine, Row
from tests.doubles.sink import RecordingSink

_TICK_SECONDS = 1.0
_JOIN_SECONDS = 60.0


@dataclass
class OurLeader:
    """Ticks once a second until it is stopped, and then resigns: the lock is free at once."""

    reports: list[TickReport] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    @property
    def leads(self) -> bool:
        return bool(self.reports) and self.reports[-1].leading

    def moves(self) -> list[tuple[str, str, str]]:
        """(lease, worker, kind) of everything that was written."""
        return [(move.lease, move.to, move.kind) for report in list(self.reports) for move in report.moves]

    def resign(self) -> None:
        """Stop ticking, and let the lock go."""
        self.stop.set()
        if self.thread is not None:
            self.thread.join(_JOIN_SECONDS)

    def tail(self) -> str:
        told = [f"leads: {self.leads}", *self.errors()[-5:]]
        told += [f"{lease} to {worker} ({kind})" for lease, worker, kind in self.moves()[-10:]]
        if self.reports:
            told += [f"{key} has no worker: {why}" for key, why in self.reports[-1].unserved.items()]
            told += [f"{seen.id} {seen.alive=} {seen.accepts=} {seen.why}" for seen in self.reports[-1].workers]
        return "our leader:\n" + "\n".join(told)

    def errors(self) -> list[str]:
        return self.failures + [
            f"{stage.name}: {stage.error}"
            for report in list(self.reports)
            for stage in report.stages
            if stage.error
        ]


@contextmanager
def leading(aws: Emulator, application: Application) -> Iterator[OurLeader]:
    leader = open_leader(
        application, dynamodb=aws.client("dynamodb"), kinesis=aws.client("kinesis"), identity="our-deployment"
    )
    ours = OurLeader()

    def run() -> None:
        try:
            while not ours.stop.is_set():
                ours.reports.append(leader.tick(RunView()))
                ours.stop.wait(_TICK_SECONDS)
        except Exception as crash:
            ours.failures.append(repr(crash))
        finally:
            leader.resign()

    ours.thread = threading.Thread(target=run, name="our-leader", daemon=True)
    ours.thread.start()
    try:
        yield ours
    finally:
        ours.resign()


class Refusing:
    """A sink that may be told to take nothing more, as a lake that is down."""

    def __init__(self, sink: Sink[Any]) -> None:
        self._sink = sink
        self.refuses = threading.Event()
        self.refused = threading.Event()

    def write(self, data: Any, batch: Batch) -> None:
        if self.refuses.is_set():
            self.refused.set()
            raise ConnectionError("the lake is down")
        self._sink.write(data, batch)


@dataclass(frozen=True)
class Processing:
    """How a worker reads and stores, and how to see what it stored."""

    engine: Engine[Any]
    sink: Sink[Any]
    rows: Callable[[], list[Row]]
    conflicts: Callable[[], list[str]]
    chains: StagingSink[Any] | None = None
    """Where set, it is stored there, and not in `sink`."""


def in_memory(aws: Emulator) -> Processing:
    stored = RecordingSink()
    engine = MemoryEngine(aws.client("kinesis"), system(), limits=ShardLimits.unlimited())
    return Processing(engine, stored, lambda: list(stored.rows()), lambda: stored.conflicts)


@dataclass
class OurWorker:
    id: WorkerId
    worker: Worker[Any]
    sink: Refusing
    processing: Processing
    events: list[WorkerEvent]
    signal: StopSignal
    thread: threading.Thread | None = None
    failures: list[str] = field(default_factory=list)

    def told(self, kind: EventKind) -> list[WorkerEvent]:
        return [event for event in list(self.events) if event.kind is kind]

    def rows(self) -> list[Row]:
        return self.processing.rows()

    def tail(self) -> str:
        told = [f"{event.kind}: {event.lease or ''} {event.message}" for event in self.events[-20:]]
        return f"{self.id}, {len(self.rows())} rows:\n" + "\n".join([*told, *self.failures])

    def stop(self) -> None:
        """In good order: batch finished, leases released, row deleted."""
        self.signal.request()
        if self.thread is not None:
            self.thread.join(_JOIN_SECONDS)
            assert not self.thread.is_alive(), f"{self.id} did not stop"
        assert not self.failures, self.failures


@contextmanager
def working(
    aws: Emulator, application: Application, name: str = "worker-000:ours", processing: Processing | None = None
) -> Iterator[OurWorker]:
    runtime = system()
    processing = processing or in_memory(aws)
    sink = Refusing(processing.sink)
    events: list[WorkerEvent] = []
    around = open_surroundings(
        application,
        dynamodb=aws.client("dynamodb"),
        kinesis=aws.client("kinesis"),
        engine=processing.engine,
        sink=sink if processing.chains is None else None,
        chains=processing.chains,
        runtime=runtime,
        on_event=events.append,
    )
    identity = Identity(WorkerId(name))
    ours = OurWorker(identity.worker, Worker(around, identity, runtime), sink, processing, events, StopSignal())

    def run() -> None:
        try:
            ours.worker.run(ours.signal)
        except Exception as crash:
            ours.failures.append(repr(crash))

    ours.thread = threading.Thread(target=run, name=name, daemon=True)
    ours.thread.start()
    try:
        yield ours
    finally:
        ours.signal.request()
        ours.thread.join(_JOIN_SECONDS)
