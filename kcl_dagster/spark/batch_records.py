"""The records of a batch as a sink receives them: as files that the fetch has staged, and as a DataFrame for user
code."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from pyspark.sql import DataFrame

from kcl_dagster.spark.staged_ranges import StagedRecords
from kcl_dagster.spark.task_slices import Work


@dataclass(slots=True)
class Records:
    """The records of a batch. `staged`: the files that the fetch has staged (written, but not made visible), for
    sinks that can take them. None if a fetch of the batch has staged no files.

    `frame` is made only at its first use, because many sinks only move the staged files and never use `frame`.
    Spark would need more time to make a DataFrame than such a sink needs to move the files.
    """

    staged: StagedRecords | None
    _make: Callable[[], DataFrame]
    worked: Callable[[Work], None] = field(default=lambda _: None)
    """Called by sinks with the time that a job needed to process and write the records."""

    _frame: DataFrame | None = field(default=None, init=False)

    @classmethod
    def of(cls, frame: DataFrame) -> Self:
        return cls(None, lambda: frame)

    @property
    def frame(self) -> DataFrame:
        """The records as a DataFrame. Each call returns the same object."""
        if self._frame is None:
            self._frame = self._make()
        return self._frame
