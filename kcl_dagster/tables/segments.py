"""How many segments a scan of the lease table is cut into."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kcl_dagster.errors import KclError
from kcl_dagster.runtime import Clock

_BYTES_PER_SEGMENT: Final = 0.2 * 1024**3  # one segment reads this in a few seconds
_MAX_SEGMENTS: Final = 32
_SEGMENTS_WHEN_UNKNOWN: Final = 10
_REMEMBERED_SECONDS: Final = 2 * 3600.0  # DynamoDB itself updates TableSizeBytes only every six hours


def segments_for(table_bytes: int) -> int:
    return min(max(math.ceil(table_bytes / _BYTES_PER_SEGMENT), 1), _MAX_SEGMENTS)


@dataclass(slots=True)
class ScanSegments:
    """The configured number, used as it is, or one that follows the table's size."""

    configured: int
    table_bytes: Callable[[], int]
    clock: Clock
    _known: int | None = field(default=None, init=False)
    _known_at: float = field(default=0.0, init=False)

    def current(self) -> int:
        """Asks for the table's size at most every two hours; never raises on account of it."""
        if self.configured > 0:
            return self.configured
        if self._known is None or self.clock.monotonic() - self._known_at >= _REMEMBERED_SECONDS:
            try:
                self._known = segments_for(self.table_bytes())
            except KclError:
                return _SEGMENTS_WHEN_UNKNOWN
            self._known_at = self.clock.monotonic()
        return self._known
