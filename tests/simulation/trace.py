"""The trace of a run, for engineers and for comparison."""

import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

KEPT_LINES: Final = 4000


@dataclass(slots=True)
class Trace:
    """The notes of a run. `digest` covers every note, also those that are not kept."""

    keep: bool = False
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    digest: int = 0
    count: int = 0

    def note(self, now: float, kind: str, text: str) -> None:
        line = f"{now:12.3f}  {kind:<9} {text}"
        self.digest = zlib.crc32(line.encode(), self.digest)
        self.count += 1
        if self.keep:
            self.lines.append(line)

    def detail(self, now: float, kind: str, text: Callable[[], str]) -> None:
        """Like `note`, for frequent events: their text is made only if the trace is kept."""
        self.count += 1
        if self.keep:
            self.lines.append(f"{now:12.3f}  {kind:<9} {text()}")
