"""One application of the production test, seen from outside: its leases, its workers and what it has stored."""

import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from demo import changes
from demo.fleet import Fleet
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.orchestration.processes import Process
from tests.production.arrivals import Arrivals
from tests.soak.topology import CodeServer
from tests.soak.watch import Watch

WORKERS = 2


@dataclass
class Deployed:
    """`look` asks anew; everything else is what the last look found."""

    application: str
    code_server: CodeServer
    folder: Path
    table: Path
    fleet: Fleet
    arrivals: Arrivals
    shards: int
    watch: Watch = field(default_factory=Watch)
    workers: dict[str, Process] = field(default_factory=dict)
    leases: dict[LeaseKey, Lease] = field(default_factory=dict)
    harmed: set[WorkerId] = field(default_factory=set)
    killed: set[int] = field(default_factory=set)

    def look(self, now: float, *, leases_stay: bool) -> Iterator[str]:
        """Yields what has changed, one line each."""
        # Without the webserver it is not known which runs go on; the processes of those that did are.
        self.workers = self.fleet.workers() or {
            slot: process for slot, process in self.workers.items() if process.is_alive()
        }
        leases = self.fleet.leases()
        if leases:
            self.watch.look(now, leases.values(), is_outage=leases_stay, harmed=self.harmed)
            yield from changes.describe(self.leases, leases)
            self.leases = leases

    def owners(self) -> set[WorkerId]:
        return {lease.actual_owner for lease in self.leases.values() if lease.actual_owner}

    def is_at_work(self, since: float) -> bool:
        """Whether two workers share all leases, and records of each shard were stored since the moment."""
        return (
            len(self.workers) == WORKERS
            and len(self.leases) == self.shards
            and len(self.owners()) == WORKERS
            and all(lease.actual_owner and not lease.in_handoff for lease in self.leases.values())
            and self.arrivals.stored_since(since, self.shards)
        )

    def has_only(self, release: int) -> bool:
        """Whether the latest records of each shard were stored by this release."""
        return set(self.arrivals.releases().values()) == {release}

    def kill(self, slot: str | None = None) -> str:
        """Kill the worker of the slot, of the last one if left out. Its leases may leave it."""
        slot = max(self.workers) if slot is None else slot
        process = self.workers[slot]
        self.harmed |= {owner for owner in self.owners() if changes.slot_of(owner) == slot}
        self.killed.add(process.pid)
        process.send(signal.SIGKILL)
        return f"killed {slot} of {self.application} (pid {process.pid})"
