"""Pins: what the row of a lease stores about a begun batch, in pendingCheckpointState.

A pin is a pending checkpoint with the mark of kcl_dagster and the number of the lease's newest batch. The pin of a
batch obliges the next owner to repeat the batch with exactly the same records. A pending checkpoint that another
KCL application wrote is not a pin.
"""

from dataclasses import dataclass, replace
from typing import Final

import msgspec

from kcl_dagster.model.checkpoint import is_sequence_number
from kcl_dagster.model.lease import Lease, LeaseKey

MOST_LOSSES: Final = 1000  # no worker writes a higher number
MOST_CODE: Final = 64  # characters; no worker writes a longer version


class _Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    kcl_dagster: int  # the batch number
    first: str | None = None
    instead_of: int | None = None
    losses: int | msgspec.UnsetType = msgspec.UNSET
    code: str | msgspec.UnsetType = msgspec.UNSET
    left: bool | msgspec.UnsetType = msgspec.UNSET
    arrived: int | msgspec.UnsetType = msgspec.UNSET
    attempt: bool | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, slots=True)
class Pin:
    """The content of a pin.

    - `first`: the sequence number of the batch's first record. A repetition of the batch begins at this record,
      because the record before it may have left the stream by then. This happens on shards that were quiet for
      long.
    - `instead_of`: if this batch is a piece of a failing batch, the number of the failing batch.
    - `losses`: how many former owners of the lease ended while they wrote the batch. The owner that wrote this pin
      is not counted.
    - `code`: the version of the consumer's code with which the owner that wrote this pin works; None if not known.
    - `left`: whether the owner that wrote this pin gave up the lease in an orderly way. If so, the end of this
      owner does not count as a loss.
    - `arrived`: when the first record arrived in the stream, in epoch seconds.
    - `is_attempt`: whether the pin was written for a record processor (`worker.processor_attempts`). Such a pin
      counts losses. It does not bind a reader to a range, because no sink has begun a batch. A worker of an earlier
      version ignores `is_attempt`, and repeats the range as a batch.
    """

    number: int
    first: str | None = None
    instead_of: int | None = None
    losses: int = 0
    code: str | None = None
    left: bool = False
    arrived: int | None = None
    is_attempt: bool = False

    def to_state(self) -> bytes:
        mark = _Mark(
            self.number,
            self.first,
            self.instead_of,
            self.losses or msgspec.UNSET,
            self.code or msgspec.UNSET,
            self.left or msgspec.UNSET,
            msgspec.UNSET if self.arrived is None else self.arrived,
            self.is_attempt or msgspec.UNSET,
        )
        return msgspec.json.encode(mark)

    def inherited(self, code: str | None) -> "Pin":
        """The pin as the next owner writes it. `code`: the next owner's version of the code. The owner that wrote
        this pin counts as a loss, unless it gave up the lease. If the pin was written with another version of the
        code, all losses are dropped, because they show nothing about the present version."""
        losses = 0 if code != self.code else self.losses + (not self.left)
        return replace(self, losses=min(losses, MOST_LOSSES), code=code, left=False)


def pin_of(lease: Lease) -> Pin | None:
    """Return the pin of the lease; None if there is none. A pending checkpoint that another KCL application wrote
    is not a pin."""
    if lease.pending_checkpoint is None or lease.pending_state is None:
        return None
    if lease.checkpoint is not None and lease.pending_checkpoint <= lease.checkpoint:
        return None  # the batch is stored, so no record has to be read again
    try:
        mark = msgspec.json.decode(lease.pending_state, type=_Mark)
    except msgspec.DecodeError:
        return None
    if mark.kcl_dagster != lease.batch or (mark.first is not None and not is_sequence_number(mark.first)):
        return None
    losses = 0 if isinstance(mark.losses, msgspec.UnsetType) else min(max(0, mark.losses), MOST_LOSSES)
    arrived = None if isinstance(mark.arrived, msgspec.UnsetType) else mark.arrived
    code = None if isinstance(mark.code, msgspec.UnsetType) else mark.code[:MOST_CODE]
    is_left, is_attempt = mark.left is True, mark.attempt is True
    return Pin(mark.kcl_dagster, mark.first, mark.instead_of, losses, code or None, is_left, arrived, is_attempt)


def binds(pin: Pin | None) -> bool:
    """Whether the pin binds the next reader of the lease to the range of a batch."""
    return pin is not None and not pin.is_attempt


class OwnPins:
    """The pins that this worker has written. All other pins were written by former owners. Called on the worker's
    main thread, and on the threads that write pins."""

    def __init__(self) -> None:
        self._numbers: dict[LeaseKey, tuple[int, int]] = {}

    def wrote(self, key: LeaseKey, token: int, number: int) -> None:
        self._numbers[key] = token, number

    def has(self, key: LeaseKey, token: int, number: int) -> bool:
        return self._numbers.get(key) == (token, number)
