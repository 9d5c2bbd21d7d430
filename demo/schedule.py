"""What the demo does to the fleet in a limited time, and when. Pure."""

from dataclasses import dataclass
from enum import StrEnum


class Step(StrEnum):
    SPLIT = "split"
    KILL = "kill"
    MERGE = "merge"


# Of the whole time. A step waits until the fleet is ready for it, and then until the end if it must.
_WHEN = {Step.SPLIT: 0.35, Step.KILL: 0.55, Step.MERGE: 0.75}

# A merge in a short demo would only be seen in the drain.
MERGE_WORTH_SECONDS = 150.0


@dataclass
class Schedule:
    """The steps that are left, in their order."""

    duration: float
    done: tuple[Step, ...] = ()

    @property
    def steps(self) -> tuple[Step, ...]:
        merge = (Step.MERGE,) if self.duration >= MERGE_WORTH_SECONDS else ()
        return (Step.SPLIT, Step.KILL, *merge)

    @property
    def is_finished(self) -> bool:
        return len(self.done) == len(self.steps)

    def due(self, elapsed: float) -> Step | None:
        """The next step if its time has come."""
        for step in self.steps[len(self.done) : len(self.done) + 1]:
            if elapsed >= _WHEN[step] * self.duration:
                return step
        return None

    def complete(self, step: Step) -> None:
        self.done = (*self.done, step)
