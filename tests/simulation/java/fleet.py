"""Java workers in a simulated fleet: when they come and go."""

from typing import TYPE_CHECKING, Final

from tests.simulation.java.tables import Place, Tables
from tests.simulation.java.worker import JavaSettings, JavaWorker
from tests.simulation.kernel import Process, ProcessClock
from tests.simulation.scenario import EPOCH, JavaStint, Scenario

if TYPE_CHECKING:
    from tests.simulation.fleet import Simulation

# The KCL's defaults, in seconds, before stretching.
LOCK: Final = 120.0
LOCK_HEARTBEAT: Final = 30.0
REPORT: Final = 30.0
CLEANUP: Final = 60.0
PARENT_POLL: Final = 10.0
IDLE: Final = 1.0
LOOKS_FOR_TABLES: Final = 5.0
# Ours are given this long to stop before they are killed.
GRACE: Final = 60.0


class JavaFleet:
    """Java processes wait until the tables are there: ours make them."""

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self.workers: list[JavaWorker] = []
        self.names: dict[Process, str] = {}

    def living(self) -> list[JavaWorker]:
        return [worker for worker in self.workers if worker.process.is_alive]

    def schedule(self, stints: tuple[JavaStint, ...]) -> None:
        kernel = self._simulation.kernel
        for stint in stints:
            kernel.call_at(stint.begins, lambda stint=stint: self._begin(stint))  # type: ignore[misc]

    def _begin(self, stint: JavaStint) -> None:
        this = self._simulation
        lease_table = this.scenario.application.lease_table
        if lease_table not in this.tables.tables or not this.ledger.leases:
            if this.kernel.now < this.scenario.active:
                this.kernel.call_at(
                    this.kernel.now + LOOKS_FOR_TABLES * this.scenario.stretch, lambda: self._begin(stint)
                )
            return
        started = [self._start(stint) for _ in range(stint.workers)]
        if stint.alone:
            self._stop_ours()
        if stint.ends is not None:
            this.kernel.call_at(stint.ends, lambda: self._end(started, stint))

    def _end(self, started: list[JavaWorker], stint: JavaStint) -> None:
        this = self._simulation
        for worker in started:
            worker.stop()
            this.kernel.call_at(this.kernel.now + GRACE * this.scenario.stretch, worker.process.kill)
        if stint.alone and this.kernel.now < this.scenario.active:
            for deployment in range(this.scenario.deployments):
                this.restarts += 1
                this.start_daemon(deployment, 0)

    def _stop_ours(self) -> None:
        this = self._simulation
        for daemon in this.daemons:
            daemon.process.kill()
        for worker in this.living():
            this.effects.terminate(worker.process, GRACE * this.scenario.stretch)

    def _start(self, stint: JavaStint) -> JavaWorker:
        this = self._simulation
        name = f"java-{len(self.workers)}"
        process = this.process(name)
        random = this.random(name)
        worker = JavaWorker(
            name,
            process,
            Tables(process, this.line(process, "dynamodb", "java"), random, *_places(this.scenario)),
            this.line(process, "kinesis", "java"),
            this.streams.names[0],
            _settings(this.scenario, stint),
            random,
            ProcessClock(process, EPOCH),
            lambda shard, rows: this.lake.deliver(this.streams.names[0], shard, rows),
        )
        self.workers.append(worker)
        self.names[process] = name
        this.fleet_changed = this.kernel.now
        process.on_end(self._ended)
        this.kernel.spawn(process, "main", worker.main)
        return worker

    def _ended(self) -> None:
        self._simulation.fleet_changed = self._simulation.kernel.now


def _places(scenario: Scenario) -> tuple[Place, Place, Place]:
    """Of leases, worker rows and the lock."""
    application = scenario.application
    leases = Place(application.lease_table, "leaseKey")
    if not scenario.legacy_tables:
        return leases, leases, leases
    workers = Place(f"{application.name}-WorkerMetricStats", "wid")
    return leases, workers, Place(f"{application.name}-CoordinatorState", "key")


def _settings(scenario: Scenario, stint: JavaStint) -> JavaSettings:
    timings, stretch = scenario.application.timings, scenario.stretch
    return JavaSettings(
        failover=timings.lease_duration,
        handoff=timings.handoff_timeout,
        lock=LOCK * stretch,
        lock_heartbeat=LOCK_HEARTBEAT * stretch,
        report=REPORT * stretch,
        cleanup=CLEANUP * stretch,
        idle=IDLE * stretch,
        parent_poll=PARENT_POLL * stretch,
        discovery=timings.lease_duration,
        variance=stint.variance,
        most_records=scenario.application.batch.max_records,
        checkpoint_one_in=2,
    )
