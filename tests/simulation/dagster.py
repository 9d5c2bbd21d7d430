"""Dagster as the fleet sees it: runs that are asked for, wait, start, end, and are sometimes misjudged."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from random import Random
from typing import Final
from uuid import UUID

from kcl_dagster.leader.run_view import RunStatus, RunView, SlotRun
from kcl_dagster.model.lease import WorkerId
from kcl_dagster.model.worker_row import BOUNDED_SLOT, worker_id
from tests.simulation.kernel import Kernel, Process
from tests.simulation.scenario import EPOCH

# Measured: 3 to 17 seconds from request to the first line of the run; the queue is looked at every five.
QUEUE_SECONDS: Final = (0.0, 5.0)
START_SECONDS: Final = (3.0, 12.0)
# How soon a caller notices that a database that hung answers again.
LOOK_SECONDS: Final = 5.0

_RANK: Final[tuple[RunStatus, ...]] = ("queued", "starting", "canceling", "running")


@dataclass(slots=True, eq=False)
class Run:
    id: str
    slot: str
    asked_at: float
    status: RunStatus | None = "queued"
    """None when it is over."""

    started_at: float | None = None
    process: Process | None = None
    over_because: str = ""
    exit: str | None = None
    """What the process said when it ended by itself."""

    @property
    def worker(self) -> WorkerId:
        return worker_id(self.slot, self.id)

    @property
    def is_over(self) -> bool:
        return self.status is None


class StorageAway(Exception):
    """Dagster's database refuses."""


@dataclass(slots=True)
class Storage:
    """Dagster's database, as each of its callers meets it: slow, hanging, or raising."""

    slow_seconds: float = 0.0
    hangs_until: float = 0.0
    raises: bool = False
    on_call: Callable[[], None] = lambda: None
    """Told of each call that has to wait or fails, on the caller's strand."""

    @property
    def is_well(self) -> bool:
        return not (self.slow_seconds or self.hangs_until or self.raises)

    def call(self, process: Process) -> None:
        """Waits as long as the database takes."""
        if self.is_well:
            return
        kernel = process.kernel
        self.on_call()
        kernel.sleep(self.slow_seconds)
        while kernel.now < self.hangs_until:
            kernel.sleep(LOOK_SECONDS)
        if self.raises:
            raise StorageAway("the database is away, injected")

    def mend(self) -> None:
        self.slow_seconds, self.hangs_until, self.raises = 0.0, 0.0, False


@dataclass(slots=True)
class Orchestrator:
    """One Dagster instance. `start` makes a run's process; it is called when the run starts."""

    kernel: Kernel
    random: Random
    start: Callable[[Run], Process]
    one_run_per_slot: bool
    monitor_seconds: float
    pod_seconds: float = 0.0
    """At most, for the machine of a run, on top of what Dagster takes."""

    launches: bool = True
    """Whether the leader may ask for runs of its fleet."""

    storage: Storage = field(default_factory=Storage)
    runs: dict[str, Run] = field(default_factory=dict)
    held_back_until: float = 0.0
    _keys: set[str] = field(default_factory=set)
    _waiting: list[Run] = field(default_factory=list)

    def request(self, key: str, slot: str) -> Run | None:
        """A run request of a sensor. Dagster ignores a key that it has seen before."""
        if key in self._keys:
            self.kernel.note("dagster", f"{key} was asked for before")
            return None
        self._keys.add(key)
        return self.launch(slot)

    def launch(self, slot: str) -> Run:
        """Queue a run: for a sensor, or for an operator who launches it by hand."""
        run = Run(str(UUID(int=self.random.getrandbits(128), version=4)), slot, self.kernel.now)
        self.runs[run.id] = run
        self.kernel.note("dagster", f"run {run.worker} is queued")
        self._dequeue_later(run)
        return run

    def hold_back(self, seconds: float) -> None:
        """Nothing leaves the queue for a while."""
        self.held_back_until = max(self.held_back_until, self.kernel.now + seconds)
        self.kernel.call_at(self.held_back_until, self._go_on)

    def let_go(self) -> None:
        """Whatever holds the queue back does so no longer."""
        self.held_back_until = self.kernel.now
        self._go_on()

    def _go_on(self) -> None:
        if self.kernel.now >= self.held_back_until:
            waiting, self._waiting = self._waiting, []
            for run in waiting:
                self._dequeue(run)

    def _dequeue_later(self, run: Run) -> None:
        self.kernel.call_at(self.kernel.now + self.random.uniform(*QUEUE_SECONDS), lambda: self._dequeue(run))

    def _dequeue(self, run: Run) -> None:
        if run.status != "queued":
            return
        if self.kernel.now < self.held_back_until:
            self._waiting.append(run)
            return
        is_counted = self.one_run_per_slot and run.slot != BOUNDED_SLOT
        if is_counted and any(other.slot == run.slot for other in self._active()):
            self.kernel.call_at(self.kernel.now + QUEUE_SECONDS[1], lambda: self._dequeue(run))
            return
        run.status = "starting"
        self.kernel.call_at(self.kernel.now + self._start_seconds(), lambda: self._begin(run))

    def _start_seconds(self) -> float:
        seconds = self.random.uniform(*START_SECONDS)
        return seconds + self.random.uniform(0.0, self.pod_seconds) if self.pod_seconds else seconds

    def _active(self) -> list[Run]:
        return [run for run in self.runs.values() if run.status not in (None, "queued")]

    def _begin(self, run: Run) -> None:
        if run.status != "starting":
            return
        run.status, run.started_at = "running", self.kernel.now
        self.kernel.note("dagster", f"run {run.worker} starts")
        run.process = self.start(run)
        run.process.on_end(lambda: self._ended(run))

    def _ended(self, run: Run) -> None:
        """The process is gone. If it said nothing, run monitoring takes a while to find out."""
        if run.exit is not None:
            self.finish(run, run.exit)
            return
        self.kernel.call_at(self.kernel.now + self.monitor_seconds, lambda: self.finish(run, "its process died"))

    def finish(self, run: Run, because: str) -> None:
        """Dagster takes the run for over. Its process may disagree."""
        if not run.is_over:
            run.status, run.over_because = None, because
            self.kernel.note("dagster", f"run {run.worker} is over: {because}")

    def cancel_queued(self, slot: str) -> None:
        for run in self.runs.values():
            if run.slot == slot and run.status == "queued":
                self.finish(run, "cancelled in the queue")

    def report_failed(self, run_id: str) -> None:
        run = self.runs.get(run_id)
        if run is not None and run.status in {"starting", "running"}:
            self.finish(run, "its worker is gone, says the leader")

    def rival(self, run: Run) -> Run | None:
        """Another run at work in this slot, as Dagster knows it."""
        if run.slot == BOUNDED_SLOT:
            return None
        at_work = (r for r in self.runs.values() if r.slot == run.slot and r is not run and r.status == "running")
        return next(at_work, None)

    def view(self) -> RunView:
        best: dict[str, Run] = {}
        for run in self.runs.values():
            if run.status is None or run.slot == BOUNDED_SLOT:
                continue
            known = best.get(run.slot)
            if known is None or _RANK.index(run.status) > _RANK.index(known.status or "queued"):
                best[run.slot] = run
        slots = {
            slot: SlotRun(run.id, run.worker, run.status or "queued", EPOCH + (run.started_at or run.asked_at))
            for slot, run in sorted(best.items())
        }
        return RunView(slots, self.finished, launches=self.launches)

    def finished(self, ids: Collection[str]) -> Collection[str]:
        return {run_id for run_id in ids if run_id in self.runs and self.runs[run_id].is_over}
