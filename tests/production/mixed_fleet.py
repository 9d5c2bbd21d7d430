"""Workers of the version before and of the present one, which share the leases of an application."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from demo import changes
from kcl_dagster.model.lease import LeaseKey, WorkerId
from tests.production.deployed import Deployed


@dataclass
class MixedFleet:
    """`python`: of the version before. `victims`: workers to kill, one after the other, each while workers of both
    versions have stored records: True for one of the version before."""

    deployed: Deployed
    python: str
    victims: list[bool] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _former: set[WorkerId] = field(default_factory=set)
    _moved: set[LeaseKey] = field(default_factory=set)
    """Leases that a worker of the present version has owned."""

    def begin(self) -> None:
        """Called before the present version is deployed: all workers are of the version before."""
        self._former = self.deployed.owners()

    def step(self) -> Iterator[str]:
        """Looks at what the last look at the application found. Yields what it did."""
        for key, lease in self.deployed.leases.items():
            if lease.actual_owner is not None and lease.actual_owner not in self._former:
                self._moved.add(key)
            elif lease.actual_owner is not None and key in self._moved:
                self._moved.remove(key)
                self.problems.append(f"{key} went back to {lease.actual_owner}, of the version before")
        owning = {changes.slot_of(owner) for owner in self.deployed.owners()} & self.deployed.workers.keys()
        former = owning & self._slots()
        stored_by = set(self.deployed.arrivals.releases().values())
        if self.victims and former and owning - former and len(stored_by) > 1:
            is_former = self.victims.pop(0)
            slot = min(former if is_former else owning - former)
            yield f"{'a former' if is_former else 'a new'} worker: {self.deployed.kill(slot)}"

    def is_over(self) -> bool:
        """Whether all victims were killed, and no worker of the version before is left."""
        return not self.victims and not self._slots()

    def _slots(self) -> set[str]:
        """Of the version before, by the program of their processes."""
        workers = self.deployed.workers.items()
        return {slot for slot, process in workers if process.arguments[:1] == (self.python,)}
