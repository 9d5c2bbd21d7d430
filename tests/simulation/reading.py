"""Check that every shard has a worker that reads it while there are no faults (L7).

It is not sufficient that a lease has an owner: the owner may not have begun to read, because its Spark has not
started, or may have stopped. Here the fetches count.
"""

from typing import TYPE_CHECKING, Final

from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.model.worker_row import WorkerState
from tests.simulation.liveness import LAUNCH_SECONDS, java_seconds, leader_rest, may_rest
from tests.simulation.properties import Violations

if TYPE_CHECKING:
    from tests.simulation.fleet import Simulation
    from tests.simulation.ledger import LeaseRow

# The interval between two checks, before stretching.
LOOK_SECONDS: Final = 15.0
# Ticks until the end of a worker is detected, its successor launched, its leases assigned, and those found.
TICKS: Final = 6


def check_readers(violations: Violations, daemon: str, report: TickReport) -> None:
    """Of one tick, by what it had read: it gives no lease to a worker that cannot read yet while another can, and
    does not drain the last one that can while its successor starts. No scenario limits the leases of a worker."""
    can_read = [seen for seen in report.workers if seen.alive and seen.ready]
    readers = {seen.id for seen in can_read if seen.accepts}
    begun = {lease.key for lease in report.leases if lease.in_handoff}  # which ends as an earlier tick decided
    for move in report.moves:
        if readers and move.to not in readers and move.lease not in begun:
            violations.add("L7", f"{daemon} gives {move.lease} to {move.to}, and {sorted(readers)} read")
    starting = [
        seen.id
        for seen in report.workers
        if seen.alive and not seen.drains and seen.row.state is WorkerState.STARTING
    ]
    retired = {slot for slot, why in report.retire.items() if not why.startswith("an operator paused")}
    drained = [seen.id for seen in can_read if seen.drains and seen.row.slot in retired]
    stays = [seen for seen in can_read if not seen.drains and not seen.row.is_bounded]
    if drained and starting and not stays and report.target_workers:
        violations.add("L7", f"{daemon} drains {drained}, and the others start only: {starting}")


class ReadingWatch:
    """Finds shards that no worker reads, from `begin` on. `read` has to be called for every fetch."""

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self._read_at: dict[str, float] = {}
        self._since: dict[str, float] = {}
        """Since when each lease that may be read is known to be unread."""

    def read(self, lease: str) -> None:
        self._read_at[lease] = self._simulation.kernel.now

    def begin(self) -> None:
        """Begin to measure, because the faults have stopped. A fleet at rest reads when a record has waited; L3
        checks that."""
        if may_rest(self._simulation):
            return
        self._since.clear()
        self._look()

    @property
    def patience(self) -> float:
        """For how long a shard may be unread: its worker ended, another one is launched, and opens its Spark."""
        scenario = self._simulation.scenario
        start = LAUNCH_SECONDS + scenario.start_seconds + scenario.monitor_seconds
        return start + leader_rest(self._simulation) + self.patience_served

    @property
    def patience_served(self) -> float:
        """The same, if another worker could read all the time: it only has to get the lease."""
        scenario = self._simulation.scenario
        timings = scenario.application.timings
        ticks = TICKS * (timings.tick_interval + 1.0)
        rounds = 2 * timings.lease_duration + timings.handoff_timeout + ticks
        return rounds + scenario.stretch * LOOK_SECONDS + java_seconds(self._simulation)

    def _can_be_read(self, since: float) -> bool:
        """Whether a worker that is alive has been able to read since then."""
        return any(0.0 < worker.opened_at < since for worker in self._simulation.living())

    def unread(self, seconds: float) -> list[str]:
        """Leases that may be read and were not for so long."""
        this = self._simulation
        now = this.kernel.now
        return [
            key
            for key, lease in sorted(this.ledger.leases.items())
            if not lease.is_finished and self._may_be_read(lease) and now - self._read_at.get(key, 0.0) > seconds
        ]

    def _look(self) -> None:
        this = self._simulation
        now, leases = this.kernel.now, this.ledger.leases
        if this.java.living() or this.epilogue_begins:
            return
        served = self.patience_served
        for key, lease in leases.items():
            if lease.is_finished or not self._may_be_read(lease):
                self._since.pop(key, None)
                continue
            since = self._since[key] = max(self._since.get(key, now), self._read_at.get(key, 0.0))
            if now - since > (served if self._can_be_read(now - served) else self.patience):
                this.violations.add("L7", f"{key} of {lease.actual} was not read for {now - since:.0f} s")
                return
        this.kernel.call_at(now + LOOK_SECONDS * this.scenario.stretch, self._look)

    def _may_be_read(self, lease: "LeaseRow") -> bool:
        """Its parents are finished, its stream is there, and no loss has stopped it."""
        this = self._simulation
        if this.is_former(lease.stream) or this.lake.is_stopped(this.truth_of(lease)):
            return False
        prefix = lease.key.removesuffix(lease.shard)
        above = (this.ledger.leases.get(f"{prefix}{parent}") for parent in lease.parents)
        return all(parent is None or parent.is_finished for parent in above)
