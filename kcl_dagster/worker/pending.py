"""What a pinned batch remembers in the lease's pendingCheckpointState.

Any KCL application may leave a pending checkpoint of its own. Only one that carries our mark, with the number of
the lease's newest batch, is a batch of ours that has to be repeated exactly.
"""

from dataclasses import dataclass

import msgspec

from kcl_dagster.model.checkpoint import is_sequence_number
from kcl_dagster.model.lease import Lease


class _Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    kcl_dagster: int  # the batch number
    first: str | None = None
    instead_of: int | None = None


@dataclass(frozen=True, slots=True)
class Pin:
    """`first`: the sequence number of the batch's first record. Where the batch began may have left the stream by
    the time it is repeated, as on a shard that was quiet for long; its own records have not. `instead_of`: the
    number of the failing batch that this one is a piece of."""

    number: int
    first: str | None = None
    instead_of: int | None = None

    def to_state(self) -> bytes:
        return msgspec.json.encode(_Mark(self.number, self.first, self.instead_of))


def pin_of(lease: Lease) -> Pin | None:
    """The batch that `lease` is pinned to, if it is pinned to one of ours."""
    if lease.pending_checkpoint is None or lease.pending_state is None:
        return None
    try:
        mark = msgspec.json.decode(lease.pending_state, type=_Mark)
    except msgspec.DecodeError:
        return None
    if mark.kcl_dagster != lease.batch or (mark.first is not None and not is_sequence_number(mark.first)):
        return None
    return Pin(mark.kcl_dagster, mark.first, mark.instead_of)
