"""Starts all processes of the demo, reports its events, and ends all processes."""

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from assets import APPLICATION, STREAM
from demo import changes, embedded, ledger, reaper, stored_rows
from demo.dagster_api import DagsterApi
from demo.fleet import MINUTE, Fleet, minute_of
from demo.minutes import ASSETS, MinutesVerdict, judge_minutes
from demo.reporter import Reporter
from demo.schedule import Schedule, Step
from demo.settings import MARKER_VARIABLE, DemoSettings
from demo.started_process import StartedProcess
from demo.verdict import Verdict, judge
from kcl_dagster.application import Application, StreamSettings
from kcl_dagster.errors import ConfigurationError, KclError
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.orchestration import processes

LOOK_SECONDS = 1.0
REPORT_SECONDS = 5.0
WORKERS = 2

# If steps are left when the time is over, the demo waits for two workers that store records. It gives up if there
# was no progress for this long. On a busy machine, Spark takes a minute to start.
READY_PATIENCE_SECONDS = 180.0
# Dagster fails a run whose process has not started within this time. Dagster's default of 60 s is too short,
# because the process imports Dagster and the definitions while other processes start Spark.
START_OF_A_RUN_SECONDS = 300
# At the end, the demo waits until all records are stored. It gives up if nothing was stored for this long. The
# leases of a killed worker wait for the lease duration, and a new worker waits for Spark.
DRAIN_PATIENCE_SECONDS = 90.0

# All processes of the demo must have ended within ten seconds, even on a busy machine. Workers need two or three
# seconds to finish a batch and release their leases.
INTERRUPT_SECONDS = 4.5
TERMINATE_SECONDS = 1.0
PRODUCER_SECONDS = 1.0
# A demo with a limited time may take longer to end, because no user waits for a prompt.
GRACEFUL_SECONDS = 30.0


class Ended(Exception):
    """Raised if a signal or the end of a process ends the demo."""


class Supervisor:
    """One demo from start to end. Everything happens on the thread that calls `run`."""

    def __init__(self, settings: DemoSettings, reporter: Reporter) -> None:
        self._settings = settings
        self._folders = settings.folders
        self._reporter = reporter
        self._end: str | None = None
        self._failed = False
        self._minutes = MinutesVerdict(0)
        self._wake = threading.Event()

    def run(self) -> int:
        """Run the demo and return the exit code. Raises KclError if a process cannot be started."""
        with ExitStack() as stack:
            stack.enter_context(self._signals())
            self._parents = _parents_through_make()
            self._prepare()
            marker = f"{MARKER_VARIABLE}={self._settings.marker}"
            os.environ[MARKER_VARIABLE] = self._settings.marker
            reaper.start(processes.current(), marker)
            verdict: Verdict | None = None
            try:
                self._start(stack)
                self._watch()
                verdict = self._conclude()
            except Ended:
                self._reporter.line(f"stopping: {self._end}")
        self._reporter.line("everything is stopped")
        self._reporter.where(self._folders)
        if self._settings.duration is None:
            return 1 if self._failed else 0
        if verdict is None:
            return 1
        self._reporter.plain(str(self._minutes))
        self._reporter.plain(str(verdict))
        return 0 if verdict.holds and self._minutes.holds else 1

    def _prepare(self) -> None:
        if embedded.is_running(self._folders):
            directory = self._folders.directory
            raise ConfigurationError(f"another demo is running in {directory}: stop it, or say --directory")
        self._folders.prepare()
        shutil.copy("dagster.yaml", self._folders.dagster_home / "dagster.yaml")

    def _start(self, stack: ExitStack) -> None:
        self._reporter.line("starting the embedded AWS")
        endpoint = embedded.start(self._folders, os.getpid())
        stack.callback(embedded.stop, endpoint)
        self._since = embedded.make_stream(endpoint.url)
        self._reporter.line(
            f"AWS answers at {endpoint.url}; everything the demo writes is under {self._folders.directory}"
        )
        environment = {
            **embedded.environment(endpoint.url, self._folders, self._since),
            "DAGSTER_HOME": str(self._folders.dagster_home),
            "DAGSTER_DISABLE_TELEMETRY": "1",
            "DAGSTER_GRPC_TIMEOUT_SECONDS": str(START_OF_A_RUN_SECONDS),
        }
        self._producer = StartedProcess.start(
            "producer",
            embedded.producer_command(endpoint.url, self._folders, processes.current()),
            environment,
            self._folders.logs / "producer.log",
        )
        stack.callback(self._stop_producer)
        self._reporter.line(f"producing {embedded.RATE} clicks a second into {embedded.SHARDS} shards")
        host = ("--host", "127.0.0.1", "--port", str(self._settings.port))
        self._dagster = StartedProcess.start(
            "dagster dev",
            [sys.executable, "-m", "dagster", "dev", "--workspace", "workspace.yaml", *host],
            environment,
            self._folders.logs / "dagster.log",
        )
        stack.callback(self._stop_dagster)
        self._api = DagsterApi(self._settings.port)
        self._fleet = Fleet(
            Application(name=APPLICATION, streams=(StreamSettings(name=STREAM),)),
            kinesis=embedded.client("kinesis", endpoint.url),
            dynamodb=embedded.client("dynamodb", endpoint.url),
            dagster=self._api,
        )
        self._leases: Mapping[LeaseKey, Lease] = {}
        self._stored = stored_rows.StoredCount(self._folders.clicks)
        self._reporter.line(f"Dagster's UI comes up at http://127.0.0.1:{self._settings.port}")

    # --- while it runs ---

    def _watch(self) -> None:
        """Carry out the steps and report, until the time is over and all steps are done. Without a limited time,
        this ends only when it raises Ended."""
        duration = self._settings.duration
        schedule = Schedule(duration or float("inf"))
        started = time.monotonic()
        self._leases = self._fleet.leases()
        next_report = moved = started
        seen: object = None
        while True:
            self._look()
            elapsed = time.monotonic() - started
            self._report_changes()
            if time.monotonic() >= next_report:
                self._report(changes.summary(self._leases.values()))
                next_report = time.monotonic() + REPORT_SECONDS
            if duration is None:
                continue
            step = schedule.due(elapsed)
            if step is not None and self._ready(step) and self._do(step):
                schedule.complete(step)
            if (sight := self._progress(self._leases)) != seen:
                seen, moved = sight, time.monotonic()
            is_stuck = time.monotonic() - moved >= READY_PATIENCE_SECONDS
            if elapsed >= duration and (schedule.is_finished or is_stuck):
                if not schedule.is_finished:
                    left = ", ".join(schedule.steps[len(schedule.done) :])
                    self._reporter.line(
                        f"left out: {left}. No two workers were ready, and nothing has changed for "
                        f"{READY_PATIENCE_SECONDS:g} s; the verdict is on what was produced and stored"
                    )
                return

    def _report_changes(self) -> None:
        """Report the changes of the leases since the last call."""
        now = self._fleet.leases()
        for line in changes.describe(self._leases, now):
            self._reporter.event(line)
        self._leases = now or self._leases

    def _look(self) -> None:
        """Wait for a short time. Raises Ended if the demo was asked to end, or if a process that it needs has
        ended."""
        self._wake.wait(LOOK_SECONDS)
        if self._end is not None:
            raise Ended
        for started in (self._producer, self._dagster):
            if started.ended:
                self._fail(f"{started.name} ended by itself; the end of its log says why: {started.log}")
        for parent in self._parents:
            if not parent.is_alive():
                self._end = f"{parent.arguments[0]} (pid {parent.pid}) is gone"
                raise Ended

    def _fail(self, why: str) -> None:
        self._end, self._failed = why, True
        raise Ended

    def _progress(self, leases: Mapping[LeaseKey, Lease]) -> object:
        """A value that changes when the fleet comes nearer to two running workers. The number of stored records is
        not part of it, because one worker alone would store records for ever."""
        owners = sorted((key, str(lease.actual_owner)) for key, lease in leases.items())
        return owners, sorted(self._fleet.workers()), self._stored() > 0

    def _report(self, leases: str) -> None:
        produced, stored = ledger.count(self._folders.ledger), self._stored()
        if not stored:
            starting = sorted(self._fleet.workers())
            self._reporter.line(f"{', '.join(starting) or 'Dagster'} is starting{' Spark' if starting else ''}")
        self._reporter.line(f"{leases} · produced {produced:,} · stored {stored:,}")

    def _ready(self, step: Step) -> bool:
        """Whether a step may be carried out: two workers own leases, and records are stored. A merge may always be
        carried out."""
        if step is Step.MERGE:
            return True
        owners = {lease.actual_owner for lease in self._fleet.leases().values() if lease.actual_owner}
        return len(owners) >= WORKERS and len(self._fleet.workers()) >= WORKERS and self._stored() > 0

    def _do(self, step: Step) -> bool:
        try:
            if step is Step.SPLIT:
                self._reporter.event(f"split {self._fleet.split()} in two")
            elif step is Step.MERGE:
                self._reporter.event(f"merged {' and '.join(self._fleet.merge())}")
            else:
                slot, process = max(self._fleet.workers().items())
                process.send(signal.SIGKILL)
                self._reporter.event(f"killed {slot} (pid {process.pid}) with SIGKILL")
        except KclError as error:
            self._reporter.line(f"{step}: {error}; trying again")
            return False
        return True

    def _conclude(self) -> Verdict:
        """Stop the producer, wait until all records are stored, stop Dagster, and return the verdict."""
        self._reporter.line("time is up: stopping the producer, then waiting until everything is stored")
        self._stop_producer()
        stopped = time.time()
        produced = ledger.count(self._folders.ledger)
        stored, moved = -1, time.monotonic()
        while stored < produced:
            self._wake.wait(LOOK_SECONDS)
            if self._end is not None:
                raise Ended
            if self._dagster.ended:
                self._fail(f"dagster dev ended by itself; the end of its log says why: {self._dagster.log}")
            self._report_changes()
            now = self._stored()
            if now != stored:
                stored, moved = now, time.monotonic()
                self._reporter.line(f"stored {stored:,} of {produced:,}")
            elif time.monotonic() - moved > DRAIN_PATIENCE_SECONDS:
                self._reporter.line(f"nothing was stored for {DRAIN_PATIENCE_SECONDS:g} s; giving up")
                break
        self._minutes = self._judge_minutes(stopped)
        self._reporter.line("stopping Dagster; the workers release their leases")
        self._stop_dagster(GRACEFUL_SECONDS)
        return judge(ledger.read(self._folders.ledger), stored_rows.records(self._folders.clicks))

    def _judge_minutes(self, stopped: float) -> MinutesVerdict:
        """Wait until all minutes that ended before the producer was stopped are materialized, and judge them."""
        arrived = self._fleet.arrivals()
        last = minute_of(stopped)
        finished = [minute for minute in _minutes(minute_of(self._since), last) if minute < last]
        self._reporter.line(f"waiting until {len(finished)} minutes are complete, and their sessions made")
        seen, moved = -1, time.monotonic()
        while True:
            reported = [one for asset, name in ASSETS.items() for one in self._api.materializations(asset, name)]
            verdict = judge_minutes(finished, arrived, reported)
            if verdict.holds:
                return verdict
            if time.monotonic() - moved > DRAIN_PATIENCE_SECONDS:
                return judge_minutes(finished, arrived, reported, self._api.unfinished())
            if len(reported) != seen:
                seen, moved = len(reported), time.monotonic()
            self._report_changes()
            self._wake.wait(LOOK_SECONDS)
            if self._end is not None:
                raise Ended

    # --- the end ---

    def _stop_producer(self) -> None:
        """Stop the producer. It first finishes its present call, so that every acknowledgement is in the ledger."""
        self._producer.stop(signal.SIGTERM)
        if not self._producer.wait(PRODUCER_SECONDS):
            self._producer.stop(signal.SIGKILL)

    def _stop_dagster(self, patience: float = INTERRUPT_SECONDS) -> None:
        """Stop Dagster as Ctrl-C in a terminal does: the whole process group, with the workers, gets SIGINT."""
        self._producer.stop(signal.SIGTERM)
        family = processes.descendants(self._dagster.process.pid, processes.snapshot()).values()
        for number, seconds in ((signal.SIGINT, patience), (signal.SIGTERM, TERMINATE_SECONDS)):
            self._dagster.stop(number, group=True)
            self._dagster.wait(seconds)
            if not any(process.is_alive() for process in family):
                break
        # JVMs are not in the process group any more, so they are killed one by one.
        self._dagster.stop(signal.SIGKILL, group=True)
        for process in family:
            process.send(signal.SIGKILL)
        self._dagster.wait(TERMINATE_SECONDS)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def ask(number: int, _: object) -> None:
            self._end = self._end or f"{signal.Signals(number).name} received"
            self._wake.set()

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, ask) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _parents_through_make() -> list[processes.Process]:
    """The processes above this one up to `make`, if `make` has started it. If one of them has ended, Ctrl-C no
    longer reaches the demo."""
    if "MAKELEVEL" not in os.environ:
        return []
    above = processes.ancestors(os.getpid(), processes.snapshot())
    makes = [number for number, p in enumerate(above) if p.arguments and "make" in Path(p.arguments[0]).name]
    return above[: makes[0] + 1] if makes else []


def _minutes(first: str, last: str) -> Iterator[str]:
    """The keys of the partitions of all minutes from `first` to `last`."""
    moment = datetime.strptime(first, MINUTE).replace(tzinfo=UTC)
    while (key := moment.strftime(MINUTE)) <= last:
        yield key
        moment += timedelta(minutes=1)
