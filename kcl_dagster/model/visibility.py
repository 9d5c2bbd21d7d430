"""Computes how long batches and the intervals between commits may be, so that records become visible within the
required time. Pure."""

from dataclasses import dataclass
from typing import Final

from kcl_dagster.application import BatchSettings

SHORTEST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 3600.0
# The longest batch for a table. A table does not need long batches to get large files, because a commit contains
# many batches, and compactions merge files.
LONGEST_BATCH_SECONDS: Final = 60.0

# Parts of the time within which a record has to become visible. The rest is for the transform and for storing.
BATCH_OF_FOLDER: Final = 3 / 5
BATCH_OF_TABLE: Final = 1 / 6
COMMIT_OF_TABLE: Final = 2 / 3
IDLE: Final = 1 / 20  # the pause if there is nothing to read, up to one second


@dataclass(frozen=True, slots=True)
class Pace:
    batch_seconds: float
    idle_seconds: float
    commit_seconds: float | None = None
    """Seconds between two commits. None if each batch becomes visible by itself."""

    @classmethod
    def of(cls, visible_within: float, *, commits: bool) -> "Pace":
        """Derive the duration of batches, the pause if there is nothing to read, and the interval between commits.
        `visible_within`: the seconds within which a record has to become visible. `commits`: whether many batches
        become visible with one commit of a table."""
        idle = min(visible_within * IDLE, BatchSettings().idle_seconds)
        if not commits:
            return cls(visible_within * BATCH_OF_FOLDER, idle)
        batch = min(visible_within * BATCH_OF_TABLE, LONGEST_BATCH_SECONDS)
        return cls(batch, idle, visible_within * COMMIT_OF_TABLE)
