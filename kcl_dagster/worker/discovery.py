"""Finds the leases that the leader assigned to this worker."""

from collections.abc import Callable, Iterable

from kcl_dagster.errors import KclError
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.runtime import Clock, SystemClock
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.worker.concurrency import ForEach, one_by_one
from kcl_dagster.worker.events import EventKind, OnEvent, WorkerEvent, ignore
from kcl_dagster.worker.holdings import Holdings
from kcl_dagster.worker.outage import Outage

LONGEST_PAUSE = 2.0  # seconds between two steps that fail; new leases wait for this long
# While at most this number of leases is expected, the worker looks for them more often. Each look reads the row of
# each expected lease.
MOST_WATCHED = 20
# Leases that a worker hands over together arrive within tenths of a second.
GATHERING_SECONDS = 0.4


class Discoverer:
    """Finds this worker's leases by a query of the owner index, or by a scan of the table if there is no index. The
    index can be outdated, so each lease is verified with a consistent read. A lease in a handoff is not acquired
    until its former owner has transferred it."""

    def __init__(
        self,
        table: LeaseTable,
        worker: WorkerId,
        holdings: Holdings,
        on_event: OnEvent = ignore,
        clock: Clock | None = None,
        patience: float = 0.0,
        for_each: ForEach = one_by_one,
    ) -> None:
        """`patience`: for this number of seconds at most, a lease in a handoff to this worker is expected."""
        self._table = table
        self._worker = worker
        self._holdings = holdings
        self._on_event = on_event
        self._clock = clock or SystemClock()
        self._patience = patience
        self._for_each = for_each
        self._expected: dict[LeaseKey, float] = {}
        """The leases in a handoff to this worker, with the time at which this was detected."""

        self._outage = Outage(EventKind.DISCOVERY_FAILED, self._clock, on_event, LONGEST_PAUSE)
        self._is_acquiring = False
        self._acquired_at = float("-inf")

    def step(self) -> list[LeaseKey]:
        """Acquire new leases, and return their keys. If a lease cannot be read or renewed, a later step tries
        again."""
        return self._step(self._acquire_new)

    def step_expected(self) -> list[LeaseKey]:
        """Do the same for the expected leases alone. The index is not queried, and the table is not scanned."""
        return self._step(lambda: self._acquire_all(self._expected))

    def _step(self, acquire: Callable[[], list[LeaseKey]]) -> list[LeaseKey]:
        if self._outage.rests_for() > 0:
            return []
        self._outage.begin(())
        try:
            return acquire()
        finally:
            self._outage.end()

    def _acquire_new(self) -> list[LeaseKey]:
        try:
            assigned = self._table.owned_by(self._worker)
        except KclError as error:
            self._outage.failed(error)
            return []
        self._outage.keep(assigned)
        self._expected = {key: since for key, since in self._expected.items() if key in assigned}
        self._holdings.keep_expired(assigned)
        return self._acquire_all(assigned)

    def _acquire_all(self, keys: Iterable[LeaseKey]) -> list[LeaseKey]:
        new = self._outage.begin(sorted(set(keys) - self._holdings.keys()))
        self._is_acquiring = bool(new)
        alone = 1 if self._outage.is_known else 0
        try:
            return [*self._acquire_each(new[:alone]), *self._acquire_each(new[alone:])]
        finally:
            self._is_acquiring = False

    def _acquire_each(self, keys: list[LeaseKey]) -> list[LeaseKey]:
        """Acquire leases, several at a time, because no worker reads them between transfer and acquisition."""
        acquired: list[LeaseKey] = []

        def acquire(key: LeaseKey) -> None:
            if self._outage.may_try() and self._acquire(key):
                acquired.append(key)

        self._for_each(acquire, keys)
        return sorted(acquired)

    def _acquire(self, key: LeaseKey) -> bool:
        try:
            lease = self._table.get(key)
            if lease is not None and lease.checkpoint_owner == self._worker:
                self._pass_on(lease)
                acquired = False
            else:
                acquired = lease is not None and self._holdings.acquire(lease) is not None
                self._note(key, lease)
        except KclError as error:
            self._outage.failed(error, key)
            return False
        self._outage.succeeded(key)
        if acquired:
            self._acquired_at = self._clock.monotonic()
        return acquired

    def _note(self, key: LeaseKey, lease: Lease | None) -> None:
        if lease is not None and lease.in_handoff and lease.owner == self._worker:
            self._expected.setdefault(key, self._clock.monotonic())
        else:
            self._expected.pop(key, None)

    def expects_leases(self) -> bool:
        """Whether another worker is about to hand over a lease to this worker. False if it has not done so for a
        long time."""
        now = self._clock.monotonic()
        return any(now - since < self._patience for since in list(self._expected.values()))

    def is_gathering(self) -> bool:
        """Whether leases are being acquired, or have just been acquired while others are expected. If so, no round
        should begin yet, because it would read only some of the leases that were assigned together."""
        just_acquired = self._clock.monotonic() - self._acquired_at < GATHERING_SECONDS
        return self._is_acquiring or (just_acquired and self.expects_leases())

    def watches(self) -> bool:
        """Whether to look for new leases more often than usual."""
        return len(self._expected) <= MOST_WATCHED and self.expects_leases()

    def _pass_on(self, lease: Lease) -> None:
        """Transfer a lease to the next owner of its handoff. The handoff was requested before this worker began to
        read the lease, so no batch has to be finished first."""
        passed = self._holdings.handover.pass_on(lease)
        if passed is not None and passed.owner is not None:
            message = f"to {lease.owner}, before it was begun"
            self._on_event(WorkerEvent(EventKind.HANDOFF_DONE, message, lease.key))

    def give_back(self) -> list[LeaseKey]:
        """Release the leases that were assigned to this worker but not acquired by it. Called when the worker
        stops. Returns the keys of the released leases."""
        try:
            return [key for key in self._table.owned_by(self._worker) if self._give_back(key)]
        except KclError as error:  # these leases expire by themselves
            self._on_event(WorkerEvent(EventKind.DISCOVERY_FAILED, f"not given back: {error}"))
            return []

    def _give_back(self, key: LeaseKey) -> bool:
        lease = self._table.get(key)
        if lease is None or lease.owner != self._worker or lease.in_handoff:
            return False
        return self._table.release(lease) is not None
