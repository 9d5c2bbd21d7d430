"""Handles failures that concern many leases: expired credentials, a missing permission, an unreachable endpoint.

If each lease were retried separately, hundreds of leases would send hundreds of failing requests per second. A step
over many leases therefore ends after a few failures in a row. The next step begins after a pause that all leases
share, with a single attempt. If this attempt succeeds, the outage is over, and the same step tries the other
leases.
"""

from collections.abc import Iterable
from typing import Final

from kcl_dagster.errors import KclError
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Clock
from kcl_dagster.worker.events import EventKind, OnEvent, WorkerEvent

IN_A_ROW: Final = 3  # failures without a success in between; fewer failures can have causes in single leases
FIRST_PAUSE: Final = 0.25  # seconds, doubled with every step that fails
LONGEST_PAUSE: Final = 1.0  # seconds; a lease expires after a few missed renewals, so the pause is short
REPORT_SECONDS: Final = 60.0  # between two events of one outage


class Outage:
    """Detects outages of one kind of step, such as renewals. `begin` and `end` are called on the thread of the
    steps. `may_try`, `succeeded` and `failed` can be called on any thread, even after the end of the step. The
    dicts can therefore change at any time, and are copied before they are iterated."""

    def __init__(
        self, kind: EventKind, clock: Clock, on_event: OnEvent, longest_pause: float = LONGEST_PAUSE
    ) -> None:
        """`kind`: the kind of events. Events are reported at the beginning of an outage and then once per minute.
        Each event covers the failures of all leases."""
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
        """Seconds until the next step can begin; 0 if it can begin now."""
        return max(0.0, self._retry_at - self._clock.monotonic())

    def begin(self, keys: Iterable[LeaseKey]) -> list[LeaseKey]:
        """Begin a step. Returns the leases in the order in which they should be tried. Leases that have failed come
        after all others, in the order of their last failures."""
        self._failed_now = {}
        self._in_a_row = 0
        keys = list(keys)
        wanted = set(keys)
        failing = list(self._failing)
        again = [key for key in failing if key in wanted]
        return [key for key in keys if key not in failing] + again

    @property
    def is_known(self) -> bool:
        """Whether an outage is known, because a step ended early and no request has succeeded since. The next step
        then begins with a single attempt."""
        return self._limit == 1

    def may_try(self) -> bool:
        return self._in_a_row < self._limit

    def succeeded(self, key: LeaseKey | None = None) -> None:
        """Record that the service answered the request, possibly with an error."""
        self._in_a_row = 0
        self._limit = IN_A_ROW
        self._failing.pop(key, None)

    def failed(self, error: KclError, key: LeaseKey | None = None) -> None:
        self._in_a_row += 1
        self._failing.pop(key, None)
        self._failing[key] = self._failed_now[key] = str(error)

    def end(self) -> None:
        """End a step: determine the pause, and report failures if that is due."""
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
