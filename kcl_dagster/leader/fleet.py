"""How many workers there should be, and which slots run them.

One active run per slot. The number follows the open shards, and lag and throughput within `min` and `max`, one step
per cool-down; never more workers than shards that can be read. Old workers are replaced one at a time.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kcl_dagster.application import FleetSettings
from kcl_dagster.leader.liveness import WorkerSight
from kcl_dagster.leader.runs import SlotRun
from kcl_dagster.model.lease import WorkerId
from kcl_dagster.model.worker import slot_name

# One step of scaling up, as a part of the fleet: a large fleet that lags needs more than one worker more.
_STEP: Final = 0.25
# A run that works for this long without its row being seen is worth telling: it can be a process that hangs.
_SILENT_SECONDS: Final = 120.0
# A worker that was launched this recently is expected to report soon.
EXPECTED_SECONDS: Final = 60.0
# Room above the configured throughput of a worker before another is asked for.
_FILL: Final = 0.9


@dataclass(frozen=True, slots=True)
class FleetSight:
    """What the decision rests on.

    `open_leases`: leases whose shards can be read now or later, None when the tables could not be read. `target` is
    the last tick's, and stood for `target_stood` seconds. `now` in epoch seconds, as the runs' start times are.
    """

    slots: Mapping[str, SlotRun]
    workers: Sequence[WorkerSight] = ()
    open_leases: int | None = None
    unserved: int = 0
    lag_ms: int | None = None
    kbps: float = 0.0
    target: int | None = None
    target_stood: float = 0.0
    now: float = 0.0


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """`launch`: slots without a run that need one. `drain`: workers to be asked to finish. `cancel`: slots whose
    run still waits in the queue and is not wanted any more. `expected`: runs that will report soon."""

    target: int
    launch: Mapping[str, str]
    """Slot -> reason."""

    drain: Mapping[WorkerId, str]
    cancel: tuple[str, ...] = ()
    expected: int = 0
    notes: tuple[str, ...] = ()


def decide_fleet(settings: FleetSettings, sight: FleetSight, max_kbps_per_worker: float | None = None) -> FleetPlan:
    """Pure. Called once a tick by the leader."""
    target, why = decide_target(settings, sight, max_kbps_per_worker)
    active = sorted(sight.slots)
    keep = _slots_to_keep(active, target)
    surplus = [slot for slot in active if slot not in keep]
    launch = dict.fromkeys(_free_slots(active, target - len(keep), settings.max_workers), why)
    by_slot = {seen.row.slot: seen for seen in sight.workers if seen.row.slot is not None and seen.alive}
    drain: dict[WorkerId, str] = {}
    cancel: list[str] = []
    for slot in surplus:
        worker = by_slot.get(slot)
        if worker is not None and worker.row.run_id == sight.slots[slot].run_id:
            if not worker.drains:
                drain[worker.id] = f"{len(active)} workers run and {target} are wanted"
        elif sight.slots[slot].status == "queued":
            cancel.append(slot)
    if not drain and not launch and sight.unserved == 0:
        drain.update(_recycle(settings, sight, by_slot))
    return FleetPlan(target, launch, drain, tuple(cancel), _expected(sight, by_slot), _notes(sight, by_slot))


def decide_target(
    settings: FleetSettings, sight: FleetSight, max_kbps_per_worker: float | None = None
) -> tuple[int, str]:
    """How many workers there should be, and why."""
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
    target = floor if sight.target is None else min(max(sight.target, floor), ceiling)
    if target != sight.target or sight.target_stood < settings.cooldown:
        return target, why
    if sight.lag_ms is not None and sight.lag_ms > settings.scale_up_lag * 1000 and target < ceiling:
        step = max(1, int(target * _STEP))
        return min(target + step, ceiling), f"the application is {sight.lag_ms / 1000:.0f} s behind"
    is_idle = sight.lag_ms is not None and sight.lag_ms <= settings.scale_down_lag * 1000
    if is_idle and target > floor and sight.unserved == 0:
        return target - 1, "the application keeps up"
    return target, why


def _slots_to_keep(active: Sequence[str], target: int) -> frozenset[str]:
    return frozenset(active[: max(0, target)])


def _free_slots(active: Sequence[str], number: int, most: int) -> list[str]:
    taken = set(active)
    free = (slot_name(index) for index in range(most) if slot_name(index) not in taken)
    return [slot for slot, _ in zip(free, range(max(0, number)), strict=False)]


def _recycle(settings: FleetSettings, sight: FleetSight, by_slot: Mapping[str, WorkerSight]) -> dict[WorkerId, str]:
    """The oldest worker beyond its lifetime, if every other one is up: a fleet is never replaced all at once."""
    if any(seen.drains for seen in by_slot.values()) or len(by_slot) < len(sight.slots):
        return {}
    old = [
        (run.started_at, slot)
        for slot, run in sight.slots.items()
        if run.status == "running" and sight.now - run.started_at > settings.lifetime
    ]
    if not old:
        return {}
    started, slot = min(old)
    return {by_slot[slot].id: f"it has run for {(sight.now - started) / 3600:.1f} hours"}


def _expected(sight: FleetSight, by_slot: Mapping[str, WorkerSight]) -> int:
    return sum(
        slot not in by_slot and run.status != "canceling" and sight.now - run.started_at <= EXPECTED_SECONDS
        for slot, run in sight.slots.items()
    )


def _notes(sight: FleetSight, by_slot: Mapping[str, WorkerSight]) -> tuple[str, ...]:
    notes: list[str] = []
    queued = sorted(
        slot
        for slot, run in sight.slots.items()
        if run.status == "queued" and sight.now - run.started_at > EXPECTED_SECONDS
    )
    if queued:
        notes.append(f"runs wait in the queue: {', '.join(queued)}; the instance may allow too few runs at once")
    for slot, run in sorted(sight.slots.items()):
        if run.status == "running" and slot not in by_slot and sight.now - run.started_at > _SILENT_SECONDS:
            notes.append(f"run {run.run_id} of {slot} is said to run, but its worker does not write its row")
    return tuple(notes)
