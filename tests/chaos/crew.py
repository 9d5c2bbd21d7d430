"""The workers, and the orchestrator that launches them when a leader asks: Dagster's part, without Dagster.

One active run per slot. A run is over when its process has ended and somebody noticed, which may take a while.
A spare with a running Spark waits for the next launch, so that a fleet that is killed all the time still works.
"""

import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from kcl_dagster.leader.run_view import RunStatus, SlotRun
from kcl_dagster.model.worker_row import slot_name, worker_id
from tests.chaos import orders
from tests.chaos.child_processes import Child
from tests.chaos.plan import WORKERS, Plan

LOCAL = "local[2]"
CLUSTER = "local-cluster[1,2,1024]"  # an executor in a JVM of its own
# How long it takes until the death of a run is noticed: at once, as by a code server; or by the leader's counter.
NOTICE_SECONDS = (0.3, 2.0, 20.0)
# A slot nobody asks a run for is launched by hand: the leader waits longer after a run that ended early.
BY_HAND_SECONDS = 10.0
MOST_PROCESSES = WORKERS + 2  # spare and twin included


@dataclass
class Run:
    """One run of a slot. Without a process it is queued."""

    slot: str
    run_id: str
    child: Child | None = None
    started_at: float = 0.0
    ended_at: float | None = None
    frozen: bool = False

    @property
    def name(self) -> str:
        return worker_id(self.slot, self.run_id)

    @property
    def is_alive(self) -> bool:
        return self.child is not None and self.child.is_alive

    def as_seen(self) -> SlotRun:
        status: RunStatus = "queued" if self.child is None else "running"
        return SlotRun(self.run_id, worker_id(self.slot, self.run_id), status, self.started_at)


@dataclass
class Crew:
    """Everything happens on the supervisor's thread, in `step` and in what faults do."""

    plan: Plan
    random: Random
    tell: Callable[[str], None]
    active: dict[str, Run] = field(default_factory=dict)
    beside: list[Run] = field(default_factory=list)
    """Processes that live although their run is over or was never known."""

    finished: set[str] = field(default_factory=set)
    spares: list[Child] = field(default_factory=list)
    hires: bool = True
    _started: int = 0
    _without_run: dict[str, float] = field(default_factory=dict)
    _told: orders.Runs | None = None

    def __post_init__(self) -> None:
        self._asked = orders.Asked(self.plan.launches)
        self._publish()

    # Looking

    def living(self) -> list[Run]:
        """Workers at work, active or not; by name."""
        runs = [*self.active.values(), *self.beside]
        return sorted((run for run in runs if run.is_alive), key=lambda run: run.name)

    def at_work(self) -> list[Run]:
        """Those who have stored something and are not frozen: whom it is worth to disturb."""
        return [run for run in self.living() if not run.frozen and self._journal(run).exists()]

    def can_lose_one(self) -> bool:
        """Whether somebody is there to go on. A fleet without anybody stores nothing that could be wrong."""
        return len(self.at_work()) + any(_is_ready(spare) for spare in self.spares) > 1

    def _journal(self, run: Run) -> Path:
        return self.plan.journals / f"{run.slot}.{run.run_id}.jsonl"

    # Every moment

    def step(self) -> None:
        now = time.monotonic()
        self._notice(now)
        if self.hires:
            self._hire(now)
        self._publish()

    def _hire(self, now: float) -> None:
        for launch in self._asked.new():
            if launch.slot not in self.active:
                self.queue(launch.slot)
        for slot in map(slot_name, range(WORKERS)):
            if slot in self.active:
                self._without_run.pop(slot, None)
            elif now - self._without_run.setdefault(slot, now) > BY_HAND_SECONDS:
                self.tell(f"{slot} has had no run for {BY_HAND_SECONDS:g} s: launched by hand")
                self.queue(slot)
        self._staff()

    def queue(self, slot: str) -> Run:
        """A run for a slot; it starts when a spare is ready."""
        run = Run(slot, self._new_run_id(), started_at=time.time())
        self.active[slot] = run
        return run

    def twin(self, slot: str) -> Run:
        """A run beside whatever the slot has, that the orchestrator does not know."""
        run = Run(slot, self._new_run_id(), started_at=time.time())
        self.beside.append(run)
        return run

    def declare_over(self, run: Run) -> None:
        """Although its process may live."""
        self.finished.add(run.run_id)
        if self.active.get(run.slot) is run:
            del self.active[run.slot]
        if run.is_alive and run not in self.beside:
            self.beside.append(run)
        self._publish()

    def _notice(self, now: float) -> None:
        for run in [*self.active.values(), *self.beside]:
            if run.child is None or run.child.is_alive:
                continue
            if run.ended_at is None:
                wait = 0.0 if run.child.process.returncode == 0 else self.random.choice(NOTICE_SECONDS)
                run.ended_at = now + wait
                self.tell(f"{run.name} ended with {run.child.process.returncode}; noticed in {wait:g} s")
                run.child.close()
            if now >= run.ended_at:
                self.declare_over(run)
                if run in self.beside:
                    self.beside.remove(run)
        for spare in [spare for spare in self.spares if not spare.is_alive]:
            self.tell(f"spare {spare.name} ended with {spare.process.returncode}")
            spare.close()
            self.spares.remove(spare)

    def _staff(self) -> None:
        """Give ready spares to queued runs, and see that there are spares."""
        waiting = [run for run in [*self.active.values(), *self.beside] if run.child is None]
        ready = [spare for spare in self.spares if _is_ready(spare)]
        for run, spare in zip(waiting, ready, strict=False):
            self.spares.remove(spare)
            run.child, run.started_at = spare, time.time()
            spare.tell(json.dumps({"slot": run.slot, "run_id": run.run_id}))
            self.tell(f"{run.name} begins as {spare.name} (pid {spare.pid})")
        # Frozen processes need no processor; they do not count.
        busy = sum(not run.frozen for run in self.living()) + len(self.spares)
        queued = len(waiting) - min(len(waiting), len(ready))
        while len(self.spares) < queued + 1 and busy < MOST_PROCESSES:
            self._start_spare()
            busy += 1

    def _start_spare(self) -> None:
        master = CLUSTER if self._started % 2 else LOCAL
        name = f"process-{self._started:02d}"
        self._started += 1
        self.spares.append(Child.start(name, "tests.chaos.worker", [str(self.plan.path), master], self.plan.logs))

    def _new_run_id(self) -> str:
        return f"{self.random.getrandbits(32):08x}-{self.random.getrandbits(32):08x}"

    def _publish(self) -> None:
        runs = orders.Runs({slot: run.as_seen() for slot, run in self.active.items()}, frozenset(self.finished))
        if runs != self._told:
            orders.write_runs(self.plan.runs, runs)
            self._told = runs

    # The end

    def dismiss(self) -> list[Child]:
        """No more launches; everybody at work is asked to stop in good order. Who that is."""
        self.hires = False
        for spare in self.spares:
            spare.send(signal.SIGKILL)
        self.active = {slot: run for slot, run in self.active.items() if run.child is not None}
        workers = [run.child for run in self.living() if run.child is not None]
        for child in workers:
            child.send(signal.SIGTERM)
        return workers


def _is_ready(spare: Child) -> bool:
    return spare.said.stat().st_size > 0
