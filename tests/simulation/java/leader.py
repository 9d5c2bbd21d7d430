"""A Java leader: Amazon's lock, expiry by watching counters, assignment, handoffs with a deadline."""

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

from kcl_dagster.leader.assignment.policy import Assignment, AssignmentLimits, LeaseLoad, Move, WorkerLoad
from kcl_dagster.leader.assignment.variance import Variance
from kcl_dagster.model.lease import LeaseKey, WorkerId
from tests.conformance.rules.lease_count import lease_count
from tests.doubles.dynamodb.values import Item
from tests.simulation.java.tables import LEADER_KEY, Tables
from tests.simulation.kernel import ProcessClock
from tests.simulation.ledger import LeaseRow

if TYPE_CHECKING:
    from tests.simulation.java.worker import JavaSettings

BALANCES_EVERY: Final = 3  # passes
_MILLIS: Final = 1000
_EMA_WEIGHT: Final = 0.5


@dataclass(slots=True)
class JavaLeader:
    """Called in turn by two strands of its worker: `step` assigns, `beat` keeps the lock."""

    name: str
    tables: Tables
    settings: "JavaSettings"
    random: Random
    clock: ProcessClock
    version: str | None = None
    """Of the lock, while it is ours."""

    _beaten_at: float = 0.0
    _seen_lock: tuple[str, float] = ("", 0.0)
    _led: bool = False
    _passes: int = 0
    _seen: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Counter and last change of each lease, by our own clock; 0 for leases without an owner."""

    _deadlines: dict[str, tuple[str | None, str | None, float]] = field(default_factory=dict)

    # The lock

    def is_leader(self) -> bool:
        if self.version is not None:
            if self.clock.monotonic() - self._beaten_at <= self.settings.lock:
                return True
            self.version = None
        return self._acquire()

    def _acquire(self) -> bool:
        row, now = self.tables.lock(), self.clock.monotonic()
        watched: str | None = None
        if row is not None:
            watched = row["recordVersionNumber"]["S"]
            if self._seen_lock[0] != watched:
                self._seen_lock = watched, now
                return False
            if now - self._seen_lock[1] <= int(row["leaseDuration"]["S"]) / _MILLIS:
                return False
        version = f"{self.random.getrandbits(128):032x}"
        if self.tables.put_lock(self.name, self.settings.lock, version, watched):
            self.version, self._beaten_at = version, now
        return self.version is not None

    def beat(self) -> None:
        if self.version is None:
            return
        version, began = f"{self.random.getrandbits(128):032x}", self.clock.monotonic()
        if self.tables.beat(self.name, version, self.version):
            self.version, self._beaten_at = version, began
        else:
            self.version = None

    def resign(self) -> None:
        version, self.version = self.version, None
        row = self.tables.lock() if version is not None else None
        if row is not None and row["recordVersionNumber"]["S"] == version:
            self.tables.delete(self.tables.locks, LEADER_KEY)

    # Assignment

    def step(self) -> None:
        """One pass of the LeaseAssignmentManager."""
        leads = self.is_leader()
        if leads and not self._led:
            self._seen.clear()
            self._deadlines.clear()
            self._passes = 0
        self._led = leads
        if not leads:
            return
        items = list(self.tables.scan(self.tables.leases.table))
        rows = items
        if self.tables.workers.table != self.tables.leases.table:
            rows = list(self.tables.scan(self.tables.workers.table))
        now = self.clock.monotonic()
        leases = {lease.key: lease for lease in self.tables.all_leases(items)}
        self._watch(leases, now)
        balance = self._passes % BALANCES_EVERY == 0
        self._passes += 1
        workers = [load for row in rows if (load := self._load(row)) is not None]
        loads = [self._lease_load(lease, now) for lease in leases.values()]
        for move in self._decide(loads, workers, balance).moves:
            self._write(leases[move.lease], move, now)

    def _decide(self, leases: list[LeaseLoad], workers: list[WorkerLoad], balance: bool) -> Assignment:
        if not workers:
            return Assignment()
        policy = Variance(self.random.shuffle) if self.settings.variance else lease_count
        return policy(leases, workers, AssignmentLimits(balance=balance))

    def _watch(self, leases: dict[str, LeaseRow], now: float) -> None:
        for lease in leases.values():
            known = self._seen.get(lease.key)
            if known is None:
                self._seen[lease.key] = lease.counter, now if lease.actual is not None else 0.0
            elif lease.counter != known[0]:
                self._seen[lease.key] = lease.counter, now if lease.counter > known[0] else known[1]
            if lease.giver is None:
                self._deadlines.pop(lease.key, None)
            elif self._deadlines.get(lease.key, (None, None))[:2] != (lease.owner, lease.giver):
                self._expect(lease.key, lease.owner, lease.giver, now)
        for key in [key for key in self._seen if key not in leases]:
            del self._seen[key]

    def _expect(self, key: str, owner: str | None, giver: str | None, now: float) -> None:
        self._deadlines[key] = owner, giver, now + self.settings.handoff + self.settings.failover

    def _is_expired(self, lease: LeaseRow, now: float) -> bool:
        return lease.actual is None or now - self._seen[lease.key][1] > self.settings.failover

    def _is_blocked(self, lease: LeaseRow, now: float) -> bool:
        """A handoff is under way, and not late."""
        if lease.giver is None or lease.is_finished or self._is_expired(lease, now):
            return False
        return now < self._deadlines[lease.key][2]

    def _lease_load(self, lease: LeaseRow, now: float) -> LeaseLoad:
        return LeaseLoad(
            LeaseKey(lease.key),
            owner=WorkerId(lease.actual) if lease.actual is not None else None,
            next_owner=WorkerId(lease.owner) if lease.giver is not None and lease.owner is not None else None,
            unserved="expired" if self._is_expired(lease, now) else None,
            pinned=self._is_blocked(lease, now),
            age=now - self._seen[lease.key][1],
        )

    def _load(self, row: Item) -> WorkerLoad | None:
        """A row that is valid, fresh and not failing."""
        if row.get("entityType", {}).get("S", "WORKER_METRIC_STATS") != "WORKER_METRIC_STATS" or "lut" not in row:
            return None
        if self.clock.now() - int(row["lut"]["N"]) > 2 * self.settings.report:
            return None
        series = {name: [float(n["N"]) for n in ns["L"]] for name, ns in row.get("sts", {"M": {}})["M"].items()}
        ranges = {name: [float(n["N"]) for n in ns["L"]] for name, ns in row.get("opr", {"M": {}})["M"].items()}
        if any(not ranges.get(name) or ranges[name][0] == 0 for name in series):
            return None
        if any(values and values[-1] == -1 for values in series.values()):
            return None
        return WorkerLoad(
            WorkerId(row[self.tables.workers.key]["S"]),
            averages={name: _average(values) for name, values in series.items()},
            ceilings={name: ranges[name][0] for name in series},
        )

    def _write(self, lease: LeaseRow, move: Move, now: float) -> None:
        if self._is_blocked(lease, now):
            return
        eligible = (
            lease.actual is not None
            and not self._is_expired(lease, now)
            and not lease.is_finished
            and lease.giver is None
        )
        if eligible:
            if self.tables.hand_off(lease, move.to):
                self._expect(lease.key, move.to, lease.owner, self.clock.monotonic())
        elif self.tables.assign(lease, move.to):
            self._seen[lease.key] = lease.counter, self.clock.monotonic()


def _average(values: list[float]) -> float:
    average: float | None = None
    for value in values:
        if value >= 0:
            average = value if average is None else _EMA_WEIGHT * value + (1 - _EMA_WEIGHT) * average
    return average or 0.0
