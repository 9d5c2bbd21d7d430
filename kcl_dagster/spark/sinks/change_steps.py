"""Divides the entries of a commit of change rows into steps. Each step is one commit to the table.

There is nearly always one step. More steps are needed if entries follow different rules. More steps are also needed
if the entries together have more than STEP_BYTES or STEP_ROWS, because all changes of a step are in memory at the
same time. The table records with each step how many entries were applied. So each step is made once, even if the
worker ends between two steps, or several workers make the same step at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kcl_dagster.chains.entry import PublishingEntry
from kcl_dagster.chains.store import FileStore, found_content
from kcl_dagster.errors import SinkError
from kcl_dagster.model.change_rules import ChangeRules

STEP_BYTES: Final = 64 << 20  # of compressed files of changes; in memory they are about five times as large
STEP_ROWS: Final = 5_000_000


def holds_changes(entry: PublishingEntry) -> bool:
    """Whether the files of an entry contain change rows."""
    return entry.rules is not None and entry.rules.changes is not None


@dataclass(frozen=True, slots=True)
class MergeStep:
    """Entries that are applied together. `through`: the number of entries of the commit that the table contains
    after the step."""

    entries: tuple[PublishingEntry, ...]
    through: int

    @property
    def changes(self) -> ChangeRules | None:
        """The rules of the changes. None: the files are added to the table unchanged."""
        rules = self.entries[0].rules if self.entries else None
        return None if rules is None else rules.changes

    @property
    def done(self) -> int:
        """The number of entries of the commit that the table contains before the step."""
        return self.through - len(self.entries)

    def contents(self, files: FileStore, table: str) -> list[bytes]:
        """The contents of the step's files, in order. Raises SinkError if a file is missing."""
        found = []
        for entry in self.entries:
            for file in entry.files:
                content = found_content(files, file.path)
                if content is None:
                    raise SinkError(
                        f"{table}: {file.path} is missing, whose changes were decided and are not in the table. "
                        "Put it back; or stop the workers, remove _chains and _commits, and reset the leases"
                    )
                found.append(content)
        return found


def steps(
    entries: Sequence[PublishingEntry], done: int = 0, most_bytes: int = STEP_BYTES, most_rows: int = STEP_ROWS
) -> list[MergeStep]:
    """Divide the entries after the first `done` ones into steps. One entry is never divided, however large it
    is."""
    found: list[list[PublishingEntry]] = []
    size = rows = 0
    for entry in entries[done:]:
        size += sum(file.bytes for file in entry.files)
        rows += sum(file.rows for file in entry.files)
        is_full = holds_changes(entry) and (size > most_bytes or rows > most_rows)
        if not found or is_full or _kind(found[-1][-1]) != _kind(entry):
            found.append([])
            size = sum(file.bytes for file in entry.files)
            rows = sum(file.rows for file in entry.files)
        found[-1].append(entry)
    through = done
    made = []
    for one in found:
        through += len(one)
        made.append(MergeStep(tuple(one), through))
    return made


def _kind(entry: PublishingEntry) -> tuple[ChangeRules | None, str | None]:
    """The rules and the schema of an entry's changes; both are None without changes. Only consecutive entries with
    the same result are in one step. The schema counts, because a change row sets only the columns that the output
    of its batch had."""
    if entry.rules is None or entry.rules.changes is None:
        return None, None
    return entry.rules.changes, entry.rules.schema
