"""What the leader remembers from tick to tick.

Most of it lives in the process only. What must outlive it is written into one row that is overwritten: losing,
duplicating or replaying that row delays a takeover or a launch, and breaks nothing.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeGuard

from kcl_dagster.leader.patience import shown
from kcl_dagster.model.lease import WorkerId
from kcl_dagster.model.standing import Standing

_VERSION: Final = 1
_HIGHEST_COST: Final = 1e6  # percent of CPU for one KB/s; more was not written by a leader
_LARGEST: Final = 2**53
TARGET: Final = "fleet/target"  # observed like everything else, so that a cool-down outlives the process
LAUNCH: Final = "launch/"
SILENT: Final = "silent/"

# A launch whose run did not show up within this time is asked for again under another generation.
LAUNCH_SECONDS: Final = 90.0


@dataclass(slots=True)
class Generation:
    """Which launch of a slot this is. `seen`: its run was there, so the next launch is another one."""

    number: int
    seen: bool = False


@dataclass(slots=True)
class Memory:
    standing: Standing = field(default_factory=Standing)
    target: int | None = None
    generations: dict[str, Generation] = field(default_factory=dict)
    costs: dict[WorkerId, float] = field(default_factory=dict)
    """CPU per KB/s on each worker's machine."""

    given_up: dict[str, int] = field(default_factory=dict)
    """Runs whose workers did not come to read in time, and when they were given up, in epoch seconds. See
    `kcl_dagster.leader.patience`."""

    given_up_over: int = 0
    """When the last of them was given up that is over, in epoch seconds: a worker has started since."""

    def to_document(self, at_least: float) -> dict[str, object]:
        """JSON. `at_least`: see `Standing.to_document`."""
        return {
            "version": _VERSION,
            "standing": self.standing.to_document(at_least),
            "target": self.target,
            "generations": {slot: [g.number, g.seen] for slot, g in sorted(self.generations.items())},
            "costs": dict(sorted(self.costs.items())),
            "given_up": dict(sorted(self.given_up.items())),
            "given_up_over": self.given_up_over,
        }

    @staticmethod
    def standing_in(document: Mapping[str, object]) -> Collection[str]:
        """The keys whose standing a document tells."""
        standing = document.get("standing")
        return standing.keys() if isinstance(standing, Mapping) else ()

    def absorb(self, document: Mapping[str, object], at: float) -> None:
        """Take over what an earlier leader wrote. What cannot be understood is left out."""
        if document.get("version") != _VERSION:
            return
        standing = document.get("standing")
        if isinstance(standing, Mapping):
            self.standing.absorb(standing, at)
        target = document.get("target")
        if _is_number(target):  # of the leader that led since: this one's own may be hours old
            self.target = target
        generations = document.get("generations")
        for slot, entry in generations.items() if isinstance(generations, Mapping) else ():
            if isinstance(entry, list) and len(entry) == 2 and _is_number(entry[0]):
                known = self.generations.get(slot)
                if known is None or known.number < entry[0]:
                    self.generations[slot] = Generation(entry[0], bool(entry[1]))
                elif known.number == entry[0] and entry[1]:
                    # A follower reads the row again and again, and first when the run was not there yet.
                    known.seen = True
        costs = document.get("costs")
        for worker, cost in costs.items() if isinstance(costs, Mapping) else ():
            if isinstance(cost, (int, float)) and 0 < cost < _HIGHEST_COST:
                self.costs.setdefault(WorkerId(worker), float(cost))
        given_up = document.get("given_up")
        for run, when in given_up.items() if isinstance(given_up, Mapping) else ():
            if _is_number(when):
                self.give_up(run, when)
        over = document.get("given_up_over")
        if _is_number(over):
            self.given_up_over = max(self.given_up_over, over)

    def give_up(self, run_id: str, at: float) -> None:
        """The worker of the run is not waited for. `at`: epoch seconds. Of two leaders, the first one counts."""
        self.given_up[run_id] = min(int(at), self.given_up.get(run_id, int(at)))

    def end_given_up(self) -> None:
        """A worker has started since the last start that was given up, or none is to be launched."""
        self.given_up_over = max([self.given_up_over, *self.given_up.values()])

    def starts_given_up(self, now: float) -> dict[str, int]:
        """By run, when its worker was given up; without those that are over."""
        return shown(self.given_up, self.given_up_over, now)

    def generation(self, slot: str, now: float, *, waited: float) -> int:
        """The generation under which `slot` is to be launched now.

        `waited`: for how long the last one is known to have been asked for. Numbers grow with the clock, so a
        leader that lost its memory does not ask for a generation that was used before.
        """
        known = self.generations.get(slot)
        if known is None or known.seen or waited > LAUNCH_SECONDS:
            number = max(int(now), known.number + 1 if known is not None else 0)
            known = self.generations[slot] = Generation(number)
        return known.number

    def saw_run(self, slot: str) -> None:
        known = self.generations.get(slot)
        if known is not None:
            known.seen = True


def starts_given_up(document: Mapping[str, object], now: float) -> dict[str, int]:
    """The same of what a leader wrote."""
    memory = Memory()
    memory.absorb(document, at=0.0)
    return memory.starts_given_up(now)


def _is_number(value: object) -> TypeGuard[int]:
    """A whole number that a leader may have written. Generations are times in seconds, which need 11 digits."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST
