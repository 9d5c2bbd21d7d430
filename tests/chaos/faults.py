"""Carries out what the schedule says, on whoever is there to suffer it."""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

from kcl_dagster import aws
from kcl_dagster.emulator import Emulator
from kcl_dagster.errors import KclError
from kcl_dagster.model.shard import Shard
from kcl_dagster.orchestration import processes
from kcl_dagster.orchestration.processes import Process
from kcl_dagster.runtime import system
from kcl_dagster.streams.listing import list_shards
from kcl_dagster.tables.memory_row import MemoryRow
from kcl_dagster.tables.table_layout import detect_layout
from kcl_dagster.tables.workers import WorkerTable
from tests.chaos import aws_faults, child_processes
from tests.chaos.crew import Crew, Run
from tests.chaos.leaders import Leaders
from tests.chaos.plan import STREAM, TIMINGS, Plan
from tests.chaos.schedule import Fault, Planned

T = TypeVar("T")

# What "longer than a lease lasts" means, as parts of that time; below one so that some come back just before.
SHORTEST, LONGEST = 0.9, 2.2
FAULT_SECONDS = (4.0, 9.0)
OUTAGE = (0.6, 1.4)  # of a lease duration: some leases are lost, some are just kept
BESIDE_SECONDS = (8.0, 20.0)
TAKES_A_WORKER = {
    Fault.KILL_WORKER,
    Fault.KILL_CONTAINER,
    Fault.KILL_JVM,
    Fault.FREEZE_WORKER,
    Fault.FREEZE_DRIVER,
    Fault.FREEZE_JVM,
    Fault.DECLARE_DEAD,
    Fault.FREEZE_AND_DECLARE_DEAD,
    Fault.TERMINATE,
    Fault.DRAIN,
}
MOST_SHARDS, FEWEST_SHARDS = 7, 3  # open ones; more would leave each of them little to do


@dataclass
class Faults:
    """`apply` returns what was done, or why nothing could be; `step` undoes what has lasted long enough."""

    plan: Plan
    emulator: Emulator
    crew: Crew
    leaders: Leaders
    tell: Callable[[str], None]
    _later: list[tuple[float, Callable[[], str]]] = field(default_factory=list)
    _remembered: dict[str, Any] | None = None
    _is_bad: int = 0

    def __post_init__(self) -> None:
        self._kinesis = aws.client("kinesis", endpoint_url=self.plan.endpoint_url)
        self._dynamodb = aws.client("dynamodb", endpoint_url=self.plan.endpoint_url)
        self._runtime = system()

    def can_apply(self, planned: Planned) -> bool:
        """Whether it should be done now; later otherwise."""
        if planned.fault is Fault.KILL_EXECUTOR:
            return bool(self._executors())
        return planned.fault not in TAKES_A_WORKER or self.crew.can_lose_one()

    def apply(self, planned: Planned) -> str:
        fault = planned.fault
        try:
            if aws_faults.rules(fault):
                return self._disturb(planned)
            return f"{fault}: {self.ACTIONS[fault](self, planned)}"
        except (KclError, IndexError) as error:
            return f"{fault}: nothing done, {str(error) or 'nobody is there'}"

    def step(self) -> None:
        now = time.monotonic()
        due = [undo for at, undo in self._later if at <= now]
        self._later = [(at, undo) for at, undo in self._later if at > now]
        for undo in due:
            self.tell(f"    {undo()}")

    def end(self) -> None:
        """Everything that lasts is over now."""
        later, self._later = self._later, []
        for _, undo in sorted(later, key=lambda entry: entry[0]):
            self.tell(f"    {undo()}")
        self.emulator.faults.clear()
        self.plan.sinks_fail.unlink(missing_ok=True)

    def _after(self, seconds: float, undo: Callable[[], str]) -> None:
        self._later.append((time.monotonic() + seconds, undo))

    # AWS and sinks

    def _disturb(self, planned: Planned) -> str:
        seconds = _between(FAULT_SECONDS, planned)
        if planned.fault is Fault.OUTAGE:
            seconds = TIMINGS.lease_duration * _between(OUTAGE, planned)
        self.emulator.faults.clear()
        self.emulator.faults.add(*aws_faults.rules(planned.fault))
        self._is_bad += 1
        mine = self._is_bad

        def calm() -> str:
            if self._is_bad != mine:
                return f"{planned.fault}: gave way to worse"
            self.emulator.faults.clear()
            return f"{planned.fault}: no more"

        self._after(seconds, calm)
        return f"{planned.fault}, for {seconds:.1f} s"

    def _sink_fails(self, planned: Planned) -> str:
        self.plan.sinks_fail.touch()
        seconds = _between(FAULT_SECONDS, planned)

        def calm() -> str:
            self.plan.sinks_fail.unlink(missing_ok=True)
            return "sinks work again"

        self._after(seconds, calm)
        return f"for {seconds:.1f} s"

    # Workers

    def _worker(self, planned: Planned) -> tuple[Run, child_processes.Child]:
        """Raises IndexError when nobody is at work."""
        run = _pick(self.crew.at_work(), planned)
        assert run.child is not None
        return run, run.child

    def _kill_worker(self, planned: Planned) -> str:
        run, child = self._worker(planned)
        child.send(signal.SIGKILL)
        return f"{run.name} (pid {child.pid})"

    def _kill_container(self, planned: Planned) -> str:
        run, child = self._worker(planned)
        below = child.below()
        child.send(signal.SIGKILL)
        return f"{run.name} (pid {child.pid}) and {child_processes.send(signal.SIGKILL, below)} below it"

    def _kill_python(self, planned: Planned) -> str:
        run, child = self._worker(planned)
        process = _pick(child_processes.python_workers(child), planned)
        child_processes.send(signal.SIGKILL, [process])
        return f"pid {process.pid} of {run.name}"

    def _kill_executor(self, planned: Planned) -> str:
        run, process = _pick(self._executors(), planned)
        child_processes.send(signal.SIGKILL, [process])
        return f"pid {process.pid} of {run.name}"

    def _executors(self) -> list[tuple[Run, Process]]:
        return [(run, p) for run in self.crew.at_work() if run.child for p in child_processes.executors(run.child)]

    def _kill_jvm(self, planned: Planned) -> str:
        run, child = self._worker(planned)
        process = _pick(child_processes.jvms(child), planned)
        child_processes.send(signal.SIGKILL, [process])
        return f"pid {process.pid} of {run.name}"

    def _freeze(self, run: Run, those: Sequence[Process], seconds: float) -> str:
        run.frozen = True
        child_processes.send(signal.SIGSTOP, those)

        def thaw() -> str:
            run.frozen = False
            child_processes.send(signal.SIGCONT, those)
            return f"{run.name} goes on"

        self._after(seconds, thaw)
        return f"{run.name} ({len(those)} processes), for {seconds:.1f} s"

    def _freeze_worker(self, planned: Planned) -> str:
        run, child = self._worker(planned)
        return self._freeze(run, [*_alone(child), *child.below()], _long(planned))

    def _freeze_driver(self, planned: Planned) -> str:
        run, child = self._worker(planned)
        return self._freeze(run, _alone(child), _long(planned))

    def _freeze_jvm(self, planned: Planned) -> str:
        run, child = self._worker(planned)
        return self._freeze(run, child_processes.jvms(child), _long(planned))

    def _declare_dead(self, planned: Planned) -> str:
        run, _ = self._active(planned)
        self.crew.declare_over(run)
        return f"{run.name}; next is {self.crew.queue(run.slot).name}"

    def _freeze_and_declare_dead(self, planned: Planned) -> str:
        run, child = self._active(planned)
        frozen = self._freeze(run, [*_alone(child), *child.below()], _long(planned))
        self.crew.declare_over(run)
        return f"{frozen}; next is {self.crew.queue(run.slot).name}"

    def _active(self, planned: Planned) -> tuple[Run, child_processes.Child]:
        runs = [run for run in self.crew.at_work() if run in self.crew.active.values()]
        run = _pick(runs, planned)
        assert run.child is not None
        return run, run.child

    def _twin(self, planned: Planned) -> str:
        run = _pick(self.crew.living(), planned)
        twin = self.crew.twin(run.slot)
        seconds = _between(BESIDE_SECONDS, planned)

        def dismiss() -> str:
            if twin.child is None:
                self.crew.beside.remove(twin)
                return f"{twin.name} never began"
            twin.child.send(signal.SIGTERM)
            return f"{twin.name} is asked to stop"

        self._after(seconds, dismiss)
        return f"{twin.name} beside {run.name}, for {seconds:.1f} s"

    def _terminate(self, planned: Planned) -> str:
        run, child = self._worker(planned)
        child.send(signal.SIGTERM)
        return run.name

    def _drain(self, planned: Planned) -> str:
        run, _ = self._active(planned)
        layout = detect_layout(self._dynamodb, self.plan.application, self._runtime)
        workers = WorkerTable(self._dynamodb, self.plan.application, layout, self._runtime)
        workers.request_drain(run.as_seen().worker_id)
        return run.name

    # Leaders

    def _kill_leader(self, planned: Planned) -> str:
        name = self.leaders.kill()
        self._after(_between(FAULT_SECONDS, planned), lambda: self.leaders.start(name))
        return name

    def _freeze_leader(self, planned: Planned) -> str:
        child = self.leaders.leading()
        seconds = TIMINGS.leader_lock * _between((SHORTEST, LONGEST), planned)
        child.send(signal.SIGSTOP)

        def thaw() -> str:
            child.send(signal.SIGCONT)
            return f"{child.name} goes on"

        self._after(seconds, thaw)
        return f"{child.name}, for {seconds:.1f} s"

    def _twin_leader(self, planned: Planned) -> str:
        twin = self.leaders.twin()
        seconds = _between(BESIDE_SECONDS, planned)

        def kill() -> str:
            twin.send(signal.SIGKILL)
            return f"{twin.name} is killed"

        self._after(seconds, kill)
        return f"{twin.name}, for {seconds:.1f} s"

    def _memory(self) -> MemoryRow:
        layout = detect_layout(self._dynamodb, self.plan.application, self._runtime)
        return MemoryRow(self._dynamodb, self.plan.application, layout, self._runtime)

    def _forget(self, planned: Planned) -> str:
        memory = self._memory()
        self._remembered = memory.load()
        memory.save({})
        return f"{len(self._remembered)} entries"

    def _replay(self, planned: Planned) -> str:
        memory = self._memory()
        if self._remembered is None:
            self._remembered = memory.load()
            self._after(_long(planned), lambda: self._put_back(memory))
            return "kept for a while"
        return self._put_back(memory)

    def _put_back(self, memory: MemoryRow) -> str:
        try:
            memory.save(self._remembered or {})
        except KclError as error:
            return f"the leader's memory could not be put back: {error}"
        return "an old memory of the leader's stands again"

    # Shards

    def _split(self, planned: Planned) -> str:
        shards = self._open_shards()
        if len(shards) >= MOST_SHARDS:
            return f"not with {len(shards)} open shards"
        shard = _pick(shards, planned)
        middle = (shard.hash_range.start + shard.hash_range.end) // 2 + 1
        parameters = {"ShardToSplit": shard.id, "NewStartingHashKey": str(middle)}
        aws.call(self._kinesis, "split_shard", StreamName=STREAM, **parameters)
        return shard.id

    def _merge(self, planned: Planned) -> str:
        shards = sorted(self._open_shards(), key=lambda shard: shard.hash_range)
        if len(shards) <= FEWEST_SHARDS:
            return f"not with {len(shards)} open shards"
        left, right = _pick(list(pairwise(shards)), planned)
        parameters = {"ShardToMerge": left.id, "AdjacentShardToMerge": right.id}
        aws.call(self._kinesis, "merge_shards", StreamName=STREAM, **parameters)
        return f"{left.id} and {right.id}"

    def _open_shards(self) -> list[Shard]:
        return [s for s in list_shards(self._kinesis, STREAM, runtime=self._runtime) if s.is_open]

    ACTIONS = {
        Fault.SINK_FAILS: _sink_fails,
        Fault.KILL_WORKER: _kill_worker,
        Fault.KILL_CONTAINER: _kill_container,
        Fault.KILL_PYTHON: _kill_python,
        Fault.KILL_EXECUTOR: _kill_executor,
        Fault.KILL_JVM: _kill_jvm,
        Fault.FREEZE_WORKER: _freeze_worker,
        Fault.FREEZE_DRIVER: _freeze_driver,
        Fault.FREEZE_JVM: _freeze_jvm,
        Fault.DECLARE_DEAD: _declare_dead,
        Fault.FREEZE_AND_DECLARE_DEAD: _freeze_and_declare_dead,
        Fault.TWIN: _twin,
        Fault.TERMINATE: _terminate,
        Fault.DRAIN: _drain,
        Fault.KILL_LEADER: _kill_leader,
        Fault.FREEZE_LEADER: _freeze_leader,
        Fault.TWIN_LEADER: _twin_leader,
        Fault.FORGET: _forget,
        Fault.REPLAY: _replay,
        Fault.SPLIT: _split,
        Fault.MERGE: _merge,
    }


def _pick(those: Sequence[T], planned: Planned) -> T:
    """Raises IndexError when there are none."""
    return those[int(planned.choice * len(those))]


def _between(bounds: tuple[float, float], planned: Planned) -> float:
    low, high = bounds
    return low + (high - low) * planned.seconds


def _long(planned: Planned) -> float:
    return TIMINGS.lease_duration * _between((SHORTEST, LONGEST), planned)


def _alone(child: child_processes.Child) -> list[Process]:
    found = processes.find(child.pid)
    return [found] if found is not None else []
