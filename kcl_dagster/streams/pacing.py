"""How fast one shard may be read. Pure: told what was read and when, it says when to read again."""

from dataclasses import dataclass
from typing import Final

# Kinesis allows five GetRecords a second on a shard, for all consumers together: one call is left for others.
READS_PER_SECOND: Final = 4.0
# Kinesis serves 2 MiB a second and answers a larger page by refusing the shard until the debt is paid off. A
# twentieth less, because its count (keys included) and its clock are not ours.
BYTES_PER_SECOND: Final = 1.9 * 1024 * 1024
# An empty shard is asked once a second: that leaves four fifths of the shard's reads to others.
IDLE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class ShardLimits:
    """What a shard grants one consumer. `unlimited()` is for emulators and benchmarks that set no limits."""

    reads_per_second: float = READS_PER_SECOND
    bytes_per_second: float = BYTES_PER_SECOND
    idle_seconds: float = IDLE_SECONDS

    @classmethod
    def unlimited(cls, idle_seconds: float = 0.05) -> "ShardLimits":
        return cls(reads_per_second=1e6, bytes_per_second=1e15, idle_seconds=idle_seconds)

    def wait_after(self, page_bytes: int, *, is_at_tip: bool) -> float:
        """Seconds to leave the shard alone after a page, counted from when the page was asked for."""
        if is_at_tip:
            return max(self.idle_seconds, 1 / self.reads_per_second)
        return max(1 / self.reads_per_second, page_bytes / self.bytes_per_second)


class Allowance:
    """The budget of a batch, shared by the readers of one task.

    Not thread-safe by itself: two readers that spend at once may both go over the edge by a page, which is all a
    budget promises anyway.
    """

    def __init__(self, records: int, bytes_: int, readers: int) -> None:
        self._records = records
        self._bytes = bytes_
        self._page_records = max(records // max(readers, 1), 1)
        self._page_bytes = max(bytes_ // max(readers, 1), 1)

    @property
    def is_spent(self) -> bool:
        return self._records <= 0 or self._bytes <= 0

    def spend(self, records: int, bytes_: int) -> None:
        self._records -= records
        self._bytes -= bytes_

    def page_limit(self, record_bytes: float, most: int) -> int:
        """How many records to ask for, so that readers who ask at once stay near the budget together."""
        by_bytes = int(min(self._page_bytes, self._bytes) / max(record_bytes, 1.0))
        return max(1, min(most, self._page_records, self._records, by_bytes))
