"""Calculates the lag of a worker, which is the lag of its shard that is furthest behind."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from kcl_dagster.model.claim import Begun
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.runtime import Clock
from kcl_dagster.worker.pins import pin_of
from kcl_dagster.worker.report import LeaseReport, Outcome

_READ = frozenset({Outcome.COMMITTED, Outcome.DELIVERED, Outcome.IDLE, Outcome.SET_ASIDE})


@dataclass(frozen=True, slots=True)
class LagReport:
    """The lags of a worker's shards, and the shards on which the consumer's code works for longer than usual."""

    leases: Mapping[LeaseKey, Lease]
    """The leases of unfinished shards that the worker has to read; see `Holdings.to_be_read`."""

    behind: Mapping[LeaseKey, int]
    """The lag by lease in milliseconds, the largest first. Shards whose lag is not known yet are left out."""

    hung: tuple[LeaseKey, ...] = ()


OnLag = Callable[[LagReport], None]
"""Receives the report. Called on the housekeeping thread before each heartbeat. Must not raise or wait."""


def ignore_lag(_: LagReport) -> None:
    """Discard the report: the default receiver."""


@dataclass(frozen=True, slots=True)
class Unstored:
    """A batch that is begun and not stored, or a shard that fails and has no such batch."""

    number: int
    since: int
    """When the first record of the batch arrived, in epoch seconds. If that is not known, the moment through which
    the shard is stored."""


def unstored_of(leases: Iterable[Lease], failing: Collection[LeaseKey]) -> dict[LeaseKey, Unstored]:
    """For each lease, the batch that is begun and not stored, as the lease's row records it. A former owner may
    have begun the batch.

    A row can lack such a batch, or the time at which the batch's first record arrived. For a lease with such a row,
    the result has the moment through which the shard is stored if the lease is in `failing`. If the lease is not in
    `failing`, it is left out.
    """
    found = {}
    for lease in leases:
        pin = pin_of(lease)
        if pin is not None and pin.arrived is not None:
            found[lease.key] = Unstored(pin.number, pin.arrived)
        elif (begun := begun_of(lease)) is not None and begun.arrived is not None:
            found[lease.key] = Unstored(begun.number, begun.arrived)
        elif lease.key in failing and lease.stored_through is not None:
            found[lease.key] = Unstored(lease.batch, lease.stored_through)
    return found


def begun_of(lease: Lease) -> Begun | None:
    """The batch that an owner with a chain has begun and that is beyond the row's checkpoint. None if there is
    none."""
    begun = None if lease.claim is None else lease.claim.begun
    if begun is None or (lease.checkpoint is not None and lease.checkpoint > begun.after):
        return None
    return begun


class Lag:
    """Calculates the lags of shards. The basis is the lag that the stream reported when a shard was last read to
    the end of a batch. A shard is not read while its batch fails or hangs, or while it is stopped. Its lag then
    grows with the clock. In two cases, the lag is at least the age of the first record of the shard's batch: a
    former owner has begun the batch, or the batch takes longer than usual.

    `see` is called on the main thread and `measure` on the housekeeping thread, so the lag also grows while the
    main thread waits for a batch.
    """

    def __init__(self, clock: Clock, patience: float) -> None:
        """`patience`: seconds within which a healthy shard is read again."""
        self._clock = clock
        self._patience = patience
        # This dict is replaced and never changed, because two threads use it
        self._behind: dict[LeaseKey, tuple[int, float]] = {}
        self._held_since: dict[LeaseKey, float] = {}
        # For each lease: the number of the unfinished batch, and since when it is known
        self._begun: dict[LeaseKey, tuple[int, float]] = {}

    def see(self, leases: Iterable[LeaseReport], held: Collection[LeaseKey]) -> None:
        now = self._clock.monotonic()
        behind = dict(self._behind)
        for lease in leases:
            if lease.outcome is Outcome.FINISHED:
                behind.pop(lease.lease, None)
            elif lease.millis_behind is not None and lease.outcome in _READ:
                behind[lease.lease] = (lease.millis_behind, now)
            elif lease.millis_behind is not None:
                behind.setdefault(lease.lease, (lease.millis_behind, now))
        self._behind = {key: seen for key, seen in behind.items() if key in held}

    def measure(
        self, held: Collection[LeaseKey], unstored: Mapping[LeaseKey, Unstored] | None = None
    ) -> dict[LeaseKey, int]:
        """The lag in milliseconds by shard, the largest first. If a shard was never read, its lag is the time since
        this worker acquired its lease. Such a shard is left out for the first `patience` seconds."""
        now, behind = self._clock.monotonic(), self._behind
        ages = self._ages(unstored or {}, now)
        self._held_since = {key: self._held_since.get(key, now) for key in held}
        found = {}
        for key, since in self._held_since.items():
            if key in behind:
                millis, at = behind[key]
                found[key] = millis + self._growth(now - at)
            elif self._growth(now - since):
                found[key] = self._growth(now - since)
            if key in ages:
                found[key] = max(found.get(key, 0), ages[key])
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    def _ages(self, unstored: Mapping[LeaseKey, Unstored], now: float) -> dict[LeaseKey, int]:
        """The ages in milliseconds of unfinished batches that this worker has inherited, or that take longer than
        usual."""
        begun = {}
        for key, batch in unstored.items():
            is_inherited = key not in self._held_since
            number, since = self._begun.get(key, (None, now))
            begun[key] = batch.number, since if number == batch.number else now
            if is_inherited:
                begun[key] = batch.number, now - self._patience - 1
        self._begun = begun
        wall = self._clock.now()
        return {
            key: max(0, round(1000 * (wall - unstored[key].since)))
            for key, (_, since) in begun.items()
            if now - since > self._patience
        }

    def _growth(self, age: float) -> int:
        return round(age * 1000) if age > self._patience else 0
