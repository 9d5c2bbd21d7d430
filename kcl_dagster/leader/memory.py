"""The state that the leader remembers between ticks.

The leader writes a part of this state to one row, the memory row, and overwrites the row each time. If the row is
lost, duplicated or replaced by an older one, a takeover or a launch may be delayed. There is no other effect.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeGuard

from kcl_dagster.leader.start_patience import shown
from kcl_dagster.model.lease import WorkerId
from kcl_dagster.model.standing import Standing

_VERSION: Final = 1
_HIGHEST_COST: Final = 1e6  # percent of CPU per KB/s; no leader writes a larger number
_LARGEST: Final = 2**53
# The key under which `Standing` observes the target, so that a cool-down survives a restart.
TARGET: Final = "fleet/target"
LAUNCH: Final = "launch/"
SILENT: Final = "silent/"

# If the run of a launch does not appear within this time, the launch is requested again under another generation.
LAUNCH_SECONDS: Final = 90.0


@dataclass(slots=True)
class Generation:
    """The number of a slot's launch. `seen`: whether the run of this launch was seen. If it was, the next launch of
    the slot gets another number."""

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
    """Runs whose workers the leader gave up because their starts took too long, and when, in epoch seconds. See
    `kcl_dagster.leader.start_patience`."""

    given_up_over: int = 0
    """Epoch seconds. Starts that were given up at this time or earlier no longer matter, because a worker has
    started since, or no worker had to be launched."""

    def to_document(self, at_least: float) -> dict[str, object]:
        """The memory as JSON. `at_least`: see `Standing.to_document`."""
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
        """Return the keys of the values for which a document records how long they were unchanged."""
        standing = document.get("standing")
        return standing.keys() if isinstance(standing, Mapping) else ()

    def absorb(self, document: Mapping[str, object], at: float) -> None:
        """Take over the state that an earlier leader wrote. Invalid values are skipped."""
        if document.get("version") != _VERSION:
            return
        standing = document.get("standing")
        if isinstance(standing, Mapping):
            self.standing.absorb(standing, at)
        target = document.get("target")
        if _is_number(target):  # from the leader that led most recently: this process's own target may be hours old
            self.target = target
        generations = document.get("generations")
        for slot, entry in generations.items() if isinstance(generations, Mapping) else ():
            if isinstance(entry, list) and len(entry) == 2 and _is_number(entry[0]):
                known = self.generations.get(slot)
                if known is None or known.number < entry[0]:
                    self.generations[slot] = Generation(entry[0], bool(entry[1]))
                elif known.number == entry[0] and entry[1]:
                    # A process that does not lead reads the row repeatedly. It may have read the row before the run
                    # appeared, and now reads the row again.
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
        """Record that the worker of this run was given up. `at`: epoch seconds. If two leaders record it, the
        earlier time counts."""
        self.given_up[run_id] = min(int(at), self.given_up.get(run_id, int(at)))

    def end_given_up(self) -> None:
        """Record that all starts that were given up no longer matter: a worker has started since, or none has to be
        launched."""
        self.given_up_over = max([self.given_up_over, *self.given_up.values()])

    def starts_given_up(self, now: float) -> dict[str, int]:
        """Return the runs whose workers were given up, and when (epoch seconds). Starts that no longer matter are
        left out."""
        return shown(self.given_up, self.given_up_over, now)

    def generation(self, slot: str, now: float, *, waited: float) -> int:
        """Return the number of the generation under which to launch `slot` now.

        `waited`: the seconds for which the last generation is known to have been requested. The numbers grow with
        the clock, so a leader that lost its memory does not reuse a generation.
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
    """Return `Memory.starts_given_up` of the memory in a document that a leader wrote."""
    memory = Memory()
    memory.absorb(document, at=0.0)
    return memory.starts_given_up(now)


def _is_number(value: object) -> TypeGuard[int]:
    """Whether this is an integer that a leader may have written. Generations are times in seconds, which have 11
    digits at most."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST
