"""Chooses the workers that continue with the leases of a worker that stops.

If the worker only released its leases, they would wait for the leader's next tick, or longer if there is no leader.
A worker that stops therefore gives each of its leases to a running worker. It does so by the KCL's assignment: a
write of the new owner that is conditional on the present owner and the counter. Leases that cannot be given to a
worker are released. The choice need not be perfect, because the leader balances the leases afterwards.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from kcl_dagster.application import Application
from kcl_dagster.errors import KclError
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.worker_row import WorkerRow, WorkerState
from kcl_dagster.runtime import Clock
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.worker.events import EventKind, OnEvent, WorkerEvent, ignore

FRESH_BEATS: Final = 2.5  # heartbeats; an older row can belong to a worker that has just ended
LEASE_KBPS: Final = 16.0  # the cost of a lease in addition to its throughput; it matters for shards without records
# Workers with these policies release their leases, as in the KCL, and give them to no worker.
_POLICIES_OF_THE_KCL: Final = frozenset({"kcl", "taker"})


@dataclass(frozen=True, slots=True)
class SuccessorRules:
    """The limits for successors. `fresh_seconds`: the highest age of a successor's row. `max_leases` and `max_kbps`
    apply to each worker."""

    fresh_seconds: float
    max_leases: int | None = None
    max_kbps: float | None = None


@dataclass(slots=True)
class _Successor:
    id: WorkerId
    leases: int = 0
    kbps: float = 0.0

    def take(self, lease: Lease) -> None:
        self.leases += 1
        self.kbps += lease.throughput_kbps or 0.0

    def may_hold(self, lease: Lease, rules: SuccessorRules) -> bool:
        if rules.max_leases is not None and self.leases >= rules.max_leases:
            return False
        kbps = self.kbps + (lease.throughput_kbps or 0.0)
        return rules.max_kbps is None or self.leases == 0 or kbps <= rules.max_kbps

    @property
    def load(self) -> float:
        return self.kbps + self.leases * LEASE_KBPS


def choose_successors(
    leaving: Collection[LeaseKey],
    leases: Sequence[Lease],
    rows: Sequence[WorkerRow],
    me: WorkerId,
    now: float,
    rules: SuccessorRules,
) -> dict[LeaseKey, WorkerId]:
    """Assign the heaviest leases first, each to the least loaded worker that can hold it. `now`: epoch seconds.

    Only workers of kcl_dagster that wrote their row recently are considered. Java workers are left out, because
    those of older generations do not look for leases that were given to them. A worker that is starting is
    considered only if no worker is running.
    """
    others = [row for row in rows if row.id != me and _goes_on(row, now, rules)]
    ready = [row for row in others if row.state is WorkerState.RUNNING] or others
    successors = {row.id: _Successor(row.id) for row in ready}
    for lease in leases:
        if not lease.is_finished and lease.owner in successors:
            successors[lease.owner].take(lease)
    chosen: dict[LeaseKey, WorkerId] = {}
    wanted = [lease for lease in leases if lease.key in leaving and not lease.is_finished]
    for lease in sorted(wanted, key=lambda lease: (-(lease.throughput_kbps or 0.0), lease.key)):
        able = [successor for successor in successors.values() if successor.may_hold(lease, rules)]
        if able:
            successor = min(able, key=lambda successor: (successor.load, successor.leases, successor.id))
            successor.take(lease)
            chosen[lease.key] = successor.id
    return chosen


def _goes_on(row: WorkerRow, now: float, rules: SuccessorRules) -> bool:
    if row.slot is None or row.last_update is None:
        return False
    stays = row.state is not WorkerState.DRAINING and not row.drain_requested
    return stays and abs(now - row.last_update) <= rules.fresh_seconds


class Successors:
    """Chooses the next owners of the leases of a worker that stops. Used only while the worker stops."""

    def __init__(
        self,
        table: LeaseTable,
        application: Application,
        worker: WorkerId,
        clock: Clock,
        on_event: OnEvent = ignore,
    ) -> None:
        self._table = table
        self._worker = worker
        self._clock = clock
        self._on_event = on_event
        self._applies = application.policy.name not in _POLICIES_OF_THE_KCL
        self._rules = SuccessorRules(
            application.timings.heartbeat * FRESH_BEATS,
            application.policy.max_leases_per_worker,
            application.policy.max_throughput_kbps_per_worker,
        )

    def of(self, leaving: Collection[LeaseKey]) -> dict[LeaseKey, WorkerId]:
        """Choose the next owners, with one scan. The result is empty if the policy is one of the KCL's, if no
        worker is suitable, or if the scan fails."""
        if not leaving or not self._applies:
            return {}
        try:
            scan = self._table.scan()
        except KclError as error:
            self._on_event(WorkerEvent(EventKind.DISCOVERY_FAILED, f"looking for successors: {error}"))
            return {}
        return choose_successors(leaving, scan.leases, scan.workers, self._worker, self._clock.now(), self._rules)
