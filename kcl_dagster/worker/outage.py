"""Failures that many leases have in common: expired credentials, a missing right, an endpoint that is away.

If each lease were retried by itself, hundreds of leases would send hundreds of requests a second that all fail. So
a step over many leases ends after a few failures in a row, the next step comes after a pause that all leases share,
and begins with a single attempt. The first success ends the outage, and every lease has its turn at once.
"""

from collections.abc import Iterable
from typing import Final

from kcl_dagster.errors import KclError
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Clock
from kcl_dagster.worker.events import EventKind, OnEvent, WorkerEvent

IN_A_ROW: Final = 3  # failures without a success in between; fewer may be of single leases
FIRST_PAUSE: Final = 0.25  # seconds, doubled with every step that fails
LONGEST_PAUSE: Final = 1.0  # seconds; leases are ours for some lease durations of renewals at most, so look often
REPORT_SECONDS: Final = 60.0  # from one event of an outage to the next


class Outage:
    """One per kind of step. `begin` and `end` on the thread of the steps; `may_try`, `succeeded` and `failed` on
    any of the threads that a step uses, also after its end: views of the dicts are copied before they are used."""

    def __init__(
        self, kind: EventKind, clock: Clock, on_event: OnEvent, longest_pause: float = LONGEST_PAUSE
    ) -> None:
        """`kind`: of the events: one at the beginning of an outage and one a minute, each for all leases."""
        self._kind = kind
        self._clock = clock
        self._on_event = on_event
        self._longest = longest_pause
        self._pause = 0.0
        self._retry_at = 0.0
        self._in_a_row = 0
        self._limit = IN_A_ROW
        self._failing: dict[LeaseKey | None, str] = {}
        self._failed_now: dict[LeaseKey | None, str] = {}
        self._unreported = 0
        self._reported_at: float | None = None

    def rests_for(self) -> float:
        """Seconds until the next step may begin; 0 if it may begin now."""
        return max(0.0, self._retry_at - self._clock.monotonic())

    def begin(self, keys: Iterable[LeaseKey]) -> list[LeaseKey]:
        """Begin a step. The leases in the order in which they are to be tried: those that failed come last, the one
        that failed most recently at the very end."""
        self._failed_now = {}
        self._in_a_row = 0
        keys = list(keys)
        wanted = set(keys)
        failing = list(self._failing)
        again = [key for key in failing if key in wanted]
        return [key for key in keys if key not in failing] + again

    @property
    def is_known(self) -> bool:
        """Whether the last step ended early: the next one begins with a single attempt."""
        return self._limit == 1

    def may_try(self) -> bool:
        """Whether this step should go on to another lease."""
        return self._in_a_row < self._limit

    def succeeded(self, key: LeaseKey | None = None) -> None:
        """The service answered, whatever it said."""
        self._in_a_row = 0
        self._limit = IN_A_ROW
        self._failing.pop(key, None)

    def failed(self, error: KclError, key: LeaseKey | None = None) -> None:
        self._in_a_row += 1
        self._failing.pop(key, None)
        self._failing[key] = self._failed_now[key] = str(error)

    def end(self) -> None:
        """End a step: choose the pause, and report."""
        now = self._clock.monotonic()
        if self._in_a_row >= self._limit:
            self._limit = 1
        if not self._failed_now:
            self._pause = 0.0
            if not self._failing:
                self._reported_at, self._unreported = None, 0
            return
        self._pause = min(self._longest, 2 * self._pause or min(FIRST_PAUSE, self._longest))
        self._retry_at = now + self._pause
        self._report(now)

    def keep(self, keys: Iterable[LeaseKey]) -> None:
        """Forget leases other than these."""
        kept = set(keys)
        self._failing = {key: why for key, why in list(self._failing.items()) if key is None or key in kept}

    def _report(self, now: float) -> None:
        self._unreported += len(self._failed_now)
        if self._reported_at is not None and now - self._reported_at < REPORT_SECONDS:
            return
        key, message = next(reversed(self._failed_now.items()))
        others = self._unreported - 1
        if others:
            message = f"{message} ({others} more failures like this)"
            key = None
        self._on_event(WorkerEvent(self._kind, message, key, {"count": self._unreported}))
        self._reported_at, self._unreported = now, 0
