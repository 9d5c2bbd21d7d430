"""The processes of a fleet: daemons that lead, and workers. They run the package's own code."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from types import TracebackType
from typing import Final, Self

from kcl_dagster.application import Application
from kcl_dagster.aws import Client
from kcl_dagster.errors import KclError
from kcl_dagster.leader.construction import open_leader
from kcl_dagster.leader.tick import Leader
from kcl_dagster.leader.tick_report import Launch, TickReport
from kcl_dagster.model.windows import FixedWindows
from kcl_dagster.runtime import Runtime
from kcl_dagster.streams.pacing import READS_PER_SECOND, ShardLimits
from kcl_dagster.worker.background_calls import Latest
from kcl_dagster.worker.batch import Budget, Range
from kcl_dagster.worker.bound import Bound
from kcl_dagster.worker.concurrency import one_by_one
from kcl_dagster.worker.delivery import IDLE_SECONDS, DeliveryQueue
from kcl_dagster.worker.events import WorkerEvent
from kcl_dagster.worker.heartbeat import Identity
from kcl_dagster.worker.loop import Worker
from kcl_dagster.worker.opening import open_surroundings
from kcl_dagster.worker.stop import StopReason
from kcl_dagster.worker.threads import Steps
from tests.doubles.engine import MemoryEngine, MemoryFetch, Row
from tests.simulation.chained_sink import ChainedSink
from tests.simulation.dagster import Orchestrator, Run, StorageAway
from tests.simulation.kernel import CooperativeLock, Process, ProcessClock
from tests.simulation.lake import LakeSink
from tests.simulation.scenario import EPOCH

# Dagster gives up on a tick after this long; the tick itself goes on.
TICK_TIMEOUT: Final = 60.0
# The windows by which workers count what they store.
WINDOW_SECONDS: Final = 6 * 3600
# How often background steps look whether something is due, before stretching.
NAP_SECONDS: Final = 2.0
# Strands of a worker that may wait for Dagster.
EVENTS: Final = "events"
QUESTION: Final = "question"


def runtime_of(process: Process, random: Random) -> Runtime:
    """Everything a process may know of the world, made up."""

    def new_id() -> str:
        return f"{random.getrandbits(128):032x}"

    return Runtime(
        clock=ProcessClock(process, EPOCH),
        new_id=new_id,
        random=random,
        new_lock=lambda: CooperativeLock(process.kernel),
    )


class Strands:
    """A worker's background threads, as strands. Fits `worker.loop.Background`."""

    def __init__(self, process: Process, nap: float, steps: Steps) -> None:
        self._process = process
        self._nap = nap
        self._steps = steps
        self._stopped = False
        self._running = 0

    def __enter__(self) -> Self:
        self._start("renewals", self._renew)
        self._start("housekeeping", self._keep_house)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped = True
        while self._running and self._process.is_alive:
            self._process.kernel.sleep(self._nap / 10)

    def _start(self, name: str, step: Callable[[], float]) -> None:
        def loop() -> None:
            while not self._stopped:
                pause = step()
                if not self._stopped:
                    self._process.kernel.sleep(pause)
            self._running -= 1

        self._running += 1
        self._process.kernel.spawn(self._process, name, loop)

    def _renew(self) -> float:
        return min(self._nap, max(0.02, self._steps.step_renewal()))

    def _keep_house(self) -> float:
        self._steps.step_housekeeping()
        return self._nap


class OpeningEngine(MemoryEngine):
    """An engine that takes its time to open, and then says which leases it has read."""

    opened_at: float
    process: Process
    on_read: Callable[[str], None]

    def fetch(self, ranges: Sequence[Range], budget: Budget) -> MemoryFetch:
        kernel = self.process.kernel
        if kernel.now < self.opened_at:
            kernel.sleep(self.opened_at - kernel.now)
        fetched = super().fetch(ranges, budget)
        for lease in fetched.progress:
            self.on_read(lease)
        return fetched


@dataclass(slots=True, eq=False)
class WorkerProcess:
    """A run's process."""

    process: Process
    run: Run
    application: Application
    orchestrator: Orchestrator
    dynamodb: Client
    kinesis: Client
    sink: LakeSink
    random: Random
    nap: float
    watchdog: bool
    counts: bool
    """Whether it counts what it stores by windows."""

    on_event: Callable[[WorkerEvent], None]
    spark_seconds: float
    on_read: Callable[[str], None]
    make_bound: Callable[[], Bound] | None = None
    """Of a bounded run: what it is to read from now on."""

    bound: Bound | None = None
    make_chained: Callable[[Runtime], ChainedSink] | None = None
    """Of a sink beside which chains may be."""

    is_in_chains: bool = False
    """Whether the worker decides its batches there."""

    opened_at: float = 0.0
    """When its Spark is there."""

    queue: DeliveryQueue = field(default_factory=DeliveryQueue)
    worker: Worker[list[Row]] | None = None
    reason: StopReason | None = None
    """Why it stopped, where its process did not end before."""

    ended_at: float = 0.0

    def main(self) -> None:
        """As `orchestration.worker_job` does it."""
        rival = self.orchestrator.rival(self.run)
        if rival is not None:
            self._exit(f"slot {self.run.slot} is served by {rival.worker}")
            return
        runtime = runtime_of(self.process, self.random)
        self.bound = None if self.make_bound is None else self.make_bound()
        self.opened_at = self.process.kernel.now + self.spark_seconds
        self._deliver(runtime)
        chained = None if self.make_chained is None else self.make_chained(runtime)
        try:
            opened = open_surroundings(
                self.application,
                dynamodb=self.dynamodb,
                kinesis=self.kinesis,
                engine=self._engine(runtime),
                sink=None if self.is_in_chains else self.sink,
                chains=chained if self.is_in_chains else None,
                runtime=runtime,
                watches=(Latest(self._run_is_over, self._ask_apart).ask,) if self.watchdog else (),
                on_event=self._event,
                is_ready=lambda: self.process.kernel.now >= self.opened_at,
                bound=self.bound,
            )
            surroundings = replace(opened, windows=FixedWindows(WINDOW_SECONDS) if self.counts else None)
            identity = Identity(self.run.worker, self.run.slot, self.run.id)
            self.worker = Worker(
                surroundings,
                identity,
                runtime,
                background=lambda steps, _: Strands(self.process, self.nap, steps),
                for_each=one_by_one,
            )
            reason = self.reason = self._work(self.worker)
        except KclError as error:
            self._exit(f"{type(error).__name__}: {error}")
            return
        self._exit(f"stopped: {reason}")

    def _engine(self, runtime: Runtime) -> OpeningEngine:
        engine = OpeningEngine(self.kinesis, runtime, limits=self._limits())
        engine.opened_at, engine.process, engine.on_read = self.opened_at, self.process, self.on_read
        return engine

    def _deliver(self, runtime: Runtime) -> None:
        """Events go to Dagster's storage as `orchestration.run_event_log` sends them: through a queue with one
        strand."""
        kernel = self.process.kernel
        queue = self.queue = DeliveryQueue(runtime.clock, new_lock=runtime.new_lock)  # type: ignore[arg-type]
        idle = []

        def deliver() -> None:
            while True:
                pause = queue.step()
                if pause >= IDLE_SECONDS:
                    idle.append(strand)
                    kernel.wait()
                else:
                    kernel.sleep(pause)

        def wake() -> None:
            if idle:
                kernel.wake(idle.pop())

        strand = kernel.spawn(self.process, EVENTS, deliver)
        queue.woken = wake

    def _event(self, event: WorkerEvent) -> None:
        self.on_event(event)
        self.queue.offer(str(event.kind), lambda: self.orchestrator.storage.call(self.process))

    def _ask_apart(self, question: Callable[[], None]) -> None:
        if self.orchestrator.storage.is_well:
            question()
        else:
            self.process.kernel.spawn(self.process, QUESTION, question)

    def _limits(self) -> ShardLimits:
        """Those of the service, stretched like everything else. Shards without records are not read more seldom:
        less would happen in a seed."""
        reads = READS_PER_SECOND * NAP_SECONDS / self.nap
        return ShardLimits(reads_per_second=reads, idle_seconds=self.nap, quiet_seconds=0.0)

    def _work(self, worker: Worker[list[Row]]) -> StopReason:
        """`Worker.run`, but while it is idle, it looks for new leases less often, which saves time."""
        worker.start()
        try:
            with Strands(self.process, self.nap, worker):
                try:
                    while not worker.stop.is_requested():
                        worker.step_round(2 * self.nap)
                finally:
                    worker.protocol.close()
        finally:
            worker.shut_down()
        return worker.stop.reason or StopReason.ASKED

    def ask_to_stop(self) -> None:
        if self.worker is not None:
            self.worker.stop.request(StopReason.ASKED, "terminated")
        else:
            self.process.kill()

    def _exit(self, said: str) -> None:
        self.run.exit = said
        self.process.kernel.note("exit", f"{self.process.name}: {said}")
        self.process.end()

    def _run_is_over(self) -> str | None:
        self.orchestrator.storage.call(self.process)
        return f"run {self.run.id} is over" if self.run.is_over else None


@dataclass(slots=True, eq=False)
class Daemon:
    """A Dagster daemon whose sensor leads. Restarted after it was killed, without memory. Also the part of a
    bounded run that leads, until the run is over."""

    name: str
    process: Process
    application: Application
    orchestrator: Orchestrator
    dynamodb: Client
    kinesis: Client
    random: Random
    identity: str
    interval: float
    on_report: Callable[[TickReport], None]
    is_over: Callable[[], bool] = lambda: False
    leader: Leader | None = None
    asked: list[tuple[Launch, ...]] = field(default_factory=list)
    """What earlier ticks wanted, to be wanted again by a replay."""

    def main(self) -> None:
        kernel = self.process.kernel
        kernel.sleep(self.random.uniform(0, self.interval))
        is_last = False
        while not is_last:
            is_last = self.is_over()
            began = kernel.now
            self._tick()
            spent = kernel.now - began
            kernel.sleep(max(self.interval - spent, 0.1))
        self._resign()

    def _resign(self) -> None:
        try:
            if self.leader is not None:
                self.leader.resign()
        except KclError as error:
            self.process.kernel.note("leader", f"{self.name} could not resign: {error}")
        self.process.end()

    def _tick(self) -> None:
        kernel = self.process.kernel
        began = kernel.now
        try:
            if self.leader is None:
                self.leader = open_leader(
                    self.application,
                    dynamodb=self.dynamodb,
                    kinesis=self.kinesis,
                    identity=self.identity,
                    runtime=runtime_of(self.process, self.random),
                    parallel=map,
                )
        except KclError as error:
            kernel.note("leader", f"{self.name} cannot lead yet: {error}")
            return
        try:
            self.orchestrator.storage.call(self.process)
        except StorageAway as error:
            kernel.note("dagster", f"no tick of {self.name}: {error}")
            return
        runs = self.orchestrator.view()
        report = self.leader.tick(runs)
        self.on_report(report)
        for slot in report.retire:
            run = runs.slots.get(slot)
            if run is not None and run.status == "queued":
                self.orchestrator.cancel_queued(slot)
        for run_id in report.abandoned:
            self.orchestrator.report_failed(run_id)
        if kernel.now - began > TICK_TIMEOUT:
            kernel.note("dagster", f"the tick of {self.name} took too long; what it asked for is dropped")
            return
        if report.launches:
            self.asked.append(report.launches)
            self.request(report.launches)

    def request(self, launches: Iterable[Launch]) -> None:
        for launch in launches:
            self.orchestrator.request(f"{self.application.name}/{launch.slot}/{launch.generation}", launch.slot)
