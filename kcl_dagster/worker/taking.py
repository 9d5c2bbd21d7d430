"""Takes leases without a leader, so that reading does not depend on one process.

The rules are those of KCL 2.x (`kcl_dagster.model.lease_taking`), with two differences:

- A lease is never taken from a living worker. Instead, the worker is asked to hand the lease over. The worker does
  so after its current batch.
- If the row of a lease's owner has a longer lease duration than this worker, that longer duration applies. The
  leader does the same.
"""

from collections.abc import Collection

from kcl_dagster.errors import KclError
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.lease_durations import lease_durations
from kcl_dagster.model.lease_taking import Candidate, Taking, TakingRules, plan_taking
from kcl_dagster.model.standing import Standing
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.control import Control
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.worker.events import EventKind, OnEvent, WorkerEvent, ignore


class Taker:
    """Takes unserved leases, and requests leases from other workers. While there is no leader, `step` is called
    about twice per lease duration."""

    def __init__(
        self,
        table: LeaseTable,
        worker: WorkerId,
        rules: TakingRules,
        runtime: Runtime,
        on_event: OnEvent = ignore,
    ) -> None:
        self._table = table
        self._worker = worker
        self._rules = rules
        self._chance = runtime.random
        self._on_event = on_event
        self._standing = Standing()
        self._known: set[LeaseKey] = set()

    def step(self, control: Control | None = None) -> list[LeaseKey]:
        """Take or request leases. Returns the keys of these leases; discovery acquires them later. Paused leases
        are neither taken nor requested. Raises a ServiceError from the scan."""
        control = control or Control()
        leases, plan = self.look(control.leases)
        if control.paused:
            return []
        return [key for key in plan.take if self._take(leases[key])] + [
            key for key in plan.steal if self._ask_for(leases[key])
        ]

    def look(self, paused: Collection[LeaseKey] = ()) -> tuple[dict[LeaseKey, Lease], Taking]:
        """Scan, record for how long each counter was unchanged, and decide which leases should be taken. Writes
        nothing."""
        scan = self._table.scan()
        leases = {lease.key: lease for lease in scan.leases if not lease.is_finished and lease.key not in paused}
        for lease in leases.values():
            self._standing.observe(lease.key, str(lease.counter), scan.started, scan.ended)
        durations = lease_durations(leases.values(), scan.workers, self._rules.lease_duration)
        candidates = [self._candidate(lease, durations[lease.key]) for lease in leases.values()]
        self._known = set(leases)
        self._standing.keep(leases.__contains__)
        return leases, plan_taking(candidates, self._worker, self._rules, self._chance)

    def forget(self) -> None:
        """Discard all observations. Called while there is a leader. If the leader ends later, these observations
        would be too old to be valid."""
        self._standing = Standing()
        self._known = set()

    def _candidate(self, lease: Lease, duration: float) -> Candidate:
        stood = self._standing.stood_for(lease.key, str(lease.counter))
        is_new = lease.key not in self._known
        return Candidate.of(lease.key, lease.actual_owner, stood, is_new=is_new, duration=duration)

    def _take(self, lease: Lease) -> bool:
        if lease.actual_owner == self._worker:
            return False  # if a lease of this worker was not renewed, renewal or discovery handles it
        try:
            taken = self._table.take(lease, self._worker)
        except KclError as error:
            self._on_event(WorkerEvent(EventKind.DISCOVERY_FAILED, f"could not take: {error}", lease.key))
            return False
        if taken is not None:
            message = f"from {lease.actual_owner}" if lease.actual_owner else "it had no owner"
            self._on_event(WorkerEvent(EventKind.LEASE_TAKEN, message, lease.key))
        return taken is not None

    def _ask_for(self, lease: Lease) -> bool:
        if lease.in_handoff:
            return False
        try:
            asked = self._table.initiate_handoff(lease, self._worker)
        except KclError as error:
            self._on_event(WorkerEvent(EventKind.DISCOVERY_FAILED, f"could not ask for it: {error}", lease.key))
            return False
        return asked is not None
