"""How long to wait before a shard is asked again."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """The KCL's rule. All in seconds.

    `at_tip_idle` slows down further while a reader is less than that far behind the tip; 0 turns it off.
    """

    idle: float
    at_tip_idle: float = 0.0

    def pause(self, since_last: float | None, behind: float | None = None) -> float:
        """Seconds to wait, when the last call succeeded `since_last` ago and its answer was `behind` the tip.

        `since_last` None: the last call failed, so nothing is known and the whole pause is due. A clock that
        went back counts as if it had gone forward as far.
        """
        if since_last is None:
            return self.idle
        elapsed = abs(since_last)
        pause = max(0.0, self.idle - elapsed)
        if behind is not None and behind < self.at_tip_idle:
            pause = max(pause, self.at_tip_idle - elapsed)
        return pause
