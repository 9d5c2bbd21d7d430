"""Decides when a bounded run has read enough.

A worker without a bound reads until it is asked to stop. A worker with a bound reads the records that had arrived
before a given time. It stops when every open lease of the application, whichever worker owns it, is stored through
that time.

If shards are split or merged meanwhile, the run also waits for the child shards. Usually the leases of the children
are created before the leases of the parents are finished. The children's leases are then among the open leases. If
a lease is missing, the open leases do not cover all hash keys, and the run waits until the lease is created.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kcl_dagster.errors import KclError, LeaseLost
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.hole import find_hole
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.shard import HashRange
from kcl_dagster.model.superseded import former_streams
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.runtime import Clock
from kcl_dagster.tables.control import Control
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.worker.concurrency import ForEach, errors_of, one_by_one
from kcl_dagster.worker.events import EventKind, OnEvent
from kcl_dagster.worker.holdings import Holdings
from kcl_dagster.worker.outage import Outage
from kcl_dagster.worker.parents import parent_keys
from kcl_dagster.worker.stop import StopReason

LOOK_SECONDS: Final = 2.0  # between two scans
# If nothing changes for this long, the run ends. Two usual delays are shorter: the leases of a worker that ends
# have another owner within a minute, and a failing shard is shown as stopped within two minutes.
PATIENCE_SECONDS: Final = 300.0
SHARDS_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Bound:
    """The time through which a run reads, in epoch seconds by the service's clock. `margin`: seconds that are added
    to `through`. Each lease has to be stored through the sum. The margin is needed because arrival times are
    approximate, and the records of a shard are not strictly ordered by them."""

    through: float
    margin: float
    patience: float = PATIENCE_SECONDS
    streams: Collection[str] | None = None
    """The names of the streams that the application reads. Leases of former streams are kept, and the run does not
    wait for them. None if there are no former streams."""

    def is_reached(self, stored_through: float | None) -> bool:
        return stored_through is not None and stored_through >= self.through + self.margin


@dataclass(frozen=True, slots=True)
class Remainder:
    """The open leases that are not stored through the bound.

    - `waiting`: leases that are being read, or will be.
    - `stuck`: leases that are not read now, with the reason.
    - `missing`: a text that says which leases a leader has to create first; empty if the open leases cover all hash
      keys.
    """

    waiting: tuple[LeaseKey, ...] = ()
    stuck: Mapping[LeaseKey, str] = field(default_factory=dict)
    missing: str = ""

    @property
    def is_known(self) -> bool:
        return not self.missing

    @property
    def is_empty(self) -> bool:
        return self.is_known and not self.waiting and not self.stuck

    @property
    def is_stuck(self) -> bool:
        """Whether none of the remaining leases can be read now."""
        return self.is_known and not self.waiting and bool(self.stuck)

    def __str__(self) -> str:
        named = [self.missing] if self.missing else []
        named += [f"{key}: {why}" for key, why in sorted(self.stuck.items())]
        named += [f"{key}: not read yet" for key in self.waiting]
        more = len(named) - SHARDS_NAMED
        return "; ".join([*named[:SHARDS_NAMED], *([f"and {more} more"] if more > 0 else [])])


def remainder(
    bound: Bound,
    leases: Sequence[Lease],
    rows: Sequence[WorkerRow],
    control: Control,
    stopped: Mapping[LeaseKey, str],
) -> Remainder:
    """The open leases that are not stored through the bound. Pure. `stopped`: this worker's shards that keep
    failing, with the error. The stopped shards of other workers are in `rows`."""
    former = frozenset() if bound.streams is None else former_streams(bound.streams, leases)
    unfinished = {lease.key: lease for lease in leases if not lease.is_finished and lease.stream not in former}
    left = {key: lease for key, lease in unfinished.items() if not bound.is_reached(lease.stored_through)}
    stopped_too = {key: why for row in rows for key, why in _stopped(row).items()} | dict(stopped)
    foreign = {row.id for row in rows if row.slot is None}
    stuck = {key: why for key, lease in left.items() if (why := _why_stuck(lease, control, stopped_too, foreign))}
    _add_children(stuck, left)
    waiting = tuple(sorted(left.keys() - stuck.keys()))
    return Remainder(waiting, stuck, _missing(unfinished.values()))


def _missing(leases: Collection[Lease]) -> str:
    """A text that says which leases are missing; empty if none is known to be missing. A lease whose hash keys are
    not known can cover any keys, so no lease of its stream is then known to be missing."""
    if not leases:
        return "the application has no open lease yet"
    streams: dict[str, list[HashRange | None]] = {}
    for lease in leases:
        streams.setdefault("" if lease.stream is None else f" of {lease.stream.name}", []).append(lease.hash_range)
    for name, ranges in sorted(streams.items()):
        known = [one for one in ranges if one is not None]
        hole = find_hole(known) if len(known) == len(ranges) else None
        if hole is not None:
            return f"the shard with the hash keys {hole}{name} has no lease yet"
    return ""


def _stopped(row: WorkerRow) -> dict[LeaseKey, str]:
    return {key: (row.why_stopped or {}).get(key, "it keeps failing") for key in row.stopped or ()}


def _why_stuck(
    lease: Lease, control: Control, stopped: Mapping[LeaseKey, str], foreign: Collection[WorkerId]
) -> str:
    if control.pauses(lease.key):
        return f"paused by {control.paused_by}"
    if lease.key in stopped:
        return f"stopped: {stopped[lease.key]}"
    if lease.actual_owner in foreign:
        return f"{lease.actual_owner}, a Java worker, reads it and does not say through when"
    return ""


def _add_children(stuck: dict[LeaseKey, str], left: Mapping[LeaseKey, Lease]) -> None:
    while True:
        blocked = {
            key: f"it waits for its parent {parent}"
            for key, lease in left.items()
            if key not in stuck
            for parent in parent_keys(lease)
            if parent in stuck
        }
        if not blocked:
            return
        stuck |= blocked


@dataclass(frozen=True, slots=True)
class Activity:
    """The state of this worker. `stopped`: its shards that keep failing, with the error. `is_idle`: whether its
    last batch had no new records. `is_processing`: whether user code works on a batch."""

    stopped: Mapping[LeaseKey, str] = field(default_factory=dict)
    is_idle: bool = True
    is_processing: bool = False


class BoundWatch:
    """Checks whether the bound is reached. Called on the housekeeping thread of a worker. It scans the table at
    most every `LOOK_SECONDS`, and only while this worker finds nothing to read or has read enough."""

    def __init__(
        self,
        bound: Bound,
        holdings: Holdings,
        table: LeaseTable,
        clock: Clock,
        on_event: OnEvent,
        for_each: ForEach = one_by_one,
    ) -> None:
        self._bound = bound
        self._holdings = holdings
        self._table = table
        self._clock = clock
        self._for_each = for_each
        self._outage = Outage(EventKind.DISCOVERY_FAILED, clock, on_event)
        self._due = float("-inf")
        self._places: Mapping[LeaseKey, Checkpoint | None] = {}
        self._moved_at: float | None = None

    def step(self, control: Callable[[], Control], activity: Activity) -> tuple[StopReason, str] | None:
        """Check whether the worker should stop now. Returns the reason with details, or None if the worker should
        continue. `control`: returns what an operator has paused; can raise a ServiceError."""
        now = self._clock.monotonic()
        if now < self._due:
            return None
        self._due = now + LOOK_SECONDS
        if not activity.is_idle and not self._has_read_enough():
            self._moved_at = now
            return None
        self._outage.begin(())
        try:
            self._write_tips()
            scan = self._table.scan()
            left = remainder(self._bound, scan.leases, scan.workers, control(), activity.stopped)
        except KclError as error:
            self._outage.failed(error)
            return None
        finally:
            self._outage.end()
        self._outage.succeeded()
        places = {lease.key: lease.checkpoint for lease in scan.leases}
        if places != self._places or activity.is_processing or self._moved_at is None:
            self._places, self._moved_at = places, now
        if left.is_empty:
            return StopReason.CAUGHT_UP, ""
        if left.is_stuck:
            return StopReason.STUCK, str(left)
        if now - self._moved_at >= self._bound.patience:
            return StopReason.STUCK, f"nothing has moved for {self._bound.patience:.0f} s: {left}"
        return None

    def _has_read_enough(self) -> bool:
        held = [holding for holding in self._holdings.holdings() if not holding.lease.is_finished]
        return bool(held) and all(self._bound.is_reached(self._holdings.tip_of(one.key)) for one in held)

    def _write_tips(self) -> None:
        """Renew the leases whose rows lack the latest moment through which the lease is stored, so that the rows
        have it before the scan. Raises the first ServiceError. A lost lease is skipped, because its next owner
        writes the moment."""
        refused = errors_of(self._for_each, self._holdings.renew, self._holdings.unwritten_tips())
        for error in refused.values():
            if not isinstance(error, LeaseLost):
                raise error
