"""The consumer's code: what a transform derives from a record, by what the lake is partitioned, and which columns
the output has. A deploy changes it during a run.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

KIND: Final = "kind"
SCHEMA: Final = "schema"
PARTITIONINGS: Final[tuple[tuple[str, ...], ...]] = ((KIND,), (), (KIND, SCHEMA))
WHOLE: Final = "bigint"
TEXT: Final = "string"


class Change(StrEnum):
    """What a deploy changes."""

    VALUES = "other partition values"
    PARTITIONING = "another partitioning"
    COLUMN_ADDED = "a column added"
    TYPE_CHANGED = "a type changed"  # the lake refuses every batch
    VALUES_TOO_LONG = "values too long"  # for a folder's name: batches with such a record are refused

    @property
    def is_sound(self) -> bool:
        return self not in (Change.TYPE_CHANGED, Change.VALUES_TOO_LONG)


@dataclass(frozen=True, slots=True)
class CodeVersion:
    """One version of the code. A worker has the one that was current when it started."""

    shift: int = 0
    """By how many places the partition value of each record differs from the one of the first version."""

    partition_by: tuple[str, ...] = PARTITIONINGS[0]
    columns: tuple[tuple[str, str], ...] = (("amount", WHOLE),)
    """Name and type of the columns that are no partition column."""

    has_long_values: bool = False

    @property
    def is_sound(self) -> bool:
        """Whether the lake accepts everything."""
        return not self.has_long_values and dict(self.columns)["amount"] == WHOLE

    def changed(self, change: Change) -> "CodeVersion":
        """The next version, in which the defects of this one are mended."""
        added = self.columns[1:]
        mended = replace(self, columns=(("amount", WHOLE), *added), has_long_values=False)
        match change:
            case Change.VALUES:
                return replace(mended, shift=self.shift + 1)
            case Change.PARTITIONING:
                following = PARTITIONINGS.index(self.partition_by) + 1
                return replace(mended, partition_by=PARTITIONINGS[following % len(PARTITIONINGS)])
            case Change.COLUMN_ADDED:
                return replace(mended, columns=(*mended.columns, (f"added {len(added) + 1}", TEXT)))
            case Change.TYPE_CHANGED:
                return replace(mended, columns=(("amount", TEXT), *added))
            case Change.VALUES_TOO_LONG:
                return replace(mended, has_long_values=True)


FIRST_VERSION: Final = CodeVersion()
