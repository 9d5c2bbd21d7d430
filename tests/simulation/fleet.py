"""One run: the whole fleet, its surroundings, and the judges."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final
from zlib import crc32

from kcl_dagster.application import Application
from kcl_dagster.emulator.kinesis import Limits
from kcl_dagster.errors import ProcessLost
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stored import unpacked
from kcl_dagster.model.worker_row import BOUNDED_SLOT
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.lock import STANDBY
from kcl_dagster.worker.bound import PATIENCE_SECONDS, Bound
from kcl_dagster.worker.events import EventKind, WorkerEvent
from kcl_dagster.worker.stop import StopReason
from tests.doubles.dynamodb import FakeDynamoDB
from tests.doubles.dynamodb.table import Key, Table
from tests.doubles.dynamodb.values import Item
from tests.simulation import epilogue, leftovers, liveness
from tests.simulation.active_faults import ActiveFaults
from tests.simulation.bucket import Bucket
from tests.simulation.chained_lake import ChainedLake
from tests.simulation.chained_sink import ChainedSink, destinations_of
from tests.simulation.consumer import FIRST_VERSION, CodeVersion
from tests.simulation.dagster import Orchestrator, Run
from tests.simulation.fault_effects import FaultEffects
from tests.simulation.java.fleet import JavaFleet
from tests.simulation.kernel import Kernel, Process, Strand, Stuck
from tests.simulation.lake import Lake, LakeSink, ShardTruth
from tests.simulation.ledger import LeaseRow, Ledger, is_lease, read_lease
from tests.simulation.network import Line, Sdk, Service
from tests.simulation.operators import Operators
from tests.simulation.processes import EVENTS, NAP_SECONDS, QUESTION, Daemon, WorkerProcess
from tests.simulation.properties import Violation, Violations
from tests.simulation.reading import ReadingWatch, check_readers
from tests.simulation.scenario import EPOCH, Scenario, Schedule
from tests.simulation.streams import FaultyKinesis, Streams
from tests.simulation.trace import Trace
from tests.simulation.volume import LogLines, Volume

_MEMORIES_KEPT: Final = 8
# After the faults, records come in for this part of the calm.
_PRODUCING_SHARE: Final = 0.4
# In which a fleet that is behind stores at least one record more, once its shards are read; before stretching.
_SHRINKING_SECONDS: Final = 60.0
FOREIGN_ROW: Final[Item] = {
    "leaseKey": {"S": "some-foreign-row"},
    "entityType": {"S": "STREAM"},
    "streamId": {"S": "do not touch"},
}


class _TrueClock:
    """The clock of the services."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def now(self) -> float:
        return EPOCH + self._kernel.now

    def monotonic(self) -> float:
        return self._kernel.now

    def sleep(self, seconds: float) -> None:
        raise AssertionError(f"a service does not wait {seconds} s")


class _Tables(FakeDynamoDB):
    """Tells of every change before anybody can see it."""

    on_change: Callable[[str, Item | None, Item | None], None]

    def _store(self, table: Table, key: Key, item: Item | None) -> None:
        old = table.items.get(key)
        super()._store(table, key, item)
        self.on_change(table.name, old, item)


@dataclass(slots=True)
class Outcome:
    """What became of a run."""

    scenario: Scenario
    violations: list[Violation]
    simulated: float
    steps: int
    digest: int
    records: int
    counts: dict[str, int]
    lines: list[str]

    @property
    def ok(self) -> bool:
        return not self.violations


@dataclass(slots=True, eq=False)
class Simulation:
    """Made from a scenario, run once."""

    scenario: Scenario
    trace: Trace = field(default_factory=Trace)
    kernel: Kernel = field(init=False)
    violations: Violations = field(init=False)
    lake: Lake = field(init=False)
    ledger: Ledger = field(init=False)
    tables: _Tables = field(init=False)
    streams: Streams = field(init=False)
    active_faults: ActiveFaults = field(init=False)
    effects: FaultEffects = field(init=False)
    java: JavaFleet = field(init=False)
    operators: Operators = field(init=False)
    reading: ReadingWatch = field(init=False)
    volume: Volume = field(init=False)
    orchestrators: list[Orchestrator] = field(default_factory=list)
    daemons: list[Daemon] = field(default_factory=list)
    workers: list[WorkerProcess] = field(default_factory=list)
    reports: list[tuple[float, TickReport]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    fleet_changed: float = 0.0
    epilogue_begins: bool = False
    memories: list[Item] = field(default_factory=list)
    restarts: int = 0
    code: CodeVersion = FIRST_VERSION
    """What a worker has that starts now."""

    is_in_chains: bool = False
    """Whether a worker that starts now decides its batches in chains."""

    lease_duration: float = field(init=False)
    """What a process has that starts now."""

    _durations: dict[str, float] = field(default_factory=dict)
    """The lease duration with which each worker began."""

    _rows: dict[str, LeaseRow] = field(default_factory=dict)
    """Every lease that ever was, as it was created."""

    _has_guest: bool = False
    _calls: int = 0

    def __post_init__(self) -> None:
        scenario = self.scenario
        self.lease_duration = (scenario.lease_durations or (scenario.application.timings.lease_duration,))[0]
        self.kernel = kernel = Kernel(self._note)
        kernel.on_strand_end = self._strand_ended
        self.violations = Violations(lambda: kernel.now)
        clock = _TrueClock(kernel)
        self.lake = self._make_lake(clock)
        lag = self.random("staleness")
        self.tables = _Tables(
            clock,
            page_items=scenario.page_items,
            staleness=lambda operation: self._staleness(operation, lag),
            strict=False,
        )
        self.tables.on_change = self._changed
        kinesis = FaultyKinesis(clock, _generous(), lambda: self.active_faults.read_faults, self.random("moods"))
        self.streams = Streams(
            kernel,
            kinesis,
            self.lake,
            self.random("streams"),
            scenario.record_seconds,
            tuple(stream.name for stream in scenario.application.streams),
            scenario.retention_hours,
        )
        self.lake.expired = self.streams.expired
        timings = scenario.application.timings
        self.operators = Operators(self)
        self.ledger = Ledger(
            self.violations,
            lambda: kernel.now,
            lambda worker: self._durations.get(worker, timings.lease_duration),
            timings.handoff_timeout,
            self._run_is_over,
            self._worker_of,
            self._shard_ended,
            self._is_given_up,
            self.is_former,
            lambda actor: actor in self.java.names,
            self._leads_as,
            self.operators.is_operator,
        )
        self.effects = FaultEffects(self)
        self.java = JavaFleet(self)
        self.reading = ReadingWatch(self)
        self.volume = Volume(self.violations, lambda: kernel.now)
        self.active_faults = ActiveFaults(kernel, self.effects, scenario.seed, scenario.stretch)

    def _make_lake(self, clock: _TrueClock) -> Lake:
        scenario = self.scenario
        goes_on = scenario.application.batch.on_data_loss == "continue"
        self.is_in_chains = scenario.chained is not None and not scenario.chained.is_upgraded
        if scenario.chained is None:
            return Lake(self.violations, goes_on)
        return ChainedLake(
            self.violations,
            goes_on,
            bucket=Bucket(clock.now, scenario.page_items),
            tables=scenario.chained.tables,
            row_of=self._row_of,
            truth_of=self.truth_of,
            application=scenario.application.name,
        )

    def _row_of(self, key: str) -> LeaseRow | None:
        return self.ledger.leases.get(key)

    def run(self) -> Outcome:
        scenario, kernel = self.scenario, self.kernel
        handlers = (_Mistakes(self.violations), LogLines(self.volume, self._acting))
        logger = logging.getLogger("kcl_dagster")
        for handler in handlers:
            logger.addHandler(handler)
        propagates, logger.propagate = logger.propagate, False
        simulated = 0.0
        try:
            self._open()
            self.active_faults.schedule(scenario.faults)
            self.java.schedule(scenario.java)
            kernel.call_at(scenario.active, self._calm_down)
            kernel.call_at(scenario.active + scenario.calm * _PRODUCING_SHARE, self._stop_producing)
            kernel.run(scenario.until, self.violations.found)
            self._catch_up()
            if any(worker.bound is not None for worker in self.living()):  # may just have stored the last records
                kernel.run(kernel.now + self.reading.patience, self.violations.found)
            if not self.violations.found:
                liveness.check(self)
            self.epilogue_begins = True
            if not self.violations.found:
                epilogue.play(self)
            simulated = kernel.now
            if not self.violations.found:
                leftovers.check(self)
        except Stuck as stuck:
            self.violations.add("X1", str(stuck))
        finally:
            for handler in handlers:
                logger.removeHandler(handler)
            logger.propagate = propagates
        simulated = simulated or kernel.now
        self.counts["call"] = self._calls
        for process in self.processes():
            process.kill()
        return Outcome(
            scenario,
            self.violations.found,
            simulated,
            kernel.steps,
            crc32(f"{kernel.digest}".encode(), self.trace.digest),
            self.lake.records,
            self.counts,
            list(self.trace.lines),
        )

    def _catch_up(self) -> None:
        """Small budgets may take longer than the calm lasts. What counts is that the rest shrinks, also if the only
        worker ends in between and another one is launched."""
        behind = self.lake.behind()
        found = self.violations.found
        seconds = self.reading.patience + _SHRINKING_SECONDS * self.scenario.stretch
        if self.scenario.schedule is not None:  # a run gives up, and the next one begins
            seconds += self.scenario.schedule.seconds + PATIENCE_SECONDS * self.scenario.stretch
        while behind and not found:
            self.kernel.run(self.kernel.now + seconds, found)
            before, behind = behind, self.lake.behind()
            if behind >= before:
                return

    @property
    def _has_daemons(self) -> bool:
        schedule = self.scenario.schedule
        return schedule is None or not schedule.leads

    # Opening

    def _open(self) -> None:
        scenario = self.scenario
        self.streams.open(scenario.shards, scenario.history)
        if scenario.legacy_tables:
            for table, key in (("CoordinatorState", "key"), ("WorkerMetricStats", "wid")):
                self._create_table(f"{scenario.application.name}-{table}", key)
        for deployment in range(scenario.deployments):
            self._add_deployment()
            for number in range(scenario.daemons if self._has_daemons else 0):
                self.start_daemon(deployment, number)

        if scenario.schedule is not None:
            self._launch_bounded(scenario.schedule)

    def _launch_bounded(self, schedule: Schedule) -> None:
        """As `orchestration.catch_up` schedules it."""
        dagster, kernel = self.orchestrators[0], self.kernel
        if all(run.is_over for run in dagster.runs.values() if run.slot == BOUNDED_SLOT):
            dagster.launch(BOUNDED_SLOT)
        kernel.call_at(kernel.now + schedule.seconds, lambda: self._launch_bounded(schedule))

    def _start_leading(self, worker: WorkerProcess) -> None:
        """The part of a bounded run that leads. It is a process of its own here, and ends with that of the run."""
        run, scenario = worker.run, self.scenario
        name = f"leads {run.worker}"
        process, random = self.process(name), self.random(name)
        leading = Daemon(
            name,
            process,
            self._application(),
            worker.orchestrator,
            self.line(process, "dynamodb"),
            self.line(process, "kinesis"),
            random,
            identity=f"{STANDBY}{run.worker}",
            interval=scenario.stretch * 1.0,
            on_report=lambda report: self._reported(name, report),
            is_over=lambda: not worker.process.is_alive,
        )
        self.daemons.append(leading)
        worker.process.on_end(lambda: None if run.exit is not None else process.kill())
        self.kernel.spawn(process, "ticks", leading.main)

    def _bound(self) -> Bound:
        scenario = self.scenario
        margin = scenario.application.timings.arrival_margin
        names = [stream.name for stream in scenario.application.streams]
        return Bound(EPOCH + self.kernel.now, margin, PATIENCE_SECONDS * scenario.stretch, names)

    def _add_deployment(self) -> Orchestrator:
        scenario, deployment = self.scenario, len(self.orchestrators)
        orchestrator = Orchestrator(
            self.kernel,
            self.random(f"dagster {deployment}"),
            lambda run: self._start_worker(deployment, run),
            scenario.one_run_per_slot,
            scenario.monitor_seconds,
            scenario.pod_seconds,
            launches=scenario.schedule is None,
        )
        orchestrator.storage.on_call = self._asks_dagster
        self.orchestrators.append(orchestrator)
        return orchestrator

    def start_foreign_deployment(self) -> None:
        """Another deployment of the application, whose queue does not move."""
        self._add_deployment().held_back_until = float("inf")
        self.start_daemon(len(self.orchestrators) - 1, 0)

    def _create_table(self, name: str, key: str) -> None:
        self.tables.create_table(
            TableName=name,
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
            KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )

    def start_daemon(self, deployment: int, number: int) -> None:
        name = f"daemon-{deployment}.{number}"
        if self.restarts:
            name += f"/{self.restarts}"
        process = self.process(name)
        random = self.random(name)
        daemon = Daemon(
            name,
            process,
            self._application(),
            self.orchestrators[deployment],
            self.line(process, "dynamodb"),
            self.line(process, "kinesis"),
            random,
            identity=f"dagster:{deployment}",
            interval=self.scenario.application.timings.tick_interval + 1.0,
            on_report=lambda report: self._reported(name, report),
        )
        self.daemons.append(daemon)
        self.kernel.spawn(process, "ticks", daemon.main)

    def _start_worker(self, deployment: int, run: Run) -> Process:
        self.fleet_changed = self.kernel.now
        self._durations[run.worker] = self.lease_duration
        process = self.process(run.worker)
        random = self.random(run.worker)
        worker = WorkerProcess(
            process,
            run,
            self._application(),
            self.orchestrators[deployment],
            self.line(process, "dynamodb"),
            self.line(process, "kinesis"),
            LakeSink(
                self.lake,
                process,
                self.active_faults.sink,
                self.random(f"{run.worker} sink").random,
                lambda part: self.ledger.writes_sink(process, run.worker, part.lease),
                self.code,
            ),
            random,
            NAP_SECONDS * self.scenario.stretch,
            self.scenario.watchdog,
            self.scenario.counts,
            lambda event: self._event(run.worker, event),
            self.scenario.spark_seconds,
            self.reading.read,
            self._bound if run.slot == BOUNDED_SLOT else None,
            make_chained=None
            if self.scenario.chained is None
            else lambda runtime: self._chained_sink(process, runtime),
            is_in_chains=self.is_in_chains,
        )
        self.workers.append(worker)
        if not self._has_daemons:
            self._start_leading(worker)
        process.on_end(lambda: self._worker_ended(worker))
        self.kernel.spawn(process, "main", worker.main)
        return process

    def _chained_sink(self, process: Process, runtime: Runtime) -> ChainedSink:
        chained, lake, draw = self.scenario.chained, self.lake, self.random(f"{process.name} chains").random
        assert chained is not None
        assert isinstance(lake, ChainedLake)
        faults = self.active_faults.sink
        destinations = destinations_of(chained, self.line(process, "s3"), runtime, faults, draw)
        return ChainedSink(lake, destinations, process, faults, draw, self.code, chained.tasks)

    def _application(self) -> Application:
        """The settings of a process that starts now."""
        application = self.scenario.application
        if self.lease_duration == application.timings.lease_duration:
            return application
        timings = application.timings.model_copy(update={"lease_duration": self.lease_duration})
        return application.model_copy(update={"timings": timings})

    def process(self, name: str) -> Process:
        random = self.random(f"{name} clocks")
        skew = self.scenario.skew
        return Process(self.kernel, name, skew=random.uniform(-skew, skew), booted=random.uniform(0, 100_000))

    def line(self, process: Process, service: Service, sdk: Sdk = "botocore") -> Line:
        backend: object = self.tables if service == "dynamodb" else self.streams.kinesis
        if service == "s3" and isinstance(self.lake, ChainedLake):
            backend = self.lake.backend
        random = self.random(f"{process.name} {service}")
        pages = self.scenario.page_seconds
        return Line(process, service, backend, random, self.active_faults.fate, self._served, sdk, pages)

    def _staleness(self, operation: str, lag: Random) -> float:
        usual = lag.uniform(0, self.scenario.staleness)
        return max(usual, self.active_faults.index_lag) if operation == "query" else usual

    def random(self, what: str) -> Random:
        return Random(f"{self.scenario.seed} {what}")

    # Watching

    def _note(self, now: float, kind: str, text: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.trace.note(now, kind, text)

    def _served(self, process: Process, service: str, operation: str, request: dict[str, Any], answer: Any) -> None:
        self._calls += 1
        if self.trace.keep:
            text = _call_text(process, service, operation, request, answer)
            self.trace.detail(self.kernel.now, "call", lambda: text)
        self.active_faults.served(process, operation, request)

    def _changed(self, table: str, old: Item | None, new: Item | None) -> None:
        some = new or old or {}
        kind = some.get("entityType", {}).get("S")
        if kind == "KD_LEADER_MEMORY" and old is not None:
            self.memories = [*self.memories, old][-_MEMORIES_KEPT:]
        if kind == "LEADER":
            self.ledger.lock_changed(old, new, self.kernel.acting)
        if kind == "KD_COMPLETE" and new is not None:
            self._completed(old or {}, new)
        if kind == "KD_START_POSITION" and new is not None and old is None:
            self._begun(new)
        if table == self.scenario.application.lease_table:
            self.ledger.changed(old, new, self.kernel.acting)
            if new is not None and old is None and is_lease(new):
                row = self._rows[new["leaseKey"]["S"]] = read_lease(new)
                self.truth_of(row).is_leased = True
            if new is not None and "kdStored" in new and is_lease(new) and not _counts_as_before(old, new):
                self._counted(new)
            if isinstance(self.lake, ChainedLake) and new is not None and is_lease(new):
                self._check_checkpoint(self.lake, old, new)
            if self.operators.is_operator(self.kernel.acting) and is_lease(some):
                moved = read_lease(some)
                self.lake.repeats(self.stream_of(moved.stream)[0], moved.shard)
                if old is not None and new is not None and moved.checkpoint < read_lease(old).checkpoint:
                    truth = self.truth_of(moved)
                    truth.is_put_back, truth.given_up_to = True, 0
            if not self._has_guest:
                self._has_guest = True
                self.effects.put(table, FOREIGN_ROW)

    def _counted(self, item: Item) -> None:
        """A lease that was counted from its first record on has as many rows as there are records behind it."""
        row = read_lease(item)
        counts = unpacked(item["kdStored"]["B"])
        at = Checkpoint(item["checkpoint"]["S"], int(item.get("checkpointSubSequenceNumber", {"N": "0"})["N"]))
        if counts is None or not counts.whole or not counts.is_of(at) or self.is_former(row.stream):
            return
        truth = self.truth_of(row)
        if truth.is_repeated or truth.is_shared or truth.is_told:
            return
        if truth.start_limit is not None:  # LATEST: with the first part it is known which records are wanted
            return
        rows, behind = (
            sum(one.rows for one in counts.windows),
            min(truth.index_after(at), truth.stored_to) - truth.wanted_from,
        )
        if rows != behind:
            self.violations.add("S17", f"{truth.name} counts {rows} rows, and {behind} are stored through {at}")

    def _check_checkpoint(self, lake: ChainedLake, old: Item | None, new: Item) -> None:
        if old is not None and old["checkpoint"] == new["checkpoint"]:
            return
        row = self.ledger.leases[new["leaseKey"]["S"]]
        if not (self.is_former(row.stream) or self.ledger.by_hand):
            lake.check_checkpoint(row)

    def _completed(self, old: Item, new: Item) -> None:
        """Through a moment was written. Within an epoch it never falls, and epochs only grow."""
        before, after = (_number(old, "kdEpoch"), _number(old, "kdThrough")), _number(new, "kdThrough")
        epoch = _number(new, "kdEpoch") or 0
        if epoch < (before[0] or 0) or (epoch == before[0] and (after or 0) < (before[1] or 0)):
            self.violations.add("S16", f"it was {before[1]} in epoch {before[0]}, and is {after} in epoch {epoch}")
        if after is not None and epoch == (before[0] or 0):
            self.lake.is_said_complete(after)

    def _begun(self, row: Item) -> None:
        stream = row["stream"]["S"]
        if row["position"]["S"] == "LATEST":
            self.streams.begin_now(stream.split(":")[1] if ":" in stream else stream)

    def stream_of(self, text: str | None) -> tuple[str, int | None]:
        """The name and the second of creation of the stream that a lease names, or the only one's."""
        if not text:
            return self.streams.names[0], None
        _, name, created = text.split(":")
        return name, int(created)

    def truth_of(self, lease: LeaseRow) -> ShardTruth:
        name, created = self.stream_of(lease.stream)
        if (name, created) not in self.lake.former and (name, lease.shard) not in self.lake.shards:
            self.streams.look(name)
        return self.lake.truth(name, lease.shard, created)

    def _shard_ended(self, lease: LeaseRow) -> None:
        """SHARD_END was written."""
        truth = self.truth_of(lease)
        if not truth.is_drained and not self.lake.is_excused(truth):
            left = len(truth.numbers) - truth.stored_to
            self.violations.add("S1", f"{truth.name} is finished with {left} records not stored")

    def _is_given_up(self, lease: LeaseRow) -> bool:
        """An unfinished lease may be deleted where nothing of its shard is left."""
        if self.is_former(lease.stream):
            return True
        truth = self.truth_of(lease)
        return self.lake.is_excused(truth) or (self.lake.goes_on and self.lake.is_gone(truth))

    def is_former(self, stream: str | None) -> bool:
        """Whether the stream that a lease names was deleted."""
        return self.stream_of(stream) in self.lake.former

    def _reported(self, daemon: str, report: TickReport) -> None:
        self.reports.append((self.kernel.now, report))
        liveness.check_stages(self.violations, daemon, report)
        check_readers(self.violations, daemon, report)
        if report.retire or report.launches or any(sight.drains for sight in report.workers):
            self.fleet_changed = self.kernel.now
        for loss in report.data_loss:
            self._told(loss.lease, None)
        failed = "; ".join(report.problems)
        moves = ", ".join(f"{move.lease} -> {move.to} ({move.kind}: {move.because})" for move in report.moves)
        said = "leads" if report.leading else f"sees {report.leader} lead"
        self._note(self.kernel.now, "tick", f"{daemon} {said} [{moves}] {failed} {report.skipped or ''}")

    def _told(self, key: str, until: str | None) -> None:
        if key in self._rows:
            self.lake.told(self.truth_of(self._rows[key]), until)

    def _event(self, worker: str, event: WorkerEvent) -> None:
        self.volume.event(worker, str(event.kind), event.lease)
        if event.kind is EventKind.DATA_LOST and event.lease is not None:
            until = str(event.facts.get("until", "")) or None
            self._check_loss(event.lease, until)
            self._told(event.lease, until)
        if event.kind is EventKind.SHARD_STOPPED and ProcessLost.__name__ in event.message:
            self._processes_ended(event.lease)
        self._note(self.kernel.now, "event", f"{worker} {event.kind} {event.lease or ''} {event.message}")

    def _processes_ended(self, key: LeaseKey | None) -> None:
        """Record that several processes ended while they wrote the batch of a lease."""
        lease = self.ledger.leases.get(str(key))
        if lease is not None:
            truth = self.truth_of(lease)
            truth.waits_from = truth.stored_to

    def _check_loss(self, key: str, until: str | None) -> None:
        """Of a pinned batch, it is known which records it has: they are not called lost while all are there."""
        lease = self.ledger.leases.get(key)
        if lease is None or lease.pending is None or self.is_former(lease.stream):
            return
        truth, (_, number, _) = self.truth_of(lease), lease.checkpoint
        self.lake.gave_up(truth, lease.begun_at, until)
        if not (self.java.names or lease.is_finished) and self.lake.is_there_after(truth, number):
            self.violations.add(
                "S14", f"the batch of {key} after {number} is called lost, and its records are there"
            )

    def _asks_dagster(self) -> None:
        """Dagster's database is away, and a strand is about to wait for it. Those that keep leases must not."""
        strand = self.kernel.running
        may_wait = (f"/{EVENTS}", f"/{QUESTION}", "/ticks")
        if strand is not None and not strand.name.endswith(may_wait):
            self.violations.add("L8", f"{strand.name} waits for Dagster's database")

    def _strand_ended(self, strand: Strand) -> None:
        if strand.failure is not None:
            self.violations.add("X1", f"{strand.name} raised {strand.failure!r}")

    def _acting(self) -> str:
        """The process whose strand runs."""
        strand = self.kernel.running
        return strand.process.name if strand is not None else "no process"

    def _worker_ended(self, worker: WorkerProcess) -> None:
        self.fleet_changed = worker.ended_at = self.kernel.now
        if worker.bound is not None and worker.reason is StopReason.CAUGHT_UP:
            self.lake.is_said_complete(int(worker.bound.through))

    def _run_is_over(self, actor: Process | None, worker: str) -> bool:
        asked = [daemon.orchestrator for daemon in self.daemons if daemon.process is actor]
        return any(run.is_over and run.worker == worker for dagster in asked for run in dagster.runs.values())

    def _worker_of(self, actor: Process | None) -> str | None:
        if actor is not None and actor in self.java.names:
            return self.java.names[actor]
        return next((w.run.worker for w in self.workers if w.process is actor), None)

    def _leads_as(self, actor: Process | None) -> str | None:
        """The name under which a process leads, in the lock's row."""
        if actor is not None and actor in self.java.names:
            return self.java.names[actor]
        return next((daemon.identity for daemon in self.daemons if daemon.process is actor), None)

    # After the faults

    def _calm_down(self) -> None:
        kernel = self.kernel
        kernel.note("calm", "the faults stop")
        self.reading.begin()
        self.active_faults.clear()
        self.effects.mend_code()
        for process in self.processes():
            process.resume()
        for deployment, orchestrator in enumerate(self.orchestrators):
            orchestrator.let_go()
            orchestrator.storage.mend()
            for run in orchestrator.runs.values():
                if run.process is not None and not run.process.is_alive:
                    orchestrator.finish(run, run.exit or "its process died")
            leading = [daemon for daemon in self.daemons if daemon.orchestrator is orchestrator]
            if self._has_daemons and not any(daemon.process.is_alive for daemon in leading):
                self.restarts += 1
                self.start_daemon(deployment, 0)

    def _stop_producing(self) -> None:
        self.streams.is_producing = False

    def processes(self) -> list[Process]:
        """Those alive."""
        found = [worker.process for worker in self.workers] + [daemon.process for daemon in self.daemons]
        found += self.java.names
        found += self.operators.processes
        return [process for process in found if process.is_alive]

    def end_fleet(self) -> None:
        """Kill all processes for good."""
        for orchestrator in self.orchestrators:
            orchestrator.held_back_until = float("inf")
            for run in orchestrator.runs.values():
                orchestrator.finish(run, "the fleet is ended")
        for process in self.processes():
            process.kill()

    def living(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker.process.is_alive]


def _call_text(process: Process, service: str, operation: str, request: dict[str, Any], answer: Any) -> str:
    what = request.get("Key") or request.get("Item", {}).get("leaseKey") or request.get("ShardId") or ""
    result = "ok"
    if isinstance(answer, Exception):
        result = getattr(answer, "response", {}).get("Error", {}).get("Code", type(answer).__name__)
    return f"{process.name} {service}.{operation} {what} {result}"


class _Mistakes(logging.Handler):
    """Counts every logged error as a violation: the package logs errors that it caught so that others are not
    affected."""

    def __init__(self, violations: Violations) -> None:
        super().__init__(logging.ERROR)
        self._violations = violations

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._violations.add("X1", f"{record.name}: {record.getMessage()}: {error!r}")


def _generous() -> Limits:
    """No rates, but iterators that expire."""
    return Limits(
        reads=None, read_bytes=None, written_bytes=None, written_records=None, iterators=None, takeover_seconds=None
    )


def _counts_as_before(old: Item | None, new: Item) -> bool:
    """Values are never changed in place: those that are the same objects were looked at before."""
    if old is None:
        return False
    return all(old.get(name) is new.get(name) for name in ("kdStored", "checkpoint", "checkpointSubSequenceNumber"))


def _number(item: Item, attribute: str) -> int | None:
    return int(item[attribute]["N"]) if attribute in item else None
