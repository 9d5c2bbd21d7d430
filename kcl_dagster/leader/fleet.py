"""Decides how many workers there should be, and which slots run them. A slot is a place for a worker: `worker-000`,
`worker-001` and so on.

- A slot has at most one active run. If the row of a living worker names a slot, that worker serves the slot. This
  also holds if another deployment of the application launched the worker, and this Dagster instance does not know
  its run. Bounded runs do not count, because they have no slot and end by themselves.
- The number of workers follows the number of open shards and the throughput. Within the configured limits, it also
  follows the lag, by one step per cool-down. There are never more workers than unfinished leases, except while one
  worker replaces another.
- With `min_workers` 0, a fleet that has read everything rests: it has no worker until a record has waited for
  longer than `scale_up_lag`.
- If a worker has run for longer than its lifetime, or has older code than the leader, another worker replaces it.
  Workers are replaced one at a time. The old worker is asked to drain when its successor can read. The successor's
  row shows this once its Spark has started.
- A worker with older code is *stuck* if failures have stopped one of its shards, or if one of its batches hangs.
  Free slots are launched to replace all stuck workers at once. If another worker reads, the stuck workers drain
  without waiting until their successors can read.
- A start is allowed to take a certain time. If a worker still cannot read after this time, and another worker
  reads, the leader gives up the first worker: this worker drains, and its slot is launched again. So a worker that
  never reads prevents neither the replacement of workers with older code nor a reduction of the fleet, and the
  workers that read are kept. After a start was given up, later starts get more time: see
  `kcl_dagster.leader.start_patience`.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kcl_dagster.application import FleetSettings
from kcl_dagster.leader.liveness import WorkerSight
from kcl_dagster.leader.run_view import LoadedCode, SlotRun
from kcl_dagster.leader.start_patience import patience
from kcl_dagster.leader.start_watch import START_SECONDS
from kcl_dagster.model.counting import counted
from kcl_dagster.model.lease import WorkerId
from kcl_dagster.model.worker_row import WorkerState, slot_name

# A batch that takes longer counts as hanging. If there is newer code, the worker of such a batch is replaced before
# the batch ends.
HANGS_SECONDS: Final = 120.0
# One step of scaling up, as a part of the fleet: a large fleet that lags needs more than one additional worker.
_STEP: Final = 0.25
# If a run is older than this and has no living worker, it does not count as a worker: its process hangs, or has
# ended unnoticed.
_SILENT_SECONDS: Final = 120.0
# A run that does not count as a worker because of `_SILENT_SECONDS` is reported as failed after this further time.
# If a run's process ends while Dagster's database cannot be reached, Dagster does not record the end of the run,
# and the run would keep its slot for ever.
ABANDONED_SECONDS: Final = 120.0
# A run that is queued for longer than this does not count as a worker: its queue may belong to another deployment,
# or may be blocked.
QUEUED_SECONDS: Final = 120.0
# A worker is given up if it cannot read after `NEVER_UP_SECONDS`, or after `NEVER_UP_COOLDOWNS` cool-downs if these
# take longer. After starts were given up, later starts get more time.
NEVER_UP_SECONDS: Final = START_SECONDS
NEVER_UP_COOLDOWNS: Final = 5
# A worker that was launched this recently is expected to report soon.
EXPECTED_SECONDS: Final = 60.0
# The fleet has enough workers if each uses at most this part of its configured throughput.
_FILL: Final = 0.9


@dataclass(frozen=True, slots=True)
class FleetSight:
    """The input of `decide_fleet`.

    - `open_leases`: the number of unfinished leases; None if the tables could not be read.
    - `unserved`: the number of leases without a living worker. Paused leases are not counted.
    - `lag_ms`: the lag, without failing, stopped and paused shards.
    - `target`: the number of workers that the last tick wanted. It was unchanged for `target_stood` seconds.
    - `now`: epoch seconds, like the start times of runs.
    """

    slots: Mapping[str, SlotRun]
    workers: Sequence[WorkerSight] = ()
    open_leases: int | None = None
    unserved: int = 0
    lag_ms: int | None = None
    waited: float | None = None
    """The seconds for which the oldest unread record of shards without a worker has waited. Infinite if only a
    worker can find this out. None if it was not looked up."""

    kbps: float = 0.0
    target: int | None = None
    target_stood: float = 0.0
    now: float = 0.0
    paused: Collection[str] = ()
    """Slots that an operator has paused."""

    code: LoadedCode | None = None
    """The code with which workers are launched."""

    given_up: Mapping[str, float] = field(default_factory=dict)
    """Runs of the last day whose workers were given up because their starts took too long, and when."""


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """The decision of `decide_fleet`. `target`: the number of workers. `launch`: slots that need a run. `drain`:
    workers to be drained, and why. `cancel`: slots whose run is still queued and no longer needed. `expected`: the
    number of runs whose workers will report soon."""

    target: int
    launch: Mapping[str, str]
    """Slot -> reason."""

    drain: Mapping[WorkerId, str]
    cancel: tuple[str, ...] = ()
    expected: int = 0
    notes: tuple[str, ...] = ()
    silent: Mapping[str, str] = field(default_factory=dict)
    """For each slot whose run is active in Dagster although its worker does not write its row: the id of the
    run."""

    given_up: Mapping[WorkerId, str] = field(default_factory=dict)
    """For each worker in `drain` that is given up because its start took too long: the id of its run."""

    given_up_over: bool = False
    """Whether the starts that were given up no longer matter: a worker that was launched later reads, or no worker
    has to be started."""


def decide_fleet(settings: FleetSettings, sight: FleetSight, max_kbps_per_worker: float | None = None) -> FleetPlan:
    """Decide how many workers there should be, and which slots are launched, drained or cancelled. Pure. The leader
    calls this function once per tick."""
    target, why = decide_target(settings, sight, max_kbps_per_worker)
    slots = _Slots(settings, sight)
    stuck = [slot for slot in slots.serving if slots.is_stuck(slot)]
    others = [slot for slot in slots.serving if slot not in stuck]
    keep = others[: max(0, target)]
    surplus = others[len(keep) :]
    held = [slot for slot in slots.held if slots.is_up(slot)]
    launch = dict.fromkeys(slots.free[: max(0, target - len(keep))], why)
    drain: dict[WorkerId, str] = {slots.worker(slot).id: f"an operator paused {slot}" for slot in held}
    enough = len(keep) >= target and all(slots.is_up(slot) for slot in keep)
    unwanted = [*surplus, *slots.held, *slots.overtaken, *(slots.waiting if enough else ())]
    cancel = tuple(slot for slot in unwanted if slots.is_queued(slot))
    if not launch:
        drain |= {slots.worker(slot).id: slots.why_given_up(slot) for slot in slots.given_up}
        drain |= {slots.worker(slot).id: slots.why_leave(slot) for slot in _of_stuck(stuck, keep, target, slots)}
    if all(slots.is_up(slot) for slot in keep):
        for slot in surplus:
            if slots.is_up(slot):
                drain[slots.worker(slot).id] = slots.why_leave(slot) or f"{_enough(target)}: {why}"
        leaves = slots.leaving or slots.given_up
        if not surplus and not stuck and not launch and not leaves and sight.unserved == 0:
            old = next((slot for slot in reversed(keep) if slots.why_leave(slot)), None)
            if old is not None and slots.free:
                launch[slots.free[0]] = f"it replaces {old}: {slots.why_leave(old)}"
            elif old is not None:
                drain[slots.worker(old).id] = slots.why_leave(old)
    settled = enough and not (launch or drain or stuck or slots.leaving or slots.given_up)
    return FleetPlan(
        target,
        launch,
        drain,
        cancel,
        slots.expected(),
        slots.notes(),
        slots.silent_runs(),
        slots.runs_given_up(drain),
        slots.started_since() or (settled and not any(slots.why_leave(slot) for slot in keep)),
    )


def _of_stuck(stuck: Sequence[str], keep: Sequence[str], target: int, slots: "_Slots") -> Sequence[str]:
    """Return the slots whose stuck workers (see `_Slots.is_stuck`) drain now. A stuck worker can also read shards
    that do not fail. While the stuck worker is replaced, another worker has to read these shards. If no other
    worker can read, only one stuck worker drains at a time, and none while another worker is starting."""
    if target <= 0 or any(slots.is_up(slot) for slot in keep):
        return stuck
    return stuck[:1] if not keep and not slots.leaving and not slots.given_up else ()


def _enough(workers: int) -> str:
    return "1 worker is enough" if workers == 1 else f"{workers} workers are enough"


def decide_target(
    settings: FleetSettings, sight: FleetSight, max_kbps_per_worker: float | None = None
) -> tuple[int, str]:
    """Return how many workers there should be, and why."""
    if sight.open_leases is None:
        known = sight.target if sight.target is not None else settings.min_workers
        return known, f"{known} workers are wanted; the tables could not be read"
    ceiling = min(settings.max_workers, sight.open_leases)
    floor = max(settings.min_workers, math.ceil(sight.open_leases / settings.shards_per_worker))
    why = f"{sight.open_leases} shards are open"
    if max_kbps_per_worker is not None:
        for_bytes = math.ceil(sight.kbps / (max_kbps_per_worker * _FILL))
        if for_bytes > floor:
            floor, why = for_bytes, f"{sight.kbps:.0f} KB/s are read"
    floor = min(floor, ceiling)
    if settings.min_workers == 0 and _is_at_rest(sight):
        return _start(settings, sight, floor)
    target = floor if sight.target is None else min(max(sight.target, floor), ceiling)
    if target != sight.target or sight.target_stood < settings.cooldown:
        return target, why
    apart = "without its failing shards, " if _has_failing_shards(sight) else ""
    if sight.lag_ms is not None and sight.lag_ms > settings.scale_up_lag * 1000 and target < ceiling:
        step = max(1, int(target * _STEP))
        return min(target + step, ceiling), f"{apart}the application is {sight.lag_ms / 1000:.0f} s behind"
    is_idle = sight.lag_ms is not None and sight.lag_ms <= settings.scale_down_lag * 1000
    if is_idle and target > floor and sight.unserved == 0:
        return target - 1, f"{apart}the application keeps up"
    if settings.min_workers == 0 and is_idle and sight.unserved == 0 and not _has_failing_shards(sight):
        return 0, "everything is read"
    return target, why


def _is_at_rest(sight: FleetSight) -> bool:
    """Whether the last tick wanted no worker. If the last target is not known, the fleet counts as at rest if none
    of its workers is alive, apart from draining workers. Bounded runs are not part of the fleet."""
    if sight.target is None:
        workers = (seen for seen in sight.workers if seen.alive)
        return all(seen.drains or seen.row.is_bounded for seen in workers)
    return sight.target == 0


def _start(settings: FleetSettings, sight: FleetSight, workers: int) -> tuple[int, str]:
    """Return the number of workers for a fleet at rest, and why. If it is not known whether records are unread,
    workers are started."""
    if sight.waited is None or math.isinf(sight.waited):
        return workers, "whether records are unread is not known, and a worker finds out"
    if sight.waited > settings.scale_up_lag:
        return workers, f"a record has waited for {sight.waited:.0f} s"
    return 0, "a record has waited for no longer than it may" if sight.waited else "nothing is unread"


def _has_failing_shards(sight: FleetSight) -> bool:
    """Whether shards fail or are stopped. Their lag is not in `lag_ms`, because more workers would not reduce
    it."""
    return any(seen.alive and (seen.row.stopped or seen.row.failing) for seen in sight.workers)


class _Slots:
    """Slots, grouped by the state of their runs and workers.

    - `serving`: the slot has a worker, or will have one soon. If the fleet shrinks, the first of these slots are
      kept.
    - `leaving`: the worker of the slot drains.
    - `silent`: the run of the slot is active, but its worker does not write its row. The run keeps the slot, but
      does not count as a worker.
    - `waiting`: the run of the slot has been queued for so long that it does not count as a worker.
    - `given_up`: the start of the slot's worker has taken too long, and another worker reads.
    - `held`: the slot would be serving, but an operator paused it.
    - `overtaken`: the run of the slot is queued, although a living worker of another instance serves the slot.
    """

    def __init__(self, settings: FleetSettings, sight: FleetSight) -> None:
        self._sight = sight
        self._settings = settings
        first = max(NEVER_UP_SECONDS, NEVER_UP_COOLDOWNS * settings.cooldown)
        self._patience = patience(first, sight.given_up.values())
        self._is_patient = self._patience > first
        living = {seen.row.run_id: seen for seen in sight.workers if seen.alive}
        own = {slot: living[run.run_id] for slot, run in sight.slots.items() if run.run_id in living}
        foreign = _by_slot(sight.workers, own)
        self._workers = {**foreign, **own}
        self.overtaken = sorted(slot for slot, seen in foreign.items() if seen.alive and self.is_queued(slot))
        taken = sorted({*sight.slots, *foreign})
        self.leaving = [slot for slot in taken if self._is_leaving(slot)]
        self.silent = [slot for slot in taken if self._is_silent(slot)]
        others = set(taken) - set(self.leaving) - set(self.silent)
        self.held = sorted(others & set(sight.paused))
        self.waiting = sorted(slot for slot in others - set(self.held) if self._is_waiting(slot))
        serving = others - set(self.held) - set(self.waiting)
        reads = any(self.is_up(slot) for slot in serving)
        self.given_up = sorted(slot for slot in serving if reads and self._is_never_up(slot))
        serving -= set(self.given_up)
        self.serving = sorted(serving, key=lambda slot: (bool(self.why_leave(slot)), slot))
        names = (slot_name(index) for index in range(settings.max_workers))
        self.free = [slot for slot in names if slot not in taken and slot not in sight.paused]

    def worker(self, slot: str) -> WorkerSight:
        return self._workers[slot]

    def is_up(self, slot: str) -> bool:
        return slot in self._workers and self._workers[slot].ready

    def is_queued(self, slot: str) -> bool:
        run = self._sight.slots.get(slot)
        return run is not None and run.status == "queued"

    def why_leave(self, slot: str) -> str:
        """Return why the worker of the slot has to be replaced: it has older code, or has run for longer than its
        lifetime. The text is empty if the worker can stay, or if another deployment launched the worker."""
        run = self._sight.slots.get(slot)
        if run is None or run.status != "running":
            return ""
        if self._has_older_code(slot, run):
            return "it runs older code than the leader"
        if self._age(slot) > self._settings.lifetime:
            return f"it has run for {self._age(slot) / 3600:.1f} hours"
        return ""

    def why_given_up(self, slot: str) -> str:
        return f"it has not come to read in {self._age(slot) / 60:.0f} minutes"

    def is_stuck(self, slot: str) -> bool:
        """Whether the worker has older code, and a stopped shard or a hanging batch. Newer code may be able to
        process the records of this shard or batch."""
        run = self._sight.slots.get(slot)
        is_older = run is not None and run.status == "running" and self._has_older_code(slot, run)
        if not is_older or not self.is_up(slot):
            return False
        row = self.worker(slot).row
        hangs_since = min((row.slow_since or {}).values(), default=math.inf)
        return bool(row.stopped) or self._sight.now - hangs_since > HANGS_SECONDS

    def _has_older_code(self, slot: str, run: SlotRun) -> bool:
        """Whether the run has older code than the leader. False if a worker of another run serves the slot."""
        code, worker = self._sight.code, self._workers.get(slot)
        is_own = worker is None or worker.row.run_id == run.run_id
        return is_own and code is not None and code.is_newer_than(run)

    def expected(self) -> int:
        """The number of runs whose workers will report soon."""
        return sum(
            slot not in self._workers and run.status != "canceling" and self._age(slot) <= EXPECTED_SECONDS
            for slot, run in self._sight.slots.items()
        )

    def silent_runs(self) -> dict[str, str]:
        return {slot: self._sight.slots[slot].run_id for slot in self.silent}

    def runs_given_up(self, drained: Collection[WorkerId]) -> dict[WorkerId, str]:
        workers = {self.worker(slot).id: self._sight.slots[slot].run_id for slot in self.given_up}
        return {worker: run for worker, run in workers.items() if worker in drained}

    def started_since(self) -> bool:
        """Whether a worker of this deployment can read, and its run began after the last time that a start was
        given up."""
        last = max(self._sight.given_up.values(), default=math.inf)
        own = (slot for slot, run in self._sight.slots.items() if self._is_own(slot, run) and run.started_at > last)
        return any(self.is_up(slot) for slot in own)

    def _is_own(self, slot: str, run: SlotRun) -> bool:
        return slot in self._workers and self._workers[slot].row.run_id == run.run_id

    def notes(self) -> tuple[str, ...]:
        queued = [
            slot
            for slot, run in sorted(self._sight.slots.items())
            if run.status == "queued" and self._age(slot) > EXPECTED_SECONDS
        ]
        notes = [
            f"run {self._sight.slots[slot].run_id} of {slot} is said to run, but its worker does not write its row"
            for slot in self.silent
        ]
        notes += [f"{self.worker(slot).id} is not waited for: {self.why_given_up(slot)}" for slot in self.given_up]
        if self._is_patient:
            ended = counted(len(self._sight.given_up), "worker")
            waits = f"a worker that starts is waited for {self._patience / 60:.0f} minutes"
            notes.append(f"{waits}: {ended} did not come to read in time within the last day")
        if queued:
            notes.append(f"runs wait in the queue: {', '.join(queued)}; the instance may allow too few at once")
        return tuple(notes)

    def _age(self, slot: str) -> float:
        return self._sight.now - self._sight.slots[slot].started_at

    def _is_leaving(self, slot: str) -> bool:
        run = self._sight.slots.get(slot)
        drains = slot in self._workers and self._workers[slot].drains
        return drains or (run is not None and run.status == "canceling")

    def _is_silent(self, slot: str) -> bool:
        run = self._sight.slots.get(slot)
        started = run is not None and run.status in {"starting", "running"}
        return started and slot not in self._workers and self._age(slot) > _SILENT_SECONDS

    def _is_never_up(self, slot: str) -> bool:
        """Whether the worker of the slot's run still cannot read although its time to start is over. False if a
        worker of another run serves the slot, because its age is not known."""
        run, worker = self._sight.slots.get(slot), self._workers.get(slot)
        if run is None or run.status != "running" or worker is None or worker.row.run_id != run.run_id:
            return False
        return worker.row.state is WorkerState.STARTING and self._age(slot) > self._patience

    def _is_waiting(self, slot: str) -> bool:
        return self.is_queued(slot) and slot not in self._workers and self._age(slot) > QUEUED_SECONDS


def _by_slot(workers: Sequence[WorkerSight], own: Mapping[str, WorkerSight]) -> dict[str, WorkerSight]:
    """Find a worker for each slot that is not in `own`, by the rows of the workers. `own`: the slots whose active
    run has a living worker.

    A worker also counts if it is not known yet whether the worker is alive. If a slot has several workers, a living
    worker is chosen. Workers that do not drain are preferred. Workers of bounded runs are left out, because they
    have no slot.
    """
    found: dict[str, WorkerSight] = {}
    for seen in sorted(workers, key=lambda seen: (seen.alive, not seen.drains, seen.id)):
        if (
            (seen.alive or seen.unsure)
            and seen.row.slot is not None
            and not seen.row.is_bounded
            and seen.row.slot not in own
        ):
            found[seen.row.slot] = seen
    return found
