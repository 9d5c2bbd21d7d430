"""Decides which records of each lease are read next. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kcl_dagster.model.checkpoint import AT_TIMESTAMP, LATEST, TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import Lease
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.worker.batch import Progress, Range
from kcl_dagster.worker.pins import binds, pin_of

ResolvedStart = Callable[[StreamIdentifier], int | None]
"""Returns a time in epoch milliseconds: the time to which LATEST or AT_TIMESTAMP was resolved when the application
first read the stream. None if not known."""

FirstNumber = Callable[[], int]
"""Returns the number of the first batch of a lease. It is higher than all numbers of former leases of the shard.
See `first_number_at`."""


def first_number_at(now: float) -> int:
    """The number of the first batch of a lease: the milliseconds since the epoch. `now`: epoch seconds by the
    service's clock.

    A lease can be deleted and created again: by a reset, by hand, or with a stream or lease table that was
    recreated. Sinks remember the numbers of the former lease, and the new row does not show which numbers were
    used. But numbers grow by one per batch, and each batch takes longer than a millisecond. So this number is
    higher than all former numbers.
    """
    return int(now * 1000)


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans ranges. `single_stream`: the stream of leases that do not name a stream."""

    single_stream: StreamIdentifier
    resolved_start: ResolvedStart
    first_number: FirstNumber
    code: str | None = None
    """The version of the consumer's code."""

    def plan(self, lease: Lease, until: Checkpoint | None = None) -> Range:
        """The next range of a lease that can be read. If the lease is pinned to a begun batch, this is the range of
        that batch. Otherwise the range ends at `until`, or is open if `until` is None. The range has the losses
        that the lease's pin counts. This includes a pin that was written for a record processor and does not bind
        the range."""
        stream = lease.stream or self.single_stream
        after = lease.checkpoint or TRIM_HORIZON
        pin = pin_of(lease)
        losses = 0 if pin is None else pin.inherited(self.code).losses
        if pin is not None and binds(pin):
            through, number, first = lease.pending_checkpoint, pin.number, pin.first
            instead_of = pin.instead_of
        else:
            through = until if until is not None and after < until else None
            number, first, instead_of = lease.batch + 1 if lease.batch else self.first_number(), None, None
        return Range(
            lease=lease.key,
            stream=stream,
            shard_id=lease.shard_id,
            after=after,
            number=number,
            through=through,
            first=first,
            timestamp_ms=self.resolved_start(stream) if after in (LATEST, AT_TIMESTAMP) else None,
            hash_range=lease.hash_range,
            instead_of=instead_of,
            losses=losses,
        )


def following(*found: Sequence[Progress]) -> list[Range]:
    """The ranges that will be requested next. Ranges that are not known yet are missing."""
    ranges = (next_range(progress) for some in found for progress in some)
    return [range_ for range_ in ranges if range_ is not None]


def next_range(progress: Progress) -> Range | None:
    """The range that a worker requests after it has committed the batch of `progress`. A range without records is
    requested again. None if the shard has ended or left the stream, or if a pinned range was not read."""
    done = progress.range
    if progress.ended or progress.gone:
        return None
    if progress.through is None:
        return None if done.is_pinned else done
    number = done.number + 1 if progress.records or done.is_pinned else done.number
    return Range(done.lease, done.stream, done.shard_id, progress.through, number, hash_range=done.hash_range)
