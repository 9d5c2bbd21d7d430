"""When records of each shard were stored, seen from outside: as a reader of the lake that looks all the time."""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pyarrow.parquet as parquet

from demo.stored_rows import data_files

LOOK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Gap:
    """A shard of which nothing was stored between two moments."""

    shard: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def middle(self) -> float:
        return (self.start + self.end) / 2


@dataclass
class Silence:
    """The times at which records of a shard became visible, and the gaps between them. Pure."""

    gaps: list[Gap] = field(default_factory=list)
    _last: dict[str, float] = field(default_factory=dict)

    def stored(self, shards: Iterable[str], now: float) -> None:
        for shard in shards:
            if shard in self._last:
                self.gaps.append(Gap(shard, self._last[shard], now))
            self._last[shard] = now

    def longest(self, start: float, end: float) -> float:
        """Seconds of the longest gap whose middle lies between the moments: what ends a phase begins the next one,
        and a gap counts where most of it is. A gap that nothing has ended yet counts up to `end`."""
        still = (Gap(shard, last, end) for shard, last in self._last.items() if last < end)
        return max((gap.seconds for gap in (*self.gaps, *still) if start <= gap.middle < end), default=0.0)

    @property
    def last(self) -> dict[str, float]:
        """When each shard's records were stored the last time."""
        return dict(self._last)


class Arrivals:
    """Looks at one table on a thread of its own, because questions to Dagster may wait for seconds."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._files: set[Path] = set()
        self._lock = threading.Lock()
        self._silence = Silence()
        self._rows = 0
        self._releases: dict[str, int] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def rows(self) -> int:
        with self._lock:
            return self._rows

    def releases(self) -> dict[str, int]:
        """By shard: the release that stored its latest records."""
        with self._lock:
            return dict(self._releases)

    def stored_since(self, moment: float, shards: int) -> bool:
        """Whether records of that many shards were stored after the moment."""
        with self._lock:
            return sum(at > moment for at in self._silence.last.values()) >= shards

    def longest_silence(self, start: float, end: float) -> float:
        with self._lock:
            return self._silence.longest(start, end)

    def _run(self) -> None:
        while not self._end.wait(LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        for path in sorted(data_files(self._table), key=str):
            if path in self._files:
                continue
            try:
                found = parquet.ParquetFile(path).read(columns=["shard_id", "release"])
            except (OSError, ValueError):
                continue  # replaced meanwhile; it is seen at the next look
            shards, releases = (found.column(name).to_pylist() for name in ("shard_id", "release"))
            with self._lock:
                self._files.add(path)
                self._rows += found.num_rows
                self._silence.stored(sorted(set(shards)), time.monotonic())
                self._releases.update(zip(shards, releases, strict=True))
