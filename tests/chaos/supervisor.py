"""One run from start to verdict. Whatever happens, nothing of it is left running."""

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from demo import changes, reaper
from kcl_dagster import aws
from kcl_dagster.application import Retrieval
from kcl_dagster.emulator import Emulator, environment
from kcl_dagster.errors import KclError
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.orchestration import processes
from kcl_dagster.orchestration.processes import Process
from kcl_dagster.runtime import system
from kcl_dagster.streams.listing import list_shards
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.table_layout import detect_layout
from tests.chaos import child_processes, journal, lakes, ledger
from tests.chaos.child_processes import Child
from tests.chaos.crew import Crew
from tests.chaos.faults import Faults
from tests.chaos.judge import Verdict, judge
from tests.chaos.leaders import NAMES, Leaders
from tests.chaos.plan import MARKER_VARIABLE, SHARDS, STREAM, WORKERS, Plan
from tests.chaos.schedule import Fault, Planned, schedule
from tests.chaos.witness import Witness

STEP_SECONDS = 0.2
LOOK_SECONDS = 1.0
REPORT_SECONDS = 5.0
START_PATIENCE_SECONDS = 300.0  # two Sparks on a busy machine
DRAIN_PATIENCE_SECONDS = 180.0  # without any progress; a new worker needs half of it on a busy machine
STOP_PATIENCE_SECONDS = 60.0  # a batch is finished first
WAIT_SECONDS = 60.0  # for faults that had no turn yet
REGION = "us-east-1"


class Ended(Exception):
    """Somebody wants the run to end, or it cannot go on."""


@dataclass
class Settings:
    seed: int
    seconds: float
    sink: str
    only: tuple[Fault, ...]
    retrieval: Retrieval
    directory: Path
    command: str
    """How to repeat this run."""


class Supervisor:
    """Everything happens on the thread that calls `run`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._started = time.monotonic()
        self._wake = threading.Event()
        self._end: str | None = None
        self._leases: dict[LeaseKey, Lease] = {}
        self._witness = Witness()
        self._next_look = self._next_report = 0.0
        self._table: LeaseTable | None = None
        self._producer: Child | None = None

    def tell(self, line: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self._started:7.1f}  {line}\n")
        sys.stdout.flush()

    def run(self) -> int:
        """The exit code."""
        settings = self._settings
        self.tell(f"seed {settings.seed}, {settings.seconds:g} s of faults, sink {settings.sink}")
        self.tell(f"repeat with: {settings.command}")
        verdict: Verdict | None = None
        problems: list[str] = []
        with ExitStack() as stack:
            stack.enter_context(self._signals())
            emulator = self._prepare(stack)
            try:
                self._start(stack, emulator)
                self._storm()
                problems += self._drain()
                problems += self._stop()
                verdict = self._judge()
            except Ended as ended:
                problems.append(f"ended early: {ended}")
        problems += self._left_over()
        problems += self._witness.problems
        for problem in problems:
            self.tell(f"WRONG: {problem}")
        if verdict is not None:
            for problem in verdict.problems:
                self.tell(f"WRONG: {verdict.sink}: {problem}")
            sys.stdout.write(f"{verdict}\n")
        holds = verdict is not None and verdict.holds and not problems
        if not holds:
            sys.stdout.write(f"everything is in {settings.directory}; repeat with: {settings.command}\n")
        return 0 if holds else 1

    # --- start ---

    def _prepare(self, stack: ExitStack) -> Emulator:
        self._marker = f"{MARKER_VARIABLE}={os.getpid()}-{time.monotonic_ns()}"
        os.environ[MARKER_VARIABLE] = self._marker.partition("=")[2]
        reaper.start(processes.current(), self._marker)
        stack.callback(self._kill_everybody)
        emulator = stack.enter_context(Emulator(seed=self._settings.seed))
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
            os.environ.pop(name, None)
        os.environ.update(environment(emulator.endpoint_url, REGION))
        return emulator

    def _start(self, stack: ExitStack, emulator: Emulator) -> None:
        settings = self._settings
        shutil.rmtree(settings.directory, ignore_errors=True)
        self._plan = plan = Plan.make(
            settings.seed, settings.directory, emulator.endpoint_url, settings.sink, settings.retrieval
        )
        for place in (plan.directory, plan.lake, plan.logs, plan.journals):
            place.mkdir(parents=True)
        plan.write()
        self._kinesis = aws.client("kinesis", endpoint_url=plan.endpoint_url)
        self._dynamodb = aws.client("dynamodb", endpoint_url=plan.endpoint_url)
        aws.call(self._kinesis, "create_stream", StreamName=STREAM, ShardCount=SHARDS)
        random = Random(f"crew {settings.seed}")
        self._crew = Crew(plan, random, lambda line: self.tell(f"    {line}"))
        self._leaders = Leaders(plan)
        for name in NAMES:
            self._leaders.start(name)
        self._faults = Faults(plan, emulator, self._crew, self._leaders, self.tell)
        self.tell(f"everything this run writes is in {plan.directory}; starting {WORKERS} workers")
        deadline = time.monotonic() + START_PATIENCE_SECONDS
        while not self._is_at_work():
            if self._producer is None and len(self._crew.living()) == WORKERS:
                self._producer = Child.start("producer", "tests.chaos.producer", [str(plan.path)], plan.logs)
            self._step()
            if time.monotonic() > deadline:
                raise Ended(f"the workers stored nothing within {START_PATIENCE_SECONDS:g} s; see {plan.logs}")

    def _is_at_work(self) -> bool:
        owners = {lease.actual_owner for lease in self._leases.values() if lease.actual_owner}
        return len(owners) >= WORKERS and self._stored() > 0

    # --- the storm ---

    def _storm(self) -> None:
        """Faults that would leave nobody at work wait for their turn: on a slow machine a new worker takes long."""
        began = time.monotonic()
        planned = schedule(self._settings.seed, self._settings.seconds, self._settings.only)
        waiting: list[Planned] = []
        while (elapsed := time.monotonic() - began) < self._settings.seconds or waiting:
            self._step()
            while planned and planned[0].at <= elapsed:
                waiting.append(planned.pop(0))
            ready = next((fault for fault in waiting if self._faults.can_apply(fault)), None)
            if ready is not None:
                waiting.remove(ready)
                self.tell(self._faults.apply(ready))
            elif elapsed > self._settings.seconds + WAIT_SECONDS:
                self.tell(f"not done: {', '.join(fault.fault for fault in waiting)}")
                break
        self.tell("the faults are over")
        self._faults.end()
        for name in NAMES:
            self._leaders.start(name)

    def _step(self) -> None:
        """One moment. Raises Ended when there is a reason to."""
        self._wake.wait(STEP_SECONDS)
        if self._end is not None:
            raise Ended(self._end)
        if self._producer is not None and self._producer.has_failed:
            raise Ended(f"the producer died; see {self._producer.log}")
        self._crew.step()
        self._faults.step()
        now = time.monotonic()
        if now >= self._next_look:
            self._look()
            self._next_look = time.monotonic() + LOOK_SECONDS
        if now >= self._next_report:
            produced = sum(record.count for record in ledger.read(self._plan.ledger))
            self.tell(
                f"    {changes.summary(self._leases.values())} · produced {produced:,} · stored {self._stored():,}"
            )
            self._next_report = time.monotonic() + REPORT_SECONDS

    def _look(self) -> None:
        """At the leases, if AWS lets us."""
        try:
            if self._table is None:
                layout = detect_layout(self._dynamodb, self._plan.application, system())
                self._table = LeaseTable(
                    self._dynamodb, self._plan.application, layout, system(), deadline_seconds=1.0
                )
            leases = {lease.key: lease for lease in self._table.scan().leases}
        except KclError:
            return
        self._witness.look(leases.values())
        for line in changes.describe(self._leases, leases):
            self.tell(f"    {line}")
        self._leases = leases

    def _stored(self) -> int:
        """User records that readers see."""
        return lakes.count(self._plan.sink, self._plan.lake)

    # --- the end ---

    def _drain(self) -> list[str]:
        """Stop the producer, and wait until everything it put is checkpointed."""
        if self._producer is not None:
            self._producer.send(signal.SIGTERM)
            self._producer.close()
        ends: dict[str, int] = {}
        for record in ledger.read(self._plan.ledger):
            ends[record.shard] = max(record.sequence, ends.get(record.shard, 0))
        seen, moved = None, time.monotonic()
        while True:
            self._step()
            behind = self._behind(ends)
            if not behind:
                self.tell("everything is checkpointed")
                return []
            now = {lease.key: (lease.checkpoint, lease.batch) for lease in self._leases.values()}
            if now != seen:
                seen, moved = now, time.monotonic()
            if time.monotonic() - moved > DRAIN_PATIENCE_SECONDS:
                return [f"{shard} is not read to its end: {why}" for shard, why in behind.items()]

    def _behind(self, ends: dict[str, int]) -> dict[str, str]:
        """Shards with something to read, and what their leases say."""
        behind = {}
        for shard, end in ends.items():
            lease = self._leases.get(LeaseKey(shard))
            if lease is None:
                if not any(shard in other.parents for other in self._leases.values()):
                    continue  # its lease was cleaned up, and so were its children's
                continue
            checkpoint = lease.checkpoint
            if lease.is_finished:
                continue
            if checkpoint is None or checkpoint.is_sentinel or int(checkpoint.sequence) < end:
                behind[shard] = f"{lease}"
        return behind

    def _stop(self) -> list[str]:
        """Stop the workers in good order: they end by themselves and let go of everything."""
        self.tell("stopping the workers")
        self._look()
        # A handoff to somebody who stops as well ends with him as the owner; that lease has to expire.
        moving = {key for key, lease in self._leases.items() if lease.in_handoff}
        workers = self._crew.dismiss()
        problems = []
        deadline = time.monotonic() + STOP_PATIENCE_SECONDS
        while any(child.is_alive for child in workers) and time.monotonic() < deadline:
            self._step()
        for child in workers:
            if child.is_alive:
                problems.append(f"{child.name} did not stop within {STOP_PATIENCE_SECONDS:g} s; see {child.log}")
            elif child.process.returncode != 0:
                problems.append(f"{child.name} ended with {child.process.returncode}; see {child.log}")
        for child in self._leaders.all():
            child.send(signal.SIGTERM)
        self._look()
        held = [
            lease
            for lease in self._leases.values()
            if lease.owner is not None and not lease.is_finished and lease.key not in moving
        ]
        return problems + [f"{x.key} still belongs to {x.owner} although all workers stopped" for x in held]

    def _judge(self) -> Verdict:
        plan = self._plan
        shards = list_shards(self._kinesis, STREAM, runtime=system())
        parents = {shard.id: shard.parents for shard in shards}
        entries = list(journal.read(plan.journals))
        acknowledged = list(ledger.read(plan.ledger))
        return judge(plan.sink, acknowledged, lakes.rows(plan.sink, plan.lake), entries, parents)

    # --- whatever happens ---

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def end(number: int, _: object) -> None:
            self._end = f"asked to, by {signal.Signals(number).name}"
            self._wake.set()

        before = {n: signal.signal(n, end) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _kill_everybody(self) -> None:
        deadline = time.monotonic() + STOP_PATIENCE_SECONDS
        while (left := self._members()) and time.monotonic() < deadline:
            child_processes.send(signal.SIGKILL, left)
            time.sleep(STEP_SECONDS)

    def _members(self) -> list[Process]:
        return [p for p in child_processes.carriers(self._marker) if "demo.reaper" not in p.command]

    def _left_over(self) -> list[str]:
        return [f"still running: {process.pid} {process.command[:100]}" for process in self._members()]
