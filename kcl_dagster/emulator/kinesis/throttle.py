"""Token buckets, which limit the rates of shards."""

from __future__ import annotations

BURST_SECONDS = 1.0  # the documented rates are per second, so the amount of one second can be used at once


class Bucket:
    """An allowance that refills at a constant rate. Not thread-safe: the service serialises calls."""

    __slots__ = ("_balance", "_capacity", "_rate", "_seen")

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._capacity = (rate or 0.0) * BURST_SECONDS
        self._balance = self._capacity
        self._seen: float | None = None

    def take(self, amount: float, now: float) -> bool:
        """Spend `amount` if it is available, and return whether it was available. If `amount` is more than the
        amount of one second, the bucket must be full."""
        if self._rate is None:
            return True
        self._refill(now)
        if self._balance < min(amount, self._capacity):
            return False
        self._balance -= amount
        return True

    def has_any(self, now: float) -> bool:
        """Whether the balance is positive, which is enough to serve a response whose size is not known yet."""
        if self._rate is None:
            return True
        self._refill(now)
        return self._balance > 0

    def charge(self, amount: float, now: float) -> None:
        """Spend `amount` for a response that was served. If `amount` exceeds the balance, requests are rejected
        until the whole amount is refilled: after 10 MiB at 2 MiB/s, for 5 s."""
        if self._rate is None:
            return
        self._refill(now)
        self._balance = self._balance - amount if amount <= self._balance else -amount

    def _refill(self, now: float) -> None:
        # If the clock is set back, the balance must not fall.
        if self._seen is not None and now > self._seen and self._rate is not None:
            self._balance = min(self._capacity, self._balance + (now - self._seen) * self._rate)
        self._seen = now if self._seen is None else max(self._seen, now)
