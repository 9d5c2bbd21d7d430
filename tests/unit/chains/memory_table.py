"""A table in memory, and what happens between two operations on it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kcl_dagster.chains.entry import PublishingEntry
from kcl_dagster.errors import SinkError
from kcl_dagster.tables.completeness_row import WrittenThrough
from tests.unit.chains.memory import MemoryFiles


@dataclass
class TableState:
    """What all processes see."""

    numbers: dict[str, int] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    """The files of the table, in the order in which they were committed."""

    commits: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    refuses: str | None = None
    """Set by who alters the table by hand: no commit fits into it."""


@dataclass
class MemoryTable:
    """The table as one process uses it: its moments are those of `files`."""

    state: TableState
    files: MemoryFiles
    complete: list[WrittenThrough | None] = field(default_factory=list)

    def committed(self, application: str) -> int:
        self.files._moment()
        return self.state.numbers.get(application, 0)

    def commit(
        self, application: str, number: int, entries: Sequence[PublishingEntry], complete: WrittenThrough | None
    ) -> None:
        """As Delta: a writer that read an older version is refused if the application has committed since."""
        read = self.state.numbers.get(application, 0)
        self.files._moment()
        if self.state.refuses is not None:
            raise SinkError(self.state.refuses)
        if self.state.numbers.get(application, 0) != read:
            raise SinkError("another process has committed")
        if read >= number:
            return
        paths = tuple(file.path for entry in entries for file in entry.files)
        self.state.numbers[application] = number
        self.state.paths.extend(paths)
        self.state.commits.append((number, paths))
        self.complete.append(complete)
        self.files._moment()

    def discard(self, paths: Sequence[str]) -> None:
        self.files.delete(paths)
