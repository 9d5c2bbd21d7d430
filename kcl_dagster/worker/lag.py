"""How far behind the worker is: of its shards the one furthest behind."""

from collections.abc import Collection, Iterable

from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Clock
from kcl_dagster.worker.report import LeaseReport, Outcome

_READ = frozenset({Outcome.COMMITTED, Outcome.DELIVERED, Outcome.IDLE, Outcome.SET_ASIDE})


class Lag:
    """What the stream said when each shard was last read to the end of a batch. While a shard is not read (its
    batch fails, or takes for ever, or it is stopped), its lag grows with the clock.

    `see` belongs to the main thread and `measure` to the housekeeping thread, so the lag also grows while the
    main thread waits for a batch."""

    def __init__(self, clock: Clock, patience: float) -> None:
        """`patience`: seconds within which a healthy shard is read again."""
        self._clock = clock
        self._patience = patience
        self._behind: dict[LeaseKey, tuple[int, float]] = {}  # replaced and never changed: two threads look at it
        self._held_since: dict[LeaseKey, float] = {}

    def see(self, leases: Iterable[LeaseReport], held: Collection[LeaseKey]) -> None:
        """After a round."""
        now = self._clock.monotonic()
        behind = dict(self._behind)
        for lease in leases:
            if lease.outcome is Outcome.FINISHED:
                behind.pop(lease.lease, None)
            elif lease.outcome in _READ and lease.millis_behind is not None:
                behind[lease.lease] = (lease.millis_behind, now)
            else:
                behind.setdefault(lease.lease, (lease.millis_behind or 0, now))
        self._behind = {key: seen for key, seen in behind.items() if key in held}

    def measure(self, held: Collection[LeaseKey]) -> dict[LeaseKey, int]:
        """Milliseconds by shard, the worst first. A shard that was never read counts from when the worker got it,
        and is left out for as long as that says nothing."""
        now, behind = self._clock.monotonic(), self._behind
        self._held_since = {key: self._held_since.get(key, now) for key in held}
        found = {}
        for key, since in self._held_since.items():
            if key in behind:
                millis, at = behind[key]
                found[key] = millis + self._growth(now - at)
            elif self._growth(now - since):
                found[key] = self._growth(now - since)
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    def _growth(self, age: float) -> int:
        return round(age * 1000) if age > self._patience else 0
