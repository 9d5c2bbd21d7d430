"""The first moment of an application. The application reads everything that arrived in its streams from then on.

Windows that begin earlier are never complete, because some records that arrived in them were not read.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Self

HORIZON_MARGIN: Final = 60.0  # seconds; the clock of this machine may differ from that of Kinesis
_CREATION: Final = "created"
_OPEN: Final = "open"


@dataclass(frozen=True, slots=True)
class FirstMoment:
    """The time from which an application reads everything.

    - `moment`: epoch seconds.
    - `is_creation`: the first of the streams was created at this time, so nothing arrived earlier.
    - `is_settled`: False after a reset of all leases, until all shards are read again. In this time, records may
      leave the streams unread, and the moment may become later.
    """

    moment: int
    is_creation: bool = False
    is_settled: bool = True

    def is_before(self, other: "FirstMoment") -> bool:
        """Whether reading from this moment on covers more records than reading from `other` on."""
        return (not self.is_creation, self.moment) < (not other.is_creation, other.moment)

    @property
    def packed(self) -> str:
        marks = [_CREATION] * self.is_creation + [_OPEN] * (not self.is_settled)
        return ":".join([str(self.moment), *marks])

    @classmethod
    def unpacked(cls, text: str) -> Self:
        """Decode what `packed` returned. Raises ValueError for anything else."""
        moment, *marks = text.split(":")
        if not set(marks) <= {_CREATION, _OPEN}:
            msg = f"{marks} are not known"
            raise ValueError(msg)
        return cls(int(moment), _CREATION in marks, _OPEN not in marks)


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """The position from which all shards of a stream are read. `created`: when the stream was created, in epoch
    seconds. `retention`: seconds for which the stream keeps records. `start`: where reading starts, in epoch
    seconds; None if reading starts with the oldest records in the stream."""

    created: float
    retention: float
    start: float | None = None

    def missing_before(self, now: float) -> int | None:
        """The time (epoch seconds) before which records are missed if reading begins now. None if no records are
        missed."""
        begins = [self.start] if self.start is not None else []
        horizon = now - self.retention + HORIZON_MARGIN
        found = max([horizon, *begins])
        return None if found <= self.created else math.ceil(found)


def first_moment(streams: Collection[ReadFrom], now: float) -> FirstMoment:
    """The first moment of an application that has begun to read all shards of these streams by `now` (epoch
    seconds)."""
    missing = [moment for one in streams if (moment := one.missing_before(now)) is not None]
    if missing:
        return FirstMoment(max(missing))
    return FirstMoment(int(min(one.created for one in streams)), is_creation=True)
