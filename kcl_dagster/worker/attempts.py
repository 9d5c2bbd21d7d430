"""Attempts of record processors at the records behind a checkpoint, counted in the row of the lease.

A processor may be given a record that ends the process of its worker, and it may hang. Nothing of that is known to
the next owner of the lease, unless the row says so. So the row gets a pin before records are delivered, from the
time at which this worker has got the lease until its processor checkpoints: one write for most owners. The
checkpoint removes the pin. The pin is the one of batches (`kcl_dagster.worker.pending`). It binds no processor to a
range: the next one begins at the checkpoint, as ever.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kcl_dagster.errors import KclError, LeaseLost
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.worker.batch import Progress
from kcl_dagster.worker.holdings import Holding, Holdings
from kcl_dagster.worker.pending import OwnPins, Pin, pin_of


@dataclass(slots=True)
class Attempts:
    """Called for a lease by one thread at a time."""

    holdings: Holdings
    code: str | None = None
    """The version of the consumer's code."""

    _own: OwnPins = field(default_factory=OwnPins)

    def losses(self, progress: Progress, holding: Holding) -> int:
        """How many owners of the lease ended while they worked on its next records."""
        is_own = self._own.has(holding.key, holding.token, progress.range.number)
        return 0 if is_own else progress.range.losses

    def begin(self, progress: Progress, holding: Holding, start: Checkpoint) -> None:
        """Before records are delivered. `start`: the checkpoint at which the processor began.

        Raises LeaseLost. If the row cannot be written for another reason, this attempt does not count.
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

    def survived(self, holding: Holding, through: Checkpoint | None = None) -> None:
        """The process of the worker lives although records through `through` were delivered, or although the
        processor failed: it was not the records that ended the former owners."""
        try:
            lease = self.holdings.settled(holding.key, holding.token)
            pin, end = pin_of(lease), lease.pending_checkpoint
            if pin is not None and pin.losses and end is not None and (through is None or end <= through):
                self._write(holding, replace(pin, losses=0), end)
        except KclError:
            return

    def _next_pin(self, progress: Progress, holding: Holding, lease: Lease) -> Pin | None:
        """None: the row has it already, or a pending checkpoint that is not ours."""
        pin, pending = pin_of(lease), lease.pending_checkpoint
        if pin is None:
            if pending is not None and (lease.checkpoint is None or pending > lease.checkpoint):
                return None
            arrived = None if progress.first_arrival_ms is None else progress.first_arrival_ms // 1000
            return Pin(progress.range.number, progress.first, code=self.code, arrived=arrived)
        is_own = self._own.has(holding.key, holding.token, pin.number)
        if is_own and _end(progress, lease) == pending:
            return None
        return pin if is_own else pin.inherited(self.code)

    def _write(self, holding: Holding, pin: Pin, end: Checkpoint) -> None:
        self.holdings.prepare(holding.key, holding.token, end, pin.to_state(), pin.number)
        self._own.wrote(holding.key, holding.token, pin.number)


def unfinished(leases: Mapping[LeaseKey, Lease], delivered: Mapping[LeaseKey, Checkpoint]) -> list[Lease]:
    """The leases whose pinned records were not delivered in full by a processor that lives."""
    found = []
    for key, lease in leases.items():
        place = delivered.get(key)
        if place is None or lease.pending_checkpoint is None or place < lease.pending_checkpoint:
            found.append(lease)
    return found


def _end(progress: Progress, lease: Lease) -> Checkpoint:
    """Through which record the pin goes: a former one is extended and not shortened."""
    end = progress.through or progress.range.after
    former = lease.pending_checkpoint
    return end if pin_of(lease) is None or former is None else max(end, former)
