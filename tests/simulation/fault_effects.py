"""Applies faults to a fleet, and changes to its tables by hand. Implements `active_faults.Fleet`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tests.doubles.dynamodb.values import Item
from tests.simulation.chained import Remade
from tests.simulation.consumer import Change
from tests.simulation.faults import FaultKind
from tests.simulation.kernel import Process
from tests.simulation.ledger import OURS

if TYPE_CHECKING:
    from tests.simulation.fleet import Simulation

_MEMORY_KEY: Final = "kdLeaderMemory"
_SLOW_STORAGE_SECONDS: Final = 3.0


class FaultEffects:
    """Applies faults. The numbers select one of the processes or rows that exist at that moment."""

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation

    # Processes

    def worker(self, number: int) -> Process | None:
        this = self._simulation
        living = [worker.process for worker in this.living()] + [java.process for java in this.java.living()]
        return living[number % len(living)] if living else None

    def daemon(self, number: int) -> Process | None:
        living = [daemon for daemon in self._simulation.daemons if daemon.process.is_alive]
        return living[number % len(living)].process if living else None

    def restart_daemon(self, process: Process, after: float) -> None:
        this = self._simulation
        dead = next(daemon for daemon in this.daemons if daemon.process is process)
        deployment = this.orchestrators.index(dead.orchestrator)

        def restart() -> None:
            if this.kernel.now < this.scenario.active:
                this.restarts += 1
                this.start_daemon(deployment, this.restarts)

        this.kernel.call_at(this.kernel.now + after, restart)

    def end_others(self, process: Process) -> None:
        """Kill all workers but one."""
        for worker in self._simulation.living():
            if worker.process is not process:
                worker.process.kill()

    def terminate(self, process: Process, grace: float) -> None:
        this = self._simulation
        for java in this.java.living():
            if java.process is process:
                java.stop()
        for worker in this.workers:
            if worker.process is process:
                worker.ask_to_stop()
        this.kernel.call_at(this.kernel.now + grace, process.kill)

    # The orchestrator

    def fail_run(self, number: int) -> None:
        living = [worker for worker in self._simulation.living() if not worker.run.is_over]
        if living:
            worker = living[number % len(living)]
            worker.orchestrator.finish(worker.run, "Dagster takes it for failed")

    def second_run(self, number: int) -> None:
        living = self._simulation.living()
        if living:
            worker = living[number % len(living)]
            worker.orchestrator.launch(worker.run.slot)

    def replay_tick(self, number: int) -> None:
        asked = [(daemon, launches) for daemon in self._simulation.daemons for launches in daemon.asked]
        if asked:
            daemon, launches = asked[number % len(asked)]
            daemon.request(launches)

    def skip_ticks(self, seconds: float) -> None:
        """No daemon does anything for a while."""
        for daemon in self._simulation.daemons:
            if daemon.process.is_alive:
                daemon.process.pause(seconds)

    def outage(self, seconds: float) -> None:
        """The whole fleet stands still, machines and all; the streams do not."""
        this = self._simulation
        for process in this.processes():
            process.pause(seconds, suspend=True)
        for orchestrator in this.orchestrators:
            orchestrator.hold_back(seconds)

    def stall_queue(self, seconds: float) -> None:
        """Runs that are asked for wait."""
        for orchestrator in self._simulation.orchestrators:
            orchestrator.hold_back(seconds)

    def stall_one_queue(self, number: int, seconds: float) -> None:
        """Runs that one deployment asks for wait."""
        orchestrators = self._simulation.orchestrators
        orchestrators[number % len(orchestrators)].hold_back(seconds)

    def spoil_storage(self, number: int, kind: FaultKind, seconds: float) -> None:
        """The database of one deployment is away, or slow, for a while."""
        this = self._simulation
        storage, kernel = this.orchestrators[number % len(this.orchestrators)].storage, this.kernel
        if kind is FaultKind.STORAGE_SLOW:
            storage.slow_seconds = _SLOW_STORAGE_SECONDS * this.scenario.stretch
        elif kind is FaultKind.STORAGE_HANGS:
            storage.hangs_until = kernel.now + seconds
        else:
            storage.raises = True
        kernel.call_at(kernel.now + seconds, storage.mend)

    def deploy(self, number: int, grace: float) -> None:
        """Another version of the consumer's code. Workers of the former version are asked to stop, and those that
        are left after `grace` seconds are killed, before a worker with the new version can start."""
        this = self._simulation
        change = list(Change)[number % len(Change)]

        def is_rolled_out() -> None:
            this.code = this.code.changed(change)
            this.kernel.note("deploy", str(change))

        self._replace_workers(grace, is_rolled_out)

    def upgrade(self, grace: float) -> None:
        """Workers of a former version, which decide their batches in leases, are replaced by workers that decide
        them in chains, as in a deploy."""
        this = self._simulation

        def is_changed() -> None:
            this.is_in_chains = this.scenario.chained is not None
            this.kernel.note("deploy", "batches in chains")

        self._replace_workers(grace, is_changed)

    def change_lease_duration(self, number: int, seconds: float) -> None:
        """Deploy another lease duration. The daemons and one worker are started again with it, and the other
        workers go on with the former one. Once the new worker has started, no daemon does anything for `seconds`.
        """
        this = self._simulation
        if this.scenario.lease_durations is not None:
            _, this.lease_duration = this.scenario.lease_durations
            this.kernel.note("deploy", f"lease duration {this.lease_duration:.0f} s")
        for daemon in [daemon for daemon in this.daemons if daemon.process.is_alive]:
            daemon.process.kill()
            this.restarts += 1
            this.start_daemon(this.orchestrators.index(daemon.orchestrator), this.restarts)
        living = this.living()
        if living:
            living[number % len(living)].ask_to_stop()
        this.kernel.call_at(this.kernel.now + this.scenario.replacing_seconds, lambda: self.skip_ticks(seconds))

    def _replace_workers(self, grace: float, change: Callable[[], None]) -> None:
        this = self._simulation

        def roll_out() -> None:
            for worker in this.living():
                worker.process.kill()
            change()

        for worker in this.living() if grace else ():
            worker.ask_to_stop()
        this.kernel.call_at(this.kernel.now + grace, roll_out)

    def mend_code(self) -> None:
        """Deploy a version that the lake accepts, if the current one is refused."""
        if not self._simulation.code.is_sound:
            self.deploy(list(Change).index(Change.VALUES), 0.0)

    # Rows

    def put(self, table: str, item: Item) -> None:
        self._by_hand(lambda: _done(self._simulation.tables.put_item(TableName=table, Item=item)))

    def _delete(self, table: str, key: str, value: str) -> None:
        tables = self._simulation.tables
        self._by_hand(lambda: _done(tables.delete_item(TableName=table, Key={key: {"S": value}})))

    def _by_hand(self, action: Callable[[], None]) -> None:
        this = self._simulation
        acting, this.kernel.acting = this.kernel.acting, None
        this.ledger.by_hand = True
        try:
            action()
        finally:
            this.ledger.by_hand = False
            this.kernel.acting = acting

    def _memory_table(self) -> tuple[str, str]:
        scenario = self._simulation.scenario
        if scenario.legacy_tables:
            return f"{scenario.application.name}-CoordinatorState", "key"
        return scenario.application.lease_table, "leaseKey"

    def lose_memory(self) -> None:
        table, key = self._memory_table()
        if table in self._simulation.tables.tables:
            self._delete(table, key, _MEMORY_KEY)

    def replay_memory(self, number: int) -> None:
        table, _ = self._memory_table()
        memories = self._simulation.memories
        if memories and table in self._simulation.tables.tables:
            self.put(table, memories[number % len(memories)])

    def delete_lease(self, number: int) -> None:
        this = self._simulation
        keys = sorted(this.ledger.leases)
        if keys:
            lease = this.ledger.leases[keys[number % len(keys)]]
            this.lake.repeats(this.stream_of(lease.stream)[0], lease.shard if len(keys) > 1 else None)
            self._delete(this.scenario.application.lease_table, "leaseKey", lease.key)

    def delete_row(self, number: int) -> None:
        this = self._simulation
        living = this.living()
        if living:
            legacy = this.scenario.legacy_tables
            name = this.scenario.application.name
            table = f"{name}-WorkerMetricStats" if legacy else this.scenario.application.lease_table
            if table in this.tables.tables:
                key = "wid" if legacy else "leaseKey"
                self._delete(table, key, living[number % len(living)].run.worker)

    def lose_table(self) -> None:
        """All rows of the fleet leave the lease table, as where it is deleted and made anew. The lake stays."""
        this = self._simulation
        name = this.scenario.application.lease_table
        if name not in this.tables.tables:
            return
        for stream in this.streams.names:
            this.lake.repeats(stream, None)
        for item in list(this.tables.tables[name].items.values()):
            if item.get("entityType", {"S": "LEASE"})["S"] in OURS:
                self._delete(name, "leaseKey", item["leaseKey"]["S"])

    # Streams

    def quiet(self, seconds: float) -> None:
        streams = self._simulation.streams
        streams.quiet_until = max(streams.quiet_until, self._simulation.kernel.now + seconds)

    def split(self) -> None:
        self._simulation.streams.split()

    def split_twice(self) -> None:
        self._simulation.streams.split_twice()

    def merge(self) -> None:
        self._simulation.streams.merge()

    def recreate(self) -> None:
        self._simulation.streams.recreate()

    def shorten_retention(self) -> None:
        self._simulation.streams.shorten_retention()

    # Operators

    def drain_all(self) -> None:
        self._simulation.operators.drain_all()

    def reset(self, seconds: float) -> None:
        self._simulation.operators.reset(seconds)

    def remake_table(self, number: int, seconds: float) -> None:
        self._simulation.operators.remake_table(list(Remade)[number % len(Remade)], seconds)


def _done(_answer: object) -> None:
    """Whatever the table says."""
