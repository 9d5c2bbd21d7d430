"""What a pinned batch remembers in the lease's pendingCheckpointState.

Any KCL application may leave a pending checkpoint of its own. Only one that carries our mark, with the number of
the lease's newest batch, is a batch of ours that has to be repeated exactly.
"""

from dataclasses import dataclass, replace
from typing import Final

import msgspec

from kcl_dagster.model.checkpoint import is_sequence_number
from kcl_dagster.model.lease import Lease, LeaseKey

MOST_LOSSES: Final = 1000  # more were not written by a worker
MOST_CODE: Final = 64  # characters; a longer version was not written by a worker


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
    """`first`: the sequence number of the batch's first record. Where the batch began may have left the stream by
    the time it is repeated, as on a shard that was quiet for long; its own records have not. `instead_of`: the
    number of the failing batch that this one is a piece of. `losses`: owners of the lease whose process ended while
    they wrote the batch, before the one that wrote this pin. `code`: the version of the consumer's code with which
    that owner writes it; None: not known. `left`: that owner gave the lease up in an orderly way, so it is no loss.
    `arrived`: when the first record arrived at the stream, in epoch seconds. `is_attempt`: it was written for a
    record processor (`kcl_dagster.worker.attempts`). It counts losses, and binds no reader to a range: no sink has
    begun a batch. A former version does not know this mark, and repeats the range as a batch.
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
        """The pin as the next owner writes it, which runs the version `code`. The owner that wrote this one counts
        as lost, unless it gave the lease up. Losses under another version say nothing about this one."""
        losses = 0 if code != self.code else self.losses + (not self.left)
        return replace(self, losses=min(losses, MOST_LOSSES), code=code, left=False)


def pin_of(lease: Lease) -> Pin | None:
    """The batch that `lease` is pinned to, if it is pinned to one of ours, or the attempt of a record processor."""
    if lease.pending_checkpoint is None or lease.pending_state is None:
        return None
    if lease.checkpoint is not None and lease.pending_checkpoint <= lease.checkpoint:
        return None  # the batch is done, and there is nothing to read again
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
    """The pins that this worker has written: a pin that it did not write is of a former owner of the lease.
    Called on the worker's main thread, and on the threads that write pins."""

    def __init__(self) -> None:
        self._numbers: dict[LeaseKey, tuple[int, int]] = {}

    def wrote(self, key: LeaseKey, token: int, number: int) -> None:
        """`token`: the ownership under which the pin was written."""
        self._numbers[key] = token, number

    def has(self, key: LeaseKey, token: int, number: int) -> bool:
        return self._numbers.get(key) == (token, number)
