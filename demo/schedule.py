"""The steps of a demo with a limited time, and when each is due. Pure."""

from dataclasses import dataclass
from enum import StrEnum


class Step(StrEnum):
    SPLIT = "split"
    KILL = "kill"
    MERGE = "merge"


# Parts of the whole time after which a step is due. A due step waits until the fleet is ready for it, even if the
# time is over then.
_WHEN = {Step.SPLIT: 0.35, Step.KILL: 0.55, Step.MERGE: 0.75}

# In a shorter demo there is no merge, because it would take effect only while the workers drain.
MERGE_WORTH_SECONDS = 150.0


@dataclass
class Schedule:
    """Which steps are done, and which one is due."""

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
        """The next step, if it is due."""
        for step in self.steps[len(self.done) : len(self.done) + 1]:
            if elapsed >= _WHEN[step] * self.duration:
                return step
        return None

    def complete(self, step: Step) -> None:
        self.done = (*self.done, step)
