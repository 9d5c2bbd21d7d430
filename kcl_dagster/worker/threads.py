"""The threads of a worker, and the only place that starts any.

The renewal thread does nothing but renew: no user code runs on it, it shares no lock with the batch thread but
those of single leases, and a table that is slow to answer a scan or a heartbeat does not hold it up. It needs the
interpreter for well under a millisecond per lease, which it gets within one switch interval (5 ms) even while
other threads compute; only an extension that keeps the interpreter lock for a whole renewal interval could starve
it, and then the worker's own clock stops it from writing anything.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Protocol, Self

from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.renewal import ForEach

log = logging.getLogger(__name__)

RENEWAL_THREADS = 8  # a renewal takes about 10 ms: some 800 leases per second
FEWEST_FOR_POOL = 4  # leases; fewer are renewed faster than a pool hands them out
LONGEST_NAP = 0.5  # seconds; how late a lease acquired meanwhile may be noticed
SHORTEST_NAP = 0.02  # seconds; a failing table is not asked in a tight loop
HOUSEKEEPING_NAP = 0.1  # seconds; the resolution of the heartbeat, discovery and watchdog intervals
JOIN_SECONDS = 15.0  # a request in flight ends within its own deadline


class Steps(Protocol):
    """What the threads of a worker call, over and over. None of these may raise."""

    def step_renewal(self, for_each: ForEach) -> float:
        """Renew what is due; seconds until the next lease is."""

    def step_housekeeping(self) -> None:
        """Everything else that is due by now."""


class Threads:
    """Runs `steps` in the background between `with` and the end of its block."""

    def __init__(self, steps: Steps, name: str) -> None:
        self._steps = steps
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(RENEWAL_THREADS, thread_name_prefix=f"{name} renewal")
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
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _loop(self, step: Callable[[], float]) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            try:
                pause = step()
            except Exception:  # a defect of ours; leases that are still renewed are worth more than a clean end
                log.exception("a background step failed and is tried again")
                pause = LONGEST_NAP

    def _renew(self) -> float:
        return min(LONGEST_NAP, max(SHORTEST_NAP, self._steps.step_renewal(self._for_each)))

    def _keep_house(self) -> float:
        self._steps.step_housekeeping()
        return HOUSEKEEPING_NAP

    def _for_each(self, function: Callable[[LeaseKey], None], keys: Iterable[LeaseKey]) -> None:
        every = list(keys)
        if len(every) < FEWEST_FOR_POOL:
            for key in every:
                function(key)
        else:
            for _ in self._pool.map(function, every):
                pass
