"""The first moment of an application: from then on, everything that arrived in its streams is read by it.

Windows that begin earlier are never complete: a part of what arrived in them was not read, whatever the leases say.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Self

HORIZON_MARGIN: Final = 60.0  # our clock is not that of the stream
_CREATION: Final = "created"
_OPEN: Final = "open"


@dataclass(frozen=True, slots=True)
class FirstMoment:
    """`moment`: epoch seconds. `is_creation`: nothing arrived before, because the first of the streams was created
    then. `is_settled` is False after a reset of all leases until all of them are read again: until then records may
    leave the streams, and the moment may become a later one."""

    moment: int
    is_creation: bool = False
    is_settled: bool = True

    def is_before(self, other: "FirstMoment") -> bool:
        """Whether more is read from this moment on."""
        return (not self.is_creation, self.moment) < (not other.is_creation, other.moment)

    @property
    def packed(self) -> str:
        marks = [_CREATION] * self.is_creation + [_OPEN] * (not self.is_settled)
        return ":".join([str(self.moment), *marks])

    @classmethod
    def unpacked(cls, text: str) -> Self:
        """Raises ValueError."""
        moment, *marks = text.split(":")
        if not set(marks) <= {_CREATION, _OPEN}:
            msg = f"{marks} are not known"
            raise ValueError(msg)
        return cls(int(moment), _CREATION in marks, _OPEN not in marks)


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """From where all shards of a stream are read. `start`: epoch seconds; None for the oldest records that the
    stream has. `created`: epoch seconds. `retention`: seconds."""

    created: float
    retention: float
    start: float | None = None

    def missing_before(self, now: float) -> int | None:
        """Epoch seconds: of what arrived before, something is not read, if reading begins now. None: all is."""
        begins = [self.start] if self.start is not None else []
        horizon = now - self.retention + HORIZON_MARGIN
        found = max([horizon, *begins])
        return None if found <= self.created else math.ceil(found)


def first_moment(streams: Collection[ReadFrom], now: float) -> FirstMoment:
    """The first moment of an application that reads these streams, and has begun to read all of their shards by
    `now` (epoch seconds)."""
    missing = [moment for one in streams if (moment := one.missing_before(now)) is not None]
    if missing:
        return FirstMoment(max(missing))
    return FirstMoment(int(min(one.created for one in streams)), is_creation=True)
