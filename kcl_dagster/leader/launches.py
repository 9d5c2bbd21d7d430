"""Decides when a slot whose runs keep ending is launched again."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from kcl_dagster.leader.run_view import SlotRun

# A run that ended within this time did no work: it failed at its start, or was cancelled. A run whose worker could
# never read did no work either, even if it ended later.
SHORT_SECONDS: Final = 60.0
FIRST_PAUSE: Final = 10.0  # doubled with every further short run
LONGEST_PAUSE: Final = 300.0


@dataclass(slots=True)
class _Slot:
    run: SlotRun | None = None
    was_up: bool = False
    """Whether the worker of the run could read. True if this is not known."""

    seen_at: float = 0.0
    short_runs: int = 0
    ended_at: float = 0.0


@dataclass(slots=True)
class LaunchBook:
    """Remembers how the runs of each slot ended. The object is in this process only, so a new leader launches
    without a pause. `lifetime`: the seconds after which the fleet replaces a worker.

    The parameter `moment` of the methods is a monotonic time: if the wall clock is set back by an hour, a slot must
    not wait for an hour.
    """

    lifetime: float
    _slots: dict[str, _Slot] = field(default_factory=dict)

    def see(
        self, runs: Mapping[str, SlotRun], now: float, moment: float, up: Collection[str | None] | None = None
    ) -> None:
        """Record the active runs of one tick. `now`: epoch seconds. `up`: the runs whose workers can read. None if
        these runs are not known: the worker of every run then counts as able to read."""
        for slot, run in runs.items():
            known = self._slots.setdefault(slot, _Slot())
            if known.run is not None and known.run.run_id != run.run_id:
                self._ended(known, known.run, now, moment)
            if known.run is None or known.run.run_id != run.run_id:
                known.seen_at = moment
                # If a run is older than SHORT_SECONDS when it is first seen, it is not known whether its worker
                # could read before. The worker then counts as up.
                known.was_up = now - run.started_at > SHORT_SECONDS
            known.was_up = known.was_up or up is None or run.run_id in up
            known.run = run
        for slot, known in self._slots.items():
            if slot not in runs and known.run is not None:
                self._ended(known, known.run, now, moment)
                known.run = None

    def pause(self, slot: str, moment: float) -> float:
        """Seconds until the slot can be launched; 0 if it can be launched now."""
        known = self._slots.get(slot)
        if known is None or known.short_runs == 0:
            return 0.0
        pause = min(FIRST_PAUSE * 2.0 ** (known.short_runs - 1), LONGEST_PAUSE)
        return float(max(0.0, pause - (moment - known.ended_at)))

    def short_runs(self, slot: str) -> int:
        known = self._slots.get(slot)
        return known.short_runs if known is not None else 0

    def _ended(self, known: _Slot, run: SlotRun, now: float, moment: float) -> None:
        lasted = max(now - run.started_at, moment - known.seen_at)
        is_short = lasted < min(SHORT_SECONDS, self.lifetime / 2)
        has_failed = not known.was_up and run.status != "queued" and lasted < self.lifetime
        known.short_runs = known.short_runs + 1 if is_short or has_failed else 0
        known.ended_at = moment
