"""Pausing an application, or some of its shards or workers, and draining workers.

A pause is recorded in the control row of the tables. Leaders of this package apply this row at their next tick.
Workers and leaders of the KCL do not know the row, so an application in which they take part cannot be paused.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kcl_dagster.errors import ConfigurationError, Unsafe
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.operations.open_application import OpenApplication
from kcl_dagster.tables.control import Control

APPLICATION: Final = "the application"


def leases_of(shards: Collection[str], leases: Sequence[Lease]) -> frozenset[LeaseKey]:
    """Find leases by shard or by lease key. Raises ConfigurationError if a name matches no lease, or several."""
    found = set()
    for name in shards:
        named = [lease.key for lease in leases if name in {lease.key, lease.shard_id}]
        if not named:
            raise ConfigurationError(f"there is no lease of shard {name}")
        if len(named) > 1:
            raise ConfigurationError(f"shard {name} is in several streams: say {' or '.join(sorted(named))}")
        found.add(named[0])
    return frozenset(found)


def slots_of(workers: Collection[str], rows: Sequence[WorkerRow]) -> frozenset[str]:
    """Find slots (places for workers in the fleet) by their names, or by the names of the workers in them. Raises
    ConfigurationError if a name matches neither, and Unsafe for workers of the KCL."""
    found = set()
    for name in workers:
        row = next((row for row in rows if name in {row.id, row.slot}), None)
        if row is not None:
            _refuse_foreign([row])
            found.add(row.slot or "")
        elif _SLOT.fullmatch(name):
            found.add(name)  # this slot has no worker now, and stays empty
        else:
            raise ConfigurationError(f"there is no worker or slot {name}: kcl-dagster status lists them")
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class PauseReport:
    """The changes of a pause or a resume. If `dry` is set, they were not made."""

    before: Control
    after: Control
    dry: bool

    def lines(self) -> list[str]:
        """A line for each change, and then a line for everything that stays paused."""
        pauses, resumes = ("would pause", "would resume") if self.dry else ("paused", "resumed")
        before, after = _paused(self.before), _paused(self.after)
        changed = [f"{pauses} {name}" for name in after if name not in before]
        changed += [f"{resumes} {name}" for name in before if name not in after]
        if APPLICATION in after and APPLICATION not in before:
            changed[0] += ": its workers finish their batch and end"
        return [*(changed or ["nothing changes"]), *(f"{name} stays paused" for name in after if name in before)]


def _paused(control: Control) -> list[str]:
    return [*([APPLICATION] if control.paused else []), *sorted(control.leases), *sorted(control.slots)]


def pause(
    opened: OpenApplication, shards: Collection[str] = (), *, workers: Collection[str] = (), dry: bool = False
) -> PauseReport:
    """Pause the application, or only some shards or workers.

    - The application: its workers finish their batches and end.
    - A shard: its lease is taken from the owner, and the batch in progress is repeated later.
    - A worker: it finishes its batch and ends, its slot remains empty, and other workers read its shards.
    """
    scan = opened.scan()
    foreign = sorted(row.id for row in scan.workers if row.slot is None)
    if foreign and not workers:
        raise Unsafe(f"{', '.join(foreign[:3])} are workers of the KCL, which knows no pause: stop them instead")
    known = opened.control.load()
    wanted = replace(
        known,
        paused=known.paused or not (shards or workers),
        leases=known.leases | leases_of(shards, scan.leases),
        slots=known.slots | slots_of(workers, scan.workers),
    )
    return _change(opened, "pause", known, wanted, shards, workers, dry=dry)


def resume(
    opened: OpenApplication, shards: Collection[str] = (), *, workers: Collection[str] = (), dry: bool = False
) -> PauseReport:
    known = opened.control.load()
    if not shards and not workers:
        return _change(opened, "resume", known, Control(), (), (), dry=dry)
    keys = frozenset(key for key in known.leases if any(key == one or key.endswith(f":{one}") for one in shards))
    slots = frozenset(slot for slot in known.slots if any(one.partition(":")[0] == slot for one in workers))
    if (shards and not keys) or (workers and not slots):
        raise ConfigurationError(f"none of {', '.join(sorted([*shards, *workers]))} is paused")
    wanted = replace(known, leases=known.leases - keys, slots=known.slots - slots)
    return _change(opened, "resume", known, wanted, shards, workers, dry=dry)


def drain(opened: OpenApplication, name: str, *, wanted: bool = True, dry: bool = False) -> list[WorkerId]:
    """Ask a worker, or all workers of a slot, to hand over their leases and end. `wanted=False` withdraws the
    request.

    The leader launches another worker if the fleet needs it. Raises ConfigurationError if there is no such worker.
    """
    rows = [row for row in opened.scan().workers if name in {row.id, row.slot}]
    if not rows:
        raise ConfigurationError(f"there is no worker or slot {name}: kcl-dagster status lists them")
    _refuse_foreign(rows)
    if not dry:
        opened.audit.write("drain", opened.by, {"workers": [row.id for row in rows], "wanted": wanted})
        rows = [row for row in rows if opened.workers.request_drain(row.id, wanted)]
    return [row.id for row in rows]


def _refuse_foreign(rows: Sequence[WorkerRow]) -> None:
    foreign = [row.id for row in rows if row.slot is None]
    if foreign:
        raise Unsafe(
            f"{', '.join(foreign)} is a worker of the KCL, which cannot be asked to drain: stop it instead"
        )


def _change(
    opened: OpenApplication,
    action: str,
    known: Control,
    wanted: Control,
    shards: Collection[str],
    workers: Collection[str],
    *,
    dry: bool,
) -> PauseReport:
    wanted = replace(wanted, changed_by=opened.by, changed_at=int(opened.runtime.clock.now() * 1000))
    if not dry:
        what = {"shards": sorted(shards)} | ({"workers": sorted(workers)} if workers else {})
        opened.audit.write(action, opened.by, what if shards or workers else {"shards": "all"})
        opened.control.save(wanted)
    return PauseReport(known, wanted, dry)


_SLOT: Final = re.compile(r"worker-\d{3,}")
