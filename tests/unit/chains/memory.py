"""Files in memory, and what happens between two operations on them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kcl_dagster.spark.storage import StoredFile

Moment = Callable[[], object]
"""What happens at a moment: another process works, or this one ends by raising."""


class Killed(BaseException):
    """The process ended."""


@dataclass
class MemoryFiles:
    """Operations are counted: before and after each single change there is a moment at which something else may
    happen, see `at`. While it happens, no further moments come."""

    root: str = "memory"
    content: dict[str, bytes] = field(default_factory=dict)
    at: dict[int, Moment] = field(default_factory=dict)
    moments: int = 0
    now: float = 1_000_000.0
    clock: Callable[[], float] | None = None
    """Where set, `now` does not count."""

    times: dict[str, float] = field(default_factory=dict)
    _is_interrupted: bool = False

    def _moment(self) -> None:
        if self._is_interrupted:
            return
        self.moments += 1
        happens = self.at.pop(self.moments, None)
        if happens is None:
            return
        self._is_interrupted = True
        try:
            happens()
        finally:
            self._is_interrupted = False

    def _time(self) -> float:
        return self.now if self.clock is None else self.clock()

    def put(self, path: str, content: bytes) -> None:
        self._moment()
        self.content[path] = content
        self.times[path] = self._time()
        self._moment()

    def create(self, path: str, content: bytes) -> bool:
        self._moment()
        is_new = path not in self.content
        if is_new:
            self.content[path] = content
            self.times[path] = self._time()
        self._moment()
        return is_new

    def get(self, path: str) -> bytes:
        self._moment()
        if path not in self.content:
            raise FileNotFoundError(path)
        return self.content[path]

    def files(self, prefix: str = "", *, hidden: bool = False) -> Iterator[StoredFile]:
        self._moment()
        found = [path for path in sorted(self.content) if path.startswith(prefix)]
        self._moment()
        for path in found:
            if hidden or not path.startswith("_"):
                yield StoredFile(path, len(self.content.get(path, b"")), self.times[path])

    def remove_empty(self, folder: str) -> None:
        pass

    def unfinished(self, prefix: str = "") -> Iterator[StoredFile]:
        return iter(())

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._moment()
            self.content.pop(path, None)
        self._moment()

    def move(self, names: Mapping[str, str]) -> list[str]:
        """As S3 does it: all copies, then all deletes."""
        missing = []
        for path, to in names.items():
            self._moment()
            if path in self.content:
                self.content[to] = self.content[path]
                self.times[to] = self._time()
            else:
                missing.append(path)
        self.delete([path for path in names if path not in missing])
        return missing

    def published(self) -> set[str]:
        return {path for path in self.content if not path.startswith("_")}

    def staged(self) -> set[str]:
        return {path for path in self.content if path.startswith("_staged/")}
