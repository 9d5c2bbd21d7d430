"""One soak from start to verdict. Nothing of it is left running."""

import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from assets import APPLICATION, STREAM
from demo import changes, embedded, ledger, reaper, stored_rows
from demo.dagster_api import DagsterApi
from demo.fleet import Fleet
from demo.folders import DemoFolders
from demo.started_process import StartedProcess
from demo.verdict import Verdict, judge
from kcl_dagster.application import Application, StreamSettings
from kcl_dagster.emulator.control_endpoint import FAULTS
from kcl_dagster.errors import KclError
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.orchestration import processes
from kcl_dagster.orchestration.processes import Process
from tests.soak.database import Database
from tests.soak.storm import RECOVERY_SECONDS, Event, Planned, plan
from tests.soak.topology import CodeServer, Topology, end
from tests.soak.watch import Watch

STEP_SECONDS = 0.5
REPORT_SECONDS = 15.0
START_SECONDS = 300.0  # two Sparks beside Dagster's processes, on two cores
DRAIN_PATIENCE_SECONDS = 180.0
STOP_SECONDS = 30.0
WORKERS = 2
MOST_RESTARTS = 3  # of one of Dagster's processes, before the workers are up
FROZEN_WORKER_SECONDS = 15.0  # a lease of the reference deployment lasts 10
FAULT_SECONDS = 20.0
MARKER_VARIABLE = "KCL_SOAK"

RULES: dict[Event, list[dict[str, object]]] = {
    Event.THROTTLE: [
        {"service": "dynamodb", "error": "ProvisionedThroughputExceededException", "probability": 0.5},
        {"service": "kinesis", "error": "ProvisionedThroughputExceededException", "probability": 0.5},
    ],
    Event.DROP_ANSWERS: [
        {"service": "dynamodb", "operation": "UpdateItem", "drop": True, "applied": True, "probability": 0.4}
    ],
    Event.DYNAMODB_OUTAGE: [{"service": "dynamodb", "error": "InternalServerError", "status": 500}],
}


class Ended(Exception):
    """The soak cannot go on."""


@dataclass(frozen=True, slots=True)
class Settings:
    seed: int
    seconds: float
    directory: Path


class Soak:
    """Everything happens on the thread that calls `run`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._began = time.monotonic()
        self._watch = Watch()
        self._harmed: set[WorkerId] = set()
        self._workers: dict[str, Process] = {}
        self._leases: dict[LeaseKey, Lease] = {}
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._problems: list[str] = []
        self._is_outage = False
        self._silence = 0.0
        self._next_report = 0.0

    def run(self) -> int:
        """The exit code."""
        verdict: Verdict | None = None
        with ExitStack() as stack:
            try:
                self._start(stack)
                self._storm()
                verdict = self._conclude()
            except (Ended, KclError) as ended:
                self._problems.append(str(ended))
        self._problems += [f"during an outage of Dagster's database, {what}" for what in self._watch.lost]
        for problem in self._problems:
            self._tell(f"WRONG: {problem}")
        holds = verdict is not None and verdict.holds and not self._problems
        if not holds:
            self._tell(f"everything is in {self._settings.directory}")
        if verdict is not None:
            sys.stdout.write(f"{verdict}; longest silence of a shard {self._silence:.0f} s\n")
        return 0 if holds else 1

    def _tell(self, line: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self._began:7.1f}  {line}\n")
        sys.stdout.flush()

    # --- start ---

    def _start(self, stack: ExitStack) -> None:
        directory = self._settings.directory
        logs = directory / "logs"
        self._folders = folders = DemoFolders(directory)
        os.environ[MARKER_VARIABLE] = marker = f"{os.getpid()}-{time.monotonic_ns()}"
        reaper.start(processes.current(), f"{MARKER_VARIABLE}={marker}")
        folders.prepare()
        self._database = Database.create(directory / "postgresql")
        self._database.start()
        stack.callback(self._database.end)
        self._emulator = embedded.start(folders, os.getpid())
        stack.callback(embedded.stop, self._emulator)
        environment = {
            **embedded.environment(self._emulator.url, folders, embedded.make_stream(self._emulator.url)),
            "DAGSTER_HOME": str(directory / "dagster"),
            "DAGSTER_DISABLE_TELEMETRY": "1",
            "DAGSTER_GRPC_TIMEOUT_SECONDS": "300",
        }
        self._topology = Topology(directory / "dagster", logs, environment)
        storage = f"storage: {{postgres: {{postgres_url: '{self._database.url}'}}}}"
        self._topology.prepare(
            f"{Path('dagster.yaml').read_text()}\n{storage}\n",
            [CodeServer("kcl_dagster", ("api", "grpc", "-m", "definitions"))],
        )
        stack.callback(self._stop_dagster)
        self._producer = StartedProcess.start(
            "producer",
            embedded.producer_command(self._emulator.url, folders, processes.current()),
            environment,
            logs / "producer.log",
        )
        stack.callback(lambda: self._producer.stop(signal.SIGKILL))
        self._fleet = Fleet(
            Application(name=APPLICATION, streams=(StreamSettings(name=STREAM),)),
            kinesis=embedded.client("kinesis", self._emulator.url),
            dynamodb=embedded.client("dynamodb", self._emulator.url),
            dagster=DagsterApi(self._topology.port),
        )
        self._stored = stored_rows.StoredCount(folders.clicks)
        self._tell(f"everything this soak writes is in {directory}")
        deadline = time.monotonic() + START_SECONDS
        while not self._is_at_work():
            self._step()
            for service in self._topology.services.values():
                if service.restarts >= MOST_RESTARTS:
                    raise Ended(f"{service.name} does not stay up; its log is {service.log}")
            if time.monotonic() > deadline:
                raise Ended(f"two workers stored nothing within {START_SECONDS:g} s")
        self._watch.begin(time.monotonic())

    def _is_at_work(self) -> bool:
        owners = {lease.actual_owner for lease in self._leases.values() if lease.actual_owner}
        return len(owners) >= WORKERS and len(self._workers) >= WORKERS and self._stored() > 0

    # --- the storm ---

    def _storm(self) -> None:
        began = time.monotonic()
        planned = plan(self._settings.seed, self._settings.seconds)
        self._tell(f"two workers store records; {len(planned)} events in {self._settings.seconds:g} s")
        while (elapsed := time.monotonic() - began) < self._settings.seconds:
            self._step()
            while planned and planned[0].at <= elapsed:
                self._happen(planned.pop(0))
        self._clear_faults()

    def _happen(self, planned: Planned) -> None:
        event = planned.event
        try:
            what = self._carry_out(event)
        except (KclError, ValueError) as error:
            what = f"not possible now: {error}"
        self._tell(f"{event}{f': {what}' if what else ''}")

    def _carry_out(self, event: Event) -> str | None:
        match event:
            case Event.STOP_DATABASE:
                self._begin_outage()
                self._database.stop()
            case Event.START_DATABASE:
                self._database.start()
                self._end_outage()
            case Event.FREEZE_DATABASE:
                self._begin_outage()
                self._database.freeze()
            case Event.THAW_DATABASE:
                self._database.thaw()
                self._end_outage()
            case Event.KILL_WORKER:
                slot = self._harm()
                self._workers.pop(slot).send(signal.SIGKILL)
                return slot
            case Event.FREEZE_WORKER:
                slot = self._harm()
                self._freeze(self._workers[slot])
                return slot
            case Event.KILL_DAEMON:
                daemon = self._topology.services["daemon"].started
                if daemon is not None:
                    daemon.stop(signal.SIGKILL)
            case Event.SPLIT:
                return self._fleet.split()
            case Event.MERGE:
                return " and ".join(self._fleet.merge())
            case Event.THROTTLE | Event.DROP_ANSWERS | Event.DYNAMODB_OUTAGE:
                self._post_faults(RULES[event])
                self._in(FAULT_SECONDS, self._clear_faults)
        return None

    def _begin_outage(self) -> None:
        """From a fleet that is at rest: what earlier faults still cause is not the database's."""
        self._is_outage = True

    def _end_outage(self) -> None:
        def over() -> None:
            self._is_outage = False
            self._harmed.clear()

        self._in(RECOVERY_SECONDS, over)

    def _harm(self) -> str:
        """A worker that is about to be struck. Raises ValueError if there is no other one to go on."""
        if len(self._workers) < WORKERS:
            msg = "fewer than two workers are running"
            raise ValueError(msg)
        slot = max(self._workers)
        owners = {lease.actual_owner for lease in self._leases.values() if lease.actual_owner}
        self._harmed |= {owner for owner in owners if changes.slot_of(owner) == slot}
        return slot

    def _freeze(self, worker: Process) -> None:
        family = [worker, *processes.descendants(worker.pid, processes.snapshot()).values()]
        _send(signal.SIGSTOP, family)
        self._in(FROZEN_WORKER_SECONDS, lambda: _send(signal.SIGCONT, family))

    def _post_faults(self, rules: list[dict[str, object]]) -> None:
        body = json.dumps(rules).encode()
        request = urllib.request.Request(f"{self._emulator.url}{FAULTS}", body, method="POST")
        urllib.request.urlopen(request, timeout=10).close()

    def _clear_faults(self) -> None:
        urllib.request.urlopen(
            urllib.request.Request(f"{self._emulator.url}{FAULTS}", method="DELETE"), timeout=10
        ).close()

    def _in(self, seconds: float, action: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, action))

    def _step(self) -> None:
        """One moment: keep Dagster running, do what is due, look at the leases."""
        time.sleep(STEP_SECONDS)
        self._topology.step()
        now = time.monotonic()
        due = [action for at, action in self._later if at <= now]
        self._later = [(at, action) for at, action in self._later if at > now]
        for action in due:
            action()
        if self._producer.ended:
            raise Ended(f"the producer ended; its log is {self._producer.log}")
        if not self._is_outage:
            self._workers = self._fleet.workers() or self._workers
        leases = self._fleet.leases()
        if leases:
            self._watch.look(now, leases.values(), is_outage=self._is_outage, harmed=self._harmed)
            for line in changes.describe(self._leases, leases):
                self._tell(f"    {line}")
            self._leases = leases
        if now >= self._next_report:
            produced, stored = ledger.count(self._folders.ledger), self._stored()
            self._tell(f"    {changes.summary(self._leases.values())} · produced {produced:,} · stored {stored:,}")
            self._next_report = now + REPORT_SECONDS

    # --- the end ---

    def _conclude(self) -> Verdict:
        self._tell("the producer stops; the workers store what is left")
        self._silence = self._watch.longest_silence()
        self._producer.stop(signal.SIGTERM)
        self._producer.wait(STOP_SECONDS)
        self._producer = StartedProcess.start("nothing", ["sleep", "infinity"], {}, self._producer.log)
        produced, stored, moved = ledger.count(self._folders.ledger), -1, time.monotonic()
        while stored < produced and time.monotonic() - moved < DRAIN_PATIENCE_SECONDS:
            self._step()
            if (now := self._stored()) != stored:
                stored, moved = now, time.monotonic()
        restarts = {name: service.restarts for name, service in self._topology.services.items()}
        self._tell(f"restarts of Dagster's processes: {restarts}")
        self._stop_dagster()
        return judge(ledger.read(self._folders.ledger), stored_rows.records(self._folders.clicks))

    def _stop_dagster(self) -> None:
        roots, everyone = self._topology.roots(), processes.snapshot()
        family = {pid: found for root in roots for pid, found in processes.descendants(root, everyone).items()}
        family |= {root: everyone[root] for root in roots if root in everyone}
        end(family.values(), STOP_SECONDS)


def _send(number: signal.Signals, family: Iterable[Process]) -> None:
    for process in family:
        process.send(number)
