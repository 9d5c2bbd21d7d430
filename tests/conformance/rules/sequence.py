"""What a sequence number tells of the shard that issued it.

Kinesis does not document the layout; today's numbers (version 2) carry their version and shard. Only a number of
exactly that layout is read; of any other nothing is claimed.
"""

from dataclasses import dataclass
from typing import Self

from kcl_dagster.model.checkpoint import is_sequence_number

_BITS = 186  # of every number of version 2
_VERSION_OFFSET = 184
_VERSION_BITS = 4
_SHARD_OFFSET = 4
_SHARD_BITS = 32
_VERSION = 2


@dataclass(frozen=True, slots=True)
class SequenceOrigin:
    """Which shard a sequence number comes from, by its own word."""

    version: int
    shard_id: str

    @classmethod
    def of(cls, sequence: str) -> Self | None:
        """None if the number is not of a known layout. Raises ValueError if it is no number."""
        if not is_sequence_number(sequence):
            msg = f"{sequence!r} is not a sequence number"
            raise ValueError(msg)
        number = int(sequence)
        if number.bit_length() != _BITS:
            return None
        version = (number >> _VERSION_OFFSET) & ((1 << _VERSION_BITS) - 1)
        if version != _VERSION:
            return None
        shard = (number >> _SHARD_OFFSET) & ((1 << _SHARD_BITS) - 1)
        return cls(version=version, shard_id=f"shardId-{shard:012d}")


def belongs_to(sequence: str, shard_id: str) -> bool | None:
    """Whether `shard_id` issued this number; None where the number does not tell."""
    origin = SequenceOrigin.of(sequence)
    return None if origin is None else origin.shard_id == shard_id
