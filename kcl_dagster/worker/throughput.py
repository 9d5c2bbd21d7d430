"""Measures the throughput of a lease in KB/s, as the KCL does."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kcl_dagster.model.lease import LeaseKey

_ALPHA: Final = 0.5  # weight of the newest window
_KB: Final = 1024


@dataclass(slots=True)
class _Meter:
    since: float
    delivered: int = 0
    average: float | None = None

    def close(self, now: float) -> None:
        seconds, self.since = now - self.since, now
        if self.average is None and not self.delivered:
            return  # the throughput of a lease that never had records is unknown, not zero
        rate, self.delivered = self.delivered / _KB / seconds, 0
        self.average = rate if self.average is None else _ALPHA * rate + (1 - _ALPHA) * self.average


class Throughput:
    """The bytes delivered per lease, as a moving average over windows of at least `window_seconds`.

    `publish` is called for each write of a lease's row. It closes the present window if the window has lasted for
    `window_seconds`. If not, for example at a checkpoint soon after a renewal, it returns the former value again.
    `monotonic` returns seconds. Not thread-safe: the caller has to make one call at a time.
    """

    def __init__(self, monotonic: Callable[[], float], window_seconds: float) -> None:
        self._monotonic = monotonic
        self._window_seconds = window_seconds
        self._meters: dict[LeaseKey, _Meter] = {}

    def start(self, lease: LeaseKey, stored: float | None) -> None:
        """Start to measure a lease that was acquired. `stored`: the value that its former owner stored."""
        self._meters[lease] = _Meter(since=self._monotonic(), average=stored)

    def record(self, lease: LeaseKey, delivered_bytes: int) -> None:
        """Count payload bytes that were passed to processing. Does nothing if `start` was not called for the
        lease."""
        if lease in self._meters:
            self._meters[lease].delivered += delivered_bytes

    def publish(self, lease: LeaseKey) -> float | None:
        """The throughput in KB/s, to be stored with the next write of the row. None if no bytes of the lease were
        ever delivered."""
        meter = self._meters.get(lease)
        if meter is None:
            return None
        now = self._monotonic()
        if now - meter.since >= self._window_seconds:
            meter.close(now)
        return meter.average

    def stop(self, lease: LeaseKey) -> None:
        self._meters.pop(lease, None)
