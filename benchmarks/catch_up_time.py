"""Computes how long a stream takes to be read to its tip, and how many cores this takes. Pure.

A megabyte is a million bytes. Kinesis counts in units that are 5 % larger. The times do not depend on the unit,
because the limits for reading and for writing have the same one.
"""

import math
from dataclasses import dataclass
from typing import Final

MB_PER_GB: Final = 1000.0
SHARD_READS: Final = (
    2.0  # MB/s, the limit of Kinesis for all polling clients of a shard, and for each fan-out consumer
)
SHARD_WRITES: Final = 1.0
DAY: Final = 86_400.0
HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Backlog:
    """Records that wait in a stream, while new records arrive. `arriving`: MB/s of each shard, which are also those
    that arrived during the `seconds` of the backlog."""

    shards: int
    arriving: float = SHARD_WRITES
    seconds: float = DAY

    @property
    def megabytes(self) -> float:
        return self.arriving_together * self.seconds

    @property
    def arriving_together(self) -> float:
        """MB/s of all shards."""
        return self.shards * self.arriving

    @property
    def limit(self) -> float:
        """The MB/s at which Kinesis lets one application read the stream."""
        return self.shards * SHARD_READS

    def catch_up_seconds(self, megabytes_per_second: float) -> float:
        """The seconds until a fleet that reads at this speed has read everything, with what arrives meanwhile.
        Infinite if records arrive at least as fast. Kinesis limits the speed."""
        gain = min(megabytes_per_second, self.limit) - self.arriving_together
        return self.megabytes / gain if gain > 0 else math.inf


def core_speed(cpu_per_gb: float) -> float:
    """The MB/s that one core reads and stores."""
    return MB_PER_GB / cpu_per_gb


def cores_for(megabytes_per_second: float, cpu_per_gb: float) -> int:
    """The number of cores that read and store so much."""
    return math.ceil(megabytes_per_second / core_speed(cpu_per_gb))
