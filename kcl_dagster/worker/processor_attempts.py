"""Counts the losses in the row of a lease: how many workers ended while a record processor worked on the next
records of the lease.

A record can crash or hang the process of its worker. The next owner of the lease learns this only from the row.
Before records are delivered, the worker therefore writes a pin into the row: a pending checkpoint that shows that
work on the records has begun. Until the processor checkpoints, the worker writes the pin again once per minute,
with a later record. The processor's first checkpoint removes the pin. The worker then writes no further pins for
this processor.

The pin has the format of the pins of batches (`kcl_dagster.worker.pins`), but is marked as an attempt. Such a
pin does not bind a processor or a sink to a range: the next reader begins at the checkpoint.

The pin names a record that was delivered. Later records may have been delivered as well. This worker therefore
resets the losses of former owners only when it has delivered all records that former owners can have delivered.
This is so at the tip of the shard, or some time after this worker has passed the pinned record.

A lease can also have the pin of a batch that a sink has begun. It is not known whether the sink has stored this
batch. The worker therefore keeps the pin, and changes only the losses in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from kcl_dagster.errors import KclError, LeaseLost
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.runtime import Clock
from kcl_dagster.worker.batch import Progress
from kcl_dagster.worker.held_lease import Holding
from kcl_dagster.worker.holdings import Holdings
from kcl_dagster.worker.pins import OwnPins, Pin, binds, pin_of

WRITE_SECONDS: Final = 60.0  # between two writes of the same pin; costs no more than the renewals
# The losses of an inherited pin are kept for this many seconds after this worker has passed the pin's end. The
# former owner worked on records beyond this end for at most `WRITE_SECONDS`, and this worker can take twice as long
# for them.
SURVIVAL_SECONDS: Final = 2 * WRITE_SECONDS


@dataclass(slots=True)
class Attempts:
    """Writes the pins that mark attempts of a record processor, and counts losses. Called by one thread at a time
    per lease."""

    holdings: Holdings
    clock: Clock
    code: str | None = None
    """The version of the consumer's code."""

    _own: OwnPins = field(default_factory=OwnPins)
    _written: dict[LeaseKey, float] = field(default_factory=dict)
    """When this worker last wrote the pin of each lease (monotonic)."""

    _passed: dict[LeaseKey, tuple[int, float]] = field(default_factory=dict)
    """For each lease that was read beyond its pin: the ownership (token) at that time, and the time (monotonic)."""

    def losses(self, progress: Progress, holding: Holding) -> int:
        """How many owners of the lease ended while they worked on the next records of the lease."""
        return 0 if self._is_own(pin_of(holding.lease), holding) else progress.range.losses

    def begin(self, progress: Progress, holding: Holding, start: Checkpoint) -> None:
        """Record in the row that records are about to be delivered. `start`: the checkpoint at which the processor
        began.

        Raises LeaseLost. If another error makes the write fail, this attempt is not counted.
        """
        try:
            lease = self.holdings.settled(holding.key, holding.token)
            if lease.checkpoint is not None and lease.checkpoint > start:
                return  # the processor has checkpointed
            pin = self._next_pin(progress, holding, lease)
            if pin is not None:
                self._write(holding, pin, _end(progress, lease))
        except LeaseLost:
            raise
        except KclError:
            return

    def survived(self, holding: Holding, through: Checkpoint | None = None, *, is_at_tip: bool = False) -> None:
        """Record that this worker's process still runs. `through`: the last record that was delivered; None after
        the processor failed.

        Losses are counted because a record may have ended the processes of former owners. The number of losses is
        set to 0 if the processor failed without ending the process, or if all records that former owners can have
        delivered were delivered again.
        """
        try:
            lease = self.holdings.settled(holding.key, holding.token)
            pin, end = pin_of(lease), lease.pending_checkpoint
            if pin is None or not pin.losses or end is None:
                return
            if through is None or (end <= through and (is_at_tip or self._is_far_behind_the_pin(holding))):
                self._write(holding, replace(pin, losses=0), end)
        except KclError:
            return

    def _is_far_behind_the_pin(self, holding: Holding) -> bool:
        now = self.clock.monotonic()
        token, since = self._passed.get(holding.key, (None, now))
        if token != holding.token:
            self._passed[holding.key] = holding.token, now
            return False
        return now - since >= SURVIVAL_SECONDS

    def _next_pin(self, progress: Progress, holding: Holding, lease: Lease) -> Pin | None:
        """The pin to write. None in three cases, in which nothing has to be written:

        - The row has a pending checkpoint that is not a pin of kcl_dagster.
        - The row has this worker's own pin, which was written less than `WRITE_SECONDS` ago.
        - The row has this worker's own pin, and a new pin would end at the same record.
        """
        pin, pending = pin_of(lease), lease.pending_checkpoint
        if pin is None:
            if pending is not None and (lease.checkpoint is None or pending > lease.checkpoint):
                return None
            arrived = None if progress.first_arrival_ms is None else progress.first_arrival_ms // 1000
            return Pin(progress.range.number, progress.first, code=self.code, arrived=arrived, is_attempt=True)
        if not self._is_own(pin, holding):
            return pin.inherited(self.code)
        is_due = self.clock.monotonic() - self._written[holding.key] >= WRITE_SECONDS
        return pin if is_due and _end(progress, lease) != pending else None

    def _is_own(self, pin: Pin | None, holding: Holding) -> bool:
        return pin is not None and self._own.has(holding.key, holding.token, pin.number)

    def _write(self, holding: Holding, pin: Pin, end: Checkpoint) -> None:
        self.holdings.prepare(holding.key, holding.token, end, pin.to_state(), pin.number)
        self._own.wrote(holding.key, holding.token, pin.number)
        self._written[holding.key] = self.clock.monotonic()


def unfinished(leases: Mapping[LeaseKey, Lease], delivered: Mapping[LeaseKey, Checkpoint]) -> list[Lease]:
    """The leases, without those whose pinned records were all delivered to a processor that still runs.
    `delivered`: for each lease with such a processor, the last record that was delivered to it."""
    found = []
    for key, lease in leases.items():
        place = delivered.get(key)
        if place is None or lease.pending_checkpoint is None or place < lease.pending_checkpoint:
            found.append(lease)
    return found


def _end(progress: Progress, lease: Lease) -> Checkpoint:
    """The last record that the pin covers. The end of a former pin is moved forward and never back. The end of a
    batch's pin is not changed."""
    end = progress.through or progress.range.after
    pin, former = pin_of(lease), lease.pending_checkpoint
    if pin is None or former is None:
        return end
    return former if binds(pin) else max(end, former)
