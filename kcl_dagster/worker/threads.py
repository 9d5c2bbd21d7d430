"""Starts the threads that call the steps of a worker.

The renewal thread only renews. No user code runs on it, and it shares only the locks of single leases with the
batch thread. A table that is slow to answer a scan or a heartbeat does not delay it. The thread needs Python's
interpreter lock for well under a millisecond per lease, and gets the lock within one switch interval (5 ms) even
while other threads compute. Only an extension module that holds the lock for much longer could delay renewals. If a
lease expires because of that, the worker detects it by its own clock, and writes nothing more under this lease.
"""

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

log = logging.getLogger(__name__)

LONGEST_NAP = 0.5  # seconds; after this time at most, a new lease is detected
SHORTEST_NAP = 0.02  # seconds; so that a failing table is not called in a tight loop
HOUSEKEEPING_NAP = 0.1  # seconds; the resolution of the heartbeat, discovery and watchdog intervals
JOIN_SECONDS = 15.0  # a request in flight ends within its own deadline


class Steps(Protocol):
    """The steps that the threads of a worker call repeatedly. They must not raise."""

    def step_renewal(self) -> float:
        """Renew the leases that are due. Returns the seconds until the next lease is due."""

    def step_housekeeping(self) -> None:
        """Do everything else that is due."""


class Threads:
    """A context manager that runs `steps` on background threads."""

    def __init__(self, steps: Steps, name: str) -> None:
        self._steps = steps
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._loop, args=(step,), name=f"{name} {what}", daemon=True)
            for what, step in (("renewals", self._renew), ("housekeeping", self._keep_house))
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(JOIN_SECONDS)

    def _loop(self, step: Callable[[], float]) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            try:
                pause = step()
            except Exception:  # a bug of this package; keeping leases renewed is more important than a clean end
                log.exception("a background step failed and is tried again")
                pause = LONGEST_NAP

    def _renew(self) -> float:
        return min(LONGEST_NAP, max(SHORTEST_NAP, self._steps.step_renewal()))

    def _keep_house(self) -> float:
        self._steps.step_housekeeping()
        return HOUSEKEEPING_NAP
