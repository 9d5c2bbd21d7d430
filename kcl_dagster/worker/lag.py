"""How far behind the worker is: of its shards the one furthest behind."""

from collections.abc import Iterable

from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Clock
from kcl_dagster.worker.report import LeaseReport, Outcome

_READ = frozenset({Outcome.COMMITTED, Outcome.DELIVERED, Outcome.IDLE, Outcome.SET_ASIDE})


class Lag:
    """What the stream said when each shard was last read to the end of a batch. A shard that is not read any more
    (it fails, or is stopped) falls behind by the clock: the stream is not asked, and stands still for nobody."""

    def __init__(self, clock: Clock, patience: float) -> None:
        """`patience`: seconds within which a healthy shard is read again."""
        self._clock = clock
        self._patience = patience
        self._behind: dict[LeaseKey, tuple[int, float]] = {}

    def see(self, leases: Iterable[LeaseReport], held: set[LeaseKey]) -> int | None:
        """Milliseconds, after a round; None while no shard has told."""
        now = self._clock.monotonic()
        for lease in leases:
            if lease.outcome is Outcome.FINISHED:
                self._behind.pop(lease.lease, None)
            elif lease.outcome in _READ and lease.millis_behind is not None:
                self._behind[lease.lease] = (lease.millis_behind or 0, now)
            else:
                self._behind.setdefault(lease.lease, (lease.millis_behind or 0, now))
        self._behind = {key: seen for key, seen in self._behind.items() if key in held}
        return max((self._of(millis, now - at) for millis, at in self._behind.values()), default=None)

    def worst(self, shards: int) -> dict[LeaseKey, int]:
        """Milliseconds by shard, of those furthest behind; the worst first."""
        now = self._clock.monotonic()
        behind = {key: self._of(millis, now - at) for key, (millis, at) in self._behind.items()}
        return dict(sorted(behind.items(), key=lambda item: (-item[1], item[0]))[:shards])

    def _of(self, millis: int, age: float) -> int:
        return millis + (round(age * 1000) if age > self._patience else 0)
