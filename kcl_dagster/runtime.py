"""Time, ids, random numbers and locks: everything that decisions get as parameters.

Production code uses `system()`; tests and the simulator pass their own.
"""

import threading
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from random import Random
from typing import Protocol


class Clock(Protocol):
    """Two clocks and a way to wait. Durations must be measured with `monotonic`."""

    def now(self) -> float:
        """Seconds since the epoch, UTC. The value can jump."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary time. Never goes back; comparable only within one process."""

    def sleep(self, seconds: float) -> None:
        """Wait. Can return late, but never early."""


class SystemClock:
    """The clocks of this machine."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def _new_id() -> str:
    return str(uuid.uuid4())


@dataclass(frozen=True, slots=True)
class Runtime:
    """Everything that a component needs from its environment, apart from AWS, Spark and Dagster."""

    clock: Clock = field(default_factory=SystemClock)
    new_id: Callable[[], str] = _new_id
    random: Random = field(default_factory=Random)
    new_lock: Callable[[], AbstractContextManager[object]] = threading.RLock


def system() -> Runtime:
    """The runtime of production: this machine's clocks, and real random numbers."""
    return Runtime()
